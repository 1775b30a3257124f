/*
 * tensors.c - bytes of a tensor on storage, piece by piece.
 *
 * State: arriving, the slot of a tensor whose bytes arrive, in order.
 * poet_write_pieces sets it. It is valid until bytes of another tensor arrive.
 * The CRCs in trailers are those of the bytes that the host has sent: a CRC of
 * what the card holds would hide a write that the card has not made.
 */
#include "runtime.h"

/* A slot of a tensor, or its home in place of the slot, as a number. */
static uint32_t slot_of(const struct poet *p, const struct poet_object *object,
                        uint16_t number) {
  const uint32_t first = POET_DATA_BLOCK + object->tensor.block;
  const uint32_t slot = poet_slot(p, &object->tensor, object->next);
  return number | (slot == first ? 0 : 1u << 16);
}

/* Write bytes of a piece. The last byte completes the piece. */
static POET_CHECKED int write_piece(struct poet *p,
                                    const struct poet_piece *piece,
                                    uint32_t offset, const void *from,
                                    uint32_t size) {
  TRY(poet_fill(p, piece, offset - piece->offset, from, size));
  p->arriving.crc =
      poet_crc(offset == piece->offset ? 0 : p->arriving.crc, from, size);
  p->arriving.offset = offset + size;
  if (p->arriving.offset < piece->offset + piece->size_bytes) {
    return 0;
  }
  const uint32_t trailer[2] = {p->arriving.crc, piece->owner};
  p->arriving.digest ^= poet_crc(0, trailer, sizeof trailer);
  return poet_seal(p, piece, p->arriving.crc);
}

int poet_expect(struct poet *p, const struct poet_object *object,
                uint16_t number, uint32_t offset, uint32_t size) {
  const uint32_t slot = slot_of(p, object, number);
  if (!offset) {
    p->arriving.slot = slot;
    p->arriving.offset = p->arriving.digest = 0;
  }
  if (p->arriving.slot != slot ||
      (offset != p->arriving.offset && offset + size > p->arriving.offset)) {
    return poet_fail(p, POET_ERROR_out_of_order, number);
  }
  return 0;
}

int poet_write_pieces(struct poet *p, const struct poet_object *object,
                      uint16_t number, uint32_t offset, const uint8_t *from,
                      uint32_t size) {
  struct poet_pieces pieces;
  struct poet_piece piece;
  TRY(poet_expect(p, object, number, offset, size));
  if (offset < p->arriving.offset) { /* the host has repeated its request */
    return 0;
  }
  TRY(poet_read_pieces(p, &object->tensor, &pieces));
  while (size) {
    poet_piece(p, &object->tensor, &pieces, poet_piece_at(&pieces, offset),
               object->next, &piece);
    const uint32_t left = piece.offset + piece.size_bytes - offset;
    const uint32_t part = poet_slice_bytes(p, piece.at + offset - piece.offset,
                                           left < size ? left : size);
    TRY(write_piece(p, &piece, offset, from, part));
    offset += part;
    from += part;
    size -= part;
    if (poet_pauses_within(p, offset, 0) && size) {
      return POET_BUSY;
    }
  }
  return 0;
}

int poet_get_pieces(struct poet *p, const struct poet_object *object,
                    uint32_t offset, uint8_t *to, uint32_t size,
                    uint32_t *crc) {
  struct poet_pieces pieces;
  struct poet_piece piece;
  TRY(poet_read_pieces(p, &object->tensor, &pieces));
  while (size) {
    poet_piece(p, &object->tensor, &pieces, poet_piece_at(&pieces, offset),
               object->next, &piece);
    const uint32_t at = piece.at + offset - piece.offset;
    const uint32_t left = piece.offset + piece.size_bytes - offset;
    const uint32_t part = left < size ? left : size;
    if (to) {
      TRY(poet_get(p, piece.block, at, to, part));
      to += part;
    }
    if (crc) {
      TRY(poet_crc_stored(p, piece.block, at, part, crc));
    }
    offset += part;
    size -= part;
  }
  return 0;
}

/* Copy the bytes of a piece from the same bytes of block `from`. */
static POET_CHECKED int
copy_shared(struct poet *p, const struct poet_piece *piece, uint32_t from) {
  uint32_t words[8];
  for (uint32_t at = 0; at < piece->size_bytes; at += sizeof words) {
    const uint32_t left = piece->size_bytes - at;
    const uint32_t size = left < sizeof words ? left : sizeof words;
    TRY(poet_get(p, from, piece->at + at, words, size));
    TRY(poet_fill(p, piece, at, words, size));
  }
  return 0;
}

int poet_carry(struct poet *p, uint32_t number,
               const struct poet_tensor *tensor, uint32_t next) {
  const uint32_t from = poet_slot(p, tensor, 0);
  const uint32_t to = poet_slot(p, tensor, next);
  struct poet_pieces pieces;
  struct poet_piece piece;
  TRY(poet_verify(p, number, tensor, false));
  TRY(poet_read_pieces(p, tensor, &pieces));
  for (uint32_t i = 0; i < pieces.blocks && from != to && !pieces.shared; i++) {
    TRY(poet_copy_block(p, from + i, to + i));
  }
  for (uint32_t i = 0; i < pieces.count; i++) {
    uint32_t trailer[2];
    poet_piece(p, tensor, &pieces, i, 0, &piece);
    TRY(poet_read_trailer(p, &piece, trailer));
    poet_piece(p, tensor, &pieces, i, next, &piece);
    if (piece.shared) {
      TRY(copy_shared(p, &piece, from));
    }
    TRY(poet_seal(p, &piece, trailer[0]));
  }
  return poet_settle(p);
}
