/*
 * mathf.c - exp, log, tanh, erf and others, with the same bits on every target.
 *
 * Each function reduces its argument to a small range, then evaluates a
 * polynomial in Horner's form. The coefficients are our own minimax fits: they
 * minimise the largest relative error. mathf.h states the largest error of each
 * function.
 */
#include "mathf.h"

#include <math.h>
#include <stdint.h>

/* ln 2 as a sum of two parts. The first part has ten bits, so its product with
 * any exponent is exact. */
#define LN2_HIGH 0.693359375f
#define LN2_LOW -2.12194440e-4f

static float from_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static float power_of_two(int32_t exponent) {
  return from_bits((uint32_t)(exponent + 127) << 23);
}

#define HORNER(x, terms) poet_horner(x, terms, sizeof(terms) / sizeof *(terms))

#if !POET_M0PLUS
#if !defined(__clang__)
#define UNROLLED _Pragma("GCC unroll 10")
#else
#define UNROLLED
#endif

static inline float poet_horner(float x, const float *c, uint32_t count) {
  float p = c[0];
  UNROLLED
  for (uint32_t i = 1; i < count; i++) {
    p = p * x + c[i];
  }
  return p;
}
#endif

/* An argument of exp: x = n ln 2 + rest. */
struct reduced {
  int32_t n;
  float rest;
};

#if defined(__ARM_ARCH_6M__) /* integers are faster than float operations */
#define HIDDEN_BIT (1u << 23)

float poet_rounded(uint32_t mantissa, uint32_t field, uint32_t sign) {
  if (mantissa == 0) {
    return 0.0f;
  }
  for (; !(mantissa >> 24); mantissa <<= 8) {
    field -= 8;
  }
  for (; !(mantissa >> 31); mantissa <<= 1) {
    field--;
  }
  uint32_t kept = mantissa >> 8;
  kept += ((mantissa & 255) + 127 + (kept & 1)) >> 8;
  return from_bits((sign & ~0u << 31) | (((field - 1) << 23) + kept));
}

static struct reduced reduce(float x) {
  const uint32_t bits = poet_bits(x), scaled = poet_bits(x * 1.44269504f);
  const uint32_t field = scaled << 1 >> 24;
  /* |n| in units of 2^-24. A scaled x below 1/2 gives 1 if the sum is rounded
   * to 1. */
  uint32_t n = 1u << 24;
  if (field >= 126) {
    n = ((scaled << 9 >> 9 | HIDDEN_BIT) << (field - 126)) + HIDDEN_BIT;
  } else if (scaled << 1 >> 1 != 0x3effffffu) {
    return (struct reduced){0, x};
  }
  n >>= 24;
  /* |x| - |n| LN2_HIGH in units of 2^-25, exact; the product with LN2_LOW */
  uint32_t sign = bits;
  uint32_t rest = (bits << 9 >> 9 | HIDDEN_BIT) << ((bits << 1 >> 24) - 125);
  rest -= n * (355u << 16);
  if (rest >> 31) {
    rest = -rest;
    sign = ~sign;
  }
  const float low = poet_rounded(n * 0xde8083u, 158 - 36, ~bits);
  return (struct reduced){bits >> 31 ? -(int32_t)n : (int32_t)n,
                          poet_rounded(rest, 158 - 25, sign) - low};
}
#else
static struct reduced reduce(float x) {
  const int32_t n = (int32_t)(x * 1.44269504f + (x < 0.0f ? -0.5f : 0.5f));
  return (struct reduced){n, (x - (float)n * LN2_HIGH) - (float)n * LN2_LOW};
}
#endif

