/*
 * lanes_m0plus.c - tiles and convolutions on a core without floating point: one
 * lane of an operand with many of the other at a time (dot_m0plus.c).
 */
#include "lanes_m0plus.h"

#include <stddef.h>

#include "dot_m0plus.h"

#if POET_M0PLUS
/* The bits of the smallest number other than 0, and of the largest one, both
 * without sign. The smallest is too large if there are zeros only. */
struct range {
  uint32_t low, high;
};

typedef uint32_t __attribute__((may_alias)) bits_of_float;

/* Return how many numbers at the beginning, by fours, lie between 2^-31 and
 * 2^33: few other tests are as fast, and most numbers pass. */
static __attribute__((noinline)) uint32_t common(const bits_of_float *bits,
                                                 uint32_t count) {
  const uint32_t to_top = (128u - 96u) << 24;
  const bits_of_float *at = bits, *end = bits + count / 4 * 4;
  for (; at != end; at += 4) {
    const uint32_t p = (at[0] << 1) + to_top, q = (at[1] << 1) + to_top;
    const uint32_t r = (at[2] << 1) + to_top, s = (at[3] << 1) + to_top;
    if (!((p & q & r & s) >> 31) || ((p | q | r | s) & 1u << 30)) {
      break;
    }
  }
  return (uint32_t)(at - bits);
}

static __attribute__((noinline)) struct range range_of(const float *x,
                                                       uint32_t count) {
  const bits_of_float *bits = (const bits_of_float *)x;
  struct range range = {UINT32_MAX, 0};
  const uint32_t seen = common(bits, count);
  if (seen) {
    range = (struct range){96u << 24, (160u << 24) - 1};
  }
  for (uint32_t i = seen; i < count; i++) {
    const uint32_t twice = bits[i] << 1;
    if (twice - 1 < range.low) {
      range.low = twice - 1; /* a zero becomes the largest number */
    }
    if (twice > range.high) {
      range.high = twice;
    }
  }
  return range;
}

/* Products lie between 2^-125 and 2^101, so sums of 2^24 products do not
 * overflow. */
bool poet_tame(const float *a, uint32_t a_count, const float *b,
               uint32_t b_count) {
  const struct range as = range_of(a, a_count), bs = range_of(b, b_count);
  const uint32_t a_low = (as.low + 1) >> 24, b_low = (bs.low + 1) >> 24;
  const uint32_t a_high = as.high >> 24, b_high = bs.high >> 24;
  if (a_high == 255 || b_high == 255) {
    return false;
  }
  if (as.high == 0 || bs.high == 0) {
    return true;
  }
  return a_low > 0 && b_low > 0 && a_low + b_low >= 130 &&
         a_high + b_high <= 254 + 100;
}

/* Return true if products that poet_tame allows may be added to all sums: each
 * is 0, or a normal number below 2^126. */
static bool sums_are_tame(const float *sums, uint32_t step, uint32_t count) {
  const bits_of_float *bits = (const bits_of_float *)sums;
  for (; count; count--) {
    const uint32_t twice = *bits << 1;
    if (twice != 0 && (twice >> 24) - 1 >= 252) {
      return false;
    }
    bits += step;
  }
  return true;
}

static const float *after(const float *at, int32_t bytes) {
  return (const float *)(const void *)((const char *)at + bytes);
}

/* Return `sum` with all products of two lanes added. */
static __attribute__((noinline)) float
sum_of(const struct poet_terms *t, const float *a, const float *b, float sum) {
  for (uint32_t planes = t->planes; planes; planes--) {
    for (uint32_t rows = t->rows; rows; rows--) {
      for (uint32_t left = t->columns; left; left--) {
        sum += *a * *b;
        a = after(a, t->a_step), b = after(b, t->b_step);
      }
      a = after(a, t->a_row), b = after(b, t->b_row);
    }
    a = after(a, t->a_plane - t->a_row), b = after(b, t->b_plane - t->b_row);
  }
  return sum;
}

