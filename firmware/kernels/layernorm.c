/* layernorm.c - layer normalisation: each of n rows is normalised by its own
 * mean and standard deviation. The gradients are here too. `stats` holds the n
 * means, then the n reciprocal standard deviations. */
#include <math.h>

#include "chain_m0plus.h"
#include "poet/kernel.h"
#include "sink.h"

enum { TOGETHER = POET_M0PLUS ? 1 : 16 }; /* gradients */

void poet_layernorm_stats(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0]; /* (n, c) */
  float *mean = call->out;      /* (n) */
  float *rstd = mean + op->n;   /* (n) */
  const float count = (float)op->c;

  for (uint32_t n = 0; n < op->n; n++) {
    float sum = 0.0f;
    for (uint32_t c = 0; c < op->c; c++) {
      sum += x[c];
    }
    mean[n] = sum / count;

    sum = 0.0f;
    for (uint32_t c = 0; c < op->c; c++) {
      const float distance = x[c] - mean[n];
      sum += distance * distance;
    }
    rstd[n] = 1.0f / sqrtf(sum / count + op->epsilon);
    x += op->c;
  }
}

void poet_layernorm(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];     /* (n, c) */
  const float *stats = call->in[1]; /* (2, n) */
  const float *gamma = call->in[2]; /* (c) */
  const float *beta = call->in[3];  /* (c) */
  float *y = call->out;             /* (n, c) */

#if POET_M0PLUS
  if (op->c >= POET_CHAIN_LEAST) {
    struct poet_chain chain;
    poet_chain_open(&chain, poet_elements(op));
    for (uint32_t n = 0; n < op->n; n++) {
      poet_chain_xhat(&chain, x, stats[n], stats[op->n + n]);
      poet_chain_array(&chain, POET_TIMES_ELEMENT, gamma);
      poet_chain_array(&chain, POET_PLUS_ELEMENT, beta);
      poet_chain_array(&chain, POET_PUT, y);
      poet_chain_run(&chain, 0, op->c);
      x += op->c, y += op->c;
    }
    return;
  }
#endif
  for (uint32_t n = 0; n < op->n; n++) {
    for (uint32_t c = 0; c < op->c; c++) {
      *y++ = (*x++ - stats[n]) * stats[op->n + n] * gamma[c] + beta[c];
    }
  }
}

void poet_layernorm_grad_input(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];     /* (n, c) */
  const float *stats = call->in[1]; /* (2, n) */
  const float *gamma = call->in[2]; /* (c) */
  const float *dy = call->in[3];    /* (n, c) */
  float *dx = call->out;            /* (n, c) */
  const float count = (float)op->c;

  for (uint32_t n = 0; n < op->n; n++) {
    const float mean = stats[n], rstd = stats[op->n + n];
    float sum = 0.0f, product_sum = 0.0f;
    for (uint32_t c = 0; c < op->c; c++) {
      const float g = dy[c] * gamma[c];
      sum += g;
      product_sum += g * ((x[c] - mean) * rstd);
    }
    sum /= count;
    product_sum /= count;
    for (uint32_t c = 0; c < op->c; c++) {
      const float xhat = (x[c] - mean) * rstd;
      dx[c] = rstd * ((dy[c] * gamma[c] - sum) - xhat * product_sum);
    }
    x += op->c;
    dy += op->c;
    dx += op->c;
  }
}

void poet_layernorm_grad_weight(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];     /* (n, c) */
  const float *stats = call->in[1]; /* (2, n) */
  const float *dy = call->in[2];    /* (n, c) */

  float sums[TOGETHER];
  for (uint32_t c = 0; c < op->c;) {
    const uint32_t first = c;
    const uint32_t end = op->c - c < TOGETHER ? op->c : c + TOGETHER;
    for (; c < end; c++) {
      float g = poet_begin(call, c);
      for (uint32_t n = 0; n < op->n; n++) {
        const uint32_t i = n * op->c + c;
        g += dy[i] * ((x[i] - stats[n]) * stats[op->n + n]);
      }
      sums[c - first] = g;
    }
    poet_sink(call, 3, first, sums, end - first);
  }
}
