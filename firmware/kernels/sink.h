/* sink.h - the uses (sinks) of a parameter's gradient: store it, add it to a
 * sum, or update the parameter or its momentum with it. */
#ifndef POET_SINK_H
#define POET_SINK_H

#include "poet/kernel.h"

/* Use the gradients g of `count` elements of a parameter, from its element
 * `first` on, as the field `sink` of the operator says. If this call has not
 * the last terms of the gradients, keep them instead. The first `own` inputs of
 * the operator are those of the kernel; the inputs of the sink follow. */
void poet_sink(const struct poet_call *call, uint32_t own, uint32_t first,
               const float *g, uint32_t count);

/* The elements of a parameter that a tile computes: `rows` by `columns`, from
 * element `first` on, and the distances between them. */
struct poet_place {
  uint32_t first, rows, columns, row, column;
};

/* Return what the sum of element `i` of a parameter's gradient begins with. */
static inline float poet_begin(const struct poet_call *call, uint32_t i) {
  return call->first ? 0.0f : call->sums[i];
}

/* Set the sums of a tile, whose rows lie `next` apart, to what they begin with,
 * unless that is 0. */
void poet_begin_tile(const struct poet_call *call,
                     const struct poet_place *place, float *sums,
                     uint32_t next);

/* The same as poet_sink for the gradients of a tile. */
void poet_sink_tile(const struct poet_call *call, uint32_t own,
                    const struct poet_place *place, const float *sums,
                    uint32_t next);

#endif
