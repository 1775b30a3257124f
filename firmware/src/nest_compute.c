/*
 * nest_compute.c - the computations of a nest: calls of kernels for its cells,
 * and for the statistics of a slab of its output.
 *
 * This file keeps no state.
 */
#include "poet/kernel.h"
#include "plan.h"

/* Set the sizes of the operator to those of the cell, and whether the cell has
 * the first and the last terms of its sums. */
static void shape_part(const struct poet_nest_run *run, struct poet_call *call,
                       bool paired) {
  const struct poet_nest *nest = &run->state->nest;
  const uint32_t summed =
      paired ? 1u << POET_AXIS_k : poet_summed_axes(call->whole);
  run->state->part = *call->whole;
  for (uint32_t i = 0; i < nest->loops; i++) {
    const uint32_t axis = nest->axis[i];
    const struct poet_side side =
        poet_range(run, run->state->here.index, nest->loops, axis);
    poet_cut_axis(&run->state->part, axis, side.end - side.begin);
    if (axis == POET_AXIS_pass) {
      call->pass = (uint8_t)side.begin;
    }
    if (poet_has_windows(call->whole) &&
        (axis == POET_AXIS_h || axis == POET_AXIS_oh)) {
      struct poet_side other = side;
      const uint32_t others = poet_window(call->whole, axis, &other);
      const bool back = axis == POET_AXIS_h;
      poet_cut_axis(&run->state->part, others, other.end - other.begin);
      const struct poet_side x = back ? side : other, y = back ? other : side;
      run->state->part.pad_h = (uint8_t)(call->whole->pad_h + x.begin -
                                         y.begin * call->whole->stride_h);
    }
    if (axis == POET_AXIS_k && poet_has_steps(call->whole)) {
      call->row = side.begin;
    } else if (summed >> axis & 1 || poet_has_steps(call->whole)) {
      const bool down = poet_walks_down(call->whole);
      const bool is_lowest = side.begin == 0;
      const bool is_highest = side.end == poet_axis_size(call->whole, axis);
      call->first &= down ? is_highest : is_lowest;
      call->last &= down ? is_lowest : is_highest;
    }
  }
}

/* Return the number of an operand's element among all of its elements. */
static uint32_t element(const struct poet_nest_operand *o,
                        const struct poet_side *at) {
  uint32_t number = 0;
  for (uint32_t j = 0; j < POET_OPERAND_AXES; j++) {
    number = number * o->axes.size[j] + at[j].begin;
  }
  return number;
}

/* Return the memory of the accumulators of a cell. They are cell after cell. */
static float *sums_of(const struct poet_nest_run *run,
                      const struct poet_side *at) {
  const struct poet_nest_operand *o = poet_output_of(run);
  const struct poet_nest *nest = &run->state->nest;
  struct poet_side *const tile = run->state->box;
  uint32_t *const cell = run->state->parts;
  poet_box(run, o, run->state->here.index, nest->sums_depth, tile);
  for (uint32_t j = 0; j < POET_OPERAND_AXES; j++) {
    cell[j] = poet_extent(&run->p->op, nest, o, j, nest->loops);
  }
  return (float *)(void *)(run->p->memory.arena + run->state->sums +
                           poet_offset_in(tile, cell, at));
}

/* Set the operands of the cell; `paired`: those of the input gradient. */
__attribute__((noinline)) static void
prepare(const struct poet_nest_run *run, struct poet_call *call, bool paired) {
  struct poet_side *const memory = run->state->box, *const at = run->state->at;
  uint32_t *const parts = run->state->parts;
  const struct poet_op *op = call->whole;
  const struct poet_nest *nest = &run->state->nest;
  const uint32_t *index = run->state->here.index;
  const uint32_t output = op->input_count;
  shape_part(run, call, paired);
  for (uint32_t i = run->last + 1; i--;) {
    const struct poet_nest_operand *o = &run->operands[i];
    uint8_t *data = poet_slab_at(run, o, o->used);
    poet_slab(run, o, index, memory);
    poet_box(run, o, index, nest->loops, at);
    for (uint32_t j = 0; j < POET_OPERAND_AXES; j++) {
      parts[j] = o->dense ? memory[j].end - memory[j].begin : o->part[j];
    }
    data += poet_offset_in(memory, parts, at);
    if (poet_has_rows(op, nest, i) && o->dense) {
      call->row = parts[1] * parts[2] * parts[3];
    }
    if (poet_has_planes(op, i) && o->dense) {
      *(i == output ? &call->out_plane : &call->in_plane) = parts[2] * parts[3];
    }
    if (i == output - (op->kernel == POET_KERNEL_embedding ||
                       op->kernel == POET_KERNEL_slice)) {
      call->index = element(o, at);
    }
    if (i != output) {
      call->in[i] = data;
      continue;
    }
    call->out = data;
    call->sums = !run->state->sums ? call->out
                 : poet_has_steps(op)
                     ? (void *)(run->p->memory.arena + run->state->sums)
                     : sums_of(run, at);
  }
  if (paired) { /* dy, w > dx */
    call->in[0] = call->in[1];
    call->in[1] = call->in[output - 1];
    call->out = (void *)(uintptr_t)call->in[output + 1];
  }
}

void poet_compute_cell(const struct poet_nest_run *run, bool paired) {
  struct poet *p = run->p;
  struct poet_call call = {.op = &run->state->part,
                           .whole = &p->op,
                           .first = true,
                           .last = true,
                           .step = p->status.step};
  prepare(run, &call, paired);
  const uint32_t begin = poet_ticks(p->port);
  if (paired || poet_is_due(&run->state->part, &call.step)) {
    poet_kernel((uint8_t)(p->op.kernel - paired))(&call);
  }
  poet_count_compute(p, begin, poet_ticks(p->port));
}

/* Swap the sizes of x and y, because statistics read the output as their x. */
static void turn(struct poet_op *op) {
  const uint32_t h = op->h, w = op->w;
  op->h = op->oh;
  op->w = op->ow;
  op->oh = h;
  op->ow = w;
}

void poet_compute_statistics(const struct poet_nest_run *run) {
  struct poet *p = run->p;
  const struct poet_nest_operand *o = poet_output_of(run);
  struct poet_side *const slab = run->state->box, *const at = run->state->at;
  struct poet_op *const part = &run->state->part;
  struct poet_call call = {.op = part, .whole = &p->op};
  const uint32_t begin = poet_ticks(p->port);
  poet_slab(run, o, run->state->here.index, slab);
  turn(&p->op);
  part->w = p->op.w;
  for (; call.pass < 2; call.pass++) {
    for (uint32_t i = 0; poet_divide(slab, o->part, i, at); i++) {
      part->n = at[0].end - at[0].begin;
      part->c = at[1].end - at[1].begin;
      part->h = at[2].end - at[2].begin;
      call.first = !(call.pass || at[0].begin || at[2].begin);
      call.last = call.pass && at[0].end == p->op.n && at[2].end == p->op.h;
      call.in[0] =
          poet_slab_at(run, o, o->used) + poet_offset_in(slab, o->part, at);
      call.out = p->memory.arena + run->s->input[p->op.input_count + 1] +
                 8 * at[1].begin;
      if (POET_HAS_KERNEL(POET_KERNEL_batchnorm_stats)) {
        poet_batchnorm_stats(&call);
      }
    }
  }
  turn(&p->op);
  poet_count_compute(p, begin, poet_ticks(p->port));
}
