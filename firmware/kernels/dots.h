/* dots.h - compute dot products, several at a time. */
#ifndef POET_DOTS_H
#define POET_DOTS_H

#include <stdint.h>

#define POET_DOTS 4u

/* A row, and several columns of the same length: poet_dots computes the dot
 * product of the row and each column. a_step, b_step and `next` are distances
 * in memory, in floats. */
struct poet_dots {
  const float *a;          /* the row, (count) */
  const float *b;          /* the first column, (count) */
  uint32_t a_step, b_step; /* from one term to the next */
  uint32_t next;           /* from one column to the next */
  uint32_t count;          /* number of terms */
};

/* Return the number of columns to compute together, if `left` columns
 * remain. */
static inline uint32_t poet_together(uint32_t left) {
  return left < POET_DOTS ? left : POET_DOTS;
}

/* Set sums[i] to the dot product of the row and column i, for i < columns <=
 * POET_DOTS. Each sum has its own accumulator and adds its terms in ascending
 * order. The row is read only once for all sums. */
void poet_dots(const struct poet_dots *dots, uint32_t columns, float *sums);

#endif
