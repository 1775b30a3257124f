/* dots.h - sums of products, several at a time. */
#ifndef POET_DOTS_H
#define POET_DOTS_H

#include <stdint.h>

#define POET_DOTS 4u

/* A row of numbers, and columns to multiply it with. */
struct poet_dots {
  const float *a;          /* the row */
  const float *b;          /* the first of the columns */
  uint32_t a_step, b_step; /* from a term to the next */
  uint32_t next;           /* from a column to the next */
  uint32_t count;          /* of terms */
};

/* How many columns are computed together, of `left`. */
static inline uint32_t poet_together(uint32_t left) {
  return left < POET_DOTS ? left : POET_DOTS;
}

/* sums[i] = the row . column i, for i < columns, at most POET_DOTS: each has an
 * accumulator of its own that takes its terms in ascending order. Together they
 * read the row once. */
void poet_dots(const struct poet_dots *dots, uint32_t columns, float *sums);

#endif
