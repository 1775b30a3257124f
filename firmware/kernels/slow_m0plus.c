/*
 * slow_m0plus.c - quotients on a core without floating point, and the sums and
 * products that soft_m0plus.c leaves out. IEEE 754, round to nearest, ties to
 * even, except for the bits of a NaN.
 */
#include <string.h>

#include "mathf.h"
#include "tile.h"

#if POET_M0PLUS

enum { INFINITE = 255 };
#define SIGN 0x80000000u
#define NOT_A_NUMBER 0x7fc00000u

float __aeabi_fdiv(float a, float b);
uint32_t poet_slow_mul(uint32_t a, uint32_t b);
uint32_t poet_slow_add(uint32_t a, uint32_t b);

/* A number other than 0, infinity and NaN: mantissa / 2^31 * 2^(exponent -
 * 127), where bit 31 of the mantissa is set. */
struct number {
  uint32_t mantissa;
  int32_t exponent;
};

static struct number unpack(uint32_t bits) {
  const uint32_t field = bits << 1 >> 24;
  struct number x = {bits << 8, (int32_t)field};
  if (field) {
    x.mantissa |= SIGN;
    return x;
  }
  for (x.exponent = 1; !(x.mantissa & SIGN); x.exponent--) {
    x.mantissa <<= 1;
  }
  return x;
}

/* Round. Bit 0 of the mantissa is set if any lower bit of the exact result
 * is. */
static uint32_t rounded(uint32_t sign, int32_t exponent, uint32_t mantissa) {
  if (exponent >= INFINITE) {
    return sign | (uint32_t)INFINITE << 23;
  }
  for (; exponent < 1; exponent++) {
    mantissa = mantissa >> 1 | (mantissa & 1);
  }
  uint32_t kept = mantissa >> 8;
  const uint32_t rest = mantissa & 255;
  kept += rest > 128 || (rest == 128 && (kept & 1));
  /* The highest bit of `kept` adds 1 to the exponent, and so does a carry. */
  return sign | (((uint32_t)(exponent - 1) << 23) + kept);
}

static bool is_nan(uint32_t bits) {
  return bits << 1 > (uint32_t)INFINITE << 24;
}

static bool is_infinite(uint32_t bits) {
  return bits << 1 == (uint32_t)INFINITE << 24;
}

static bool is_zero(uint32_t bits) {
  return bits << 1 == 0;
}

__attribute__((used)) uint32_t poet_slow_mul(uint32_t a, uint32_t b) {
  const uint32_t sign = (a ^ b) & SIGN;
  if (is_nan(a) || is_nan(b)) {
    return (is_nan(a) ? a : b) | NOT_A_NUMBER;
  }
  if (is_infinite(a) || is_infinite(b)) {
    return is_zero(a) || is_zero(b) ? NOT_A_NUMBER
                                    : sign | (uint32_t)INFINITE << 23;
  }
  if (is_zero(a) || is_zero(b)) {
    return sign;
  }
  const struct number x = unpack(a), y = unpack(b);
  int32_t exponent = x.exponent + y.exponent - 126;
  uint64_t product = (uint64_t)x.mantissa * y.mantissa;
  if (!(product >> 63)) {
    product <<= 1;
    exponent--;
  }
  return rounded(sign, exponent,
                 (uint32_t)(product >> 32) | ((uint32_t)product != 0));
}

__attribute__((used)) uint32_t poet_slow_add(uint32_t a, uint32_t b) {
  if (is_nan(a) || is_nan(b)) {
    return (is_nan(a) ? a : b) | NOT_A_NUMBER;
  }
  if (a << 1 < b << 1) {
    const uint32_t larger = b;
    b = a;
    a = larger;
  }
  if (is_infinite(a)) {
    return is_infinite(b) && a != b ? NOT_A_NUMBER : a;
  }
  if (is_zero(b)) {
    return is_zero(a) ? a & b : a;
  }
  const struct number x = unpack(a), y = unpack(b);
  int32_t exponent = x.exponent + 1;
  uint64_t sum = (uint64_t)x.mantissa << 31, other = (uint64_t)y.mantissa << 31;
  for (int32_t apart = x.exponent - y.exponent; apart; apart--) {
    other = other >> 1 | (other & 1);
  }
  sum = (a ^ b) & SIGN ? sum - other : sum + other;
  if (sum == 0) {
    return 0;
  }
  for (; !(sum >> 63); sum <<= 1) {
    exponent--;
  }
  return rounded(a & SIGN, exponent,
                 (uint32_t)(sum >> 32) | ((uint32_t)sum != 0));
}

static float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* quotient * b + rest = a * 2^26, and rest < b */
struct ratio {
  uint32_t quotient, rest;
};

/* Divide mantissas of 24 bits, by their quotients' first 15, next 12, and last
 * bits. The products with the reciprocal are at most 5 too small. */
static struct ratio ratio(uint32_t a, uint32_t b) {
  const uint32_t high = b >> 8;
  /* 2^31 / high: a line, with an error of at most 6 %, and two of Newton's
   * steps; less 4, so that it is below 2^39 / b */
  int32_t r = 92505 - (int32_t)(high * 61680u >> 16);
  r += (r * ((int32_t)(0x80000000u - high * (uint32_t)r) >> 16)) >> 15;
  r += (r * ((int32_t)(0x80000000u - high * (uint32_t)r) >> 10)) >> 21;
  const uint32_t reciprocal = (uint32_t)r - 4;
  const uint32_t first = (a >> 8) * reciprocal >> 17;
  uint32_t rest = (a << 14) - first * b;
  const uint32_t next = (rest >> 11) * reciprocal >> 16;
  rest = (rest << 12) - next * b;
  uint32_t last = (rest >> 11) * reciprocal >> 28;
  rest -= last * b;
  if (rest >= b) {
    rest -= b;
    last++;
  }
  return (struct ratio){(first << 12) + next + last, rest};
}

/* Return true for zero, subnormal, infinite and not a number. */
static bool is_special(uint32_t bits) {
  return (bits << 1 >> 24) - 1 >= INFINITE - 1;
}

static uint32_t quotient(uint32_t a, uint32_t b) {
  const uint32_t sign = (a ^ b) & SIGN;
  if (is_special(a) || is_special(b)) {
    if (is_nan(a) || is_nan(b)) {
      return (is_nan(a) ? a : b) | NOT_A_NUMBER;
    }
    if (is_infinite(a) || is_zero(b)) {
      return (is_infinite(a) && is_infinite(b)) || (is_zero(a) && is_zero(b))
                 ? NOT_A_NUMBER
                 : sign | (uint32_t)INFINITE << 23;
    }
    if (is_zero(a) || is_infinite(b)) {
      return sign;
    }
  }
  const struct number x = unpack(a), y = unpack(b);
  const struct ratio found = ratio(x.mantissa >> 8, y.mantissa >> 8);
  int32_t exponent = x.exponent - y.exponent + 127;
  uint32_t mantissa = found.quotient << 5;
  if (!(mantissa & SIGN)) {
    mantissa <<= 1;
    exponent--;
  }
  return rounded(sign, exponent, mantissa | (found.rest != 0));
}

float __aeabi_fdiv(float a, float b) {
  return float_of(quotient(poet_bits(a), poet_bits(b)));
}

#endif
