/*
 * elementary.c - elementary functions of each element of a tensor, and their
 * gradients. Each operand has poet_elements(op) elements, in any shape.
 *
 * `variant` chooses the function: one kernel for all of them keeps loops and
 * table small in flash. The gradient reads x, because y alone does not give the
 * slope of each function.
 */
#include <math.h>

#include "mathf.h"
#include "poet/kernel.h"

enum { MAGNITUDE, SOFTPLUS, ELU, EXPONENTIAL, INVERSE, LOGARITHM };

static float value(const struct poet_op *op, float x) {
  switch (op->variant) {
  case MAGNITUDE:
    return x <= 0.0f ? 0.0f - x : x;
  case SOFTPLUS:
    return (x > 0.0f ? x : 0.0f) + poet_log(1.0f + poet_exp(x > 0.0f ? -x : x));
  case ELU:
    return x > 0.0f ? x : op->factor * (poet_exp(x) - 1.0f);
  case EXPONENTIAL:
    return poet_exp(x);
  case INVERSE:
    return 1.0f / x;
  case LOGARITHM:
    return poet_log(x);
  default:
    return sqrtf(x);
  }
}

static float slope(const struct poet_op *op, float x) {
  switch (op->variant) {
  case MAGNITUDE: /* a difference, so that a NaN stays */
    return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x - x;
  case SOFTPLUS:
    return poet_logistic(x);
  case ELU:
    return x > 0.0f ? 1.0f : op->factor * poet_exp(x);
  case EXPONENTIAL:
    return poet_exp(x);
  case INVERSE:
    return -((1.0f / x) * (1.0f / x));
  case LOGARITHM:
    return 1.0f / x;
  default:
    return 0.5f / sqrtf(x);
  }
}

void poet_elementary(const struct poet_call *call) {
  const float *x = call->in[0];
  float *y = call->out;
  const uint32_t count = poet_elements(call->op);
  for (uint32_t i = 0; i < count; i++) {
    y[i] = value(call->op, x[i]);
  }
}

void poet_elementary_grad(const struct poet_call *call) {
  const float *x = call->in[0];
  const float *dy = call->in[1];
  float *dx = call->out;
  const uint32_t count = poet_elements(call->op);
  for (uint32_t i = 0; i < count; i++) {
    dx[i] = dy[i] * slope(call->op, x[i]);
  }
}
