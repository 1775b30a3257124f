/*
 * tensors.c - bytes of a tensor on storage, piece by piece.
 *
 * State: arriving, the tensor whose bytes arrive in order. poet_write_pieces
 * sets it. It is valid until bytes of another tensor arrive.
 */
#include "runtime.h"

/* Count bytes of a piece that were written. Bytes that come in order give the
 * CRC of what the host sent. Otherwise the CRC must be computed from storage.
 */
static void count_arrival(struct poet *p, uint16_t number,
                          const struct poet_piece *piece, uint32_t offset,
                          const void *from, uint32_t size) {
  if (offset == piece->offset) {
    p->arriving.tensor = number;
    p->arriving.offset = offset;
    p->arriving.crc = 0;
  }
  if (p->arriving.tensor != number) {
    return;
  }
  if (p->arriving.offset == offset) {
    p->arriving.crc = poet_crc(p->arriving.crc, from, size);
    p->arriving.offset += size;
  } else if (p->arriving.offset != offset + size) { /* not the same request */
    p->arriving.tensor = POET_NONE;
  }
}

/* Check that the card has written a trailer. If it has not written the data,
 * their CRC is wrong when they are read. */
static int check_trailer(struct poet *p, uint16_t number,
                         const struct poet_piece *piece, uint32_t crc) {
  uint32_t found[2];
  poet_give_up(p, piece->trailer_block);
  TRY(poet_read_trailer(p, piece, found));
  poet_give_up(p, piece->trailer_block);
  return found[0] == crc && found[1] == piece->owner
             ? 0
             : poet_fail(p, POET_ERROR_page_damaged, number);
}

/* Write bytes of a piece. The last byte completes the piece. */
static int write_piece(struct poet *p, const struct poet_object *object,
                       uint16_t number, const struct poet_piece *piece,
                       uint32_t offset, const void *from, uint32_t size) {
  TRY(poet_fill(p, piece, offset - piece->offset, from, size));
  count_arrival(p, number, piece, offset, from, size);
  if (offset + size < piece->offset + piece->size_bytes) {
    return 0;
  }
  uint32_t crc = p->arriving.crc;
  if (p->arriving.tensor != number) {
    crc = 0;
    TRY(poet_settle(p));
    poet_forget(p, POET_DATA_BLOCK);
    TRY(poet_crc_stored(p, piece->block, piece->at, piece->size_bytes, &crc));
  }
  TRY(poet_seal(p, piece, crc));
  return object->tensor.place == POET_PLACE_INPUT && !object->tensor.cut
             ? check_trailer(p, number, piece, crc)
             : 0;
}

int poet_write_pieces(struct poet *p, const struct poet_object *object,
                      uint16_t number, uint32_t offset, const uint8_t *from,
                      uint32_t size) {
  struct poet_pieces pieces;
  struct poet_piece piece;
  TRY(poet_read_pieces(p, &object->tensor, &pieces));
  while (size) {
    poet_piece(p, &object->tensor, &pieces, poet_piece_at(&pieces, offset),
               object->next, &piece);
    const uint32_t left = piece.offset + piece.size_bytes - offset;
    const uint32_t part = left < size ? left : size;
    TRY(write_piece(p, object, number, &piece, offset, from, part));
    offset += part;
    from += part;
    size -= part;
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
static int copy_shared(struct poet *p, const struct poet_piece *piece,
                       uint32_t from) {
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
               const struct poet_tensor *tensor) {
  const uint32_t from = poet_slot(p, tensor, false);
  const uint32_t to = poet_slot(p, tensor, true);
  struct poet_pieces pieces;
  struct poet_piece piece;
  TRY(poet_verify(p, number, tensor, false));
  TRY(poet_read_pieces(p, tensor, &pieces));
  for (uint32_t i = 0; i < pieces.blocks && !pieces.shared; i++) {
    TRY(poet_copy_block(p, from + i, to + i));
  }
  for (uint32_t i = 0; i < pieces.count; i++) {
    uint32_t trailer[2];
    poet_piece(p, tensor, &pieces, i, false, &piece);
    TRY(poet_read_trailer(p, &piece, trailer));
    poet_piece(p, tensor, &pieces, i, true, &piece);
    if (piece.shared) {
      TRY(copy_shared(p, &piece, from));
    }
    TRY(poet_seal(p, &piece, trailer[0]));
  }
  return poet_settle(p);
}
