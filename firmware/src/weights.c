/*
 * weights.c - weights that stay in RAM from step to step, and their commits:
 * without storage all weights, with storage those to which the plan gives a
 * home.
 *
 * State: `live_step`, the number of steps after which the live weights have
 * their values, and `live_slot`. POET_NO_STEP: they have to be restored. Each
 * home is a range of the arena. The decoder checks that the new value of a
 * tensor is in its home when a step ends. So between two steps all these
 * weights are in their homes.
 *
 * Why a power cut leaves a committed step: homes are written to slots that no
 * commit record names, and read back. The commit record makes these slots the
 * current ones. The flash of a chip is erased before it is written: these slots
 * together, and nothing else.
 */
#include <string.h>

#include "plan.h"

int poet_home(struct poet *p, uint32_t number, uint8_t **home) {
  TRY(poet_decode_homes(p));
  const uint32_t index = poet_find(p, number);
  const struct poet_resident *resident = &p->memory.residents[index];
  *home = index < p->decoder.resident_count
              ? poet_arena(p, resident->offset, resident->size_bytes)
              : NULL;
  return 0;
}

int poet_check_batch(struct poet *p) {
  TRY(poet_decode_homes(p)); /* sets `detail` too */
  return p->lacks_batch ? POET_ERROR_page_damaged : 0;
}

/* Return whether all bytes of a written tensor have arrived (write_home). */
static bool is_whole(const uint8_t *home, uint32_t size_bytes) {
  uint32_t last;
  memcpy(&last, __builtin_assume_aligned(home + size_bytes - sizeof last, 4),
         sizeof last);
  return last != UINT32_MAX;
}

/* Restore a tensor in its home, unless the host has written it. */
static POET_CHECKED int restore_home(struct poet *p, uint32_t number,
                                     const struct poet_resident *home) {
  struct poet_object object = {0};
  TRY(poet_read_tensor(p, number, &object.tensor));
  if (poet_is_batch(&object.tensor)) {
    return 0;
  }
  if (object.tensor.size_bytes != home->size_bytes) {
    return poet_fail(p, POET_ERROR_bad_table, number);
  }
  uint8_t *at = p->memory.arena + home->offset;
  if (poet_is_staged(p, number)) {
    return is_whole(at, home->size_bytes)
               ? 0
               : poet_fail(p, POET_ERROR_bad_object, number);
  }
  if (!poet_committed(p) || !poet_has_storage(p)) {
    return !poet_has_storage(p) && p->live_step != POET_NO_STEP
               ? 0
               : poet_fail(p, POET_ERROR_bad_object, number);
  }
  TRY(poet_settle(p));
  poet_forget(p, POET_DATA_BLOCK); /* read what the card has */
  TRY(poet_get_pieces(p, &object, 0, at, home->size_bytes, NULL));
  p->detail = number;
  return poet_compare(p, &object.tensor, false, at);
}

int poet_restore_homes(struct poet *p) {
  TRY(poet_decode_homes(p));
  for (uint32_t i = 0; i < p->decoder.resident_count; i++) {
    const struct poet_resident *home = &p->memory.residents[i];
    TRY(restore_home(p, home->tensor, home));
  }
  return 0;
}

/* Return whether storage lacks the live value of a tensor that has a home. */
static bool must_write(const struct poet *p, uint32_t number,
                       const struct poet_tensor *tensor) {
  return tensor->place == POET_PLACE_CURRENT &&
         (poet_in_ram(p) || !poet_on_storage(p, number));
}

/* Return the first byte of a tensor that no earlier slice has written. */
static uint32_t offset_of_slice(const struct poet *p) {
#if POET_LIBRARY
  return p->slices.is_sliced ? p->slices.offset : 0;
#else
  (void)p;
  return 0;
#endif
}

/* Write the homes, or compare what was written with its trailers. Tensors that
 * share blocks come first, so that each block is written once. */
static POET_CHECKED int copy_homes(struct poet *p, bool verify,
                                   uint32_t *digest) {
  const bool next = poet_in_ram(p);
  const uint32_t count = p->model.stored_count;
  for (uint32_t n = poet_cursor(p); n < 2 * count; n++) {
    struct poet_object object = {.next = next};
    const uint32_t i = n % count;
    const uint32_t index = poet_find(p, i);
    if (index == p->decoder.resident_count) {
      continue;
    }
    const struct poet_resident *home = &p->memory.residents[index];
    TRY(poet_read_tensor(p, i, &object.tensor));
    const bool is_shared = (object.tensor.flags & POET_FLAG_SHARED) != 0;
    if (!must_write(p, i, &object.tensor) || is_shared != (n < count)) {
      continue;
    }
    if (verify) {
      p->detail = i;
      TRY(poet_compare(p, &object.tensor, next, NULL));
    } else if (object.tensor.size_bytes != home->size_bytes) {
      return poet_fail(p, POET_ERROR_bad_table, i);
    } else {
      const uint32_t done = offset_of_slice(p);
      TRY(poet_write_pieces(p, &object, (uint16_t)i, done,
                            p->memory.arena + home->offset + done,
                            home->size_bytes - done));
      /* Without storage, the digest has only tensors that a step renews. */
      if (!(object.tensor.flags & POET_FLAG_KEEP)) {
        *digest ^= p->arriving.digest;
      }
    }
    if (poet_pauses_at(p, n + 1)) {
      return POET_BUSY;
    }
  }
  return 0;
}

