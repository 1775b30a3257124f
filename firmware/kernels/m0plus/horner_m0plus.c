/*
 * horner_m0plus.c - polynomials on a core without floating point.
 *
 * poet_horner equals this C function, bit for bit:
 *
 *   float p = c[0];
 *   for each further coefficient: p = p * x + c[i];
 *   return p;
 *
 * with every product and sum rounded to nearest, ties to even. The size of
 * coefficients is between 2^-14 and 2, that of x below 4; at most ten
 * coefficients. So no number but p is 0, p is normal or 0, and an x below 2^-40
 * changes no coefficient.
 *
 * Between operations numbers stay unpacked. Registers:
 *
 *   r0, r1    mantissa of p, bit 23 is set; its sign in bit 31 and its exponent
 *             field in bits 23 to 30, which is 8 more for a product. In a sum,
 *             r0 and r2 are shifted left by 8
 *   r2, r3    the same of the coefficient; r3 then belongs to the larger one
 *   r4, r5    scratch; in a sum, the distance of the exponents, and negative if
 *             signs differ
 *   r6, lr    next coefficient, and the end
 *   r7, r8    mantissa of x; its sign and exponent field, less 118 << 23
 *   r12       1 << 23
 *
 * Cycles, without wait states: 50 of a call; of a coefficient 21 to 24 for the
 * product, and 21 (same sign, exponent at most 8 less), 26 (the same, signs
 * differ) or up to 48 for the sum.
 */
#include "../mathf.h"
#include "../tile.h"

#if POET_M0PLUS

