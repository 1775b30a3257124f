/* sink.h - what becomes of one element of a parameter's gradient. */
#ifndef POET_SINK_H
#define POET_SINK_H

#include "poet/kernel.h"

/* Puts the complete gradients `g` of `count` elements from `first` on into the
 * operator's sink; the kernel has `own` inputs itself, the sink's follow. */
void poet_sink(const struct poet_call *call, uint32_t own, uint32_t first,
               const float *g, uint32_t count);

#endif
