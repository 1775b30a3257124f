/*
 * soft_m0plus.c - sum, difference, product and quotient of two floats on a core
 * without floating point, in place of the functions of libgcc: the compiler
 * calls them for every float operation. IEEE 754, round to nearest, ties to
 * even. They equal a + b, a - b, a * b and a / b on a core with floating point,
 * bit for bit, except for the bits of a NaN.
 *
 * Assembly computes normal numbers. Everything else (zero, subnormal, infinite,
 * not a number, overflow, underflow) goes to poet_slow_add or poet_slow_mul.
 * Registers of the assembly:
 *
 *   r0, r1    the numbers, then their mantissas: bit 31 is set
 *   r2, r3    their exponents; then r2 is the exponent of the result
 *   r4        its sign in bit 31 (product); signs differ if negative (sum)
 *   r5, r6    parts of the product that are below the result; in a sum, r5 is
 *             the sign of the result and r6 is scratch
 *
 * Cycles, without wait states: product 56, sum 56, difference 59 of most
 * numbers, and 500 of others.
 */
#include <string.h>

#include "tile.h"

#if POET_M0PLUS

#define NAKED __attribute__((naked, noinline))

enum { INFINITE = 255 };
#define SIGN 0x80000000u
#define NOT_A_NUMBER 0x7fc00000u

float __aeabi_fmul(float a, float b);
float __aeabi_fsub(float a, float b);
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

static uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static uint32_t quotient(uint32_t a, uint32_t b) {
  const uint32_t sign = (a ^ b) & SIGN;
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
  const struct number x = unpack(a), y = unpack(b);
  uint32_t rest = x.mantissa >> 8, divisor = y.mantissa >> 8, found = 0;
  int32_t exponent = x.exponent - y.exponent + 127;
  if (rest < divisor) {
    rest <<= 1;
    exponent--;
  }
  for (uint32_t i = 0; i < 26; i++) {
    found <<= 1;
    if (rest >= divisor) {
      rest -= divisor;
      found |= 1;
    }
    rest <<= 1;
  }
  return rounded(sign, exponent, found << 6 | (rest != 0));
}

float __aeabi_fdiv(float a, float b) {
  return float_of(quotient(bits_of(a), bits_of(b)));
}

NAKED float __aeabi_fmul(float a __attribute__((unused)),
                         float b __attribute__((unused))) {
  __asm volatile(".syntax unified\n"
                 "  push {r4-r6, lr}\n"
                 "  lsls r2, r0, #1\n"
                 "  lsls r3, r1, #1\n"
                 "  lsrs r2, #24\n"
                 "  lsrs r3, #24\n"
                 "  subs r4, r2, #1\n"
                 "  cmp r4, #254\n"
                 "  bhs 8f\n"
                 "  subs r4, r3, #1\n"
                 "  cmp r4, #254\n"
                 "  bhs 8f\n"
                 "  adds r2, r3\n"
                 "  subs r2, #129\n"
                 "  cmp r2, #250\n"
                 "  bhi 8f\n"
                 "  movs r4, r0\n"
                 "  eors r4, r1\n"
                 "  lsrs r4, #31\n"
                 "  lsls r4, #31\n"
                 "  movs r6, #1\n"
                 "  lsls r6, #31\n"
                 "  uxtb r5, r0\n"
                 "  lsls r0, #8\n"
                 "  orrs r0, r6\n"
                 "  lsrs r0, #16\n"
                 "  lsls r1, #8\n"
                 "  orrs r1, r6\n"
                 "  lsrs r1, #8\n"
                 "  uxtb r6, r1\n"
                 "  lsrs r3, r1, #8\n"
                 "  muls r5, r1\n"
                 "  muls r6, r0\n"
                 "  muls r0, r3\n"
                 "  lsrs r1, r5, #8\n"
                 "  adds r6, r1\n"
                 "  lsrs r1, r6, #8\n"
                 "  adds r0, r1\n"
                 "  bmi 1f\n"
                 "  adds r0, r0\n"
                 "  subs r2, #1\n"
                 "1: adds r0, #128\n"
                 "  bcs 4f\n"
                 "  lsls r1, r0, #24\n"
                 "  beq 3f\n"
                 "2: lsrs r0, #8\n"
                 "5: adds r2, #2\n"
                 "  lsls r2, #23\n"
                 "  adds r0, r2\n"
                 "  adds r0, r4\n"
                 "  pop {r4-r6, pc}\n"
                 "3: orrs r5, r6\n"
                 "  lsls r5, #24\n"
                 "  bne 2b\n"
                 "  lsrs r0, #9\n"
                 "  lsls r0, #1\n"
                 "  b 5b\n"
                 "4: movs r0, #1\n"
                 "  lsls r0, #23\n"
                 "  adds r2, #1\n"
                 "  b 5b\n"
                 /* a zero with a finite number, or the library */
                 "8: lsls r2, r0, #1\n"
                 "  lsls r3, r1, #1\n"
                 "  cmp r2, #0\n"
                 "  beq 7f\n"
                 "  cmp r3, #0\n"
                 "  bne 9f\n"
                 "  movs r3, r2\n"
                 "7: lsrs r3, #24\n"
                 "  cmp r3, #255\n"
                 "  beq 9f\n"
                 "  eors r0, r1\n"
                 "  lsrs r0, #31\n"
                 "  lsls r0, #31\n"
                 "  pop {r4-r6, pc}\n"
                 "9: bl poet_slow_mul\n"
                 "  pop {r4-r6, pc}\n");
}

