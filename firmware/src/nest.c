/*
 * nest.c - runs a nest: one operator part by part, while its operands stream.
 *
 * A pair is a nest of the gradient of a weight, which also computes the input
 * gradient. Both read the output gradient and the weight from the same slabs.
 * A nest of a convolution may also compute the statistics of its output, of
 * each slab before it goes out.
 *
 * State: struct poet_nest_state and one struct poet_nest_operand for each
 * operand, at the start of the nest's workspace in the arena. Valid while the
 * nest runs.
 *
 * Two walkers go through the same cells. `ahead` asks for the slabs of the
 * inputs while their rings and the queue have room, so reads run ahead across
 * the boundaries of loops. `here` computes. When it leaves a slab of the
 * output, the slab goes out through the same queue.
 *
 * The lane runs transfers in the order of submission. So a read into memory
 * whose write is queued needs no wait: the write comes first. A slab of the
 * output may be overwritten by computations, so its memory waits for the write.
 */
#include <string.h>

#include "poet/kernel.h"
#include "plan.h"

/* ---- slabs -------------------------------------------------------------- */

/* Return the slot after `number`; the same one if the ring has only one. */
static uint8_t other_slot(const struct poet_nest_operand *o, uint8_t number) {
  return (uint8_t)(o->ring.slots - 1 - number);
}

/* Find piece `number` of the slab in state->box, which lies at `data`. Return
 * its data in RAM; NULL: the slab has fewer pieces. Not inlined, like the other
 * functions with this attribute, so that its frame is not on the stack while a
 * request of the host is served. */
__attribute__((noinline)) static uint8_t *
find_piece(const struct poet_nest_run *run, const struct poet_nest_operand *o,
           uint8_t *data, uint32_t number) {
  struct poet_side *const slab = run->state->box, *const at = run->state->at;
  uint32_t *const extent = run->state->parts;
  uint32_t part = 0;
  for (uint32_t j = 0; j < POET_OPERAND_AXES; j++) {
    extent[j] = poet_piece_extent(o, j);
  }
  if (!poet_divide(slab, extent, number, at)) {
    return NULL;
  }
  for (uint32_t j = 0; j < POET_OPERAND_AXES; j++) {
    part = part * poet_divided_up(o->axes.size[j], extent[j]) +
           at[j].begin / extent[j];
  }
  poet_piece(run->p, &o->tensor, &o->pieces, part, false, &run->state->moving);
  return data + poet_offset_in(slab, o->part, at);
}

/* A value that is not finite must not be committed. */
static POET_CHECKED int check_finite(const struct poet_nest_run *run,
                                     const uint8_t *at, uint32_t bytes) {
  return run->s->record.place != POET_PLACE_NEXT || poet_is_finite(at, bytes)
             ? 0
             : poet_fail(run->p, POET_ERROR_not_finite, run->s->tensor);
}

/* Submit the transfers of the slab that `ahead` asks for, or of the output's
 * slab that `here` leaves. Then the slot is filled. Without `wait`, stop if the
 * queue is full; a later call goes on with the next piece. */
static POET_CHECKED int move(const struct poet_nest_run *run,
                             struct poet_nest_operand *o, bool wait) {
  struct poet *p = run->p;
  struct poet_nest_state *state = run->state;
  const bool write = o >= poet_output_of(run),
             is_output = o == poet_output_of(run);
  const uint8_t number = write ? o->used : o->asked;
  uint8_t *const data = poet_slab_at(run, o, number);
  uint32_t *const piece = &state->piece[write];
  struct poet_move to = {.statement = run->s->index,
                         .tensor = o->number,
                         .write = write,
                         .renews = is_output && run->s->renews,
                         .nested = true};
  poet_slab(run, o, write ? state->here.index : state->ahead.index, state->box);
  if (is_output) {
    TRY(check_finite(run, data, poet_box_bytes(state->box)));
  }
  for (; (to.data = find_piece(run, o, data, *piece)) != NULL; ++*piece) {
    bool room = true;
    if (!wait) {
      TRY(poet_has_room(p, &room));
    }
    if (!room) {
      return 0;
    }
    TRY(poet_submit_piece(p, &state->moving, &to));
    o->moved[number] = p->submitted - 1;
  }
  *piece = 0;
  o->asked = other_slot(o, number);
  o->filled = (uint8_t)(o->filled + (o->filled < o->ring.slots));
  return 0;
}

/* Go to the next cell that must be computed. */
static void next_cell(const struct poet_nest_run *run, struct poet_walker *w) {
  uint8_t moved = 0;
  do {
    poet_next_cell(run, w);
    moved |= w->moved;
  } while (!w->done && poet_is_idle(run, w));
  w->moved = moved;
}

/* Ask for slabs as far ahead as rings and queue have room. With `wait`, ask at
 * least for the slab that comes next. */
static POET_CHECKED int pump(const struct poet_nest_run *run, bool wait) {
  struct poet_walker *w = &run->state->ahead;
  for (; !w->done; next_cell(run, w)) {
    for (; w->operand < run->p->op.input_count; w->operand++) {
      struct poet_nest_operand *o = &run->operands[w->operand];
      const uint8_t filled = o->filled;
      if (!o->ring.slots || !poet_is_new(o, w)) {
        continue;
      }
      if (filled == o->ring.slots) {
        return 0;
      }
      TRY(move(run, o, wait));
      if (o->filled == filled) {
        return 0;
      }
      wait = false;
    }
  }
  return 0;
}