/* lane_by_lanes, where the terms are not plain. */
static __attribute__((noinline)) void
any_lane_by_lanes(const struct poet_tile *t, const float *a, uint32_t b_lanes,
                  float *sums, uint32_t step) {
  if (!t->terms.columns || !t->terms.rows || !t->terms.planes) {
    for (; b_lanes && !t->begun; b_lanes--) {
      *sums = 0.0f;
      sums += step;
    }
    return;
  }
  if (t->tame && sums_are_tame(sums, step, b_lanes)) {
    poet_dots(t, a, sums, b_lanes, 4 * step);
    return;
  }
  const float *b = t->b.at;
  for (; b_lanes; b_lanes--) {
    *sums = sum_of(&t->terms, a, b, t->begun ? *sums : 0.0f);
    b += t->b.lane;
    sums += step;
  }
}

/* The same as poet_tile for the lane at `a` and any number of lanes of b, whose
 * sums lie `step` floats apart. Changes no others. */
static void lane_by_lanes(const struct poet_tile *t, const float *a,
                          uint32_t b_lanes, float *sums, uint32_t step) {
  if (t->terms.plain) {
    poet_dots(t, a, sums, b_lanes, 4 * step);
  } else {
    any_lane_by_lanes(t, a, b_lanes, sums, step);
  }
}

void poet_tile(const struct poet_tile *t, uint32_t a_lanes, uint32_t b_lanes,
               float *sums, uint32_t row) {
  for (uint32_t i = 0; i < a_lanes && b_lanes; i++) {
    lane_by_lanes(t, t->a.at + (int32_t)i * t->a.lane, b_lanes, sums, 1);
    sums += row;
  }
}

/* One of three axes of the sums of a rectangle: how many there are along it,
 * and the distances between their weights, between the elements that they read,
 * and between the sums. */
struct direction {
  uint32_t count, weight, read, made;
};

void poet_rectangle(const struct convolution *v, struct poet_tile *t,
                    const float *from, float *to, const struct span *h,
                    const struct span *w) {
  const struct poet_op *op = v->op;
  const uint32_t h_made = v->h.back ? v->h.stride : 1;
  const uint32_t w_made = v->w.back ? v->w.stride : 1;
  const uint32_t h_read = v->h.back ? 1 : v->h.stride;
  const uint32_t w_read = v->w.back ? 1 : v->w.stride;
  const struct direction channels = {v->made, v->made_step, 0, v->made_plane};
  const struct direction across = {w->count, 0, w_read, w_made};
  struct direction slow = {h->count, 0, h_read * v->w.read, h_made * v->w.made};
  struct direction fast = across, lanes = channels;
  const bool by_channel = v->made >= w->count && v->made >= h->count;
  if (!by_channel) {
    fast = channels, lanes = across;
    if (h->count > w->count) {
      lanes = slow, slow = across;
    }
  }
  const struct poet_walk weights = t->a, reads = t->b;
  t->rows = h->taps;
  t->columns = w->taps;
  if (by_channel) {
    t->a = reads, t->b = weights;
  }
  t->b.lane = (int32_t)(by_channel ? lanes.weight : lanes.read);
  poet_tile_shape(t);
  from += h->from * v->w.read + w->from;
  to += h->first * v->w.made + w->first;
  const float *of_group = NULL;
  uint32_t groups = 0; /* left of the sample */
  for (uint32_t planes = op->n * op->groups; planes; planes--) {
    if (groups == 0) {
      groups = op->groups;
      of_group = v->weight + h->tap * op->kernel_w + w->tap;
    }
    for (uint32_t i = 0; i < slow.count; i++) {
      const float *weight = of_group;
      const float *read = from + i * slow.read;
      float *made = to + i * slow.made;
      for (uint32_t j = 0; j < fast.count; j++) {
        t->b.at = by_channel ? weight : read;
        lane_by_lanes(t, by_channel ? read : weight, lanes.count, made,
                      lanes.made);
        weight += fast.weight, read += fast.read, made += fast.made;
      }
    }
    groups--;
    of_group += v->group_step;
    from += v->read * v->read_plane;
    to += v->made * v->made_plane;
  }
  t->a = weights, t->b = reads;
}
#endif
