/* layernorm.c - normalisation of each of n rows by its own mean and standard
 * deviation. `stats` are their means, then their reciprocal deviations. */
#include <math.h>

#include "poet/kernel.h"
#include "sink.h"

void poet_layernorm_stats(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];
  float *mean = call->out;
  float *rstd = mean + op->n;
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
  const float *x = call->in[0];
  const float *stats = call->in[1];
  const float *gamma = call->in[2];
  const float *beta = call->in[3];
  float *y = call->out;

  for (uint32_t n = 0; n < op->n; n++) {
    for (uint32_t c = 0; c < op->c; c++) {
      *y++ = (*x++ - stats[n]) * stats[op->n + n] * gamma[c] + beta[c];
    }
  }
}

void poet_layernorm_grad_input(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];
  const float *stats = call->in[1];
  const float *gamma = call->in[2];
  const float *dy = call->in[3];
  float *dx = call->out;
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
  const float *x = call->in[0];
  const float *stats = call->in[1];
  const float *dy = call->in[2];

  for (uint32_t c = 0; c < op->c; c++) {
    float g = 0.0f;
    for (uint32_t n = 0; n < op->n; n++) {
      const uint32_t i = n * op->c + c;
      g += dy[i] * ((x[i] - stats[n]) * stats[op->n + n]);
    }
    poet_sink(call, 3, c, &g, 1);
  }
}