__attribute__((naked, noinline)) float
poet_horner(float x __attribute__((unused)),
            const float *c __attribute__((unused)),
            uint32_t count __attribute__((unused))) {
  __asm volatile(
      ".syntax unified\n"
      "  push {r4-r7, lr}\n"
      "  mov r4, r8\n"
      "  push {r4}\n"
      "  movs r6, r1\n"
      "  lsls r2, #2\n"
      "  adds r2, r1\n"
      "  mov lr, r2\n"
      "  movs r3, #1\n"
      "  lsls r3, #23\n"
      "  mov r12, r3\n"
      "  lsls r4, r0, #1\n"
      "  lsrs r4, #24\n"
      "  cmp r4, #87\n"
      "  blo 4f\n"
      "  lsrs r5, r0, #23\n"
      "  lsls r5, #23\n"
      "  subs r7, r0, r5\n"
      "  add r7, r12\n"
      "  movs r4, #59\n"
      "  lsls r4, #24\n"
      "  subs r5, r4\n"
      "  mov r8, r5\n"

      /* p is the next coefficient */
      "1:\n"
      "  ldmia r6!, {r0}\n"
      "  lsrs r1, r0, #23\n"
      "  lsls r1, #23\n"
      "  subs r0, r1\n"
      "  add r0, r12\n"
      "2:\n"
      "  cmp r6, lr\n"
      "  bne 10f\n"
      "  adds r0, r1\n"
      "  mov r2, r12\n"
      "  subs r0, r2\n"
      "3:\n"
      "  pop {r4}\n"
      "  mov r8, r4\n"
      "  pop {r4-r7, pc}\n"
      /* x is so small that the result is the last coefficient */
      "4:\n"
      "  subs r6, r2, #4\n"
      "  b 1b\n"
      /* p is 0 */
      "5:\n"
      "  cmp r6, lr\n"
      "  bne 1b\n"
      "  b 3b\n"

      /* the product */
      "10:\n"
      "  ldmia r6!, {r2}\n"
      "  add r1, r8\n"
      "  uxtb r4, r7\n"
      "  lsrs r3, r7, #8\n"
      "  uxtb r5, r0\n"
      "  lsrs r0, #8\n"
      "  muls r5, r7\n" /* low 8 bits of p times x */
      "  muls r4, r0\n" /* high 16 of p times low 8 of x */
      "  muls r0, r3\n" /* high 16 times high 16 */
      "  lsrs r3, r5, #8\n"
      "  adds r4, r3\n"
      "  lsrs r3, r4, #8\n"
      "  adds r0, r3\n" /* the product >> 16; r4, r5: what is below */
      "  bmi 11f\n"
      "  mov r3, r12\n"
      "  subs r1, r3\n"
      "  adds r0, r0\n"
      "11:\n"
      "  adds r0, #128\n"
      "  bcs 12f\n"
      "  lsls r3, r0, #24\n"
      "  beq 13f\n"
      "  lsrs r0, #8\n"

      /* the sum */
      "20:\n"
      "  lsrs r3, r2, #23\n"
      "  lsls r3, #23\n"
      "  subs r2, r3\n"
      "  add r2, r12\n"
      "  lsls r2, #8\n"
      "  subs r4, r1, r3\n"
      "  lsrs r4, #23\n" /* bit 8: signs differ; then 8 less the distance */
      "  cmp r4, #8\n"
      "  bhi 30f\n"
      "  lsls r0, r4\n"
      "21:\n" /* sum of magnitudes: r2 the larger one, r0 aligned */
      "  movs r1, r3\n"
      "  adds r0, r2\n"
      "  bcs 24f\n"
      "22:\n"
      "  adds r0, #128\n"
      "  bcs 25f\n"
      "  lsls r3, r0, #24\n"
      "  beq 26f\n"
      "  lsrs r0, #8\n"
      "  cmp r6, lr\n"
      "  bne 10b\n"
      "  b 2b\n"

      /* the product is rounded up to the next power of two */
      "12:\n"
      "  mov r0, r12\n"
      "  add r1, r12\n"
      "  b 20b\n"
      /* half way, unless something is below */
      "13:\n"
      "  lsrs r0, #8\n"
      "  orrs r4, r5\n"
      "  lsls r4, #24\n"
      "  bne 20b\n"
      "  lsrs r0, #1\n"
      "  lsls r0, #1\n"
      "  b 20b\n"
      /* the sum has one bit more */
      "24:\n"
      "  add r1, r12\n"
      "  lsls r2, r0, #31\n"
      "  lsrs r2, #31\n"
      "  lsrs r0, #1\n"
      "  orrs r0, r2\n" /* below half: only whether it is 0 counts */
      "  movs r4, #1\n"
      "  lsls r4, #31\n"
      "  orrs r0, r4\n"
      "  b 22b\n"
      /* rounded up to the next power of two */
      "25:\n"
      "  mov r0, r12\n"
      "  add r1, r12\n"
      "  b 2b\n"
      /* half way */
      "26:\n"
      "  lsrs r0, #9\n"
      "  lsls r0, #1\n"
      "  b 2b\n"

      "30:\n"
      "  subs r4, #255\n"
      "  subs r4, #1\n"
      "  cmp r4, #8\n"
      "  bhi 36f\n"
      "  lsls r0, r4\n"
      "31:\n" /* difference of magnitudes: r2 the larger one, r0 aligned */
      "  movs r1, r3\n"
      "  subs r0, r2, r0\n"
      "  bls 34f\n"
      "  bmi 22b\n"
      "33:\n" /* at most 25 bits, exact, if more than one bit is lost */
      "  mov r4, r12\n"
      "35:\n"
      "  subs r1, r4\n"
      "  adds r0, r0\n"
      "  bpl 35b\n"
      "  b 22b\n"
      /* equal exponents: the sum is 0 or has the product's sign */
      "34:\n"
      "  beq 5b\n"
      "  rsbs r0, r0, #0\n"
      "  movs r4, #1\n"
      "  lsls r4, #31\n"
      "  eors r1, r4\n"
      "  b 33b\n"

      /* exponents further apart, or the product is the larger one */
      "36:\n"
      "  lsls r0, #8\n"
      "  movs r5, r1\n"
      "  eors r5, r3\n" /* negative: a difference of magnitudes */
      "  lsls r4, #24\n"
      "  asrs r4, #24\n"
      "  rsbs r4, r4, #0\n"
      "  adds r4, #8\n"
      "  bpl 37f\n"
      "  rsbs r4, r4, #0\n" /* the product is the larger one */
      "  movs r3, #8\n"
      "  lsls r3, #23\n"
      "  subs r3, r1, r3\n"
      "  movs r1, r0\n"
      "  movs r0, r2\n"
      "  movs r2, r1\n"
      "37:\n"
      "  movs r1, r0\n"
      "  lsrs r0, r4\n"
      "  rsbs r4, r4, #0\n"
      "  adds r4, #32\n"
      "  lsls r1, r4\n"
      "  beq 32f\n"
      "  movs r1, #1\n"
      "  orrs r0, r1\n" /* something is below */
      "32:\n"
      "  cmp r5, #0\n"
      "  bpl 21b\n"
      "  b 31b\n");
}

#endif
