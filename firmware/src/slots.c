/*
 * slots.c - the slots of tensors on storage: where they are, which generation
 * their trailers must have, and the digest of a committed step.
 *
 * This file keeps no state. A trailer has two words: the CRC-32 of a piece's
 * bytes, and the owner, which depends on the piece and on the number of the
 * step for which the bytes were written; for an INPUT tensor, of the step
 * before the one that reads it. So bytes that a card should have replaced, but
 * has not, do not match, and fail as damaged.
 *
 * The number of a step is the sequence number of the commit that would follow
 * it: the newest one and 1, 3, 5, ... for the steps after it. A commit takes
 * the number of its step. All these numbers are odd distances apart, so commits
 * write the two records in turn.
 *
 * The slots of a CURRENT tensor take turns: the slot of the newest commit, that
 * of the commit before (the prior slot), the live slot, which the last step has
 * written, and the next slot, to which the running step writes. Without
 * uncommitted steps, the first is the live slot, and three slots suffice. Every
 * step reads all live slots, so it finds any that the card did not write. Until
 * then the prior slots are whole, and poet_roll_back makes them the current
 * ones.
 */
#include "runtime.h"

bool poet_committed(const struct poet *p) {
  return p->loaded && p->committed.now.step != POET_NO_STEP &&
         p->committed.model_crc == p->trained &&
         p->committed.slot < poet_slots(&p->model) &&
         p->committed.prior_slot < poet_slots(&p->model);
}

uint32_t poet_uncommitted(const struct poet *p) {
  return poet_in_ram(p) || !poet_committed(p) || p->live_step == POET_NO_STEP
             ? 0
             : p->live_step - p->committed.now.step;
}

uint32_t poet_last_step(const struct poet *p) {
  return poet_committed(p) ? p->committed.now.step + poet_uncommitted(p)
                           : POET_NO_STEP;
}

static uint32_t current_slot(const struct poet *p) {
  return poet_uncommitted(p) ? p->live_slot : p->committed.slot;
}

/* With three slots, steps write to storage only if they commit. */
uint32_t poet_next_slot(const struct poet *p) {
  const bool four = poet_slots(&p->model) > POET_SLOTS;
  uint32_t slot = 0;
  while (poet_committed(p) &&
         (slot == p->committed.slot || slot == p->committed.prior_slot ||
          (four && slot == current_slot(p)))) {
    slot++;
  }
  return slot;
}

/* A forward program reads what the host has written, before it is committed. */
static uint32_t read_next(const struct poet *p,
                          const struct poet_tensor *tensor, uint32_t next) {
  return p->staging && poet_is_forward(p) &&
                 (tensor->place == POET_PLACE_CURRENT ||
                  (tensor->place == POET_PLACE_FIXED && p->staging_fixed))
             ? 1
             : next;
}

uint32_t poet_slot(const struct poet *p, const struct poet_tensor *tensor,
                   uint32_t next) {
  uint32_t slot = 0;
  next = read_next(p, tensor, next);
  if (tensor->place == POET_PLACE_INPUT) {
    slot = (poet_last_step(p) + next) & 1;
  } else if (tensor->place == POET_PLACE_NEXT ||
             (tensor->place == POET_PLACE_CURRENT && next)) {
    slot = poet_next_slot(p);
  } else if (tensor->place == POET_PLACE_CURRENT) {
    slot = current_slot(p);
  }
  return POET_DATA_BLOCK + tensor->block + slot * p->model.slot_stride;
}

static uint32_t generation(const struct poet *p,
                           const struct poet_tensor *tensor, uint32_t next) {
  const uint32_t steps = poet_uncommitted(p);
  uint32_t number = p->committed.sequence + poet_number_after(steps + 1);
  next = read_next(p, tensor, next);
  if (tensor->place == POET_PLACE_PAGE && poet_is_forward(p)) {
    number = ~(p->started + p->status.step); /* another one in each run */
  } else if (!next && tensor->place == POET_PLACE_FIXED) {
    number = p->committed.now.fixed;
    if (!number) {
      return p->trained;
    }
  } else if (!next && (tensor->place == POET_PLACE_CURRENT ||
                       tensor->place == POET_PLACE_INPUT)) {
    number = steps ? p->committed.sequence + poet_number_after(steps)
                   : p->committed.now.generation;
  }
  return poet_crc(p->store.identity, &number, sizeof number);
}

void poet_piece(const struct poet *p, const struct poet_tensor *tensor,
                const struct poet_pieces *pieces, uint32_t number,
                uint32_t next, struct poet_piece *piece) {
  const uint32_t slot = poet_slot(p, tensor, next);
  poet_piece_in_slot(pieces, number, piece);
  piece->owner = (tensor->block + piece->block) ^ generation(p, tensor, next);
  piece->block += slot;
  piece->trailer_block += slot;
}

