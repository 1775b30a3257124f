/* mathf.h - mathematical functions that round alike on every target, unlike
 * those of C libraries. */
#ifndef POET_MATHF_H
#define POET_MATHF_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "tile.h"

static inline uint32_t poet_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

/* A number that orders floats: poet_order(x) < poet_order(y) if and only if x <
 * y. A core without floating point compares integers, which is faster. Only the
 * order of a NaN may differ, so test for it with poet_is_nan. */
#if defined(__ARM_ARCH_6M__)
enum { POET_INFINITE = 0x7f800000 };
typedef int32_t poet_order_t;

static inline poet_order_t poet_order(float x) {
  const int32_t bits = (int32_t)poet_bits(x);
  if (bits >= 0) {
    return bits;
  }
  const int32_t size = bits & INT32_MAX;
  return size > POET_INFINITE ? INT32_MAX : -size;
}

static inline bool poet_is_nan(poet_order_t order) {
  return order > POET_INFINITE;
}
#else
typedef float poet_order_t;

static inline poet_order_t poet_order(float x) {
  return x;
}

static inline bool poet_is_nan(poet_order_t order) {
  return order != order;
}
#endif

/* x / 2, rounded. */
static inline float poet_half(float x) {
#if POET_M0PLUS
  uint32_t bits = poet_bits(x);
  if ((bits << 1 >> 24) - 2 < 253) { /* so that the half is normal */
    bits -= 1u << 23;
    memcpy(&x, &bits, sizeof x);
    return x;
  }
#endif
  return 0.5f * x;
}

/* e^x and the natural logarithm, in float32, with the same bits on every
 * target. Largest error over all floats, in units in the last place: 1.1 (exp),
 * 0.9 (log). exp: 0 below -103.97, infinite above 88.72. log: -infinity at 0,
 * NaN below. Subnormal arguments and results are correct. */
float poet_exp(float x);
float poet_log(float x);

/* tanh, the error function and 1 / (1 + e^-x). Largest error over all floats,
 * in units in the last place: 1.4 (tanh), 1.6 (erf), 2.5 (logistic). */
float poet_tanhf(float x);
float poet_erff(float x);
float poet_logistic(float x);

/* sin(x + quarters * pi / 2), so 1 quarter gives cos(x). Largest error over all
 * finite floats: 2.8 units in the last place. NaN if x is not finite. */
float poet_sinf(float x, uint32_t quarters);

/* Return mantissa * 2^(field - 158), rounded, with the sign in bit 31 of
 * `sign`. 0 or the exponent field of a normal number results. */
#if defined(__ARM_ARCH_6M__)
float poet_rounded(uint32_t mantissa, uint32_t field, uint32_t sign);
#endif

/* Return ((c[0] x + c[1]) x + c[2]) x + ... + c[count - 1], for the numbers
 * that horner_m0plus.c allows. Only there is it a function of its own. */
#if POET_M0PLUS
float poet_horner(float x, const float *c, uint32_t count);
#endif

/* Return x^n, computed by repeated squaring from the lowest bit of n on; x^0 =
 * 1. */
float poet_power(float x, uint32_t n);

#endif
