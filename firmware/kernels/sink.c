/* sink.c - the sinks of isa.def. */
#include "sink.h"

#include "poet/isa.h"

void poet_sink(const struct poet_call *call, uint32_t first, uint32_t i,
               float g) {
  const struct poet_op *op = call->op;
  const float *old = call->in[first];
  const float decay = op->weight_decay;
  float *out = call->out;
  switch (op->sink) {
  case POET_SINK_store:
    out[i] = g;
    break;
  case POET_SINK_accumulate:
    out[i] = old[i] + g;
    break;
  case POET_SINK_sgd:
    if (decay != 0.0f) {
      g = g + decay * old[i];
    }
    out[i] = old[i] - op->learning_rate * g;
    break;
  case POET_SINK_momentum:
    if (decay != 0.0f) {
      const float *w = call->in[first + 1];
      g = g + decay * w[i];
    }
    out[i] = op->momentum * old[i] + g;
    break;
  default:
    break;
  }
}