int poet_read_trailer(struct poet *p, const struct poet_piece *piece,
                      uint32_t trailer[2]) {
  return poet_get(p, piece->trailer_block, piece->trailer_offset, trailer,
                  POET_TRAILER);
}

int poet_verify(struct poet *p, uint32_t number,
                const struct poet_tensor *tensor, bool next) {
  TRY(poet_settle(p));
  poet_forget(p, POET_DATA_BLOCK); /* read what the card has */
  p->detail = number;
  return poet_compare(p, tensor, next, NULL);
}

#if POET_LIBRARY
/* Continue the CRC with the bytes of a piece, block by block. */
static POET_CHECKED int
add_stored(struct poet *p, const struct poet_piece *piece, uint32_t *crc) {
  const uint32_t end = piece->offset + piece->size_bytes;
  uint32_t offset = piece->offset;
  if (p->slices.is_sliced && p->slices.offset > offset) {
    offset = p->slices.offset;
    *crc = p->slices.crc;
  }
  while (offset < end) {
    const uint32_t at = piece->at + offset - piece->offset;
    const uint32_t size = poet_slice_bytes(p, at, end - offset);
    TRY(poet_crc_stored(p, piece->block, at, size, crc));
    offset += size;
    if (poet_pauses_within(p, offset, *crc)) {
      return POET_BUSY;
    }
  }
  return 0;
}

/* Return the piece whose comparison goes on. */
static uint32_t first_piece(const struct poet *p,
                            const struct poet_pieces *pieces) {
  return p->slices.is_sliced && p->slices.offset
             ? poet_piece_at(pieces, p->slices.offset - 1)
             : 0;
}
#else
#define first_piece(p, pieces) 0u
static inline POET_CHECKED int
add_stored(struct poet *p, const struct poet_piece *piece, uint32_t *crc) {
  return poet_crc_stored(p, piece->block, piece->at, piece->size_bytes, crc);
}
#endif

/* Not inlined, so that its frame is not on the stack while a cut is read. It
 * calls poet_get itself, because the MKR1000's stack has no room for the frame
 * of poet_read_trailer. */
__attribute__((noinline)) static POET_CHECKED int
compare_piece(struct poet *p, const struct poet_piece *piece,
              const uint8_t *bytes) {
  uint32_t trailer[2], crc = 0;
  if (bytes) {
    crc = poet_crc(0, bytes + piece->offset, piece->size_bytes);
  } else {
    TRY(add_stored(p, piece, &crc));
  }
  TRY(poet_get(p, piece->trailer_block, piece->trailer_offset, trailer,
               POET_TRAILER));
  return trailer[0] == crc && trailer[1] == piece->owner
             ? 0
             : POET_ERROR_page_damaged;
}

int poet_compare(struct poet *p, const struct poet_tensor *tensor, bool next,
                 const uint8_t *bytes) {
  struct poet_pieces pieces;
  struct poet_piece piece;
  TRY(poet_read_pieces(p, tensor, &pieces));
  for (uint32_t i = first_piece(p, &pieces); i < pieces.count; i++) {
    poet_piece(p, tensor, &pieces, i, next, &piece);
    TRY(compare_piece(p, &piece, bytes));
  }
  return 0;
}

/* Write whole blocks, not through the cache. */
static POET_CHECKED int put_blocks(struct poet *p, uint32_t block,
                                   const void *from, uint32_t count) {
  for (uint32_t i = 0; i < p->memory.cache_blocks; i++) {
    if (p->memory.cache[i].block - block < count) {
      p->memory.cache[i].block = POET_NO_BLOCK;
    }
  }
  if (p->unsettled - block < count) {
    p->unsettled = POET_NO_BLOCK;
  }
  return p->port->write(p->port->context, poet_storage_block(p, block), from,
                        count)
             ? poet_failed(p, POET_ERROR_storage_failed)
             : 0;
}

static bool is_in_arena(const struct poet *p, const uint8_t *at) {
  return (uintptr_t)at - (uintptr_t)p->memory.arena < p->memory.arena_bytes;
}

