/*
 * nest_shape.c - nests as the plan describes them: their bits, their laws, and
 * the memory of their operands.
 *
 * This file keeps no state. A nest is a list of loops over the axes of one
 * operator. Its innermost cell is one call of the kernel. An operand is whole
 * in RAM, or streams: then a ring in the workspace holds one or two slabs, each
 * of which is what the first `depth` loops leave of the operand.
 *
 * All laws are checked from steps, sizes and parts, without a walk. They are
 * checked again before the nest runs, because storage may return other bytes.
 *
 * Bytes of a workspace: state, state of each operand, sums, rings.
 */
#include <string.h>

#include "plan.h"

static bool is_in(uint32_t axes, uint32_t axis) {
  return axes >> axis & 1;
}

uint32_t poet_nest_step(const struct poet_nest *nest, uint32_t axis,
                        uint32_t depth) {
  while (depth--) {
    if (nest->axis[depth] == axis) {
      return nest->step[depth];
    }
  }
  return 0;
}

/* Read the loops, which begin with the innermost one. Terms of a sum must be
 * added in ascending order, and all rows of a weight used in a step before the
 * next step of a walk. */
static POET_CHECKED int take_loops(struct poet *p, struct poet_nest *nest) {
  const uint32_t free = poet_free_axes(&p->op);
  const uint32_t rows = (uint32_t)nest->pair << POET_AXIS_oh; /* not cut */
  const uint32_t summed = poet_summed_axes(&p->op) & ~rows;
  const uint32_t steps = (uint32_t)poet_has_steps(&p->op) << POET_AXIS_n;
  uint32_t count, axis, factor, first = POET_AXES, last = 0;
  TRY(poet_take_bits(p, 3, &count));
  nest->loops = (uint8_t)count;
  nest->sums_depth = (uint8_t)count;
  for (uint32_t i = count; i--;) {
    TRY(poet_take_bits(p, 3, &axis));
    TRY(poet_take_gamma(p, &factor));
    uint32_t inner = 1;
    for (uint32_t j = count; --j > i;) {
      inner = nest->axis[j] == axis ? nest->step[j] : inner;
    }
    if (!is_in(free | summed, axis) ||
        factor >= poet_axis_size(&p->op, axis) / inner) {
      return poet_refuse(p);
    }
    nest->axis[i] = (uint8_t)axis;
    nest->step[i] = inner * (factor + 1);
    if (is_in(summed | steps, axis)) {
      if (axis > first) {
        return poet_refuse(p);
      }
      first = axis;
      last = axis > last ? axis : last;
    }
    if (is_in(summed, axis)) {
      nest->sums_depth = (uint8_t)i;
    }
  }
  for (axis = 0; axis < last; axis++) {
    const uint32_t step = poet_nest_step(nest, axis, count);
    if (is_in(summed | steps, axis) &&
        (step ? step : poet_axis_size(&p->op, axis)) != 1) {
      return poet_refuse(p);
    }
  }
  return 0;
}

static POET_CHECKED int take_ring(struct poet *p, const struct poet_nest *nest,
                                  struct poet_ring *ring) {
  uint32_t bit, depth;
  *ring = (struct poet_ring){0, 0};
  TRY(poet_take_bits(p, 1, &bit));
  if (!bit) {
    return 0;
  }
  TRY(poet_take_bits(p, 1, &bit));
  TRY(poet_take_bits(p, poet_bit_width(nest->loops + 1u), &depth));
  *ring = (struct poet_ring){(uint8_t)(bit + 1), (uint8_t)depth};
  return depth <= nest->loops ? 0 : poet_refuse(p);
}

/* A result leaves RAM only when its sums are complete. The input gradient of a
 * pair sums over k. */
