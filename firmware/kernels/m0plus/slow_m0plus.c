/*
 * slow_m0plus.c - quotients, square roots, comparisons and conversions on a
 * core without floating point, and the sums and products that soft_m0plus.c
 * leaves out. IEEE 754, round to nearest, ties to even, except for the bits of
 * a NaN. They replace functions of libgcc and libm, which take more flash.
 */
#include <string.h>

#include "../mathf.h"
#include "../tile.h"

#if POET_M0PLUS

enum { INFINITE = 255 };
/* In use, few operations need these functions: they are compiled for size. */
#define RARE __attribute__((used, cold))
/* With -flto, GCC sees calls of these only when it is too late. */
#define USED __attribute__((used))
#define SIGN 0x80000000u
#define NOT_A_NUMBER 0x7fc00000u

USED float __aeabi_fdiv(float a, float b);
USED float __aeabi_ui2f(uint32_t value);
USED float __aeabi_i2f(int32_t value);
USED int __aeabi_fcmplt(float a, float b);
USED int __aeabi_fcmple(float a, float b);
USED int __aeabi_fcmpgt(float a, float b);
USED int __aeabi_fcmpge(float a, float b);
USED int __aeabi_fcmpeq(float a, float b);
USED int __aeabi_fcmpun(float a, float b);
float sqrtf(float x);
uint32_t poet_slow_mul(uint32_t a, uint32_t b);
uint32_t poet_slow_add(uint32_t a, uint32_t b);

/* Return the mantissa of a number other than 0, infinity and NaN: it equals
 * mantissa / 2^31 * 2^(exponent - 127), where bit 31 of the mantissa is set. */
static uint32_t unpack(uint32_t bits, int32_t *exponent) {
  uint32_t mantissa = bits << 8;
  *exponent = (int32_t)(bits << 1 >> 24);
  if (*exponent) {
    return mantissa | SIGN;
  }
  for (*exponent = 1; !(mantissa & SIGN); --*exponent) {
    mantissa <<= 1;
  }
  return mantissa;
}

/* Round. Bit 0 of the mantissa is the sticky bit: it is set if any lower bit of
 * the exact result is set. */
static uint32_t rounded(uint32_t sign, int32_t exponent, uint32_t mantissa) {
  if (exponent >= INFINITE) {
    return sign | (uint32_t)INFINITE << 23;
  }
  for (; exponent < 1; exponent++) {
    mantissa = mantissa >> 1 | (mantissa & 1);
  }
  uint32_t kept = mantissa >> 8;
  kept += ((mantissa & 255) + 127 + (kept & 1)) >> 8;
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

RARE uint32_t poet_slow_mul(uint32_t a, uint32_t b) {
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
  int32_t exponent, other;
  const uint32_t x = unpack(a, &exponent) >> 8, y = unpack(b, &other) >> 8;
  exponent += other - 126;
  const uint32_t low = x * (y & 255);
  const uint32_t middle = x * (y >> 8 & 255) + (low >> 8);
  uint32_t product = x * (y >> 16) + (middle >> 8);
  if (!(product & SIGN)) {
    product <<= 1;
    exponent--;
  }
  return rounded(sign, exponent, product | (((low | middle) & 255) != 0));
}

RARE uint32_t poet_slow_add(uint32_t a, uint32_t b) {
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
  int32_t exponent, smaller;
  uint32_t sum = unpack(a, &exponent) >> 2, other = unpack(b, &smaller) >> 2;
  for (; smaller != exponent; smaller++) {
    other = other >> 1 | (other & 1);
  }
  sum = (a ^ b) & SIGN ? sum - other : sum + other;
  if (sum == 0) {
    return 0;
  }
  for (exponent += 2; !(sum & SIGN); sum <<= 1) {
    exponent--;
  }
  return rounded(a & SIGN, exponent, sum);
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
  int32_t exponent = (int32_t)(a << 1 >> 24), other = (int32_t)(b << 1 >> 24);
  uint32_t dividend = a << 8 | SIGN, divisor = b << 8 | SIGN;
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
    dividend = unpack(a, &exponent);
    divisor = unpack(b, &other);
  }
  const struct ratio found = ratio(dividend >> 8, divisor >> 8);
  exponent += 127 - other;
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

/* The 25 bits of the mantissa's root are tried one by one. `rest` is what the
 * square of `root` leaves. */
RARE float sqrtf(float x) {
  const uint32_t bits = poet_bits(x);
  if (is_zero(bits) || bits == (uint32_t)INFINITE << 23) {
    return x;
  }
  if (bits > (uint32_t)INFINITE << 23) { /* negative, or not a number */
    return float_of(bits | NOT_A_NUMBER);
  }
  int32_t exponent;
  uint32_t rest = unpack(bits, &exponent) >> 6, root = 0;
  rest >>= exponent & 1;
  for (uint32_t bit = 1u << 24; bit; bit >>= 1) {
    const uint32_t tried = 2 * root + bit;
    if (tried <= rest) {
      rest -= tried;
      root += bit;
    }
    rest <<= 1;
  }
  return float_of(rounded(0, (exponent + 126 + (exponent & 1)) / 2,
                          root << 7 | (rest != 0)));
}

float __aeabi_ui2f(uint32_t value) {
  return poet_rounded(value, 127 + 31, 0);
}

float __aeabi_i2f(int32_t value) {
  const uint32_t bits = (uint32_t)value;
  return poet_rounded(value < 0 ? 0 - bits : bits, 127 + 31, bits);
}

/* -- comparisons: false for a NaN -- */

enum order { LESS = -1, EQUAL, GREATER, UNORDERED };

/* Numbers are ordered as these integers are. */
static int32_t rank(uint32_t bits) {
  return bits & SIGN ? (int32_t)(SIGN - bits) : (int32_t)bits;
}

static enum order order(float a, float b) {
  if (is_nan(poet_bits(a)) || is_nan(poet_bits(b))) {
    return UNORDERED;
  }
  const int32_t left = rank(poet_bits(a)), right = rank(poet_bits(b));
  return left < right ? LESS : left > right ? GREATER : EQUAL;
}

int __aeabi_fcmplt(float a, float b) {
  return order(a, b) == LESS;
}

int __aeabi_fcmple(float a, float b) {
  return order(a, b) <= EQUAL;
}

int __aeabi_fcmpgt(float a, float b) {
  return order(a, b) == GREATER;
}

int __aeabi_fcmpge(float a, float b) {
  return order(b, a) <= EQUAL;
}

int __aeabi_fcmpeq(float a, float b) {
  return order(a, b) == EQUAL;
}

int __aeabi_fcmpun(float a, float b) {
  return order(a, b) == UNORDERED;
}

#endif
