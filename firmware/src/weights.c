/*
 * weights.c - weights of a schedule without storage: they stay in RAM from step
 * to step, and poet_save copies them to storage.
 *
 * State: `live_step`, the number of steps after which the weights in RAM have
 * their values. POET_NO_STEP: the RAM does not hold them. Each stored tensor
 * has a home, the range of the arena in which the plan places it before its
 * first statement. The new value of a tensor overwrites the old one, so between
 * two steps all weights are in their homes.
 *
 * Why a power cut leaves a committed step: poet_save writes to the next slots
 * only, and reads them back. Its commit record makes these slots the current
 * ones. The flash of a chip is erased before it is written: the next slots
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
  return *home ? 0 : poet_fail(p, POET_ERROR_bad_table, number);
}

/* Copy all weights from the current slots to their homes, or from there to the
 * next slots. */
static POET_CHECKED int copy_all(struct poet *p, bool to_storage) {
  for (uint32_t i = 0; i < p->model.stored_count; i++) {
    struct poet_object object = {.next = to_storage};
    TRY(poet_read_tensor(p, i, &object.tensor));
    if (object.tensor.place != POET_PLACE_CURRENT) {
      continue;
    }
    const uint32_t size = object.tensor.size_bytes;
    TRY(poet_home(p, i, &object.ram));
    if (p->memory.residents[poet_find(p, i)].size_bytes != size) {
      return poet_fail(p, POET_ERROR_bad_table, i);
    }
    if (to_storage) {
      TRY(poet_write_pieces(p, &object, (uint16_t)i, 0, object.ram, size));
    }
    TRY(poet_verify(p, i, &object.tensor, to_storage));
    if (!to_storage) {
      TRY(poet_get_pieces(p, &object, 0, object.ram, size, NULL));
    }
  }
  return 0;
}

int poet_restore(struct poet *p) {
  p->staging = false;
  p->live_step = POET_NO_STEP;
  int error = copy_all(p, false);
  if (error == POET_ERROR_page_damaged && p->committed.prior.generation) {
    TRY(poet_roll_back(p));
    error = copy_all(p, false);
  }
  TRY(error);
  p->live_step = p->committed.now.step;
  return 0;
}

int poet_commit_live(struct poet *p, const struct poet_state *prior) {
  struct poet_commit commit = {
      .model_crc = p->model.crc,
      .data_blocks = p->model.data_blocks,
      .slot = poet_next_slot(p),
      .now = {.step = p->live_step, .generation = p->committed.sequence + 1},
      .prior = *prior};
  if (p->result.step == p->live_step) {
    commit.now.loss = p->result.loss;
  }
  TRY(poet_erase(p, POET_DATA_BLOCK + commit.slot * p->model.slot_stride,
                 p->model.slot_stride));
  TRY(copy_all(p, true));
  TRY(poet_stored_digest(p, true, &commit.now.digest));
  return poet_commit(p, &commit);
}

int poet_save(struct poet *p, struct poet_saved *saved) {
  struct poet_usage before, after;
  p->port->usage(p->port->context, &before);
  const uint32_t begin = p->port->ticks(p->port->context);
  TRY(poet_ready(p));
  if (!p->loaded) {
    return POET_ERROR_no_schedule;
  }
  if (poet_in_ram(p)) {
    if (!poet_committed(p) || p->staging || p->live_step == POET_NO_STEP) {
      return poet_fail(p, POET_ERROR_wrong_step, p->committed.now.step);
    }
    if (p->live_step != p->committed.now.step) {
      TRY(poet_commit_live(p, &p->committed.now));
    }
  }
  p->port->usage(p->port->context, &after);
  saved->step = p->committed.now.step;
  saved->ticks = p->port->ticks(p->port->context) - begin;
  saved->erases = after.erases - before.erases;
  return 0;
}