/* Wait for the slabs of this cell, and for the memory of its output. */
static POET_CHECKED int arrive(const struct poet_nest_run *run) {
  const struct poet_walker *w = &run->state->here;
  for (uint32_t i = 0; i <= run->last; i++) {
    struct poet_nest_operand *o = &run->operands[i];
    const bool write = i >= run->p->op.input_count;
    if (!o->ring.slots || !poet_is_new(o, w)) {
      continue;
    }
    /* `filled` of an output: slots of which a write was submitted. If the
     * output overwrites an input, the write came before the read just waited
     * for. */
    while (!write && !o->filled) {
      TRY(pump(run, true));
    }
    if (!write || o->filled == o->ring.slots) {
      TRY(poet_retire_transfer(run->p, o->moved[o->used]));
    }
  }
  return 0;
}

/* Let go of the slabs that the next cell does not use. An overwritten input
 * uses the same slots as the output. */
static POET_CHECKED int leave(const struct poet_nest_run *run) {
  struct poet_walker *next = &run->state->next;
  for (uint32_t i = run->last + 1 - next->operand; i--; next->operand++) {
    struct poet_nest_operand *o = &run->operands[i];
    if (o->ring.slots && poet_is_new(o, next)) {
      if (i >= run->p->op.input_count) {
        TRY(move(run, o, true));
      } else {
        o->filled--;
      }
      o->used = other_slot(o, o->used);
    }
  }
  return 0;
}

/* ---- the nest ----------------------------------------------------------- */

/* Build the state in the workspace. The records may differ from those that the
 * decoder has read, so their laws and sizes are checked again. */
__attribute__((noinline)) static POET_CHECKED int
start(const struct poet_nest_run *run) {
  struct poet *p = run->p;
  const struct poet_statement *s = run->s;
  const uint32_t output = p->op.input_count;
  struct poet_nest_state *state = run->state;
  uint32_t bytes, at;
  memset(state, 0, sizeof *state);
  state->nest = s->nest;
  state->ahead.moved = state->here.moved = 0xff;
  TRY(poet_nest_bytes(p, &s->nest, &bytes));
  if (bytes != s->workspace_bytes) {
    return poet_fail(p, POET_ERROR_bad_plan, s->index);
  }
  const uint32_t count = run->last + 1;
  at = s->workspace + POET_NEST_BYTES + count * POET_NEST_OPERAND_BYTES;
  for (uint32_t i = 0; i < count; i++) {
    struct poet_nest_operand *o = &run->operands[i];
    TRY(poet_nest_operand(p, &s->nest, i, o));
    o->offset = i == output ? s->offset : s->input[i];
    if (o->ring.slots && i != s->nest.over) {
      o->offset = at;
      at += o->ring.slots * o->slab_bytes;
    }
    if (o->ring.slots && (o->tensor.flags & POET_FLAG_SHARED)) {
      TRY(poet_settle(p)); /* the card must have what this step has written */
    }
  }
  if (s->nest.over != POET_NO_OPERAND) {
    run->operands[s->nest.over].offset = run->operands[output].offset;
  }
  if (at != s->workspace + bytes) {
    state->sums = at;
  }
  return poet_begin_rows(run);
}

/* Go to the first cell that must be computed. */
static POET_CHECKED int begin_cells(const struct poet_nest_run *run) {
  struct poet_nest_state *state = run->state;
  run->p->status.cell = 0;
  TRY(start(run));
  if (poet_is_idle(run, &state->here)) {
    next_cell(run, &state->here);
    state->here.moved = 0xff;
    state->ahead = state->here;
  }
  return pump(run, false);
}

static POET_CHECKED int compute(const struct poet_nest_run *run) {
  struct poet_nest_state *state = run->state;
  struct poet_walker *const next = &state->next;
  TRY(arrive(run));
  TRY(pump(run, false));
  if (state->nest.pair) {
    poet_compute_cell(run, true); /* it reads the old weight */
  }
  poet_compute_cell(run, false);
  *next = state->here;
  next_cell(run, next);
  if (state->nest.statistics && poet_is_new(poet_output_of(run), next)) {
    poet_compute_statistics(run);
  }
  state->here.is_computed = true;
  return 0;
}

static POET_CHECKED int run_cells(const struct poet_nest_run *run) {
  struct poet_nest_state *state = run->state;
  while (!state->here.done) {
    poet_alive(run->p); /* a nest may take minutes */
    if (poet_asked_to_stop(run->p)) {
      return POET_ERROR_stopped;
    }
    if (!state->here.is_computed) {
      TRY(compute(run));
    }
    TRY(leave(run));
    state->here = state->next;
    run->p->status.cell++;
    if (poet_must_pause(run->p)) {
      return POET_BUSY;
    }
  }
  return 0;
}

int poet_run_nest(struct poet *p, const struct poet_statement *s) {
  uint8_t *workspace = p->memory.arena + s->workspace;
  const struct poet_nest_run run = {
      .p = p,
      .s = s,
      .last = poet_last_operand(p, &s->nest),
      .state = (struct poet_nest_state *)(void *)workspace,
      .operands =
          (struct poet_nest_operand *)(void *)(workspace + POET_NEST_BYTES)};
  POET_PART(p, 0, begin_cells(&run));
  TRY(run_cells(&run));
  TRY(poet_retire_transfer(p, p->submitted - 1));
  return poet_settle(p);
}
