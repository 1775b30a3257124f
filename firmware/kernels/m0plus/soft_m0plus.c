/*
 * soft_m0plus.c - sum, difference and product of two floats on a core without
 * floating point, in place of the functions of libgcc: the compiler
 * calls them for every float operation. IEEE 754, round to nearest, ties to
 * even. They equal a + b, a - b and a * b on a core with floating point,
 * bit for bit, except for the bits of a NaN.
 *
 * Assembly computes normal numbers. Everything else (zero, subnormal, infinite,
 * not a number, overflow, underflow) goes to poet_slow_add or poet_slow_mul
 * (slow_m0plus.c).
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
#include "../tile.h"

#if POET_M0PLUS

/* `used`: with -flto, GCC sees calls of these only when it is too late. */
#define NAKED __attribute__((naked, noinline, used))

float __aeabi_fmul(float a, float b);
float __aeabi_fsub(float a, float b);

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

/* The difference is a sum, so both functions are one. GCC does not see the sum
 * here: with -flto, the linker may have taken that of libgcc before. */
NAKED float __aeabi_fsub(float a __attribute__((unused)),
                         float b __attribute__((unused))) {
  __asm volatile(".syntax unified\n"
                 "  movs r2, #1\n"
                 "  lsls r2, #31\n"
                 "  eors r1, r2\n"
                 ".weak __aeabi_fadd\n"
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
