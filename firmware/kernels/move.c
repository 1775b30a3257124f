/* move.c - transpose, concatenate and slice. Elements are copied unchanged. */
#include <string.h>

#include "poet/kernel.h"

/* Axis i of the output is axis (variant >> 2 * i) & 3 of the input. */
void poet_transpose(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const uint32_t sizes[4] = {op->n, op->c, op->h, op->w};
  const uint32_t steps[4] = {op->c * op->h * op->w, op->h * op->w, op->w, 1};
  uint32_t size[4], step[4];
  const float *x = call->in[0]; /* (n, c, h, w) */
  float *y = call->out;         /* shape: size[0] to size[3] */

  for (uint32_t i = 0; i < 4; i++) {
    const uint32_t axis = op->variant >> 2 * i & 3u;
    size[i] = sizes[axis];
    step[i] = steps[axis];
  }
  for (uint32_t n = 0; n < size[0]; n++) {
    for (uint32_t c = 0; c < size[1]; c++) {
      for (uint32_t h = 0; h < size[2]; h++) {
        const float *from = x + n * step[0] + c * step[1] + h * step[2];
        for (uint32_t w = 0; w < size[3]; w++) {
          *y++ = from[w * step[3]];
        }
      }
    }
  }
}

/* a, then b, along axis c. */
void poet_concat(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const uint32_t a_count = op->c * op->h * op->w;
  const uint32_t b_count = op->k * op->h * op->w;
  const float *a = call->in[0]; /* (n, c, h, w) */
  const float *b = call->in[1]; /* (n, k, h, w) */
  float *y = call->out;         /* (n, c + k, h, w) */

  for (uint32_t n = 0; n < op->n; n++) {
    memcpy(y, a + n * a_count, a_count * sizeof *y);
    memcpy(y + a_count, b + n * b_count, b_count * sizeof *y);
    y += a_count + b_count;
  }
}

/* Copy between x (n, c, h, w) and y (n, k, h, w), which is its channels from
 * `oh` on. (Here the field `oh` of struct poet_op is the index of a channel,
 * not a height.) A part of x has some of its channels. */
static void copy_slice(const struct poet_call *call, float *x, float *y,
                       bool is_gradient) {
  const struct poet_op *op = call->op, *whole = call->whole;
  const uint32_t plane = op->h * op->w;
  const uint32_t first = call->index / (whole->h * whole->w) % whole->c;

  for (uint32_t n = 0; n < op->n; n++) {
    for (uint32_t k = 0; k < op->k; k++) {
      const uint32_t c = op->oh + k - first;
      if (c < op->c) {
        float *const of_x = x + c * plane;
        memcpy(is_gradient ? of_x : y, is_gradient ? y : of_x,
               plane * sizeof *y);
      }
      y += plane;
    }
    x += op->c * plane;
  }
}

void poet_slice(const struct poet_call *call) {
  copy_slice(call, (float *)(uintptr_t)call->in[0], call->out, false);
}

void poet_slice_grad(const struct poet_call *call) {
  memset(call->out, 0, poet_elements(call->op) * sizeof(float));
  copy_slice(call, call->out, (float *)(uintptr_t)call->in[0], true);
}
