/* sink.h - what becomes of one element of a parameter's gradient. */
#ifndef POET_SINK_H
#define POET_SINK_H

#include "poet/kernel.h"

/* Puts the complete gradient `g` of element `i` into the operator's sink;
 * `first` is the number of the kernel's own inputs, the sink's follow. */
void poet_sink(const struct poet_call *call, uint32_t first, uint32_t i,
               float g);

#endif
