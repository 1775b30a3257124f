/*
 * slices.c - steps and saves in slices (poet/slices.h).
 *
 * State: slices. `work` says what is unfinished. The functions that run a step
 * or a save return POET_BUSY when their slice must end, and go on from the
 * fields `part`, `index`, `offset` and `crc` when they are called again.
 */
#include "plan.h"

#if POET_LIBRARY

enum { NONE, STEP, SAVE };

static void begin_work(struct poet *p, uint8_t work) {
  struct poet_slices *slices = &p->slices;
  slices->work = work;
  slices->part = 0;
  slices->index = slices->offset = slices->crc = 0;
  slices->save_ticks = slices->save_erases = 0;
}

static void begin_slice(struct poet *p, uint32_t budget_us) {
  const uint64_t ticks = (uint64_t)budget_us * p->port->tick_hz / 1000000u;
  p->slices.is_polled = p->slices.is_sliced = true;
  p->slices.budget_ticks = !p->port->ticks      ? 0
                           : ticks < UINT32_MAX ? (uint32_t)ticks
                                                : UINT32_MAX;
  p->slices.begin_ticks = poet_ticks(p->port);
}

static POET_CHECKED int end_slice(struct poet *p, int error) {
  p->slices.is_polled = p->slices.is_sliced = false;
  if (error != POET_BUSY) {
    p->slices.work = NONE;
  }
  return error;
}

int poet_step_begin(struct poet *p, uint32_t step) {
  TRY(poet_begin_step(p, step, 0, 0));
  if (p->status.running) {
    poet_count_time(p, poet_ticks(p->port));
  }
  begin_work(p, STEP);
  return 0;
}

/* The time of a step is that of its slices. */
static POET_CHECKED int run_slice(struct poet *p) {
  p->counted = p->slices.begin_ticks;
  poet_usage(p->port, &p->before);
  const int error = poet_run_step(p);
  p->slices.is_sliced = false; /* what follows an error does not pause */
  if (error == POET_BUSY) {
    poet_count_time(p, poet_ticks(p->port));
    return error;
  }
  return poet_end_step(p, error);
}

int poet_step_poll(struct poet *p, uint32_t budget_us,
                   struct poet_step_result *result) {
  if (p->slices.work != STEP || p->slices.is_polled) {
    return POET_ERROR_wrong_step;
  }
  begin_slice(p, budget_us);
  const int error = end_slice(p, p->status.running ? run_slice(p) : 0);
  if (error != POET_BUSY) {
    *result = p->result;
  }
  return error;
}

int poet_save_begin(struct poet *p) {
  bool needed;
  TRY(poet_may_save(p, &needed));
  begin_work(p, SAVE);
  p->slices.part = needed ? POET_PART_erase : UINT8_MAX;
  return 0;
}

int poet_save_poll(struct poet *p, struct poet_saved *saved) {
  struct poet_usage before, after;
  if (p->slices.work != SAVE || p->slices.is_polled) {
    return POET_ERROR_wrong_step;
  }
  poet_usage(p->port, &before);
  begin_slice(p, 0);
  const int error =
      end_slice(p, p->slices.part == UINT8_MAX ? 0 : poet_save_live(p));
  poet_usage(p->port, &after);
  p->slices.save_ticks += poet_ticks(p->port) - p->slices.begin_ticks;
  p->slices.save_erases += after.erases - before.erases;
  if (!error) {
    *saved = (struct poet_saved){.step = p->committed.now.step,
                                 .ticks = p->slices.save_ticks,
                                 .erases = p->slices.save_erases};
  }
  return error;
}

#endif
