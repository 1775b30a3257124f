/* axpy_m4f.h - rows of depthwise convolutions, with functions for a Cortex-M4F.
 * All counts are at least one. */
#ifndef POET_AXPY_M4F_H
#define POET_AXPY_M4F_H

#include "../tile.h"

/* to[j] = to[j] + weight * from[j], for j < `count`, in each of `rows` rows.
 * All steps are in bytes: between elements, and from the end of a row to the
 * next row. */
struct poet_axpy {
  const float *from;
  float *to;
  uint32_t count, rows;
  int32_t from_step, to_step;
  int32_t from_next, to_next;
  float weight;
};

/* Add the products of `rows` adjacent rows of `width` > 1 elements:
 *   sums[0] = (sums[0] + dy[1] x[0]) + dy[2] x[1] + ...
 *   sums[1] = (sums[1] + dy[0] x[0]) + dy[1] x[1] + ...
 *   sums[2] = (sums[2] + dy[0] x[1]) + dy[1] x[2] + ... */
struct poet_three {
  const float *x, *dy;
  uint32_t rows, width;
  float sums[3];
};

#if POET_M4F
void poet_axpy(const struct poet_axpy *axpy);
void poet_three(struct poet_three *three);
#endif

#endif
