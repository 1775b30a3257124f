/* softmax.c - softmax along w over the visible elements of each row. An element
 * is visible if the mask and, with `variant` 1, the causal order allow it. */
#include <math.h>
#include <stddef.h>

#include "mathf.h"
#include "poet/kernel.h"

/* Return the index of the first element of row `row` that the causal order
 * hides, or w if it hides none. There are n * c * h rows. */
static uint32_t end_of_row(const struct poet_call *call, uint32_t row) {
  const struct poet_op *op = call->op;
  const uint32_t first = call->index / op->w % call->whole->h;
  const uint32_t seen = first + row % op->h + 1;
  return op->variant && seen < op->w ? seen : op->w;
}

void poet_softmax(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0]; /* (n, c, h, w) */
  const uint32_t *masks =
      op->input_count > 1 ? call->in[1] : NULL; /* (n, w), or NULL */
  float *y = call->out;                         /* (n, c, h, w) */

  for (uint32_t row = 0; row < op->n * op->c * op->h; row++) {
    const uint32_t *mask =
        masks != NULL ? masks + row / (op->c * op->h) * op->w : NULL;
    const uint32_t end = end_of_row(call, row);
    float top = -INFINITY, sum = 0.0f;
    poet_order_t highest = poet_order(top);
    for (uint32_t w = 0; w < end; w++) {
      const poet_order_t order = poet_order(x[w]);
      if ((mask == NULL || mask[w]) && order > highest && !poet_is_nan(order)) {
        top = x[w];
        highest = order;
      }
    }
    for (uint32_t w = 0; w < op->w; w++) {
      const int seen = w < end && (mask == NULL || mask[w]);
      y[w] = seen ? poet_exp(x[w] - top) : 0.0f;
      sum += y[w];
    }
    /* If a row has no visible elements, all its results stay 0. */
    const bool is_visible = sum != 0.0f;
    for (uint32_t w = 0; w < op->w && is_visible; w++) {
      y[w] /= sum;
    }
    x += op->w;
    y += op->w;
  }
}

/* An element that was not visible has y = 0, so its gradient is 0. */
void poet_softmax_grad(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *y = call->in[0];  /* (n, c, h, w) */
  const float *dy = call->in[1]; /* (n, c, h, w) */
  float *dx = call->out;         /* (n, c, h, w) */

  uint32_t rows = op->n * op->c * op->h;
  do {
    float sum = 0.0f;
    const float *at = y, *slope = dy, *end = y + op->w;
    do {
      sum += *at++ * *slope++;
    } while (at != end);
    do {
      *dx++ = *y++ * (*dy++ - sum);
    } while (y != end);
  } while (--rows);
}