int poet_take_nest(struct poet *p, struct poet_nest *nest) {
  const uint32_t output = p->op.input_count;
  uint32_t in_place = p->op.overwrites != POET_NONE;
  TRY(take_loops(p, nest));
  if (in_place && !poet_must_overwrite(&p->op)) {
    TRY(poet_take_bits(p, 1, &in_place));
  }
  nest->over = POET_NO_OPERAND;
  for (uint32_t i = 0; i <= poet_last_operand(p, nest); i++) {
    if (i < output && in_place && p->op.input[i] == p->op.overwrites) {
      nest->over = (uint8_t)i;
    } else {
      TRY(take_ring(p, nest, &nest->ring[i]));
    }
  }
  if (nest->over != POET_NO_OPERAND) {
    nest->ring[nest->over] = nest->ring[output];
  }
  const struct poet_ring *const ring = &nest->ring[output];
  return (ring->slots && ring->depth > nest->sums_depth) ||
                 (nest->pair &&
                  poet_nest_step(nest, POET_AXIS_k, ring[1].depth))
             ? poet_refuse(p)
             : 0;
}

uint32_t poet_last_operand(const struct poet *p, const struct poet_nest *nest) {
  return p->op.input_count + nest->pair;
}

uint32_t poet_other_bytes(const struct poet *p, const struct poet_nest *nest) {
  return nest->statistics ? 8 * p->op.k : poet_operand_bytes(&p->op, 0);
}

static bool is_window(const struct poet_nest_operand *o, uint32_t j) {
  return o->window && j == 2;
}

/* Return the number of indices of axis `j` of an operand for each index of the
 * operator's axis. */
static uint32_t per(const struct poet_op *op, const struct poet_nest_operand *o,
                    uint32_t j) {
  return o->axes.axis[j] == POET_AXIS_groups ? o->axes.size[j] / op->groups : 1;
}

uint32_t poet_extent(const struct poet_op *op, const struct poet_nest *nest,
                     const struct poet_nest_operand *o, uint32_t j,
                     uint32_t depth) {
  const uint32_t step = poet_nest_step(nest, o->axes.axis[j], depth);
  if (!step || step == poet_axis_size(op, o->axes.axis[j])) {
    return o->axes.size[j];
  }
  if (!is_window(o, j)) {
    return step * per(op, o, j);
  }
  const uint32_t stride = op->stride_h, kernel = op->kernel_h;
  bool back = o->axes.axis[j] == POET_AXIS_h;
  uint32_t rows = step;
  for (uint32_t i = o->window; i--; back = !back) {
    const uint32_t most = back ? op->oh : op->h;
    if (rows == (back ? op->h : op->oh)) {
      return most; /* only after the first window */
    }
    rows = back ? poet_divided_up(rows + kernel - 2, stride) + 1
                : (rows - 1) * stride + kernel;
    rows = rows < most ? rows : most;
  }
  return rows;
}

/* Return the largest extent of the slabs: of the pieces that windows touch, or
 * of what the loops leave. */
static uint32_t slab_extent(const struct poet_op *op,
                            const struct poet_nest *nest,
                            const struct poet_nest_operand *o, uint32_t j) {
  const uint32_t extent = poet_extent(op, nest, o, j, o->ring.depth);
  if (!is_window(o, j) || extent == o->axes.size[j]) {
    return extent;
  }
  const uint32_t piece = poet_piece_extent(o, j);
  const uint32_t pieces = poet_divided_up(extent - 1, piece) + 1;
  return pieces * piece < o->axes.size[j] ? pieces * piece : o->axes.size[j];
}

uint32_t poet_slab_bytes(const struct poet_op *op, const struct poet_nest *nest,
                         const struct poet_nest_operand *o, uint32_t depth) {
  uint32_t bytes = 4;
  for (uint32_t j = 0; j < POET_OPERAND_AXES; j++) {
    bytes *= poet_extent(op, nest, o, j, depth);
  }
  return bytes;
}

/* Find the parts along the operand's axes. Each cut axis of the tensor must be
 * one of them, or several in a row: then a part has all indices of the inner
 * ones, or one index of the outer ones. */
