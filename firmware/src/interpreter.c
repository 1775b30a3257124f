/*
 * interpreter.c - one training step: it decodes and executes one statement
 * after another, until the commit.
 *
 * State: status, result, started, counted, before, trace_first, trace_count
 * and dirty_bytes. start() sets them. status and result stay valid after the
 * step, for the host and for a repeated request.
 *
 * Order in a step:
 * - Before the page_out of a NEXT tensor is queued, all values of this tensor
 *   are checked to be finite.
 * - `end` waits for all transfers, then commits, if the step is a multiple of
 *   the plan's `commit_every`: the commit record must not be on storage before
 *   the tensors that it names.
 * - Before the record, the trailers of the new slots are read back, as often as
 *   the time allows. The commit's digest must be theirs.
 * - After an error there is no commit, so the last committed step stays, and
 *   the next step follows it. The step still waits for the queue (poet_drain),
 * because the port may still write to the arena.
 * - If the card lost a page or a new slot, the step starts again. If it lost a
 *   current slot, the board goes back to the commit before.
 */
#include <string.h>

#include "poet/kernel.h"
#include "plan.h"

/* If POET_POISON is defined, the address sanitizer reports every use of arena
 * memory that the plan has freed. */
#ifdef POET_POISON
#include <sanitizer/asan_interface.h>
#define HIDE(p, offset, size)                                                  \
  ASAN_POISON_MEMORY_REGION((p)->memory.arena + (offset), size)
#define SHOW(p, offset, size)                                                  \
  ASAN_UNPOISON_MEMORY_REGION((p)->memory.arena + (offset), size)
#else
#define HIDE(p, offset, size) ((void)0)
#define SHOW(p, offset, size) ((void)0)
#endif

enum { MAX_RESTARTS = 2 }; /* of one step */

static uint32_t now(const struct poet *p) {
  return poet_ticks(p->port);
}

static POET_CHECKED int check_loss(struct poet *p,
                                   const struct poet_statement *s) {
  if (s->loss) {
    const uint8_t *loss = p->memory.arena + s->offset;
    memcpy(&p->result.loss, loss, sizeof p->result.loss);
    if (!poet_is_finite(loss, sizeof p->result.loss)) {
      return poet_fail(p, POET_ERROR_not_finite, s->tensor);
    }
  }
  return 0;
}

/* Not inlined, so that its frame is not on the stack while a nest runs. */
__attribute__((noinline)) static POET_CHECKED int
call_kernel(struct poet *p, const struct poet_statement *s) {
  struct poet_call call = {.op = &p->op,
                           .whole = &p->op,
                           .first = true,
                           .last = true,
                           .out = p->memory.arena + s->offset,
                           .workspace = p->memory.arena + s->workspace,
                           .step = p->status.step};
  poet_kernel_fn *kernel = poet_kernel(p->op.kernel);
  for (uint32_t i = 0; i < p->op.input_count; i++) {
    call.in[i] = p->memory.arena + s->input[i];
  }
  SHOW(p, s->offset, s->size_bytes);
  SHOW(p, s->workspace, p->op.workspace_bytes);
  const uint32_t begin = now(p);
  if (poet_is_due(&p->op, &call.step)) {
    kernel(&call);
  }
  const uint32_t end = now(p);
  HIDE(p, s->workspace, p->op.workspace_bytes);
  poet_count_compute(p, begin, end);
  poet_trace(p, s->index, s->code, begin, end);
  return check_loss(p, s);
}

static POET_CHECKED int stream(struct poet *p, const struct poet_statement *s) {
  const uint32_t begin = now(p);
  TRY(poet_retire(p, p->decoder.finished));
  SHOW(p, s->offset, s->size_bytes);
  if (s->nest.statistics ||
      (s->nest.pair && !s->nest.ring[p->op.input_count + 1].slots)) {
    SHOW(p, s->input[p->op.input_count + 1], poet_other_bytes(p, &s->nest));
  }
  SHOW(p, s->workspace, s->workspace_bytes);
  TRY(poet_run_nest(p, s));
  HIDE(p, s->workspace, s->workspace_bytes);
  poet_trace(p, s->index, s->code, begin, now(p));
  return check_loss(p, s);
}

/* The weights in RAM and the new slots are those of this step. */
static POET_CHECKED int take_steps(struct poet *p) {
  const uint32_t slot = poet_next_slot(p);
  TRY(poet_retire(p, p->decoder.finished));
  if (poet_is_forward(p)) {
    return 0;
  }
  TRY(poet_check_live(p));
  TRY(poet_settle(p));
  p->live_slot = (uint8_t)slot;
  p->live_step = p->status.step;
  return 0;
}

