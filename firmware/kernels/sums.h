/* sums.h - sums over adjacent elements, in their order. `count` is at least 1.
 */
#ifndef POET_SUMS_H
#define POET_SUMS_H

#include <stdint.h>

#include "tile.h"

/* Up to so many elements, two at a time are slower on a Cortex-M4F. */
enum { POET_SINGLE = 3 };

/* Return ((sum + x[0]) + x[1]) + ... */
static inline float poet_sum(float sum, const float *x, uint32_t count) {
  if (POET_UNROLL && count > POET_SINGLE) {
    if (count & 1) {
      sum += *x++;
    }
    count /= 2;
    do {
      const float first = *x++, next = *x++;
      sum += first;
      sum += next;
    } while (--count);
    return sum;
  }
  if (POET_UNROLL) {
    sum += x[0];
    if (count > 1) {
      sum += x[1];
    }
    return count > 2 ? sum + x[2] : sum;
  }
  do {
    sum += *x++;
  } while (--count);
  return sum;
}

/* The same for the squares of x[i] - mean. */
static inline float poet_squares(float sum, const float *x, uint32_t count,
                                 float mean) {
  if (POET_UNROLL && count > POET_SINGLE) {
    if (count & 1) {
      const float distance = *x++ - mean;
      sum += distance * distance;
    }
    count /= 2;
    do {
      const float first = *x++ - mean, next = *x++ - mean;
      sum += first * first;
      sum += next * next;
    } while (--count);
    return sum;
  }
  if (POET_UNROLL) {
    const float distance = x[0] - mean;
    sum += distance * distance;
    if (count > 1) {
      const float next = x[1] - mean;
      sum += next * next;
    }
    if (count > 2) {
      const float last = x[2] - mean;
      sum += last * last;
    }
    return sum;
  }
  do {
    const float distance = *x++ - mean;
    sum += distance * distance;
  } while (--count);
  return sum;
}

#endif
