/* sink.c - the sinks of isa.def, which use the gradient that a kernel computes.
 * A call reads and writes only the elements whose gradient it receives, so a
 * kernel may pass its gradient in several calls. */
#include "sink.h"

#include <stddef.h>

#include "poet/isa.h"

void poet_sink_apart(const struct poet_call *call, uint32_t own, uint32_t first,
                     uint32_t step, const float *g, uint32_t count) {
  const struct poet_op *op = call->op;
  float *out = (float *)call->out + first;
  if (op->sink == POET_SINK_store) {
    for (uint32_t i = 0; i < count; i++) {
      out[i * step] = g[i];
    }
    return;
  }
  const float decay = op->weight_decay;
  const float *old = (const float *)call->in[own] + first, *w = NULL;
  if (decay != 0.0f && op->sink == POET_SINK_sgd) {
    w = old;
  } else if (decay != 0.0f && op->sink == POET_SINK_momentum) {
    w = (const float *)call->in[own + 1] + first;
  }
  for (uint32_t i = 0; i < count; i++) {
    const float slope = w != NULL ? g[i] + decay * w[i * step] : g[i];
    const float before = old[i * step];
    switch (op->sink) {
    case POET_SINK_accumulate:
      out[i * step] = before + slope;
      break;
    case POET_SINK_sgd:
      out[i * step] = before - op->learning_rate * slope;
      break;
    case POET_SINK_momentum:
      out[i * step] = op->momentum * before + slope;
      break;
    default:
      break;
    }
  }
}

void poet_sink(const struct poet_call *call, uint32_t own, uint32_t first,
               const float *g, uint32_t count) {
  poet_sink_apart(call, own, first, 1, g, count);
}
