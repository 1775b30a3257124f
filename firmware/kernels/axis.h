/* axis.h - the axes of a convolution, and their elements that meet the same
 * taps of the window. */
#ifndef POET_AXIS_H
#define POET_AXIS_H

#include <stdbool.h>
#include <stdint.h>

/* One axis of a convolution. `back`: it is that of the gradient of the input,
 * which goes backwards through read elements as taps ascend. */
struct axis {
  uint32_t kernel, stride, pad;
  uint32_t read, made; /* number of elements */
  bool back;
};

/* Made elements with the same taps: `count` of them, from element `first` on.
 * They lie `stride` apart if `back`, else side by side. The first of them meets
 * `taps` taps, from `tap` on; these lie `stride` apart if `back`. `from` is the
 * read element of the first tap. */
struct span {
  uint32_t first, count;
  uint32_t tap, taps;
  uint32_t from;
};

/* Return the longest span that begins with made element `at`. */
struct span poet_span_at(const struct axis *x, uint32_t at);

/* Return the outputs of a convolution for which tap `at` lies inside of the
 * input: `count` of them, from `first` on. `from` is the input element that the
 * first of them meets. */
struct span poet_outputs_of(uint32_t at, uint32_t stride, uint32_t pad,
                            uint32_t in_size, uint32_t out_size);

/* Return how many pairs of a made element and a tap there are along the axis.
 */
uint32_t poet_products(const struct axis *x);

#endif