/* x = n ln 2 + r; e^r = 1 + r + r^2 p(r) for |r| <= ln 2 / 2 */
float poet_exp(float x) {
  const poet_order_t order = poet_order(x);
  if (!(order <= poet_order(89.0f))) { /* a NaN too */
    return isnan(x) ? x : INFINITY;
  }
  if (order < poet_order(-104.0f)) {
    return 0.0f;
  }
  const struct reduced reduced = reduce(x);
  const int32_t n = reduced.n;
  const float r = reduced.rest;
  static const float terms[] = {0.001395172f, 0.0083695982f, 0.0416661872f,
                                0.166665129f, 0.5f};
  const float p = HORNER(r, terms);
  const float power = 1.0f + (r + r * r * p); /* between 0.7 and 1.42 */
#if defined(__ARM_ARCH_6M__) /* where two multiplications take longer */
  if (n > -126 && n < 127) {
    return from_bits(poet_bits(power) + ((uint32_t)n << 23));
  }
#endif
  /* Multiply by 2^n in two factors: 2^n alone may overflow or underflow
   * although e^x does not. */
  return power * power_of_two(n / 2) * power_of_two(n - n / 2);
}

/* x = 2^n (1 + f), f from sqrt(1/2) - 1 to sqrt(2) - 1;
 * log(1 + f) = f - f^2 / 2 + f^3 p(f) */
float poet_log(float x) {
  if (!(x > 0.0f)) {
    return x == 0.0f ? -INFINITY : NAN;
  }
  if (isinf(x)) {
    return x;
  }
  const uint32_t one = 0x3f800000u, sqrt_half = 0x3f3504f3u;
  int32_t n = -127;
  if (x < 0x1p-126f) {
    x *= 0x1p23f;
    n -= 23;
  }
  const uint32_t bits = poet_bits(x) + (one - sqrt_half);
  n += (int32_t)(bits >> 23);
  const float f = from_bits((bits & 0x7fffffu) + sqrt_half) - 1.0f;
  static const float terms[] = {0.0674665152f, -0.116756546f, 0.118881588f,
                                -0.124055882f, 0.142195527f,  -0.166679959f,
                                0.200021186f,  -0.250000096f, 0.333333126f};
  const float p = HORNER(f, terms);
  return (float)n * LN2_HIGH +
         (f + (f * f * (f * p - 0.5f) + (float)n * LN2_LOW));
}

/* Return `magnitude` with the sign of x, for the odd functions below. */
static float with_sign_of(float x, float magnitude) {
  return poet_order(x) < poet_order(0.0f) ? -magnitude : magnitude;
}

/* tanh(x) = x + x^3 p(x^2) for small |x|, else 1 - 2 / (e^(2|x|) + 1) with the
 * sign of x */
float poet_tanhf(float x) {
  const float a = fabsf(x);
  if (poet_order(a) < poet_order(0.625f)) {
    const float square = x * x;
    static const float terms[] = {-0.0057049785f, 0.020639079f, -0.05373971f,
                                  0.13331442f, -0.3333328f};
    const float p = HORNER(square, terms);
    return x + x * square * p;
  }
  return isnan(x) ? x
                  : with_sign_of(x, 1.0f - 2.0f / (poet_exp(2.0f * a) + 1.0f));
}

/* erf(x) = x + x p(x^2) for small |x|, else 1 - e^-q(|x|) with the sign of x,
 * where q = -log(1 - erf) */
float poet_erff(float x) {
  const float a = fabsf(x);
  if (poet_order(a) < poet_order(0.875f)) {
    const float square = x * x;
    static const float terms[] = {-0.00062029896f, 0.005032125f, -0.02679142f,
                                  0.11282454f,     -0.3761255f,  0.12837915f};
    const float p = HORNER(square, terms);
    return x + x * p;
  }
  if (!(poet_order(a) <= poet_order(3.9375f))) { /* a NaN too */
    return isnan(x) ? x : with_sign_of(x, 1.0f);
  }
  static const float terms[] = {-0.00020099733f, 0.003092302f, -0.022420254f,
                                0.104327574f,    0.63673717f,  1.1279361f,
                                0.00013356694f};
  const float q = HORNER(a, terms);
  return with_sign_of(x, 1.0f - poet_exp(-q));
}

