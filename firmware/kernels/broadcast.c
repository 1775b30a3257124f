/* broadcast.c - sums, differences, products and scaling of tensors that may be
 * repeated along some axes, and the sums along axes that are their gradients.
 * Bit i of an operand's axes: it has size 1 along axis i of n, c, h, w. */
#include <stddef.h>

#include "poet/kernel.h"
#include "sink.h"

/* Steps from an element to the next along each axis; 0 where it is repeated. */
struct steps {
  uint32_t n, c, h, w;
};

static uint32_t step_along(uint32_t *elements, uint32_t repeated,
                           uint32_t size) {
  const uint32_t step = *elements;
  if (repeated) {
    return 0;
  }
  *elements *= size;
  return step;
}

static struct steps steps_of(const struct poet_op *op, uint32_t axes) {
  uint32_t elements = 1;
  struct steps steps;
  steps.w = step_along(&elements, axes & 8, op->w);
  steps.h = step_along(&elements, axes & 4, op->h);
  steps.c = step_along(&elements, axes & 2, op->c);
  steps.n = step_along(&elements, axes & 1, op->n);
  return steps;
}

static uint32_t row_at(struct steps steps, uint32_t n, uint32_t c, uint32_t h) {
  return n * steps.n + c * steps.c + h * steps.h;
}

enum combination { ADD, SUB, MUL };

static void combine_row(enum combination kind, float *y, const float *a,
                        uint32_t a_step, const float *b, uint32_t b_step,
                        uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    y[i] = kind == ADD ? *a + *b : kind == SUB ? *a - *b : *a * *b;
    a += a_step;
    b += b_step;
  }
}

/* Of `a` and `b`, repeated along the axes that are given. */
static void combine(const struct poet_call *call, enum combination kind,
                    uint32_t a_axes, const float *b, uint32_t b_axes) {
  const struct poet_op *op = call->op;
  const struct steps a_steps = steps_of(op, a_axes);
  const struct steps b_steps = steps_of(op, b_axes);
  const float *a = call->in[0];
  float *y = call->out;

  if (a_axes == 0 && (b_axes == 0 || b_axes == 15)) {
    combine_row(kind, y, a, 1, b, b_axes == 0, poet_elements(op));
    return;
  }
  for (uint32_t n = 0; n < op->n; n++) {
    for (uint32_t c = 0; c < op->c; c++) {
      for (uint32_t h = 0; h < op->h; h++) {
        combine_row(kind, y, a + row_at(a_steps, n, c, h), a_steps.w,
                    b + row_at(b_steps, n, c, h), b_steps.w, op->w);
        y += op->w;
      }
    }
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
  combine(call, MUL, call->op->variant & 15u, &call->op->epsilon, 15);
}

/* Sum over the axes that the output lacks, which begins at element (n, c, h, w)
 * of x. Only terms are multiplied, so that z may be left out. */
static float sum_from(const struct poet_op *op, const float *x, const float *z,
                      struct steps x_steps, struct steps z_steps) {
  const uint32_t axes = op->variant;
  const uint32_t ns = axes & 1 ? op->n : 1, cs = axes & 2 ? op->c : 1;
  const uint32_t hs = axes & 4 ? op->h : 1, ws = axes & 8 ? op->w : 1;
  float sum = 0.0f;

  for (uint32_t n = 0; n < ns; n++) {
    for (uint32_t c = 0; c < cs; c++) {
      for (uint32_t h = 0; h < hs; h++) {
        uint32_t x_at = row_at(x_steps, n, c, h);
        uint32_t z_at = row_at(z_steps, n, c, h);
        for (uint32_t w = 0; w < ws; w++) {
          sum += z != NULL ? x[x_at] * z[z_at] : x[x_at];
          x_at += x_steps.w;
          z_at += z_steps.w;
        }
      }
    }
  }
  return sum;
}

static void reduce(const struct poet_call *call, const float *z,
                   uint32_t inputs) {
  const struct poet_op *op = call->op;
  const struct steps x_steps = steps_of(op, 0);
  const struct steps z_steps = steps_of(op, op->variant >> 4);
  const uint32_t axes = op->variant;
  const uint32_t ns = axes & 1 ? 1 : op->n, cs = axes & 2 ? 1 : op->c;
  const uint32_t hs = axes & 4 ? 1 : op->h, ws = axes & 8 ? 1 : op->w;
  uint32_t i = 0;

  for (uint32_t n = 0; n < ns; n++) {
    for (uint32_t c = 0; c < cs; c++) {
      for (uint32_t h = 0; h < hs; h++) {
        for (uint32_t w = 0; w < ws; w++) {
          const float *x =
              (const float *)call->in[0] + row_at(x_steps, n, c, h) + w;
          const float *from =
              z ? z + row_at(z_steps, n, c, h) + w * z_steps.w : NULL;
          const float sum = sum_from(op, x, from, x_steps, z_steps);
          poet_sink(call, inputs, i++, sum * op->epsilon);
        }
      }
    }
  }
}

void poet_reduce(const struct poet_call *call) {
  reduce(call, NULL, 1);
}

void poet_reduce_product(const struct poet_call *call) {
  reduce(call, call->in[1], 2);
}
