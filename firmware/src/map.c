/*
 * map.c - where blocks lie on storage that the board has laid out itself.
 *
 * The runtime numbers blocks as a host lays out a card (poet.h), with gaps of
 * up to 4 MiB. Storage that the board lays out has no such gaps. Its areas
 * follow one another, and each begins a unit, which is an erase unit or more:
 *
 *   poet_store | commit record | commit record | runs ... | pages | own blocks
 *
 * A run is several stored tensors of one place that follow one another in a
 * slot; its slots follow one another. The pages are the last run of tensors;
 * the application's own blocks are a run too. Thus an erase or a cut write
 * damages one object only, or one slot.
 *
 * State: `runs` of struct poet, the two runs that were last found in the
 * records of the program. poet_check_storage forgets them.
 */
#include <string.h>

#include "runtime.h"

#if POET_LIBRARY

struct walk {
  const struct poet_program *program;
  struct poet_model model;
  uint32_t unit;
  uint32_t number;     /* of the next tensor to look at: see read_tensor */
  uint64_t end;        /* of the areas so far */
  uint32_t own_blocks; /* of the application, if they are still to be found */
};

static bool take(const struct poet_program *program, uint32_t offset, void *to,
                 uint32_t size) {
  if (offset > program->model_bytes || size > program->model_bytes - offset) {
    return false;
  }
  memcpy(to, program->model + offset, size);
  return true;
}

static void start(struct walk *walk, const struct poet_program *program,
                  uint32_t unit) {
  *walk = (struct walk){.program = program,
                        .unit = unit,
                        .end = (uint64_t)3 * unit,
                        .own_blocks = program->own_blocks};
  if (!take(program, 0, &walk->model, sizeof walk->model)) {
    walk->model.tensor_count = walk->model.stored_count = 0;
  }
}

/* Read the record of the next tensor. The stored tensors that share blocks come
 * after the others, as their blocks do. Return false if the tensor has no
 * blocks in this order. */
static bool read_tensor(const struct walk *walk, struct poet_tensor *tensor,
                        struct poet_pieces *pieces) {
  const struct poet_model *model = &walk->model;
  const uint32_t stored = model->stored_count;
  const bool again = walk->number >= stored;
  const uint32_t i = again ? walk->number - stored : walk->number;
  if (!take(walk->program, (uint32_t)(sizeof *model + i * sizeof *tensor),
            tensor, sizeof *tensor)) {
    return false;
  }
  if (i < stored ? tensor->place == POET_PLACE_NONE ||
                       (tensor->place == POET_PLACE_INPUT &&
                        (model->flags & POET_MODEL_IN_RAM)) ||
                       again != ((tensor->flags & POET_FLAG_SHARED) != 0)
                 : tensor->place != POET_PLACE_PAGE) {
    return false;
  }
  const uint32_t offset = poet_cut_offset(model, tensor);
  return (!offset ||
          take(walk->program, offset, &pieces->cut, sizeof pieces->cut)) &&
         !poet_measure(model, tensor, pieces);
}

/* Find the next run of tensors, and return false if there is none. */
static bool next_of_tensors(struct walk *walk, struct poet_run *run) {
  const uint32_t count =
      (uint32_t)walk->model.tensor_count + walk->model.stored_count;
  uint32_t first = walk->number ? UINT32_MAX : 0, end = 0;
  uint8_t place = POET_PLACE_NONE;
  struct poet_tensor tensor;
  struct poet_pieces pieces;
  for (; walk->number < count; walk->number++) {
    if (read_tensor(walk, &tensor, &pieces)) {
      if (place != POET_PLACE_NONE && place != tensor.place) {
        break;
      }
      const uint32_t after = tensor.block + pieces.blocks;
      place = tensor.place;
      first = tensor.block < first ? tensor.block : first;
      end = after > end ? after : end;
    }
  }
  if (place == POET_PLACE_NONE) {
    return false;
  }
  run->first = first;
  run->count = end - first;
  run->at = (uint32_t)walk->end;
  run->stride = poet_divided_up(run->count, walk->unit) * walk->unit;
  run->slots = place == POET_PLACE_CURRENT ? poet_slots(&walk->model)
               : place == POET_PLACE_INPUT ? 2
                                           : 1;
  walk->end += (uint64_t)run->slots * run->stride;
  return true;
}

