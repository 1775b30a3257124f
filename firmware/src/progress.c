/*
 * progress.c - the records of a running step, the request to stop the step, and
 * the report that it goes on; what ends when a schedule is unloaded; the owner
 * of a cache.
 *
 * State: result, started, counted, before, trace_first, trace_count and
 * memory.trace. The interpreter sets them at the start of a step. result and
 * memory.trace stay valid until the next step, so that the host can read them.
 */
#include <string.h>

#include "runtime.h"

void poet_trace(struct poet *p, uint32_t statement, uint8_t kind,
                uint32_t begin, uint32_t end) {
  const uint32_t slot = statement - p->trace_first;
  if (statement >= p->trace_first && slot < p->trace_count) {
    struct poet_trace *record = &p->memory.trace[slot];
    if (!record->end) { /* else: a later piece of the same tensor */
      *record = (struct poet_trace){(uint16_t)statement, kind, 0,
                                    begin - p->started, 0};
    }
    record->end = end - p->started;
    if (slot >= p->result.trace_records) {
      p->result.trace_records = slot + 1;
    }
  }
}

int poet_asked_to_stop(struct poet *p) {
  return p->poll ? p->poll(p->poll_context) : 0;
}

void poet_alive(const struct poet *p) {
  if (p->port->alive) {
    p->port->alive(p->port->context, p->status.statement);
  }
}

void poet_count_time(struct poet *p, uint32_t now) {
  struct poet_usage after;
  p->result.ticks += now - p->counted;
  p->counted = now;
  poet_usage(p->port, &after);
  p->result.asleep_ticks += after.asleep - p->before.asleep;
  p->result.reading_ticks += after.reading - p->before.reading;
  p->result.writing_ticks += after.writing - p->before.writing;
  p->result.storage_retries += after.retries - p->before.retries;
  p->before = after;
}

void poet_count_compute(struct poet *p, uint32_t begin, uint32_t end) {
  p->result.compute_ticks += end - begin;
  if (end - p->counted > UINT32_MAX / 4) {
    poet_count_time(p, end);
  }
}

void poet_count_overhead(struct poet *p, const struct poet_usage *before) {
  struct poet_usage after;
  poet_usage(p->port, &after);
  p->result.overhead_asleep_ticks += after.asleep - before->asleep;
  p->result.overhead_reading_ticks += after.reading - before->reading;
  p->result.overhead_writing_ticks += after.writing - before->writing;
}

bool poet_is_finite(const uint8_t *at, uint32_t size_bytes) {
  const uint32_t exponent = 0x7f800000u;
  uint32_t word;
  for (uint32_t i = 0; i < size_bytes; i += 4) {
    memcpy(&word, at + i, sizeof word);
    if ((word & exponent) == exponent) {
      return false;
    }
  }
  return true;
}

#if POET_LIBRARY
bool poet_owns_cache(const struct poet *p) {
  uint32_t owned = 0;
  for (uint32_t i = 0; i < p->memory.cache_blocks; i++) {
    owned += p->memory.cache[i].owner == p;
  }
  return owned == p->memory.cache_blocks;
}
#endif

void poet_use_arena(struct poet *p) {
  p->dirty_bytes = p->memory.arena_bytes;
  if (p->plan.home_count) {
    poet_drop_steps(p);
  }
}

void poet_drop_steps(struct poet *p) {
  if (p->live_step != POET_NO_STEP && p->live_step != p->committed.now.step) {
    p->stale = true;
  }
  p->live_step = POET_NO_STEP;
}

void poet_reset(struct poet *p) {
  p->loaded = false;
  p->staging = false;
  p->verified = POET_NONE;
  p->arriving.slot = POET_NO_SLOT;
  p->readback_every = 0;
  p->kept_at_start = 0;
  poet_forget_rows(p);
  poet_drop_steps(p);
  p->holds_batch = p->reads_batch = false;
  p->loss = POET_NONE;
#if POET_LIBRARY
  p->forward = NULL;
#endif
  memset(&p->model, 0, sizeof p->model);
  memset(&p->plan, 0, sizeof p->plan);
  p->result = (struct poet_step_result){.step = POET_NO_STEP};
}

void poet_clear_bitmap(struct poet *p) {
  memset(p->memory.bitmap, 0, (p->memory.tensor_capacity + 31u) / 32 * 4);
}