/* Erase the slots to which the homes are written. */
static POET_CHECKED int erase_slots(struct poet *p) {
  return poet_in_ram(p) ? poet_erase(p,
                                     POET_DATA_BLOCK + poet_next_slot(p) *
                                                           p->model.slot_stride,
                                     p->model.slot_stride)
                        : 0;
}

int poet_write_homes(struct poet *p, uint32_t *digest) {
  if (poet_comes(p, POET_PART_erase)) {
    *digest = poet_in_ram(p) ? 0 : p->digest;
  }
  if (!p->plan.home_count || !poet_has_storage(p)) {
    return 0;
  }
  if (poet_comes(p, POET_PART_erase)) {
    TRY(poet_decode_homes(p));
  }
  POET_PART(p, POET_PART_erase, erase_slots(p));
  POET_PART(p, POET_PART_write, copy_homes(p, false, digest));
  p->arriving.slot = POET_NO_SLOT; /* a tensor of the host arrives again */
  POET_PART(p, POET_PART_settle, poet_settle(p));
  return 0;
}

int poet_check_homes(struct poet *p) {
  if (!poet_has_storage(p)) {
    return 0;
  }
  if (poet_comes(p, POET_PART_compare)) {
    TRY(poet_settle(p));
    poet_forget(p, POET_DATA_BLOCK); /* read what the card has */
  }
  POET_PART(p, POET_PART_compare, copy_homes(p, true, NULL));
  return 0;
}

int poet_restore(struct poet *p) {
  p->staging = false;
  poet_drop_steps(p);
  if (!poet_has_storage(p)) {
    return POET_ERROR_no_storage;
  }
  int error = poet_restore_homes(p);
  if (error == POET_ERROR_page_damaged && p->committed.prior.generation) {
    struct poet_tensor tensor;
    TRY(poet_read_tensor(p, p->detail, &tensor));
    if (tensor.place == POET_PLACE_CURRENT) {
      TRY(poet_roll_back(p));
      error = poet_restore_homes(p);
    }
  }
  TRY(error);
  p->live_step = p->committed.now.step;
  return 0;
}

int poet_commit_live(struct poet *p, const struct poet_state *prior,
                     uint32_t digest) {
  const uint32_t steps = poet_uncommitted(p);
  const uint32_t further = poet_number_after(steps);
  struct poet_commit commit = {
      .model_crc = p->model.crc,
      .data_blocks = p->model.data_blocks,
      .slot = (uint8_t)(steps ? p->live_slot : poet_next_slot(p)),
      .prior_slot = p->committed.slot,
      .now = {.step = p->live_step,
              .generation = p->committed.sequence + further,
              .digest = digest,
              .fixed = p->committed.now.fixed},
      .prior = *prior};
  if (p->result.step == p->live_step) {
    commit.now.loss = p->result.loss;
  }
#if POET_LIBRARY
  if (p->slices.is_sliced && p->slices.part >= POET_PART_second) {
    commit = p->committed; /* as it was written to the first record */
  }
#endif
  if (p->plan.commit_every > 1) {
    poet_forget_rows(p);
  }
  return poet_commit(p, &commit, further);
}

/* A parameter that is not finite must never be committed: training could not
 * continue with it, and the step after it would overwrite the last good
 * values. */
int poet_check_renewed(struct poet *p, uint32_t tensor, uint32_t offset,
                       uint32_t size_bytes) {
  return poet_is_finite(p->memory.arena + offset, size_bytes)
             ? 0
             : poet_fail(p, POET_ERROR_not_finite, tensor);
}

/* Check the new weights that are in their homes only. */
int poet_check_live(struct poet *p) {
  for (uint32_t i = 0; p->plan.home_count && i < p->decoder.resident_count;
       i++) {
    const struct poet_resident *resident = &p->memory.residents[i];
    struct poet_tensor record;
    TRY(poet_read_tensor(p, resident->tensor, &record));
    if (record.place == POET_PLACE_NEXT &&
        !poet_on_storage(p, resident->tensor)) {
      TRY(poet_check_renewed(p, resident->tensor, resident->offset,
                             resident->size_bytes));
    }
  }
  return 0;
}

