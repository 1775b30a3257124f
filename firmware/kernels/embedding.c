/* embedding.c - rows of a table, chosen by token. */
#include <math.h>
#include <string.h>

#include "poet/kernel.h"
#include "sink.h"

/* A token that the table does not have makes its row not a number. */
void poet_embedding(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const uint32_t *tokens = call->in[0];
  const float *table = call->in[1];
  float *y = call->out;

  for (uint32_t n = 0; n < op->n; n++) {
    if (tokens[n] < op->k) {
      memcpy(y, table + tokens[n] * op->c, op->c * sizeof *y);
    } else {
      for (uint32_t c = 0; c < op->c; c++) {
        y[c] = NAN;
      }
    }
    y += op->c;
  }
}

#define TOGETHER 8u /* columns of a row */

void poet_embedding_grad(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const uint32_t *tokens = call->in[0];
  const float *dy = call->in[1];

  for (uint32_t k = 0; k < op->k; k++) {
    uint32_t first = 0, end = op->n;
    while (first < end && tokens[first] != k) {
      first++;
    }
    while (end > first && tokens[end - 1] != k) {
      end--;
    }
    for (uint32_t c = 0; c < op->c; c += TOGETHER) {
      const uint32_t left = op->c - c;
      const uint32_t count = left < TOGETHER ? left : TOGETHER;
      float g[TOGETHER] = {0.0f};
      for (uint32_t n = first; n < end; n++) {
        for (uint32_t i = 0; i < count && tokens[n] == k; i++) {
          g[i] += dy[n * op->c + c + i];
        }
      }
      poet_sink(call, 2, k * op->c + c, g, count);
    }
  }
}
