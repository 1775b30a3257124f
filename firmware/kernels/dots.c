/* dots.c - the inner loop of every product of matrices. */
#include "dots.h"

static float dot(struct poet_line a, struct poet_line b, uint32_t count) {
  float sum = 0.0f;
  for (; count; count--) {
    sum += *a.at * *b.at;
    a.at += a.step;
    b.at += b.step;
  }
  return sum;
}

void poet_dots(struct poet_line a, struct poet_line b, uint32_t next,
               uint32_t count, uint32_t columns, float sums[POET_DOTS]) {
  if (columns == POET_DOTS) {
    const float *b0 = b.at, *b1 = b0 + next, *b2 = b1 + next, *b3 = b2 + next;
    float sum0 = 0.0f, sum1 = 0.0f, sum2 = 0.0f, sum3 = 0.0f;
    for (; count; count--) {
      const float x = *a.at;
      sum0 += x * *b0;
      sum1 += x * *b1;
      sum2 += x * *b2;
      sum3 += x * *b3;
      a.at += a.step;
      b0 += b.step;
      b1 += b.step;
      b2 += b.step;
      b3 += b.step;
    }
    sums[0] = sum0;
    sums[1] = sum1;
    sums[2] = sum2;
    sums[3] = sum3;
    return;
  }
  for (uint32_t i = 0; i < columns; i++) {
    sums[i] = dot(a, b, count);
    b.at += next;
  }
}
