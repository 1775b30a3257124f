/* embedding.c - rows of a table, selected by tokens, and the table's gradient.
 */
#include <math.h>
#include <string.h>

#include "poet/kernel.h"
#include "sink.h"

/* The row of a token outside of the table becomes NaN. Then the loss becomes
 * NaN too, and the step stops. A part of the table gives those rows that it
 * has. */
void poet_embedding(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const uint32_t *tokens = call->in[0]; /* (n) */
  const float *table = call->in[1];     /* (k, c) */
  float *y = call->out;                 /* (n, c) */
  const uint32_t first = call->index / call->whole->c;

  for (uint32_t n = 0; n < op->n; n++) {
    if (tokens[n] - first < op->k) {
      memcpy(y, table + (tokens[n] - first) * op->c, op->c * sizeof *y);
    } else if (call->first && tokens[n] >= call->whole->k) {
      for (uint32_t c = 0; c < op->c; c++) {
        y[c] = NAN;
      }
    }
    y += op->c;
  }
}

/* number of columns that are summed in one pass over the tokens */
#define TOGETHER 8u

/* Row k of the gradient is the sum of dy over all tokens equal to k. poet_sink,
 * which stores or applies the gradient, receives every row of the gradient: a
 * row that no token selects, or that is for padding, is 0. */
void poet_embedding_grad(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const uint32_t *tokens = call->in[0]; /* (n) */
  const float *dy = call->in[1];        /* (n, c) */
  const uint32_t first_row = call->index / call->whole->c;

  for (uint32_t k = 0; k < op->k; k++) {
    const uint32_t token = first_row + k;
    uint32_t first = 0, end = token + 1 == op->padding ? 0 : op->n;
    while (first < end && tokens[first] != token) {
      first++;
    }
    while (end > first && tokens[end - 1] != token) {
      end--;
    }
    if (first == end && !call->first && !call->last) {
      continue; /* these tokens add nothing: the sums stay as they are */
    }
    for (uint32_t c = 0; c < op->c; c += TOGETHER) {
      const uint32_t left = op->c - c;
      const uint32_t count = left < TOGETHER ? left : TOGETHER;
      float g[TOGETHER];
      for (uint32_t i = 0; i < count; i++) {
        g[i] = poet_begin(call, k * op->c + c + i);
      }
      for (uint32_t n = first; n < end; n++) {
        for (uint32_t i = 0; i < count && tokens[n] == token; i++) {
          g[i] += dy[n * op->c + c + i];
        }
      }
      poet_sink(call, 2, k * op->c + c, g, count);
    }
  }
}
