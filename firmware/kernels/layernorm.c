/* layernorm.c - layer normalisation: each of n rows is normalised by its own
 * mean and standard deviation. The gradients are here too. `stats` holds the n
 * means, then the n reciprocal standard deviations. */
#include <math.h>

#include "m0plus/chain_m0plus.h"
#include "poet/kernel.h"
#include "sink.h"
#include "sums.h"

enum { TOGETHER = POET_M0PLUS ? 1 : 16 }; /* gradients */

void poet_layernorm_stats(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0]; /* (n, c) */
  float *mean = call->out;      /* (n) */
  float *rstd = mean + op->n;   /* (n) */
  const float count = (float)op->c;

  for (uint32_t n = 0; n < op->n; n++) {
    const float of_row = poet_sum(0.0f, x, op->c) / count;
    const float variance = poet_squares(0.0f, x, op->c, of_row) / count;
    mean[n] = of_row;
    rstd[n] = 1.0f / sqrtf(variance + op->epsilon);
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
    const float mean = stats[n], rstd = stats[op->n + n];
    for (uint32_t c = 0; c < op->c; c++) {
      *y++ = (*x++ - mean) * rstd * gamma[c] + beta[c];
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

  uint32_t left = op->n;
  do {
    const float mean = *stats, rstd = stats[op->n];
    float sum = 0.0f, product_sum = 0.0f;
    const float *at = x, *slope = dy, *weight = gamma, *end = x + op->c;
    do {
      const float g = *slope++ * *weight++;
      sum += g;
      product_sum += g * ((*at++ - mean) * rstd);
    } while (at != end);
    sum /= count;
    product_sum /= count;
    weight = gamma;
    do {
      const float xhat = (*x++ - mean) * rstd;
      *dx++ = rstd * ((*dy++ * *weight++ - sum) - xhat * product_sum);
    } while (x != end);
    stats++;
  } while (--left);
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
    do {
      const float *at = x++, *slope = dy++, *mean = stats;
      float g = poet_begin(call, c);
      do {
        g += *slope * ((*at - *mean) * mean[op->n]);
        at += op->c, slope += op->c;
      } while (++mean != stats + op->n);
      sums[c - first] = g;
    } while (++c != end);
    poet_sink(call, 3, first, sums, end - first);
  }
}