static POET_CHECKED int finish(struct poet *p) {
  POET_PART(p, POET_PART_check, take_steps(p));
  return poet_in_ram(p) || poet_is_forward(p) ||
                 p->status.step % p->plan.commit_every
             ? 0
             : poet_commit_step(p);
}

static POET_CHECKED int execute(struct poet *p,
                                const struct poet_statement *s) {
  const uint32_t begin = now(p);
  int error = 0;
  switch (s->code) {
  case POET_STATEMENT_compute:
    return call_kernel(p, s);
  case POET_STATEMENT_stream:
    return POET_STREAMS ? stream(p, s) : 0;
  case POET_STATEMENT_page_in:
    SHOW(p, s->offset, s->size_bytes);
    return poet_page(p, s);
  case POET_STATEMENT_page_out:
    if (s->record.place == POET_PLACE_NEXT) {
      TRY(poet_check_renewed(p, s->tensor, s->offset, s->size_bytes));
    }
    return poet_page(p, s);
  case POET_STATEMENT_free:
    HIDE(p, s->offset, s->size_bytes);
    break;
  case POET_STATEMENT_wait:
    error = poet_retire(p, p->decoder.finished);
    break;
  default:
    error = finish(p);
  }
  poet_trace(p, s->index, s->code, begin, now(p));
  return error;
}

/* Note that a statement begins, or that it has ended. */
static void set_begun(struct poet *p, bool has_begun) {
#if POET_LIBRARY
  p->slices.is_decoded = has_begun;
  p->slices.part = 0;
  p->slices.index = p->slices.offset = p->slices.crc = 0;
#else
  (void)p;
  (void)has_begun;
#endif
}

static POET_CHECKED int next(struct poet *p, struct poet_statement *s) {
  p->status.statement = p->decoder.statement;
  poet_alive(p);
  if (poet_asked_to_stop(p)) {
    return POET_ERROR_stopped;
  }
  TRY(poet_decode(p, s));
  set_begun(p, true);
  return 0;
}

/* Run statements until the step ends, or until its slice does. */
int poet_run_step(struct poet *p) {
#if POET_LIBRARY
  struct poet_statement *const s = (void *)p->slices.statement;
  _Static_assert(sizeof p->slices.statement >= sizeof *s, "its memory");
  const bool goes_on = p->slices.is_decoded;
#else
  struct poet_statement statement = {0}, *const s = &statement;
  const bool goes_on = false;
#endif
  for (bool has_begun = goes_on;; has_begun = false) {
    if (!has_begun) {
      TRY(next(p, s));
    }
    TRY(execute(p, s));
    set_begun(p, false);
    if (s->code == POET_STATEMENT_end) {
      return 0;
    }
    if (poet_must_pause(p)) {
      return POET_BUSY;
    }
  }
}

static POET_CHECKED int start(struct poet *p, uint32_t step,
                              uint16_t restarts) {
  p->result = (struct poet_step_result){.step = step, .restarts = restarts};
  p->status = (struct poet_status){.running = 1, .step = step};
#if POET_LIBRARY
  p->slices.blocks = 0;
#endif
  set_begun(p, false);
  SHOW(p, 0, p->memory.arena_bytes); /* an attempt before may have hidden it */
  /* Remove the data area of storage from the block cache: the transfers of this
   * step write there without the cache, so cached copies would be outdated. */
  TRY(poet_settle(p)); /* a part of a batch must not be lost without an error */
  poet_forget(p, POET_DATA_BLOCK);
  TRY(poet_decode_start(p)); /* overwrites the bitmap that staging uses */
  TRY(poet_set_factor(p, step));
  poet_start_rows(p);
  poet_paint(p);
  p->submitted = 0;
  p->retired = 0;
  p->completed = 0;
  p->digest = 0;
  p->unwritten = false;
  p->staging &= poet_is_forward(p);
  p->verified = POET_NONE;
  memset(p->memory.trace, 0, p->trace_count * sizeof *p->memory.trace);
  HIDE(p, 0, p->memory.arena_bytes);
  for (uint32_t i = 0; i < p->decoder.resident_count; i++) {
    SHOW(p, p->memory.residents[i].offset, p->memory.residents[i].size_bytes);
  }
  /* The next two lines come last, so that the preparation above is not counted
   * in the step. */
  poet_usage(p->port, &p->before);
  p->started = p->counted = now(p);
  return 0;
}

/* Return whether the running step is the first one after a commit. */
static bool follows_commit(const struct poet *p) {
  return p->status.step - p->committed.now.step == 1;
}

/* Can the step be repeated after page_damaged? Its inputs must be whole. */
static bool page_is_lost(struct poet *p) {
  struct poet_tensor tensor;
  return follows_commit(p) && !p->holds_batch &&
         (p->unwritten || (!poet_read_tensor(p, p->detail, &tensor) &&
                           (tensor.place == POET_PLACE_PAGE ||
                            tensor.place == POET_PLACE_NEXT)));
}

