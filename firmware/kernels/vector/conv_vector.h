/* conv_vector.h - convolutions on a processor with vectors of floats. */
#ifndef POET_CONV_VECTOR_H
#define POET_CONV_VECTOR_H

#include <stdbool.h>

#include "../depthwise.h"
#include "tile_vector.h"

#if POET_VECTOR
/* Return true if none of `count` numbers is infinite or NaN. */
bool poet_are_finite(const float *x, uint32_t count);

/* Compute a convolution. Return false if it is too large for the buffers, or
 * has weights that are not finite. `from`: all read channels, `to`: all made
 * channels. */
bool poet_convolve_planes(const struct convolution *v, const float *from,
                          float *to);

/* Compute the gradients of a convolution's weights. Return false if it is too
 * large for the buffers, or has gradients dy that are not finite. x: (n, c, h,
 * w), dy: (n, k, oh, ow) */
bool poet_grad_weight_panels(const struct poet_call *call, const float *x,
                             const float *dy);
#endif

#endif