static bool find_parts(struct poet_nest_operand *o) {
  const struct poet_cut *cut = &o->pieces.cut;
  uint32_t below = cut->unit_bytes / 4;
  memcpy(o->part, o->axes.size, sizeof o->part);
  for (uint32_t i = POET_CUT_AXES; i--;) {
    uint32_t left = cut->part[i], rest = cut->size[i], after = 1;
    if (left == rest) {
      below *= rest;
      continue;
    }
    for (uint32_t j = POET_OPERAND_AXES; j--;) {
      const uint32_t size = o->axes.size[j];
      const uint32_t part = left < size ? left : size;
      /* `part` is `left` or `size`, and divides the other one */
      if (after == below && rest % size == 0 &&
          (rest == size || (left + size) % part == 0)) {
        o->part[j] = part;
        left /= part;
        rest /= size;
        below *= size;
      }
      after *= size;
    }
    if (rest > 1) {
      return false;
    }
  }
  return true;
}

static bool is_one_piece(const struct poet_nest_operand *o) {
  return o->pieces.count == 1;
}

uint32_t poet_piece_extent(const struct poet_nest_operand *o, uint32_t j) {
  return is_one_piece(o) ? o->axes.size[j] : o->part[j];
}

/* Return true if the parts of a box in order are the box in row-major order:
 * parts have one index along the axes before the last one that is cut. */
static bool is_row_major(const uint32_t *box, const uint32_t *part) {
  bool one = true; /* one index along all axes so far */
  for (uint32_t j = 0; j < POET_OPERAND_AXES; j++) {
    if (part[j] < box[j] && !one) {
      return false;
    }
    one &= part[j] == 1 || box[j] == 1;
  }
  return true;
}

static bool is_convolution(const struct poet_op *op) {
  return op->kernel == POET_KERNEL_conv2d ||
         op->kernel == POET_KERNEL_conv2d_grad_input;
}

/* Gradients are written in rows if all terms of a sum are added at once, and if
 * the sink uses one tensor, which is whole in RAM. */
bool poet_has_rows(const struct poet_op *op, const struct poet_nest *nest,
                   uint32_t i) {
  if (op->kernel != POET_KERNEL_conv2d_grad_weight) {
    return i == 1 && !nest->pair &&
           (is_convolution(op) || op->kernel == POET_KERNEL_linear_grad_weight);
  }
  return i >= 2 && op->input_count <= 3 && !nest->pair &&
         nest->sums_depth == nest->loops && !nest->ring[op->input_count].slots;
}

bool poet_has_planes(const struct poet_op *op, uint32_t i) {
  return is_convolution(op) && (i == 0 || i == op->input_count);
}

/* The slabs must consist of whole pieces, of which each is one part. Each cell
 * must be dense and in row-major order, and lie inside a part. An operand that
 * is whole in RAM is one slab. `i`: the number of the operand. */
static bool slabs_are_sound(const struct poet_op *op,
                            const struct poet_nest *nest, uint32_t i,
                            struct poet_nest_operand *o) {
  uint32_t box[POET_OPERAND_AXES], cell[POET_OPERAND_AXES];
  if (o->ring.slots && !is_one_piece(o) && o->pieces.cut.piece_parts > 1) {
    return false;
  }
  for (uint32_t j = 0; j < POET_OPERAND_AXES; j++) {
    box[j] = slab_extent(op, nest, o, j);
    cell[j] = poet_extent(op, nest, o, j, nest->loops);
    if (box[j] < o->axes.size[j] && box[j] % poet_piece_extent(o, j)) {
      return false;
    }
  }
  o->dense = is_row_major(box, o->part);
  const uint32_t axis = o->axes.axis[2];
  const uint32_t step = poet_nest_step(nest, axis, nest->loops);
  if (o->window && step && step < poet_axis_size(op, axis)) {
    if (!o->dense && o->part[2] < box[2]) {
      return false;
    }
    cell[2] = 0; /* a cell may have less than its most rows */
  }
  if (poet_has_rows(op, nest, i) && o->dense) {
    cell[0] = 1;
  }
  if (poet_has_planes(op, i) && o->dense) {
    const uint32_t channels[] = {cell[0], cell[1], box[2], box[3]};
    cell[0] = cell[1] = 1;
    return is_row_major(box, channels) && is_row_major(box, cell);
  }
  for (uint32_t j = 0; j < POET_OPERAND_AXES && !o->dense; j++) {
    if (o->part[j] < box[j]) {
      box[j] = o->part[j];
      if (box[j] % cell[j]) {
        return false;
      }
    }
  }
  return is_row_major(box, cell);
}

