/* sink.h - the three uses of a parameter's gradient: store it, add it to a sum,
 * or update the parameter with it. */
#ifndef POET_SINK_H
#define POET_SINK_H

#include "poet/kernel.h"

/* Apply the operator's sink to elements first to first + count - 1 of the
 * parameter. g: (count), the complete gradients of these elements. The first
 * `own` inputs of the operator belong to the kernel; the inputs of the sink
 * follow. */
void poet_sink(const struct poet_call *call, uint32_t own, uint32_t first,
               const float *g, uint32_t count);

#endif
