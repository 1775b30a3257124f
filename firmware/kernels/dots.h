/* dots.h - sums of products, several at a time. */
#ifndef POET_DOTS_H
#define POET_DOTS_H

#include <stdint.h>

#define POET_DOTS 4u

/* Rows or columns of numbers: `step` from one to the next. */
struct poet_line {
  const float *at;
  uint32_t step;
};

/* sums[i] = a . (b moved by i * next) over `count` terms, for i < columns, at
 * most POET_DOTS: each has an accumulator of its own that takes its terms in
 * ascending order. Together they read a once. */
void poet_dots(struct poet_line a, struct poet_line b, uint32_t next,
               uint32_t count, uint32_t columns, float sums[POET_DOTS]);

#endif
