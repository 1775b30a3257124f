/* strip_m4f.h - sums of one lane, eight at a time, on a Cortex-M4F. All counts
 * are at least one. */
#ifndef POET_STRIP_M4F_H
#define POET_STRIP_M4F_H

#include "../tile.h"

enum { POET_STRIP = 8 };

/* sums[j] = ((s + a[0] b[j]) + a[1] b[step + j]) + ..., for all j of `count`
 * strips. s is sums[j] if `begun`, else 0. `b_step` is in bytes. */
struct poet_strips {
  const float *a, *b;
  uint32_t b_step, terms;
  float *sums;
  uint32_t count;
  bool begun;
};

/* Convolve rows with 3 by 3 weights:
 *
 *   for each of `rows` rows:
 *     to[j] = 0, for j < POET_STRIP
 *     for each row of weights u, v, w, of which there are `taps` <= 3:
 *       let x[-1], x[0] to x[7] and x[8] be *left, from[0] to from[7], *right
 *       ahead: to[j] = ((to[j] + u x[j - 1]) + v x[j]) + w x[j + 1]
 *       back:  to[j] = ((to[j] + u x[j + 1]) + v x[j]) + w x[j - 1]
 *       from += step, left += left_step, right += right_step
 *     from += next, left += left_next, right += right_next, to += to_next
 *
 * Steps are in bytes. */
struct poet_rows {
  const float *from, *left, *right;
  float *to;
  int32_t step, left_step, right_step;
  int32_t next, left_next, right_next;
  uint32_t rows, to_next, taps;
  float weight[9];
};

/* w[i][j] -= rate * (0 + g[i] x[j]), for 2 * `pairs` rows of w, `row` bytes
 * apart, and the columns of `strips` strips. */
struct poet_outer {
  float *w;
  const float *x, *g;
  uint32_t row, pairs, strips;
  float rate;
};

#if POET_M4F
void poet_strips(const struct poet_strips *strips);
void poet_rows_ahead(const struct poet_rows *rows);
void poet_rows_back(const struct poet_rows *rows);
void poet_outer(const struct poet_outer *outer);
#endif

#endif