/* The difference is a sum, so both functions are one. */
NAKED float __aeabi_fsub(float a __attribute__((unused)),
                         float b __attribute__((unused))) {
  __asm volatile(".syntax unified\n"
                 "  movs r2, #1\n"
                 "  lsls r2, #31\n"
                 "  eors r1, r2\n"
                 ".global __aeabi_fadd\n"
                 ".type __aeabi_fadd, %function\n"
                 ".thumb_func\n"
                 "__aeabi_fadd:\n"
                 "  push {r4-r6, lr}\n"
                 "  lsls r2, r0, #1\n"
                 "  lsls r3, r1, #1\n"
                 "  cmp r2, r3\n"
                 "  bhs 1f\n"
                 "  movs r4, r0\n"
                 "  movs r0, r1\n"
                 "  movs r1, r4\n"
                 "  movs r4, r2\n"
                 "  movs r2, r3\n"
                 "  movs r3, r4\n"
                 "1: lsrs r2, #24\n"
                 "  cmp r2, #254\n"
                 "  bhs 9f\n"
                 "  lsrs r4, r3, #24\n"
                 "  beq 8f\n"
                 "  subs r3, r2, r4\n"
                 "  movs r6, #1\n"
                 "  lsls r6, #31\n"
                 "  movs r4, r0\n"
                 "  eors r4, r1\n"
                 "  movs r5, r0\n"
                 "  ands r5, r6\n"
                 "  lsls r0, #8\n"
                 "  orrs r0, r6\n"
                 "  lsls r1, #8\n"
                 "  orrs r1, r6\n"
                 "  cmp r3, #8\n"
                 "  bhi 30f\n"
                 "  lsrs r1, r3\n"
                 "2: cmp r4, #0\n"
                 "  bmi 20f\n"
                 "  adds r0, r1\n"
                 "  bcs 10f\n"
                 "3: adds r0, #128\n"
                 "  bcs 6f\n"
                 "  lsls r1, r0, #24\n"
                 "  beq 7f\n"
                 "4: lsrs r0, #8\n"
                 "5: subs r2, #1\n"
                 "  lsls r2, #23\n"
                 "  adds r0, r2\n"
                 "  adds r0, r5\n"
                 "  pop {r4-r6, pc}\n"
                 "6: movs r0, #1\n"
                 "  lsls r0, #23\n"
                 "  adds r2, #1\n"
                 "  b 5b\n"
                 "7: lsrs r0, #9\n"
                 "  lsls r0, #1\n"
                 "  b 5b\n"
                 /* nothing is added to something, or the library */
                 "8: cmp r3, #0\n"
                 "  bne 9f\n"
                 "  cmp r2, #0\n"
                 "  beq 9f\n"
                 "  pop {r4-r6, pc}\n"
                 "9: bl poet_slow_add\n"
                 "  pop {r4-r6, pc}\n"
                 /* one bit more */
                 "10: adds r2, #1\n"
                 "  lsrs r1, r0, #1\n"
                 "  movs r6, #1\n"
                 "  lsls r6, #31\n"
                 "  orrs r1, r6\n"
                 "  adds r1, #128\n"
                 "  lsls r3, r1, #24\n"
                 "  beq 11f\n"
                 "12: lsrs r0, r1, #8\n"
                 "  b 5b\n"
                 "11: lsls r0, #31\n"
                 "  bne 12b\n"
                 "  lsrs r0, r1, #9\n"
                 "  lsls r0, #1\n"
                 "  b 5b\n"
                 /* difference */
                 "20: subs r0, r0, r1\n"
                 "  beq 22f\n"
                 "  bmi 3b\n"
                 "21: subs r2, #1\n"
                 "  adds r0, r0\n"
                 "  bpl 21b\n"
                 "  cmp r2, #0\n"
                 "  bgt 3b\n"
                 "  lsrs r0, #9\n" /* subnormal, exact */
                 "  rsbs r2, r2, #0\n"
                 "  lsrs r0, r2\n"
                 "  adds r0, r5\n"
                 "22: pop {r4-r6, pc}\n"
                 /* far apart */
                 "30: cmp r3, #25\n"
                 "  bhi 4b\n"
                 "  movs r6, r1\n"
                 "  lsrs r1, r3\n"
                 "  rsbs r3, r3, #0\n"
                 "  adds r3, #32\n"
                 "  lsls r6, r3\n"
                 "  beq 2b\n"
                 "  movs r6, #1\n"
                 "  orrs r1, r6\n"
                 "  b 2b\n");
}

#endif