/* Find the next run, and return false if there is none. The application's own
 * blocks are the last run. */
static bool next_run(struct walk *walk, struct poet_run *run) {
  if (next_of_tensors(walk, run)) {
    return true;
  }
  run->first = POET_OWN_BLOCK - POET_DATA_BLOCK;
  run->count = run->stride = walk->own_blocks;
  run->at = (uint32_t)walk->end;
  run->slots = 1;
  walk->end += walk->own_blocks;
  walk->own_blocks = 0;
  return run->count != 0;
}

uint32_t poet_least_blocks(const struct poet_program *program,
                           uint32_t erase_blocks) {
  struct walk walk;
  struct poet_run run;
  start(&walk, program, erase_blocks ? erase_blocks : 1);
  while (next_run(&walk, &run)) {
  }
  return walk.end < UINT32_MAX ? (uint32_t)walk.end : UINT32_MAX;
}

/* Find a block of the data area in a run. */
static bool is_in(const struct poet *p, const struct poet_run *run,
                  uint32_t block, uint32_t *at) {
  for (uint32_t slot = 0; slot < run->slots; slot++) {
    const uint32_t within = block - run->first - slot * p->model.slot_stride;
    if (within < run->count) {
      *at = run->at + slot * run->stride + within;
      return true;
    }
  }
  return false;
}

/* Find a block, and let the first of `runs` be its run. */
static uint32_t data_place(struct poet *p, uint32_t block) {
  struct walk walk;
  struct poet_run run = p->runs[1];
  uint32_t at;
  if (is_in(p, &p->runs[0], block, &at)) {
    return at;
  }
  if (!is_in(p, &run, block, &at)) {
    start(&walk, p->program, p->store.unit_blocks);
    do {
      if (!next_run(&walk, &run)) {
        return POET_NO_BLOCK;
      }
    } while (!is_in(p, &run, block, &at));
  }
  p->runs[1] = p->runs[0];
  p->runs[0] = run;
  return at;
}

/* Return 0 if a host has laid out the storage, or may do so. */
static uint32_t unit_of(const struct poet *p) {
  return p->program && !poet_is_card(p) ? p->store.unit_blocks : 0;
}

uint32_t poet_storage_block(struct poet *p, uint32_t block) {
  const uint32_t unit = unit_of(p);
  if (!unit && block >= POET_OWN_BLOCK) {
    return p->partition + p->store.total_blocks - p->program->own_blocks +
           (block - POET_OWN_BLOCK);
  }
  if (!unit || !block) {
    return p->partition + block;
  }
  if (block < POET_DATA_BLOCK) { /* a commit record */
    return p->partition + block / POET_UNIT_BLOCKS * unit;
  }
  const uint32_t at = data_place(p, block - POET_DATA_BLOCK);
  return at == POET_NO_BLOCK ? at : p->partition + at;
}

int poet_erase_blocks(struct poet *p, uint32_t block, uint32_t count) {
  const uint32_t at = poet_storage_block(p, block);
  const bool own = block >= POET_OWN_BLOCK;
  const uint32_t unit = own ? p->port->erase_blocks : unit_of(p);
  uint32_t part = p->slices.is_sliced ? POET_ERASE_BLOCKS : count;
  int error = at == POET_NO_BLOCK;
  if (unit && block >= POET_DATA_BLOCK &&
      !own) { /* a slot, not all of its stride */
    count = p->runs[0].count;
  }
  if (unit) {
    part = unit;
  }
  for (uint32_t i = poet_cursor(p); i < count && !error; i += part) {
    error = p->port->erase(p->port->context, at + i,
                           unit || part < count - i ? part : count - i);
    if (!error && poet_pauses_at(p, i + part)) {
      return POET_BUSY;
    }
  }
  return error ? POET_ERROR_storage_failed : 0;
}

#endif
