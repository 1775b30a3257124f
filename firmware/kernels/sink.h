/* sink.h - the uses (sinks) of a parameter's gradient: store it, add it to a
 * sum, or update the parameter or its momentum with it. */
#ifndef POET_SINK_H
#define POET_SINK_H

#include "poet/kernel.h"

/* Use the gradients g of `count` elements of a parameter, from its element
 * `first` on, as the field `sink` of the operator says. Each gradient in g is
 * complete. The first `own` inputs of the operator are those of the kernel; the
 * inputs of the sink follow. */
void poet_sink(const struct poet_call *call, uint32_t own, uint32_t first,
               const float *g, uint32_t count);

/* The elements of a parameter that a tile computes: `rows` by `columns`, from
 * element `first` on, and the distances between them. */
struct poet_place {
  uint32_t first, rows, columns, row, column;
};

/* The same for the gradients of a tile, whose rows lie `next` apart in sums. */
void poet_sink_tile(const struct poet_call *call, uint32_t own,
                    const struct poet_place *place, const float *sums,
                    uint32_t next);

#endif
