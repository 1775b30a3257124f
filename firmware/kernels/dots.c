/* dots.c - the inner loop of every matrix product: each sum has its own
 * accumulator and adds its terms in ascending order. */
#include "dots.h"

static void four(const struct poet_dots *dots, float *sums) {
  const float *a = dots->a, *b0 = dots->b;
  const float *b1 = b0 + dots->next, *b2 = b1 + dots->next;
  const float *b3 = b2 + dots->next;
  const uint32_t a_step = dots->a_step, b_step = dots->b_step;
  float sum0 = 0.0f, sum1 = 0.0f, sum2 = 0.0f, sum3 = 0.0f;
  uint32_t i = 0, j = 0;
  for (uint32_t count = dots->count; count; count--) {
    const float x = a[i];
    sum0 += x * b0[j];
    sum1 += x * b1[j];
    sum2 += x * b2[j];
    sum3 += x * b3[j];
    i += a_step;
    j += b_step;
  }
  sums[0] = sum0;
  sums[1] = sum1;
  sums[2] = sum2;
  sums[3] = sum3;
}

static float one(const struct poet_dots *dots, const float *b) {
  float sum = 0.0f;
  for (uint32_t i = 0; i < dots->count; i++) {
    sum += dots->a[i * dots->a_step] * b[i * dots->b_step];
  }
  return sum;
}

void poet_dots(const struct poet_dots *dots, uint32_t columns, float *sums) {
  if (columns == POET_DOTS) {
    four(dots, sums);
    return;
  }
  for (uint32_t i = 0; i < columns; i++) {
    sums[i] = one(dots, dots->b + i * dots->next);
  }
}
