/* sink.c - the sinks of isa.def, which use the gradient that a kernel computes.
 * A call reads and writes only the elements whose gradient it receives, so a
 * kernel may pass its gradient in several calls. */
#include "sink.h"

#include <stddef.h>

#include "poet/isa.h"
#include "tile.h"

/* Set each element to `value`, an expression of its `old` value and of its
 * gradient `g`. */
#define EACH(value)                                                            \
  for (uint32_t row = place->rows; row; row--) {                               \
    const float *from = sums;                                                  \
    float *to = out;                                                           \
    uint32_t left = place->columns;                                            \
    for (; POET_UNROLL && left >= 4; left -= 4) {                              \
      float *to1 = to + step, *to2 = to1 + step, *to3 = to2 + step;            \
      const float v0 = value(from[0], *to), v1 = value(from[1], *to1);         \
      const float v2 = value(from[2], *to2), v3 = value(from[3], *to3);        \
      *to = v0, *to1 = v1, *to2 = v2, *to3 = v3;                               \
      from += 4, to = to3 + step;                                              \
    }                                                                          \
    for (; left; left--) {                                                     \
      *to = value(*from, *to);                                                 \
      from++, to += step;                                                      \
    }                                                                          \
    out += place->row, sums += next;                                           \
  }
#define STORED(g, old) (g)
#define ACCUMULATED(g, old) ((old) + (g))
#define STEPPED(g, old) ((old) - rate * (g))
#define DECAYED(g, old) ((old) - rate * ((g) + decay * (old)))
#define MOVED(g, old) (keep * (old) + (g))

/* The momentum of a parameter with weight decay. */
static void move_decayed(const struct poet_op *op,
                         const struct poet_place *place, float *out,
                         const float *w, const float *sums, uint32_t next) {
  const float decay = op->weight_decay, keep = op->momentum;
  for (uint32_t row = 0; row < place->rows; row++) {
    for (uint32_t i = 0; i < place->columns; i++) {
      const uint32_t at = row * place->row + i * place->column;
      out[at] = keep * out[at] + (sums[row * next + i] + decay * w[at]);
    }
  }
}

void poet_begin_tile(const struct poet_call *call,
                     const struct poet_place *place, float *sums,
                     uint32_t next) {
  for (uint32_t row = 0; row < place->rows && !call->first; row++) {
    const float *from = call->sums + place->first + row * place->row;
    for (uint32_t i = 0; i < place->columns; i++) {
      sums[row * next + i] = from[i * place->column];
    }
  }
}

void poet_sink_tile(const struct poet_call *call, uint32_t own,
                    const struct poet_place *place, const float *sums,
                    uint32_t next) {
  const struct poet_op *op = call->op;
  const float rate = op->learning_rate, keep = op->momentum;
  const float decay = op->weight_decay;
  const uint32_t step = place->column;
  float *out = call->last ? call->out : call->sums;
  out += place->first;
  switch (call->last ? op->sink : POET_SINK_store) {
  case POET_SINK_store:
    EACH(STORED)
    break;
  case POET_SINK_accumulate:
    EACH(ACCUMULATED)
    break;
  case POET_SINK_sgd:
    if (decay != 0.0f) {
      EACH(DECAYED)
    } else {
      EACH(STEPPED)
    }
    break;
  case POET_SINK_momentum:
    if (decay != 0.0f) {
      const float *w = (const float *)call->in[own + 1] + place->first;
      move_decayed(op, place, out, w, sums, next);
    } else {
      EACH(MOVED)
    }
    break;
  default:
    break;
  }
}

void poet_sink(const struct poet_call *call, uint32_t own, uint32_t first,
               const float *g, uint32_t count) {
#if !POET_M0PLUS
  if (!call->last || call->op->sink == POET_SINK_store) { /* a short way */
    float *to = call->last ? call->out : call->sums;
    to += first;
    for (; count; count--) {
      *to++ = *g++;
    }
    return;
  }
#endif
  const struct poet_place place = {
      .first = first, .rows = 1, .columns = count, .column = 1};
  poet_sink_tile(call, own, &place, g, 0);
}
