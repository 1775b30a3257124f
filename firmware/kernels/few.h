/* few.h - sums of products with few lanes or terms. The set-up of tiles
 * (tile.h) would take longer than such sums. */
#ifndef POET_FEW_H
#define POET_FEW_H

#include <stdbool.h>
#include <stdint.h>

/* How an operand is walked through: distances in floats between its lanes, and
 * between the terms of a sum. */
struct poet_few_walk {
  const float *at; /* first term of lane 0 */
  uint32_t lane, term, lanes;
};

/* sums[i * a_next + j * b_next] = ((s + a[i][0] b[j][0]) + a[i][1] b[j][1]) +
 * ..., for each lane i of a and j of b. s is the sum's value if `begun`, else
 * 0. */
struct poet_few {
  struct poet_few_walk a, b;
  uint32_t terms;
  float *sums;
  uint32_t a_next, b_next;
  bool begun;
};

/* Return true if poet_few is faster than a tile. */
bool poet_is_few(uint32_t a_lanes, uint32_t b_lanes, uint32_t terms);

void poet_few(const struct poet_few *few);

/* The same for sums of one term that are not begun. */
void poet_single(const struct poet_few *few);

#endif