/* If a committed tensor is damaged, return to the commit before. */
__attribute__((noinline)) static POET_CHECKED int go_back(struct poet *p,
                                                          int error) {
  struct poet_tensor tensor;
  const uint32_t number = p->detail;
  if (!p->unwritten && follows_commit(p) &&
      !poet_read_tensor(p, number, &tensor) &&
      tensor.place == POET_PLACE_CURRENT) {
    TRY(poet_roll_back(p));
  }
  return poet_fail(p, error, number);
}

/* Check that the step follows the last one, and prepare storage for it. */
static POET_CHECKED int prepare(struct poet *p, uint32_t step) {
  if (poet_is_forward(p)) {
    return p->staging || (poet_committed(p) && p->live_step != POET_NO_STEP)
               ? 0
               : poet_fail(p, POET_ERROR_wrong_step, POET_NO_STEP);
  }
  const uint32_t last =
      poet_committed(p) ? p->live_step : p->committed.now.step;
  if (!poet_committed(p) || step == POET_NO_STEP || step - last > 1) {
    return poet_fail(p, POET_ERROR_wrong_step, last);
  }
  if (step == last) {
    /* After a restart, only the commit record of that step is known. */
    if (p->result.step != step) {
      p->result = (struct poet_step_result){.step = step,
                                            .loss = p->committed.now.loss};
    }
    return 0;
  }
  if (!poet_in_ram(p)) {
    TRY(poet_renumber(p));
  }
  return poet_check_batch(p);
}

int poet_begin_step(struct poet *p, uint32_t step, uint16_t trace_first,
                    uint16_t trace_count) {
  TRY(poet_ready(p));
  if (!p->loaded) {
    return POET_ERROR_no_schedule;
  }
  if (!poet_is_exact()) { /* other code may have set modes since the load */
    return POET_ERROR_inexact;
  }
  if (!poet_is_forward(p) && poet_committed(p) &&
      (p->staging || p->live_step == POET_NO_STEP)) {
    TRY(poet_restore(p));
  }
  const uint32_t last = poet_is_forward(p) ? p->result.step : p->live_step;
  TRY(prepare(p, step));
  if (step == last) {
    return 0;
  }
  if (!poet_infers(p)) { /* a step uses up the batch: no bytes of it follow */
    p->arriving.slot = POET_NO_SLOT;
  }
  p->trace_first = trace_first;
  p->trace_count = trace_count < p->memory.trace_capacity
                       ? trace_count
                       : p->memory.trace_capacity;
  int error = start(p, step, 0);
  if (error) {
    error = poet_end_step(p, error);
  }
  return error == POET_BUSY ? 0 : error;
}

static POET_CHECKED int start_again(struct poet *p) {
  const uint16_t restarts = (uint16_t)(p->result.restarts + 1);
  p->result.restarts = restarts;
  TRY(poet_restore(p)); /* may return to the commit before */
  return follows_commit(p) ? start(p, p->status.step, restarts)
                           : POET_ERROR_page_damaged;
}

/* After all statements, or an error. POET_BUSY: the step starts again. */
int poet_end_step(struct poet *p, int error) {
  /* Wait first, because unfinished transfers still use the arena and the
   * queue. */
  poet_drain(p);
  while (error) {
    poet_forget_rows(p);
    if (error != POET_ERROR_page_damaged || poet_is_forward(p) ||
        !page_is_lost(p) || p->result.restarts >= MAX_RESTARTS) {
      break;
    }
    error = start_again(p);
    if (!error) {
      return POET_BUSY;
    }
  }
  poet_count_time(p, now(p));
  SHOW(p, 0, p->memory.arena_bytes);
  p->result.peak_bytes = poet_high_water(p);
  if (!p->dirty_bytes) {
    p->dirty_bytes = p->result.peak_bytes;
  }
  p->status.running = 0;
  p->status.error = (int16_t)error;
  if (error && poet_is_forward(p)) {
    p->result.step = POET_NO_STEP; /* a repeated request runs it again */
    return error;
  }
  if (error) {
    poet_drop_steps(p);
    p->stale = true;
    poet_clear_bitmap(p);
  }
  return error == POET_ERROR_page_damaged ? go_back(p, error) : error;
}

int poet_step(struct poet *p, uint32_t step, uint16_t trace_first,
              uint16_t trace_count, struct poet_step_result *result) {
  int error = poet_begin_step(p, step, trace_first, trace_count);
  while (!error && p->status.running) {
    error = poet_end_step(p, poet_run_step(p));
    error = error == POET_BUSY ? 0 : error;
  }
  *result = p->result;
  return error;
}