int poet_fill(struct poet *p, const struct poet_piece *piece, uint32_t offset,
              const void *from, uint32_t size) {
  const uint8_t *next = from;
  uint32_t at = piece->at + offset;
  while (size) {
    const uint32_t block = piece->block + at / POET_BLOCK;
    const uint32_t first = at % POET_BLOCK, left = POET_BLOCK - first;
    uint32_t part = size < left ? size : left;
    if (part < POET_BLOCK) {
      TRY(poet_put_later(p, block, first, next, part));
    } else if (is_in_arena(p, next)) {
      part = size / POET_BLOCK * POET_BLOCK;
      TRY(put_blocks(p, block, next, part / POET_BLOCK));
    } else { /* ports write from aligned RAM only */
      TRY(poet_put(p, block, 0, next, part));
    }
    at += part;
    next += part;
    size -= part;
  }
  return 0;
}

int poet_seal(struct poet *p, const struct poet_piece *piece, uint32_t crc) {
  const uint32_t trailer[2] = {crc, piece->owner};
  return poet_put_later(p, piece->trailer_block, piece->trailer_offset, trailer,
                        sizeof trailer);
}

/* `held` is the block of the last trailer. When no other trailer follows in it,
 * it leaves the cache, where the schedule's blocks are to stay. */
static POET_CHECKED int add_trailers(struct poet *p,
                                     const struct poet_tensor *tensor,
                                     bool next, uint32_t *held,
                                     uint32_t *digest) {
  struct poet_pieces pieces;
  struct poet_piece piece;
  TRY(poet_read_pieces(p, tensor, &pieces));
  for (uint32_t i = 0; i < pieces.count; i++) {
    uint32_t crc = 0;
    poet_piece(p, tensor, &pieces, i, next, &piece);
    if (piece.trailer_block != *held) {
      if (*held != POET_NO_BLOCK) {
        poet_give_up(p, *held);
      }
      *held = piece.trailer_block;
    }
    TRY(poet_crc_stored(p, piece.trailer_block, piece.trailer_offset,
                        POET_TRAILER, &crc));
    *digest ^= crc;
  }
  return 0;
}

int poet_check_arrival(struct poet *p, const struct poet_object *object,
                       uint16_t number) {
  uint32_t held = POET_NO_BLOCK, digest = 0;
  TRY(poet_settle(p));
  poet_forget(p, POET_DATA_BLOCK);
  TRY(add_trailers(p, &object->tensor, object->next, &held, &digest));
  poet_give_up(p, held);
  return digest == p->arriving.digest
             ? 0
             : poet_fail(p, POET_ERROR_page_damaged, number);
}

int poet_stored_digest(struct poet *p, bool next, uint32_t *digest) {
  struct poet_tensor tensor;
  uint32_t held = POET_NO_BLOCK;
  uint32_t i = p->model.stored_count + poet_cursor(p);
  if (i == p->model.stored_count) {
    *digest = 0;
  }
  TRY(poet_settle(p));
  poet_forget(p, POET_DATA_BLOCK);
  /* Shared blocks are in the order of the NEXT tensors. */
  for (; i < p->model.tensor_count; i++) {
    TRY(poet_read_tensor(p, i, &tensor));
    if (tensor.place == POET_PLACE_NEXT) {
      tensor.place = POET_PLACE_CURRENT;
      TRY(add_trailers(p, &tensor, next, &held, digest));
      if (poet_pauses_at(p, i + 1 - p->model.stored_count)) {
        return POET_BUSY;
      }
    }
  }
  if (held != POET_NO_BLOCK) {
    poet_give_up(p, held);
  }
  return 0;
}

int poet_roll_back(struct poet *p) {
  struct poet_commit commit = p->committed;
  if (!poet_committed(p) || !commit.prior.generation) {
    return 0;
  }
  commit.slot = commit.prior_slot;
  commit.now = commit.prior;
  commit.prior = (struct poet_state){0};
  poet_forget_rows(p);
  poet_drop_steps(p);
  return poet_commit(p, &commit, poet_number_after(p->committed.every));
}

/* Data of an attempt that did not end must not pass for that of the next one,
 * which may have other input. A new sequence number makes it old. The record
 * says how many numbers the steps after it may use. */
int poet_renumber(struct poet *p) {
  const bool more =
      p->committed.every < p->plan.commit_every && p->plan.commit_every > 1;
  if (poet_committed(p) && !p->staging && !poet_uncommitted(p) &&
      (p->stale || more)) {
    struct poet_commit commit = p->committed;
    TRY(poet_commit(p, &commit, poet_number_after(p->committed.every)));
  }
  p->stale = false;
  return 0;
}

/* Not inlined, so that the record is not on the stack while a tensor is
 * written. */
__attribute__((noinline)) int poet_replace_commit(struct poet *p) {
  return p->committed.now.step == POET_NO_STEP || poet_committed(p)
             ? 0
             : poet_commit(p, &(struct poet_commit){.now.step = POET_NO_STEP},
                           poet_number_after(p->committed.every));
}
