/* update.c - optimiser steps that are separate operators. Each operand has
 * poet_elements(op) elements. Except for poet_apply_gradient, the output
 * overwrites the value that the operator updates. */
#include <math.h>
#include <stddef.h>

#include "mathf.h"
#include "poet/kernel.h"
#include "sink.h"

void poet_apply_gradient(const struct poet_call *call) {
  poet_sink(call, 1, 0, call->in[0], poet_elements(call->op));
}

void poet_momentum_step(const struct poet_call *call) {
  const float *w = call->in[0];
  const float *v = call->in[1];
  float *out = call->out;
  const uint32_t count = poet_elements(call->op);
  for (uint32_t i = 0; i < count; i++) {
    out[i] = w[i] - call->op->learning_rate * v[i];
  }
}

/* Average the gradients of all steps, or their squares if `squared`. Older
 * gradients have smaller factors. From the first step on, the factors sum to 1,
 * so the average is Adam's moment with the bias correction included. With
 * `variant` 1, it is that of RMSprop, without a correction. */
static void average(const struct poet_call *call, int squared) {
  const struct poet_op *op = call->op;
  const float *dw = call->in[0];
  const float *old = call->in[1];
  const float *w = op->input_count > 2 ? call->in[2] : NULL;
  float *out = call->out;
  float weight = 1.0f - op->beta;
  if (!op->variant) {
    weight /= 1.0f - poet_power(op->beta, call->step);
  }
  const uint32_t count = poet_elements(op);
  for (uint32_t i = 0; i < count; i++) {
    const float g = w != NULL ? dw[i] + op->weight_decay * w[i] : dw[i];
    out[i] = old[i] + weight * ((squared ? g * g : g) - old[i]);
  }
}

void poet_average(const struct poet_call *call) {
  average(call, 0);
}

void poet_average_square(const struct poet_call *call) {
  average(call, 1);
}

void poet_adam_step(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *w = call->in[0];
  const float *m = call->in[1];
  const float *v = call->in[2];
  float *out = call->out;
  const uint32_t count = poet_elements(op);
  const bool decays = op->weight_decay != 0.0f;
  for (uint32_t i = 0; i < count; i++) {
    float change = m[i] / (sqrtf(v[i]) + op->epsilon);
    if (decays) {
      change += op->weight_decay * w[i];
    }
    out[i] = w[i] - op->learning_rate * change;
  }
}
