/* lanes_m0plus.h - convolutions on a core without floating point. */
#ifndef POET_LANES_M0PLUS_H
#define POET_LANES_M0PLUS_H

#include "../depthwise.h"
#include "../tile.h"

#if POET_M0PLUS
/* Compute the rectangle of two spans in all channels of all samples. The
 * longest axis makes the lanes of a call, so that there are few calls. */
void poet_rectangle(const struct convolution *v, struct poet_tile *t,
                    const float *from, float *to, const struct span *h,
                    const struct span *w);
#endif

#endif