/* A digest that one slice makes and a later one uses. */
#if POET_LIBRARY
#define KEPT_DIGEST(p, name) uint32_t *const name = &(p)->slices.digest
#else
#define KEPT_DIGEST(p, name) uint32_t name##_, *const name = &name##_
#endif

/* Compare the trailers on storage with the digest, if it is their turn. */
static POET_CHECKED int read_back(struct poet *p, uint32_t digest) {
  const uint32_t commits = p->status.step / p->plan.commit_every;
  if (p->readback_every && commits % p->readback_every) {
    return 0;
  }
  const uint32_t begin = poet_ticks(p->port);
#if POET_LIBRARY
  uint32_t *const found = &p->slices.found;
  p->slices.cost_ticks = poet_cursor(p) ? p->slices.cost_ticks : 0;
  const int error = poet_stored_digest(p, false, found);
  uint32_t cost = p->slices.cost_ticks += poet_ticks(p->port) - begin;
  TRY(error);
#else
  uint32_t number, *const found = &number;
  TRY(poet_stored_digest(p, false, found));
  uint32_t cost = poet_ticks(p->port) - begin;
#endif
  uint64_t step =
      (p->result.ticks + (begin - p->counted)) * p->plan.commit_every;
  while ((cost | step) > UINT32_MAX / 100) { /* a 64-bit division is large */
    cost >>= 1;
    step >>= 1;
  }
  const uint32_t every =
      cost * 100 / ((uint32_t)step * POET_READBACK_PERCENT + 1) + 1;
  p->readback_every = (uint16_t)(every < UINT16_MAX ? every : UINT16_MAX);
  if (*found != digest) {
    p->unwritten = true;
    return poet_fail(p, POET_ERROR_page_damaged, POET_NONE);
  }
  return 0;
}

static POET_CHECKED int check_stored(struct poet *p, uint32_t digest) {
  POET_PART(p, POET_PART_read_back, read_back(p, digest));
  return 0;
}

/* The plan predicts the cost of writing the homes. The rest is overhead. */
int poet_commit_step(struct poet *p) {
  struct poet_usage before;
  KEPT_DIGEST(p, digest);
  TRY(poet_write_homes(p, digest));
  poet_usage(p->port, &before);
  const uint32_t begin = poet_ticks(p->port);
  int error = poet_check_homes(p);
  p->unwritten |= error == POET_ERROR_page_damaged;
  if (!error) {
    error = check_stored(p, *digest);
  }
  if (!error) {
    error = poet_commit_live(p, &p->committed.now, *digest);
  }
  p->result.readback_every = p->readback_every;
  p->result.commit_ticks += poet_ticks(p->port) - begin;
  poet_count_overhead(p, &before);
  return error;
}

int poet_may_save(struct poet *p, bool *needed) {
  TRY(poet_ready(p));
  if (!p->loaded || poet_is_forward(p)) {
    return POET_ERROR_no_schedule;
  }
  if (!poet_has_storage(p)) {
    return POET_ERROR_no_storage;
  }
  const bool is_live = poet_committed(p) && p->live_step != POET_NO_STEP;
  if (poet_in_ram(p) && (!is_live || p->staging)) {
    return poet_fail(p, POET_ERROR_wrong_step, p->committed.now.step);
  }
  *needed = is_live && p->live_step != p->committed.now.step;
  return 0;
}

int poet_save_live(struct poet *p) {
  KEPT_DIGEST(p, digest);
  TRY(poet_write_homes(p, digest));
  TRY(poet_check_homes(p));
  /* An access that failed may have lost what the steps had still to write. The
   * serial application mounts the card again instead. */
  if (POET_LIBRARY && !p->readback_every && !poet_in_ram(p)) {
    const int error = check_stored(p, *digest);
    if (error == POET_ERROR_page_damaged) {
      poet_drop_steps(p);
      p->stale = true;
    }
    TRY(error);
  }
  return poet_commit_live(p, &p->committed.now, *digest);
}

int poet_save(struct poet *p, struct poet_saved *saved) {
  struct poet_usage before, after;
  bool needed;
  poet_usage(p->port, &before);
  const uint32_t begin = poet_ticks(p->port);
  TRY(poet_may_save(p, &needed));
  if (needed) {
    TRY(poet_save_live(p));
  }
  poet_usage(p->port, &after);
  saved->step = p->committed.now.step;
  saved->ticks = poet_ticks(p->port) - begin;
  saved->erases = after.erases - before.erases;
  return 0;
}
