/*
 * activation.c - elementwise functions of one tensor, and their gradients. Each
 * operand has poet_elements(op) elements, in any shape.
 *
 * Where y is enough to compute the gradient, the kernel reads y and not x, so
 * that a plan can free x early. Comparisons are written so that a NaN in x
 * stays NaN in y.
 */
#include "mathf.h"
#include "poet/kernel.h"

void poet_relu(const struct poet_call *call) {
  const float *x = call->in[0];
  float *y = call->out;
  const uint32_t count = poet_elements(call->op);
  for (uint32_t i = 0; i < count; i++) {
    y[i] = poet_order(x[i]) <= poet_order(0.0f) ? 0.0f : x[i];
  }
}

void poet_relu_grad(const struct poet_call *call) {
  const float *y = call->in[0];
  const float *dy = call->in[1];
  float *dx = call->out;
  const uint32_t count = poet_elements(call->op);
  for (uint32_t i = 0; i < count; i++) {
    /* the bits of the numbers above 0 are 1 to those of infinity */
    dx[i] = poet_bits(y[i]) - 1 < 0x7f800000u ? dy[i] : 0.0f;
  }
}

static void clip(const struct poet_call *call, float low, float high) {
  const float *x = call->in[0];
  float *y = call->out;
  const uint32_t count = poet_elements(call->op);
  for (uint32_t i = 0; i < count; i++) {
    y[i] = x[i] <= low ? low : x[i] >= high ? high : x[i];
  }
}

void poet_relu6(const struct poet_call *call) {
  clip(call, 0.0f, 6.0f);
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

void poet_clip(const struct poet_call *call) {
  clip(call, call->op->lower_bound, call->op->upper_bound);
}

void poet_clip_grad(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];
  const float *dy = call->in[1];
  float *dx = call->out;
  const uint32_t count = poet_elements(op);
  for (uint32_t i = 0; i < count; i++) {
    dx[i] = x[i] >= op->lower_bound && x[i] <= op->upper_bound ? dy[i] : 0.0f;
  }
}

void poet_sigmoid(const struct poet_call *call) {
  const float *x = call->in[0];
  float *y = call->out;
  const uint32_t count = poet_elements(call->op);
  for (uint32_t i = 0; i < count; i++) {
    y[i] = poet_logistic(x[i]);
  }
}

void poet_sigmoid_grad(const struct poet_call *call) {
  const float *y = call->in[0];
  const float *dy = call->in[1];
  float *dx = call->out;
  const uint32_t count = poet_elements(call->op);
  for (uint32_t i = 0; i < count; i++) {
    dx[i] = dy[i] * (y[i] * (1.0f - y[i]));
  }
}

void poet_tanh(const struct poet_call *call) {
  const float *x = call->in[0];
  float *y = call->out;
  const uint32_t count = poet_elements(call->op);
  for (uint32_t i = 0; i < count; i++) {
    y[i] = poet_tanhf(x[i]);
  }
}

void poet_tanh_grad(const struct poet_call *call) {
  const float *y = call->in[0];
  const float *dy = call->in[1];
  float *dx = call->out;
  const uint32_t count = poet_elements(call->op);
  for (uint32_t i = 0; i < count; i++) {
    dx[i] = dy[i] * (1.0f - y[i] * y[i]);
  }
}

/* gelu(x) = x / 2 (1 + t(x)), t = erf(x / sqrt 2), or, with `variant` 1,
 * t = tanh(sqrt(2 / pi) (x + 0.044715 x^3)). */
#define SQRT_HALF 0.70710678f
#define SQRT_2_PI 0.79788456f
#define CUBIC 0.044715f

static float gelu_part(bool by_tanh, float x) {
  return by_tanh ? poet_tanhf(SQRT_2_PI * (x + CUBIC * (x * x * x)))
                 : poet_erff(x * SQRT_HALF);
}

void poet_gelu(const struct poet_call *call) {
  const float *x = call->in[0];
  float *y = call->out;
  const bool by_tanh = call->op->variant != 0;
  for (uint32_t left = poet_elements(call->op); left; left--, x++) {
    *y++ = poet_half(*x) * (1.0f + gelu_part(by_tanh, *x));
  }
}

void poet_gelu_grad(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *xs = call->in[0];
  const float *dy = call->in[1];
  float *dx = call->out;
  const uint32_t count = poet_elements(op);
  const bool by_tanh = op->variant != 0;
  for (uint32_t i = 0; i < count; i++) {
    const float x = xs[i], t = gelu_part(by_tanh, x), square = x * x;
    /* half of the derivative of t */
    const float slope =
        by_tanh ? (0.5f * SQRT_2_PI) *
                      ((1.0f - t * t) * (1.0f + 3.0f * CUBIC * square))
                : (0.5f * SQRT_2_PI) * poet_exp(-poet_half(square));
    dx[i] = dy[i] * (poet_half(1.0f + t) + x * slope);
  }
}
