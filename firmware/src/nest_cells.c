/*
 * nest_cells.c - the cells of a nest: their order, and where their operands
 * lie.
 *
 * This file keeps no state.
 */
#include "plan.h"

struct poet_side poet_range(const struct poet_nest_run *run,
                            const uint32_t *index, uint32_t depth,
                            uint32_t axis) {
  const struct poet_nest *nest = &run->state->nest;
  struct poet_side side = {0, poet_axis_size(&run->p->op, axis)};
  for (uint32_t i = 0; i < depth; i++) {
    if (nest->axis[i] == axis) {
      uint32_t at = index[i];
      if (axis == POET_AXIS_n && poet_walks_down(&run->p->op)) {
        at = poet_divided_up(side.end - side.begin, nest->step[i]) - 1 - at;
      }
      side.begin += at * nest->step[i];
      if (side.end - side.begin > nest->step[i]) {
        side.end = side.begin + nest->step[i];
      }
    }
  }
  return side;
}

uint32_t poet_window(const struct poet_op *op, uint32_t axis,
                     struct poet_side *rows) {
  const uint32_t stride = op->stride_h, kernel = op->kernel_h;
  const uint32_t pad = op->pad_h, last = rows->end - 1;
  const bool back = axis == POET_AXIS_h;
  uint32_t begin = rows->begin, end = back ? op->oh : op->h, most = end;
  if (last - begin + 1 == poet_axis_size(op, axis)) {
    begin = 0;
  } else if (back) {
    begin += pad + 1;
    begin = begin < kernel ? 0 : (begin - kernel) / stride;
    most = (last + pad) / stride + 1;
  } else {
    begin *= stride;
    begin = begin < pad ? 0 : begin - pad;
    most = last * stride + kernel - pad;
  }
  rows->begin = begin;
  rows->end = most < end ? most : end;
  return back ? POET_AXIS_oh : POET_AXIS_h;
}

void poet_box(const struct poet_nest_run *run,
              const struct poet_nest_operand *o, const uint32_t *index,
              uint32_t depth, struct poet_side *to) {
  for (uint32_t j = 0; j < POET_OPERAND_AXES; j++) {
    uint32_t axis = o->axes.axis[j];
    to[j] = (struct poet_side){0, o->axes.size[j]};
    if (axis < POET_AXES) {
      to[j] = poet_range(run, index, depth, axis);
      for (uint32_t i = j == 2 ? o->window : 0; i--;) {
        axis = poet_window(&run->p->op, axis, &to[j]);
      }
      if (axis == POET_AXIS_groups) {
        const uint32_t per = o->axes.size[j] / run->p->op.groups;
        to[j].begin *= per;
        to[j].end *= per;
      }
    }
  }
}

void poet_slab(const struct poet_nest_run *run,
               const struct poet_nest_operand *o, const uint32_t *index,
               struct poet_side *to) {
  poet_box(run, o, index, o->ring.depth, to);
  if (o->window) {
    const uint32_t piece = poet_piece_extent(o, 2), size = o->axes.size[2];
    const uint32_t end = poet_divided_up(to[2].end, piece) * piece;
    to[2].begin -= to[2].begin % piece;
    to[2].end = end < size ? end : size;
  }
}

bool poet_divide(const struct poet_side *slab, const uint32_t *extent,
                 uint32_t number, struct poet_side *at) {
  for (uint32_t j = POET_OPERAND_AXES; j--;) {
    const uint32_t count =
        poet_divided_up(slab[j].end - slab[j].begin, extent[j]);
    at[j].begin = slab[j].begin + number % count * extent[j];
    at[j].end = at[j].begin + extent[j];
    if (at[j].end > slab[j].end) {
      at[j].end = slab[j].end;
    }
    number /= count;
  }
  return !number;
}

uint32_t poet_box_bytes(const struct poet_side *box) {
  uint32_t bytes = 4;
  for (uint32_t j = 0; j < POET_OPERAND_AXES; j++) {
    bytes *= box[j].end - box[j].begin;
  }
  return bytes;
}

uint32_t poet_offset_in(const struct poet_side *box, const uint32_t *parts,
                        const struct poet_side *at) {
  uint32_t first[POET_OPERAND_AXES], part[POET_OPERAND_AXES];
  uint32_t rows = 1, below = poet_box_bytes(box) / 4, offset = 0, stride = 1;
  for (uint32_t j = 0; j < POET_OPERAND_AXES; j++) {
    const uint32_t size = box[j].end - box[j].begin;
    const uint32_t place = at[j].begin - box[j].begin;
    first[j] = place < parts[j] ? 0 : place - place % parts[j];
    part[j] = parts[j] < size - first[j] ? parts[j] : size - first[j];
    below = size > 1 ? below / size : below;
    offset += rows * first[j] * below;
    rows *= part[j];
  }
  for (uint32_t j = POET_OPERAND_AXES; j--;) {
    offset += (at[j].begin - box[j].begin - first[j]) * stride;
    stride *= part[j];
  }
  return 4 * offset;
}

void poet_next_cell(const struct poet_nest_run *run, struct poet_walker *w) {
  const struct poet_nest *nest = &run->state->nest;
  w->operand = 0;
  w->moved = 0;
  for (uint32_t i = nest->loops; i--;) {
    const struct poet_side outer = poet_range(run, w->index, i, nest->axis[i]);
    w->moved |= (uint8_t)(1u << i);
    if (nest->step[i] < outer.end - outer.begin - w->index[i] * nest->step[i]) {
      w->index[i]++;
      return;
    }
    if (!w->index[i]) { /* the loop has one iteration here */
      w->moved &= (uint8_t)~(1u << i);
    }
    w->index[i] = 0;
  }
  w->done = true;
}

bool poet_is_new(const struct poet_nest_operand *o,
                 const struct poet_walker *w) {
  return w->done || (o->loops & w->moved);
}
