/* linear.c - fully connected layer. */
#include <string.h>

#include "poet/kernel.h"
#include "sink.h"

static uint32_t features(const struct poet_op *op) {
  return op->c * op->h * op->w;
}

void poet_linear(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];
  const float *bias = op->input_count > 2 ? call->in[2] : NULL;
  float *y = call->out;
  const uint32_t count = features(op);

  for (uint32_t n = 0; n < op->n; n++) {
    const float *weight = call->in[1];
    for (uint32_t k = 0; k < op->k; k++) {
      float sum = 0.0f;
      for (uint32_t c = 0; c < count; c++) {
        sum += x[c] * weight[c];
      }
      *y++ = bias != NULL ? sum + bias[k] : sum;
      weight += count;
    }
    x += count;
  }
}

void poet_linear_grad_input(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *dy = call->in[0];
  float *dx = call->out;
  const uint32_t count = features(op);

  for (uint32_t n = 0; n < op->n; n++) {
    const float *weight = call->in[1];
    memset(dx, 0, count * sizeof *dx);
    for (uint32_t k = 0; k < op->k; k++) {
      const float g = *dy++;
      for (uint32_t c = 0; c < count; c++) {
        dx[c] += g * weight[c];
      }
      weight += count;
    }
    dx += count;
  }
}

void poet_linear_grad_weight(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];
  const float *dy = call->in[1];
  const uint32_t count = features(op);

  for (uint32_t k = 0; k < op->k; k++) {
    for (uint32_t c = 0; c < count; c++) {
      float g = 0.0f;
      for (uint32_t n = 0; n < op->n; n++) {
        g += dy[n * op->k + k] * x[n * count + c];
      }
      poet_sink(call, 2, k * count + c, g);
    }
  }
}
