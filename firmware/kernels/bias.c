/* bias.c - gradient of the bias of conv2d and of linear. For linear, oh and
 * ow are 1. */
#include "poet/kernel.h"
#include "sink.h"

void poet_grad_bias(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *dy = call->in[0]; /* (n, k, oh, ow) */
  const uint32_t plane = op->oh * op->ow;

  for (uint32_t k = 0; k < op->k; k++) {
    float g = poet_begin(call, k);
    for (uint32_t n = 0; n < op->n; n++) {
      const float *from = dy + (n * op->k + k) * plane;
      for (uint32_t i = 0; i < plane; i++) {
        g += from[i];
      }
    }
    poet_sink(call, 1, k, &g, 1);
  }
}