/* The argument of exp is never positive, so exp cannot overflow. */
float poet_logistic(float x) {
  const float e = poet_exp(x < 0.0f ? x : -x);
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

/* sin(pi / 2 x) = x p(x^2) */
float poet_half_wave(float x) {
  static const float terms[] = {0.000151485131f, -0.00467376661f, 0.0796896789f,
                                -0.645963711f, 1.57079632f};
  const float root = x * HORNER(x * x, terms);
  return root * root;
}

/* 4 bytes of 0, then 2 / pi */
static const uint8_t two_over_pi[] = {0x00, 0x00, 0x00, 0x00, 0xa2, 0xf9, 0x83,
                                      0x6e, 0x4e, 0x44, 0x15, 0x29, 0xfc, 0x27,
                                      0x57, 0xd1, 0xf5, 0x34, 0xdd, 0xc0, 0xdb,
                                      0x62, 0x95, 0x99, 0x3c, 0x43, 0x90, 0x41};

static uint32_t word(const uint8_t *byte) {
  return (uint32_t)byte[0] << 24 | (uint32_t)byte[1] << 16 |
         (uint32_t)byte[2] << 8 | byte[3];
}

/* |x| = (n + f) pi / 2 with f from -1/2 to 1/2. Return n modulo 4, and set
 * `rest` to f pi / 2. |x| is 1/2 or more, and finite. The product with 2 / pi
 * is of integers, as in Payne and Hanek (1983). Bytes before those read here
 * would add multiples of 4 to n. */
static uint32_t quarter_turns(float x, float *rest) {
  const uint32_t bits = poet_bits(x), place = (bits << 1 >> 24) - 120;
  const uint32_t mantissa = (bits << 9 >> 9 | 1u << 23) << (place & 7);
  const uint8_t *byte = two_over_pi + (place >> 3);
  /* in units of 2^-62 quarters, modulo 4 quarters */
  uint64_t turns = ((uint64_t)(mantissa * word(byte)) << 32) +
                   (uint64_t)mantissa * word(byte + 4) +
                   ((uint64_t)mantissa * word(byte + 8) >> 32);
  const uint32_t n = (uint32_t)((turns + (UINT64_C(1) << 61)) >> 62);
  turns -= (uint64_t)n << 62;
  const bool below = turns >> 63;
  turns = below ? 0 - turns : turns;
  float unit = 0x1.921fb6p-30f; /* pi / 2 x 2^-30 */
  for (; !(turns >> 63); turns <<= 1) {
    unit *= 0.5f;
  }
  const float size = (float)(uint32_t)(turns >> 32) * unit;
  *rest = below ? -size : size;
  return n;
}

/* sin(r) = r + r^3 p(r^2) and cos(r) = 1 - r^2 / 2 + r^4 q(r^2 / 4) for
 * |r| <= pi / 4 */
float poet_sinf(float x, uint32_t quarters) {
  float r = x;
  const float a = fabsf(x);
  if (!(poet_order(a) <= poet_order(0.785398163f))) { /* a NaN too */
    if (!isfinite(x)) {
      return x - x;
    }
    const uint32_t n = quarter_turns(a, &r);
    quarters += poet_order(x) < poet_order(0.0f) ? 4 - n : n;
    r = poet_order(x) < poet_order(0.0f) ? -r : r;
  }
  const float square = r * r;
  float y;
  if (quarters & 1) {
    static const float terms[] = {0.000390929315f, -0.00555492612f,
                                  0.0416666456f};
    const float p = HORNER(0.25f * square, terms);
    y = 1.0f + square * (square * p - 0.5f);
  } else {
    static const float terms[] = {-0.000195152184f, 0.0083321603f,
                                  -0.166666552f};
    y = r + r * square * HORNER(square, terms);
  }
  return quarters & 2 ? -y : y;
}

float poet_power(float x, uint32_t n) {
  float result = 1.0f;
  for (; n; n >>= 1) {
    if (n & 1) {
      result *= x;
    }
    x *= x;
  }
  return result;
}
