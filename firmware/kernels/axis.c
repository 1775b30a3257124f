/* axis.c - the axes of a convolution. */
#include "axis.h"

/* Return the span of made element `at` alone. */
static struct span taps_of(const struct axis *x, uint32_t at) {
  struct span s = {.first = at, .count = 1};
  if (x->back) {
    s.from = (at + x->pad) / x->stride;
    s.tap = (at + x->pad) - s.from * x->stride;
    if (s.from >= x->read) {
      s.tap += (s.from - (x->read - 1)) * x->stride;
      s.from = x->read - 1;
    }
    s.taps =
        s.tap < x->kernel ? (x->kernel - s.tap + x->stride - 1) / x->stride : 0;
    if (s.taps > s.from + 1) {
      s.taps = s.from + 1;
    }
  } else {
    const uint32_t first = at * x->stride;
    uint32_t end = x->read + x->pad > first ? x->read + x->pad - first : 0;
    end = end < x->kernel ? end : x->kernel;
    s.tap = first < x->pad ? x->pad - first : 0;
    s.taps = end > s.tap ? end - s.tap : 0;
    s.from = first + s.tap - x->pad;
  }
  return s;
}

/* Return how many elements from `at` on, whose span is s, meet the same taps
 * because none of these lies outside. Return 0 if one of them does. */
static uint32_t inside(const struct axis *x, uint32_t at,
                       const struct span *s) {
  if (x->back) {
    const uint32_t taps = s->tap < x->kernel
                              ? (x->kernel - s->tap + x->stride - 1) / x->stride
                              : 0;
    return s->tap < x->stride && s->taps == taps ? x->read - s->from : 0;
  }
  return s->taps == x->kernel
             ? (x->read + x->pad - x->kernel - at * x->stride) / x->stride + 1
             : 0;
}

struct span poet_span_at(const struct axis *x, uint32_t at) {
  const uint32_t step = x->back ? x->stride : 1;
  struct span s = taps_of(x, at);
  const uint32_t most = (x->made - at + step - 1) / step;
  const uint32_t count = inside(x, at, &s);
  if (count) {
    s.count = count < most ? count : most;
    return s;
  }
  for (at += step; at < x->made; at += step) {
    const struct span next = taps_of(x, at);
    if (next.tap != s.tap || next.taps != s.taps) {
      break;
    }
    s.count++;
  }
  return s;
}

/* Return distance / stride, rounded up. A Cortex-M0+ divides in software. */
static uint32_t steps_over(uint32_t distance, uint32_t stride) {
  return stride == 1 ? distance : (distance + stride - 1) / stride;
}

struct span poet_outputs_of(uint32_t at, uint32_t stride, uint32_t pad,
                            uint32_t in_size, uint32_t out_size) {
  const uint32_t begin = at < pad ? steps_over(pad - at, stride) : 0;
  uint32_t end =
      at < in_size + pad ? steps_over(in_size + pad - at, stride) : 0;
  end = end < out_size ? end : out_size;
  return (struct span){.first = begin,
                       .count = end > begin ? end - begin : 0,
                       .tap = 0,
                       .taps = 0,
                       .from = begin * stride + at - pad};
}

uint32_t poet_products(const struct axis *x) {
  uint32_t products = 0;
  for (uint32_t tap = 0; tap < x->kernel; tap++) {
    products +=
        poet_outputs_of(tap, x->stride, x->pad, x->back ? x->made : x->read,
                        x->back ? x->read : x->made)
            .count;
  }
  return products;
}
