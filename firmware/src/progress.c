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

#if POET_LIBRARY
bool poet_must_pause(const struct poet *p) {
  return p->slices.is_sliced &&
         poet_ticks(p->port) - p->slices.begin_ticks >= p->slices.budget_ticks;
}

bool poet_comes(const struct poet *p, uint32_t number) {
  return !p->slices.is_sliced || p->slices.part <= number;
}

bool poet_pauses_after(struct poet *p, uint32_t number) {
  if (p->slices.is_sliced) {
    p->slices.part = (uint8_t)(number + 1);
    poet_ignore(poet_pauses_at(p, 0));
  }
  return poet_must_pause(p);
}

uint32_t poet_cursor(const struct poet *p) {
  return p->slices.is_sliced ? p->slices.index : 0;
}

bool poet_pauses_at(struct poet *p, uint32_t index) {
  if (p->slices.is_sliced) {
    p->slices.index = index;
    poet_ignore(poet_pauses_within(p, 0, 0));
  }
  return poet_must_pause(p);
}

bool poet_pauses_within(struct poet *p, uint32_t offset, uint32_t crc) {
  if (p->slices.is_sliced) {
    p->slices.offset = offset;
    p->slices.crc = crc;
  }
  return poet_must_pause(p);
}

uint32_t poet_slice_bytes(const struct poet *p, uint32_t at, uint32_t size) {
  const uint32_t left = POET_BLOCK - at % POET_BLOCK;
  return p->slices.is_sliced && left < size ? left : size;
}

void poet_abandon(struct poet *p) {
  if (p->slices.work && !p->slices.is_polled) {
    if (p->status.running) {
      poet_drain(p);
      p->status.running = 0;
      p->status.error = POET_ERROR_stopped;
      poet_forget_rows(p);
      poet_drop_steps(p);
      p->stale = true;
      poet_clear_bitmap(p);
      p->dirty_bytes = p->memory.arena_bytes;
    }
    p->slices.work = 0;
    p->arriving.slot = POET_NO_SLOT;
  }
}
#endif

struct poet_transfer *poet_queue_slot(struct poet *p, uint32_t number) {
  return &p->memory.queue[number % p->memory.queue_capacity];
}

void poet_drain(struct poet *p) {
  for (; p->retired != p->submitted; p->retired++) {
    struct poet_transfer *transfer = poet_queue_slot(p, p->retired);
    while (!poet_transfer_has_ended(transfer)) {
      if (POET_HAS(p->port, submit)) {
        poet_idle(p->port);
      } else { /* it moves in poet_retire, so not at all */
        poet_transfer_end(transfer);
      }
    }
  }
}

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
  if (!p->poll) {
    return 0;
  }
#if POET_LIBRARY
  const bool is_sliced = p->slices.is_sliced;
  p->slices.is_sliced = false; /* what the application calls does not pause */
  const int stop = p->poll(p->poll_context);
  p->slices.is_sliced = is_sliced;
  return stop;
#else
  return p->poll(p->poll_context);
#endif
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

static void fill_bitmap(struct poet *p, int byte) {
  memset(p->memory.bitmap, byte, (p->memory.tensor_capacity + 31u) / 32 * 4);
}

/* A NaN that no arithmetic produces. If an arena word has this value, nothing
 * has been written to it. */
#define PAINT 0x7fa5c3d1u

enum { BEYOND = 4096 };

/* Return the number of arena bytes to paint and check: the bytes that the plan
 * uses, and some more. The whole arena may be very large on Linux. */
static uint32_t watched(const struct poet *p) {
  const uint32_t beyond = p->memory.arena_bytes - p->plan.arena_bytes;
  return (p->plan.arena_bytes + (beyond < BEYOND ? beyond : BEYOND)) & ~3u;
}

void poet_paint(struct poet *p) {
  const uint32_t word = PAINT;
  const uint32_t size = watched(p);
  for (uint32_t i = 0, from = 0; i <= p->decoder.resident_count; i++) {
    const struct poet_resident *next = &p->memory.residents[i];
    const bool last = i == p->decoder.resident_count;
    const uint32_t end = last || next->offset > size ? size : next->offset;
    for (; from < end && from < p->dirty_bytes; from += 4) {
      memcpy(p->memory.arena + from, &word, sizeof word);
    }
    from = last ? size : (next->offset + next->size_bytes + 3) & ~3u;
  }
  if (p->dirty_bytes <= size) {
    p->dirty_bytes = 0;
  }
}

uint32_t poet_high_water(const struct poet *p) {
  uint32_t height = watched(p);
  uint32_t word = PAINT;
  while (height && word == PAINT) {
    height -= 4;
    memcpy(&word, p->memory.arena + height, sizeof word);
  }
  return word == PAINT ? 0 : height + 4;
}

void poet_use_arena(struct poet *p) {
  poet_abandon(p);
  p->dirty_bytes = p->memory.arena_bytes;
  if (p->plan.home_count) {
    if (p->staging) { /* weights that a home had, or the batch next to them */
      poet_reset(p);
    }
    poet_drop_steps(p);
    fill_bitmap(p, poet_in_ram(p) ? UINT8_MAX : 0);
  }
}

void poet_drop_steps(struct poet *p) {
  if (p->live_step != POET_NO_STEP && p->live_step != p->committed.now.step) {
    p->stale = true;
  }
  p->live_step = POET_NO_STEP;
}

void poet_reset(struct poet *p) {
  poet_abandon(p);
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
  fill_bitmap(p, 0);
}
