/* loss.c - softmax cross-entropy, mean squared error, and their gradients. The
 * largest logit is subtracted first, so that exp cannot overflow. */
#include <math.h>

#include "mathf.h"
#include "poet/kernel.h"

static float largest(const float *x, uint32_t count) {
  float best = x[0];
  for (uint32_t i = 1; i < count; i++) {
    best = x[i] > best ? x[i] : best;
  }
  return best;
}

void poet_softmax_xent(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];        /* (n, c) */
  const int32_t *labels = call->in[1]; /* (n) */
  float *loss = call->out;             /* one float */
  float total = call->first ? 0.0f : *loss;

  for (uint32_t n = 0; n < op->n; n++) {
    const uint32_t label = (uint32_t)labels[n];
    const float top = largest(x, op->c);
    float sum = 0.0f;
    for (uint32_t c = 0; c < op->c; c++) {
      sum += poet_exp(x[c] - top);
    }
    total += label < op->c ? poet_log(sum) - (x[label] - top) : NAN;
    x += op->c;
  }
  *loss = call->last ? total / (float)call->whole->n : total;
}

void poet_softmax_xent_grad(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];        /* (n, c) */
  const int32_t *labels = call->in[1]; /* (n) */
  float *dx = call->out;               /* (n, c) */
  const float samples = (float)call->whole->n;

  for (uint32_t n = 0; n < op->n; n++) {
    const uint32_t label = (uint32_t)labels[n];
    const float top = largest(x, op->c);
    float sum = 0.0f;
    for (uint32_t c = 0; c < op->c; c++) {
      dx[c] = poet_exp(x[c] - top);
      sum += dx[c];
    }
    for (uint32_t c = 0; c < op->c; c++) {
      dx[c] = (dx[c] / sum - (c == label ? 1.0f : 0.0f)) / samples;
    }
    x += op->c;
    dx += op->c;
  }
}

void poet_mse(const struct poet_call *call) {
  const float *x = call->in[0];      /* n * c * h * w elements */
  const float *target = call->in[1]; /* the same */
  float *loss = call->out;           /* one float */
  const uint32_t count = poet_elements(call->op);
  float sum = call->first ? 0.0f : *loss;

  for (uint32_t i = 0; i < count; i++) {
    const float distance = x[i] - target[i];
    sum += distance * distance;
  }
  *loss = call->last ? sum / (float)poet_elements(call->whole) : sum;
}

void poet_mse_grad(const struct poet_call *call) {
  const float *x = call->in[0];      /* n * c * h * w elements */
  const float *target = call->in[1]; /* the same */
  float *dx = call->out;             /* the same */
  const uint32_t count = poet_elements(call->op);
  const float scale = 2.0f / (float)poet_elements(call->whole);

  for (uint32_t i = 0; i < count; i++) {
    dx[i] = (x[i] - target[i]) * scale;
  }
}
