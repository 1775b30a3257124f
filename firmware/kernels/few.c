/* few.c - sums of products with few lanes or terms, in C: one lane of the first
 * operand by four, two or one of the second. */
#include "few.h"

#include "tile.h"

#if POET_FEW
enum { MOST = 512 }; /* products, where there are vectors */

/* The limits are measured on a Cortex-M4F. */
bool poet_is_few(uint32_t a_lanes, uint32_t b_lanes, uint32_t terms) {
  const uint32_t least = a_lanes < b_lanes ? a_lanes : b_lanes;
  if (!POET_M4F && a_lanes * b_lanes * terms > MOST) {
    return false;
  }
  return terms <= (least < 3 ? 48 : least == 3 ? 12 : 5);
}

/* What the loops below need: x is the operand of which one lane is computed at
 * a time. */
struct lanes {
  const float *y; /* first term of the next lane of y */
  uint32_t x_term, y_term, y_lane, terms, next;
  bool begun;
};

/* Compute the sums of the lane at `first` and some lanes of y, a multiple of
 * four. */
static __attribute__((noinline)) void
fours(const struct lanes *l, const float *first, float *sums, uint32_t left) {
  const uint32_t x_term = l->x_term, y_term = l->y_term, next = l->next;
  const float *lanes = l->y;
  for (; left; left -= 4) {
    const float *x = first, *y0 = lanes, *y1 = y0 + l->y_lane;
    const float *y2 = y1 + l->y_lane, *y3 = y2 + l->y_lane;
    lanes = y3 + l->y_lane;
    float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;
    if (l->begun) {
      s0 = sums[0], s1 = sums[next];
      s2 = sums[2 * next], s3 = sums[3 * next];
    }
    for (uint32_t i = l->terms; i; i--) {
      const float g = *x, h0 = *y0, h1 = *y1, h2 = *y2, h3 = *y3;
      s0 += g * h0, s1 += g * h1, s2 += g * h2, s3 += g * h3;
      x += x_term, y0 += y_term, y1 += y_term, y2 += y_term, y3 += y_term;
    }
    sums[0] = s0, sums[next] = s1;
    sums += 2 * next;
    sums[0] = s2, sums[next] = s3;
    sums += 2 * next;
  }
}

/* The same for one lane of y. */
static inline void one(const struct lanes *l, const float *x, const float *y,
                       float *to) {
  float sum = l->begun ? *to : 0.0f;
  uint32_t i = l->terms;
  for (; i >= 2; i -= 2) {
    const float g0 = *x, h0 = *y, g1 = x[l->x_term], h1 = y[l->y_term];
    sum += g0 * h0;
    sum += g1 * h1;
    x += 2 * l->x_term, y += 2 * l->y_term;
  }
  *to = i ? sum + *x * *y : sum;
}

/* The same for two lanes. */
static inline void two(const struct lanes *l, const float *x, const float *y0,
                       float *sums) {
  const float *y1 = y0 + l->y_lane;
  float s0 = 0.0f, s1 = 0.0f;
  if (l->begun) {
    s0 = sums[0], s1 = sums[l->next];
  }
  for (uint32_t i = l->terms; i; i--) {
    const float g = *x, h0 = *y0, h1 = *y1;
    s0 += g * h0, s1 += g * h1;
    x += l->x_term, y0 += l->y_term, y1 += l->y_term;
  }
  sums[0] = s0, sums[l->next] = s1;
}

void poet_few(const struct poet_few *few) {
  const struct poet_few_walk *x = &few->a, *y = &few->b;
  uint32_t x_next = few->a_next, y_next = few->b_next;
  if (y->lanes < POET_TILE && x->lanes > y->lanes) {
    x = &few->b, y = &few->a;
    x_next = few->b_next, y_next = few->a_next;
  }
  const struct lanes l = {.y = y->at,
                          .x_term = x->term,
                          .y_term = y->term,
                          .y_lane = y->lane,
                          .terms = few->terms,
                          .next = y_next,
                          .begun = few->begun};
  const uint32_t full = poet_full_lanes(y->lanes), rest = y->lanes - full;
  const float *first = x->at, *after = y->at + full * y->lane;
  float *sums = few->sums;
  for (uint32_t left = x->lanes; left; left--) {
    float *to = sums + full * y_next;
    if (full) {
      fours(&l, first, sums, full);
    }
    if (rest >= 2) {
      two(&l, first, after, to);
    }
    if (rest & 1) {
      const uint32_t last = rest - 1;
      one(&l, first, after + last * y->lane, to + last * y_next);
    }
    first += x->lane, sums += x_next;
  }
}

/* The product is added to 0, because it may be -0. */
void poet_single(const struct poet_few *few) {
  const float *x = few->a.at;
  float *row = few->sums;
  for (uint32_t left = few->a.lanes; left; left--) {
    const float g = *x, *y = few->b.at;
    float *to = row;
    for (uint32_t lanes = few->b.lanes; lanes; lanes--) {
      *to = 0.0f + g * *y;
      y += few->b.lane, to += few->b_next;
    }
    x += few->a.lane, row += few->a_next;
  }
}
#endif
