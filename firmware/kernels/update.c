/* update.c - optimiser steps that are operators of their own. */
#include "poet/kernel.h"
#include "sink.h"

void poet_apply_gradient(const struct poet_call *call) {
  const float *dw = call->in[0];
  const uint32_t count = poet_elements(call->op);
  for (uint32_t i = 0; i < count; i++) {
    poet_sink(call, 1, i, dw[i]);
  }
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
