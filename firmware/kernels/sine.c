/* sine.c - the sine of each element of a tensor, `variant` quarter turns
 * further (1: the cosine). Each operand has poet_elements(op) elements, in any
 * shape. */
#include "mathf.h"
#include "poet/kernel.h"

void poet_sine(const struct poet_call *call) {
  const float *x = call->in[0];
  float *y = call->out;
  const uint32_t count = poet_elements(call->op);
  for (uint32_t i = 0; i < count; i++) {
    y[i] = poet_sinf(x[i], call->op->variant);
  }
}
