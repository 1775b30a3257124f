/* sink.c - the sinks of isa.def, which use the gradient that a kernel computes.
 * A call reads and writes only the elements whose gradient it receives, so a
 * kernel may pass its gradient in several calls. */
#include "sink.h"

#include <stddef.h>

#include "poet/isa.h"

void poet_sink(const struct poet_call *call, uint32_t own, uint32_t first,
               const float *g, uint32_t count) {
  const struct poet_op *op = call->op;
  const float decay = op->weight_decay;
  float *out = (float *)call->out + first;
  const float *old = NULL, *w = NULL;
  if (op->sink != POET_SINK_store) {
    old = (const float *)call->in[own] + first;
  }
  if (decay != 0.0f && op->sink == POET_SINK_sgd) {
    w = old;
  } else if (decay != 0.0f && op->sink == POET_SINK_momentum) {
    w = (const float *)call->in[own + 1] + first;
  }
  for (uint32_t i = 0; i < count; i++) {
    const float slope = w != NULL ? g[i] + decay * w[i] : g[i];
    switch (op->sink) {
    case POET_SINK_store:
      out[i] = slope;
      break;
    case POET_SINK_accumulate:
      out[i] = old[i] + slope;
      break;
    case POET_SINK_sgd:
      out[i] = old[i] - op->learning_rate * slope;
      break;
    case POET_SINK_momentum:
      out[i] = op->momentum * old[i] + slope;
      break;
    default:
      break;
    }
  }
}
