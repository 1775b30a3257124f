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

void poet_embedding_grad(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const uint32_t *tokens = call->in[0];
  const float *dy = call->in[1];

  for (uint32_t k = 0; k < op->k; k++) {
    uint32_t first = 0;
    while (first < op->n && tokens[first] != k) {
      first++;
    }
    for (uint32_t c = 0; c < op->c; c++) {
      float g = 0.0f;
      for (uint32_t n = first; n < op->n; n++) {
        if (tokens[n] == k) {
          g += dy[n * op->c + c];
        }
      }
      poet_sink(call, 2, k * op->c + c, g);
    }
  }
}
