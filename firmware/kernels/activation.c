/* activation.c - relu and relu6. Their gradients need the output only, so that
 * the input can go. The comparisons let not-a-number pass. */
#include "poet/kernel.h"

void poet_relu(const struct poet_call *call) {
  const float *x = call->in[0];
  float *y = call->out;
  const uint32_t count = poet_elements(call->op);
  for (uint32_t i = 0; i < count; i++) {
    y[i] = x[i] <= 0.0f ? 0.0f : x[i];
  }
}

void poet_relu_grad(const struct poet_call *call) {
  const float *y = call->in[0];
  const float *dy = call->in[1];
  float *dx = call->out;
  const uint32_t count = poet_elements(call->op);
  for (uint32_t i = 0; i < count; i++) {
    dx[i] = y[i] > 0.0f ? dy[i] : 0.0f;
  }
}

void poet_relu6(const struct poet_call *call) {
  const float *x = call->in[0];
  float *y = call->out;
  const uint32_t count = poet_elements(call->op);
  for (uint32_t i = 0; i < count; i++) {
    y[i] = x[i] <= 0.0f ? 0.0f : x[i] >= 6.0f ? 6.0f : x[i];
  }
}

void poet_relu6_grad(const struct poet_call *call) {
  const float *y = call->in[0];
  const float *dy = call->in[1];
  float *dx = call->out;
  const uint32_t count = poet_elements(call->op);
  for (uint32_t i = 0; i < count; i++) {
    dx[i] = y[i] > 0.0f && y[i] < 6.0f ? dy[i] : 0.0f;
  }
}
