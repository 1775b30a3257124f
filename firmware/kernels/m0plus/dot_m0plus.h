/* dot_m0plus.h - sums of products on a core without floating point. */
#ifndef POET_DOT_M0PLUS_H
#define POET_DOT_M0PLUS_H

#include "../tile.h"

#if POET_M0PLUS
/* For a function in RAM, too far for a branch from flash. Clang leaves it to
 * the linker. */
#ifdef __clang__
#define POET_FAR
#else
#define POET_FAR __attribute__((long_call))
#endif

/* Set the sums, which lie `step` bytes apart, to those of the products of the
 * lane at `a` and each of `lanes` lanes of tile->b. There is at least one lane
 * and one term, and poet_tame holds for the operands. */
void poet_dots(const struct poet_tile *tile, const float *a, float *sums,
               uint32_t lanes, uint32_t step) POET_FAR;
#endif

#endif
