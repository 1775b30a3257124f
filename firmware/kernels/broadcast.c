/*
 * broadcast.c - add, sub, mul and scale of tensors that are repeated along some
 * axes (broadcasting). Their gradients are sums along those axes.
 *
 * `axes` of an operand is a bit set: if bit i is set, the operand has size 1
 * along axis i of (n, c, h, w) and is repeated along it.
 */
#include <stddef.h>

#include "poet/kernel.h"
#include "sink.h"

/* Distance, in floats, from one element to the next along each axis; 0 for an
 * axis along which the operand is repeated. */
struct steps {
  uint32_t along[4];
};

static void sizes_of(const struct poet_op *op, uint32_t size[4]) {
  size[0] = op->n;
  size[1] = op->c;
  size[2] = op->h;
  size[3] = op->w;
}

static struct steps steps_of(const uint32_t size[4], uint32_t axes) {
  struct steps steps = {{0}};
  uint32_t elements = 1;
  for (uint32_t i = 4; i-- > 0;) {
    if (!(axes >> i & 1)) {
      steps.along[i] = elements;
      elements *= size[i];
    }
  }
  return steps;
}

/* Return the distance, in floats, from the start of a tensor to its element
 * `i`. `i` counts in row-major order over `size`. `steps` has the distance from
 * one element to the next along each axis. */
static uint32_t place_of(uint32_t i, const uint32_t size[4],
                         const struct steps *steps) {
  uint32_t place = 0;
  for (uint32_t axis = 4; axis-- > 0; i /= size[axis]) {
    place += i % size[axis] * steps->along[axis];
  }
  return place;
}

enum combination { ADD, SUB, MUL };

/* Set `count` elements of y to the sum, difference or product (`kind`) of an
 * element of a and one of b. a_step and b_step are the distances, in floats,
 * from one element to the next. */
static void combine_row(enum combination kind, float *y, const float *a,
                        uint32_t a_step, const float *b, uint32_t b_step,
                        uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    y[i] = kind == ADD ? *a + *b : kind == SUB ? *a - *b : *a * *b;
    a += a_step;
    b += b_step;
  }
}

/* Set y to the sum, difference or product (`kind`) of a, the first input, and
 * b. a is repeated along a_axes, and b along b_axes. If a is not repeated, and
 * b is not repeated or is one number, handle the whole tensor as one row. */
static void combine(const struct poet_call *call, enum combination kind,
                    uint32_t a_axes, const float *b, uint32_t b_axes) {
  const struct poet_op *op = call->op;
  const float *a = call->in[0]; /* size 1 along a_axes */
  float *y = call->out;         /* (n, c, h, w) */
  uint32_t size[4];

  sizes_of(op, size);
  if (a_axes == 0 && (b_axes == 0 || b_axes == 15)) {
    size[0] = size[1] = size[2] = 1;
    size[3] = poet_elements(op);
  }
  const struct steps a_steps = steps_of(size, a_axes);
  const struct steps b_steps = steps_of(size, b_axes);
  const uint32_t rows = size[0] * size[1] * size[2];
  for (uint32_t row = 0; row < rows; row++) {
    const uint32_t i = row * size[3];
    combine_row(kind, y + i, a + place_of(i, size, &a_steps), a_steps.along[3],
                b + place_of(i, size, &b_steps), b_steps.along[3], size[3]);
  }
}

static void combine_two(const struct poet_call *call, enum combination kind) {
  combine(call, kind, call->op->variant & 15u, call->in[1],
          call->op->variant >> 4);
}

void poet_add(const struct poet_call *call) {
  combine_two(call, ADD);
}

void poet_sub(const struct poet_call *call) {
  combine_two(call, SUB);
}

void poet_mul(const struct poet_call *call) {
  combine_two(call, MUL);
}

void poet_scale(const struct poet_call *call) {
  combine(call, MUL, call->op->variant & 15u, &call->op->factor, 15);
}

/* Return `sum` plus the sum of x * z along axes of the given sizes, or plus the
 * sum of x if z is NULL. */
static float sum_of(float sum, const uint32_t size[4], const float *x,
                    const struct steps *x_steps, const float *z,
                    const struct steps *z_steps) {
  for (uint32_t n = 0; n < size[0]; n++) {
    for (uint32_t c = 0; c < size[1]; c++) {
      for (uint32_t h = 0; h < size[2]; h++) {
        uint32_t x_at = n * x_steps->along[0] + c * x_steps->along[1] +
                        h * x_steps->along[2];
        uint32_t z_at = n * z_steps->along[0] + c * z_steps->along[1] +
                        h * z_steps->along[2];
        for (uint32_t w = 0; w < size[3]; w++) {
          sum += z != NULL ? x[x_at] * z[z_at] : x[x_at];
          x_at += x_steps->along[3];
          z_at += z_steps->along[3];
        }
      }
    }
  }
  return sum;
}

/* Sum x, or x * z if z is not NULL, along axis i of (n, c, h, w) if bit i of
 * `variant` is set. z has size 1 along axis i if bit 4 + i is set. `inputs` is
 * the number of inputs before those of the sink (sink.h). */
static void reduce(const struct poet_call *call, const float *z,
                   uint32_t inputs) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0]; /* (n, c, h, w) */
  uint32_t kept[4], gone[4], count = 1;

  sizes_of(op, kept);
  const struct steps x_steps = steps_of(kept, 0);
  const struct steps z_steps = steps_of(kept, op->variant >> 4);
  for (uint32_t axis = 0; axis < 4; axis++) {
    gone[axis] = 1;
    if (op->variant >> axis & 1) {
      gone[axis] = kept[axis];
      kept[axis] = 1;
    }
    count *= kept[axis];
  }
  for (uint32_t i = 0; i < count; i++) {
    const uint32_t x_at = place_of(i, kept, &x_steps);
    const uint32_t z_at = place_of(i, kept, &z_steps);
    const float sum = sum_of(poet_begin(call, i), gone, x + x_at, &x_steps,
                             z != NULL ? z + z_at : NULL, &z_steps);
    const float g = call->last ? sum * op->factor : sum;
    poet_sink(call, inputs, i, &g, 1);
  }
}

void poet_reduce(const struct poet_call *call) {
  reduce(call, NULL, 1);
}

void poet_reduce_product(const struct poet_call *call) {
  reduce(call, call->in[1], 2);
}
