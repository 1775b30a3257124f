/*
 * pieces.c - the pieces of a tensor, and where they lie in a slot.
 *
 * This file keeps no state. A tensor may be cut into parts along up to three
 * axes. The parts are dense and follow one another, in RAM and on storage. A
 * piece is one part or several parts in a row. Each piece begins a block of
 * its own and has its own trailer. A tensor without a cut is one piece.
 *
 *   one piece:       | data ... | rest of data, 0, trailer |
 *   several pieces:  | piece 0 ... | piece 1 ... | ... | trailers |
 *   small tensors:   | data, trailer, data, trailer, ... |
 *
 * The records come from storage and may be damaged after the load. So
 * poet_measure checks each cut that is read: then every piece lies within its
 * tensor. It also checks that all slots lie in the data area.
 */
#include "runtime.h"

uint32_t poet_tensor_blocks(uint32_t size_bytes) {
  return size_bytes / POET_BLOCK +
         poet_divided_up(size_bytes % POET_BLOCK + POET_TRAILER, POET_BLOCK);
}

static bool cut_is_sound(const struct poet_cut *cut, uint32_t size_bytes) {
  uint64_t size = cut->unit_bytes;
  for (uint32_t i = 0; i < POET_CUT_AXES; i++) {
    if (!cut->part[i] || cut->part[i] > cut->size[i] || size > size_bytes) {
      return false;
    }
    size *= cut->size[i];
  }
  return size == size_bytes && cut->unit_bytes && cut->unit_bytes % 4 == 0 &&
         cut->piece_parts && !cut->zero;
}

bool poet_is_row_major(const struct poet_cut *cut) {
  bool one = true; /* parts have one index along all axes so far */
  for (uint32_t i = 0; i < POET_CUT_AXES; i++) {
    if (cut->part[i] < cut->size[i] && !one) {
      return false;
    }
    one &= cut->part[i] == 1;
  }
  return true;
}

/* Return the number of a tensor's bytes before part `number`. */
static uint32_t bytes_before(const struct poet_cut *cut, uint32_t number) {
  const uint32_t parts[POET_CUT_AXES] = {
      0, poet_divided_up(cut->size[1], cut->part[1]),
      poet_divided_up(cut->size[2], cut->part[2])};
  const uint32_t index[POET_CUT_AXES] = {number / (parts[1] * parts[2]),
                                         number / parts[2] % parts[1],
                                         number % parts[2]};
  uint32_t before = 0, rows = 1; /* rows: of this part, along earlier axes */
  uint32_t below = cut->unit_bytes * cut->size[1] * cut->size[2];
  for (uint32_t i = 0; i < POET_CUT_AXES; i++) {
    uint32_t first = index[i] * cut->part[i];
    if (first > cut->size[i]) {
      first = cut->size[i]; /* after the last part */
    }
    const uint32_t left = cut->size[i] - first;
    before += rows * first * below;
    rows *= left < cut->part[i] ? left : cut->part[i];
    below /= i + 1 < POET_CUT_AXES ? cut->size[i + 1] : 1;
  }
  return before;
}

static bool slots_are_in_data_area(const struct poet_model *model,
                                   const struct poet_tensor *tensor,
                                   uint32_t blocks) {
  const bool current =
      tensor->place == POET_PLACE_CURRENT || tensor->place == POET_PLACE_NEXT;
  const uint32_t later = current ? poet_slots(model) - 1
                         : tensor->place == POET_PLACE_INPUT ? 1
                                                             : 0;
  return tensor->place == POET_PLACE_NONE ||
         (tensor->place == POET_PLACE_INPUT &&
          (model->flags & POET_MODEL_IN_RAM)) ||
         (uint64_t)later * model->slot_stride + tensor->block + blocks <=
             model->data_blocks;
}

int poet_measure(const struct poet_model *model,
                 const struct poet_tensor *tensor, struct poet_pieces *pieces) {
  struct poet_cut *cut = &pieces->cut;
  pieces->shared = (tensor->flags & POET_FLAG_SHARED) != 0;
  pieces->at = pieces->shared ? tensor->at : 0;
  if (pieces->shared || !tensor->cut) {
    *cut = (struct poet_cut){tensor->size_bytes, {1, 1, 1}, {1, 1, 1}, 1, 0};
  }
  if (pieces->shared
          ? tensor->at % 4 || tensor->size_bytes > POET_BLOCK ||
                tensor->at + tensor->size_bytes + POET_TRAILER > POET_BLOCK
          : tensor->cut > model->cut_count) {
    return POET_ERROR_bad_table;
  }
  pieces->stride_blocks = pieces->trailer_block = 0;
  if (!cut_is_sound(cut, tensor->size_bytes)) {
    return POET_ERROR_bad_table;
  }
  uint32_t parts = 1;
  for (uint32_t i = 0; i < POET_CUT_AXES; i++) {
    parts *= poet_divided_up(cut->size[i], cut->part[i]);
  }
  pieces->count = poet_divided_up(parts, cut->piece_parts);
  if (pieces->count == 1) {
    pieces->blocks = poet_tensor_blocks(tensor->size_bytes);
  } else {
    pieces->stride_blocks =
        poet_divided_up(bytes_before(cut, cut->piece_parts), POET_BLOCK);
    const uint32_t last =
        bytes_before(cut, (pieces->count - 1) * cut->piece_parts);
    pieces->trailer_block =
        (pieces->count - 1) * pieces->stride_blocks +
        poet_divided_up(tensor->size_bytes - last, POET_BLOCK);
    pieces->blocks =
        pieces->trailer_block + poet_divided_up(pieces->count, POET_IN_BLOCK);
  }
  return slots_are_in_data_area(model, tensor, pieces->blocks)
             ? 0
             : POET_ERROR_bad_table;
}

void poet_piece_in_slot(const struct poet_pieces *pieces, uint32_t number,
                        struct poet_piece *piece) {
  const struct poet_cut *cut = &pieces->cut;
  const uint32_t parts = cut->piece_parts;
  const uint32_t size_bytes =
      (uint32_t)cut->unit_bytes * cut->size[0] * cut->size[1] * cut->size[2];
  piece->number = number;
  piece->offset = bytes_before(cut, number * parts);
  piece->size_bytes =
      (number + 1 < pieces->count ? bytes_before(cut, (number + 1) * parts)
                                  : size_bytes) -
      piece->offset;
  piece->block = number * pieces->stride_blocks;
  piece->at = pieces->at;
  piece->shared = pieces->shared;
  piece->apart = pieces->count > 1;
  if (piece->shared) {
    piece->trailer_block = 0;
    piece->trailer_offset = piece->at + size_bytes;
  } else if (piece->apart) {
    piece->trailer_block = pieces->trailer_block + number / POET_IN_BLOCK;
    piece->trailer_offset = number % POET_IN_BLOCK * POET_TRAILER;
  } else {
    piece->trailer_block = pieces->blocks - 1;
    piece->trailer_offset = POET_BLOCK - POET_TRAILER;
  }
}

uint32_t poet_piece_at(const struct poet_pieces *pieces, uint32_t offset) {
  uint32_t first = 0, end = pieces->count;
  while (end - first > 1) {
    const uint32_t middle = first + (end - first) / 2;
    if (bytes_before(&pieces->cut, middle * pieces->cut.piece_parts) <=
        offset) {
      first = middle;
    } else {
      end = middle;
    }
  }
  return first;
}