int poet_nest_operand(struct poet *p, const struct poet_nest *nest, uint32_t i,
                      struct poet_nest_operand *o) {
  const uint32_t output = p->op.input_count;
  memset(o, 0, sizeof *o);
  o->number = i < output ? p->op.input[i] : p->op.output;
  o->ring = nest->ring[i];
  if (i > output) { /* the input gradient has the shape of the input */
    o->number--;
    i = 0;
  }
  TRY(poet_read_tensor(p, o->number, &o->tensor));
  TRY(poet_read_pieces(p, &o->tensor, &o->pieces));
  o->window = poet_operand_axes(&p->op, i, &o->axes);
  if (o->tensor.size_bytes != poet_operand_bytes(&p->op, i)) {
    return poet_fail(p, POET_ERROR_bad_table, o->number);
  }
  if (!find_parts(o) || !slabs_are_sound(&p->op, nest, i, o)) {
    return poet_refuse(p);
  }
  o->loops = POET_FIRST_CELL;
  for (uint32_t l = 0; l < o->ring.depth; l++) {
    for (uint32_t j = 0; j < POET_OPERAND_AXES; j++) {
      o->loops |= (uint8_t)((o->axes.axis[j] == nest->axis[l]) << l);
    }
  }
  o->slab_bytes = 4;
  for (uint32_t j = 0; j < POET_OPERAND_AXES; j++) {
    o->slab_bytes *= slab_extent(&p->op, nest, o, j);
  }
  return 0;
}

/* Statistics sum over the samples and the rows of the output, in this order, so
 * its slabs must have all of them. They lie in parts of the same channels. `o`
 * is the output; it is overwritten, so that the stack holds one operand. */
static POET_CHECKED int check_statistics(struct poet *p,
                                         const struct poet_nest *nest,
                                         struct poet_nest_operand *o) {
  const struct poet_op *op = &p->op;
  const uint32_t channels = o->part[1], depth = o->ring.depth;
  if (poet_extent(op, nest, o, 0, depth) != op->n ||
      poet_extent(op, nest, o, 2, depth) != op->oh || o->part[3] != op->ow ||
      (o->part[0] != 1 && o->part[2] != op->oh)) {
    return poet_refuse(p);
  }
  o->axes = (struct poet_axes){.size = {2, p->op.k, 1, 1}};
  TRY(poet_read_tensor(p, o->number + 1u, &o->tensor));
  TRY(poet_read_pieces(p, &o->tensor, &o->pieces));
  return o->tensor.size_bytes == 8 * p->op.k && find_parts(o) &&
                 o->part[0] == 2 && o->part[1] == channels
             ? 0
             : poet_refuse(p);
}

int poet_nest_bytes(struct poet *p, const struct poet_nest *nest,
                    uint32_t *bytes) {
  const uint32_t count = poet_last_operand(p, nest) + 1;
  struct poet_nest_operand o;
  uint32_t over[POET_OPERAND_AXES];
  uint64_t sum = POET_NEST_BYTES + count * POET_NEST_OPERAND_BYTES;
  for (uint32_t i = count; i--;) { /* the output before the input of its ring */
    TRY(poet_nest_operand(p, nest, i, &o));
    if (i == p->op.input_count) {
      memcpy(over, o.part, sizeof over);
      if (p->op.sink > POET_SINK_store && nest->sums_depth < nest->loops) {
        sum += poet_slab_bytes(&p->op, nest, &o, nest->sums_depth);
      }
      if (poet_has_steps(&p->op) && nest->loops) {
        sum += poet_kept_bytes(&p->op, nest->sums_depth < nest->loops);
      }
    }
    if (i != nest->over) {
      sum += (uint64_t)o.ring.slots * o.slab_bytes;
    } else if (memcmp(over, o.part, sizeof over) != 0) {
      return poet_refuse(p);
    }
    if (i == p->op.input_count && nest->statistics) {
      TRY(check_statistics(p, nest, &o));
    }
  }
  *bytes = (uint32_t)sum;
  return sum <= UINT32_MAX ? 0 : poet_refuse(p);
}
