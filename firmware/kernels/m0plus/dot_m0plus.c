/*
 * dot_m0plus.c - sums of products on a core without floating point.
 *
 * poet_dots equals this C function, bit for bit:
 *
 *   for each lane of b:
 *     float sum = begun ? *at : 0;
 *     for each term: sum = sum + a * b;
 *     *at = sum;
 *
 * with every product and sum rounded to nearest, ties to even. poet_tame must
 * hold for the operands: then they are 0 or normal, no product is subnormal, no
 * sum overflows, and a sum is subnormal only if it is exact. So the loop tests
 * for no special number but 0. A term that is 0 changes nothing, since a sum
 * that does not begin with -0 is never -0. A begun sum is 0 or normal.
 *
 * Between terms the sum stays unpacked. Registers in the loop:
 *
 *   r8, r9    addresses of the next terms of a and b
 *   r10, r11  steps to the terms after those
 *   r12       mantissa of the sum: bit 31 is set, bits 0 to 7 are 0
 *   lr        sign of the sum in bit 31, and its exponent, counted as that of a
 *             product, less 8. 0 if the sum is 0, which is so small that no
 *             mantissa counts
 *   r7        0x80000000
 *   r0, r1    factors; then r0 is the mantissa of the product, r1 that of the
 *             sum; then r0 is the mantissa of the new sum
 *   r2, r3    exponents of the factors; then r2 is sign and exponent of the
 *             product, r3 those of the sum
 *   r4 to r6  scratch
 *
 * The exponent of a product is the sum of the exponent fields of its factors,
 * less 1 if the product of the mantissas is below 2. Signs in bit 31 of the
 * exponents let one subtraction find the distance of two exponents and whether
 * the signs differ.
 *
 * Cycles of a term, from RAM: loads and addresses 8, product 31 to 33, rounding
 * 6, addition of equal signs and of exponents at most 8 apart 14, end 5; other
 * cases 3 to 25 more. Of a row 18, of a sum 55, of a call 80.
 */
#include "dot_m0plus.h"

#if POET_M0PLUS

#include <stddef.h>

/* Offsets that the assembly uses. */
_Static_assert(offsetof(struct poet_tile, b) == 20, "b.at");
_Static_assert(offsetof(struct poet_walk, lane) == 4, "b.lane");
_Static_assert(offsetof(struct poet_tile, terms) == 56, "terms");
_Static_assert(offsetof(struct poet_terms, begun) == 40, "begun");
_Static_assert(offsetof(struct poet_terms, a_row) == 0, "a_row");
_Static_assert(offsetof(struct poet_terms, a_step) == 12, "a_step");
_Static_assert(offsetof(struct poet_terms, rows) == 20, "rows");
_Static_assert(offsetof(struct poet_terms, a_plane) == 28, "a_plane");

__attribute__((naked, noinline, section(".ramcode"))) void
poet_dots(const struct poet_tile *tile __attribute__((unused)),
          const float *a __attribute__((unused)),
          float *sums __attribute__((unused)),
          uint32_t lanes __attribute__((unused)),
          uint32_t step __attribute__((unused))) {
  /* Stack: 0 rows left, 4 planes left, 8 end of the row in a; 12 a_row, b_row,
     a_length, rows and planes of the terms; 32 a, 36 b, 40 lane of b, 44 sums,
     48 lanes left, 52 the terms, 92 step of the sums. */
  __asm volatile(
      ".syntax unified\n"
      "  push {r4-r7, lr}\n"
      "  mov r4, r8\n"
      "  mov r5, r9\n"
      "  mov r6, r10\n"
      "  mov r7, r11\n"
      "  push {r4-r7}\n"
      "  movs r6, r1\n"
      "  ldr r7, [r0, #20]\n"
      "  ldr r1, [r0, #24]\n"
      "  lsls r1, #2\n"
      "  adds r0, #56\n"
      "  movs r4, r0\n"
      "  push {r1-r4}\n"
      "  ldmia r0!, {r1-r5}\n"
      "  mov r10, r4\n"
      "  mov r11, r5\n"
      "  ldmia r0!, {r4, r5}\n"
      "  push {r1-r7}\n"
      "  sub sp, #12\n"
      "  movs r7, #1\n"
      "  lsls r7, #31\n"

      /* the next sum */
      "6:\n"
      "  add r0, sp, #20\n"
      "  ldmia r0!, {r1-r5}\n"
      "  mov r8, r4\n"
      "  mov r9, r5\n"
      "  adds r4, r1\n"
      "  mov r0, sp\n"
      "  stmia r0!, {r2-r4}\n"
      "  ldr r0, [sp, #52]\n"
      "  ldr r0, [r0, #40]\n"
      "  mov lr, r0\n"
      "  cmp r0, #0\n"
      "  beq 1f\n"
      /* unpack the sum that is begun */
      "  ldr r0, [sp, #44]\n"
      "  ldr r0, [r0]\n"
      "  lsls r1, r0, #1\n"
      "  lsrs r1, #24\n"
      "  beq 13f\n"
      "  adds r1, #118\n"
      "  lsrs r2, r0, #31\n"
      "  lsls r2, #31\n"
      "  adds r1, r2\n"
      "13:\n"
      "  mov lr, r1\n"
      "  lsls r0, #8\n"
      "  orrs r0, r7\n"
      "  mov r12, r0\n"

      "1:\n"
      "  mov r0, r8\n"
      "  ldr r0, [r0]\n"
      "  mov r1, r9\n"
      "  ldr r1, [r1]\n"
      "  add r8, r10\n"
      "  add r9, r11\n"
      "  lsls r2, r0, #1\n"
      "  lsls r3, r1, #1\n"
      "  lsrs r2, #24\n"
      "  beq 9f\n"
      "  lsrs r3, #24\n"
      "  beq 9f\n"
      "  adds r2, r3\n"
      "  movs r4, r0\n"
      "  eors r4, r1\n"
      "  ands r4, r7\n"
      "  adds r2, r4\n" /* sign and exponent of the product */
      "  uxtb r5, r0\n"
      "  lsls r0, #8\n"
      "  orrs r0, r7\n"
      "  lsrs r0, #16\n"
      "  lsls r1, #8\n"
      "  orrs r1, r7\n"
      "  lsrs r1, #8\n"
      "  uxtb r6, r1\n"
      "  lsrs r3, r1, #8\n"
      "  muls r5, r1\n" /* low 8 bits of a times b */
      "  muls r6, r0\n" /* high 16 of a times low 8 of b */
      "  muls r0, r3\n" /* high 16 times high 16 */
      "  lsrs r1, r5, #8\n"
      "  adds r6, r1\n"
      "  lsrs r1, r6, #8\n"
      "  adds r0, r1\n" /* the product >> 16; r5, r6: what is below */
      "  bmi 2f\n"
      "  adds r0, r0\n"
      "  subs r2, #1\n"
      "2:\n"
      "  adds r0, #128\n"
      "  bcs 20f\n"
      "  lsls r1, r0, #24\n"
      "  beq 21f\n"
      "  lsrs r0, #8\n"
      "3:\n"
      "  mov r3, lr\n"
      "  mov r1, r12\n"
      "  subs r6, r2, r3\n" /* 8 - how much less the product's exponent is */
      "  cmp r6, #8\n"
      "  bhi 30f\n"
      "  lsls r0, r6\n"
      "4:\n" /* sum of magnitudes: r1 the larger one, r3 its sign and exponent
              */
      "  adds r0, r1\n"
      "  bcs 22f\n"
      "5:\n"
      "  adds r0, #128\n"
      "  bcs 23f\n"
      "  lsls r1, r0, #24\n"
      "  beq 24f\n"
      "  lsrs r0, #8\n"
      "  lsls r0, #8\n"
      "  mov r12, r0\n"
      "9:\n"
      "  ldr r6, [sp, #8]\n"
      "  cmp r8, r6\n"
      "  bne 1b\n"
      /* the next row, or plane */
      "  ldr r5, [sp, #0]\n"
      "  subs r5, #1\n"
      "  beq 10f\n"
      "  str r5, [sp, #0]\n"
      "  add r0, sp, #12\n"
      "  ldmia r0!, {r1, r2, r6}\n"
      "11:\n"
      "  add r8, r1\n"
      "  add r9, r2\n"
      "  add r6, r8\n"
      "  str r6, [sp, #8]\n"
      "  b 1b\n"
      "10:\n"
      "  ldr r5, [sp, #4]\n"
      "  subs r5, #1\n"
      "  bne 12f\n"
      "  b 40f\n"
      "12:\n"
      "  str r5, [sp, #4]\n"
      "  ldr r5, [sp, #24]\n"
      "  str r5, [sp, #0]\n"
      "  ldr r0, [sp, #52]\n"
      "  ldr r1, [r0, #28]\n"
      "  ldr r2, [r0, #32]\n"
      "  ldr r6, [sp, #20]\n"
      "  b 11b\n"

      /* the product is rounded up to the next power of two */
      "20:\n"
      "  lsrs r0, r7, #8\n"
      "  adds r2, #1\n"
      "  b 3b\n"
      /* half way, unless something is below */
      "21:\n"
      "  orrs r5, r6\n"
      "  lsls r5, #24\n"
      "  lsrs r0, #8\n"
      "  cmp r5, #0\n"
      "  bne 3b\n"
      "  lsrs r0, #1\n"
      "  lsls r0, #1\n"
      "  b 3b\n"
      /* the sum has one bit more */
      "22:\n"
      "  adds r3, #1\n"
      "  mov lr, r3\n"
      "  lsrs r1, r0, #1\n"
      "  orrs r1, r7\n"
      "  adds r1, #128\n"
      "  lsls r6, r1, #24\n"
      "  bne 26f\n"
      "  lsls r0, #31\n"
      "  bne 26f\n"
      "  lsrs r1, #9\n"
      "  lsls r1, #9\n"
      "26:\n"
      "  lsrs r1, #8\n"
      "  lsls r1, #8\n"
      "  mov r12, r1\n"
      "  b 9b\n"
      /* rounded up to the next power of two */
      "23:\n"
      "  mov r12, r7\n"
      "  adds r3, #1\n"
      "  mov lr, r3\n"
      "  b 9b\n"
      /* half way */
      "24:\n"
      "  lsrs r0, #9\n"
      "  lsls r0, #9\n"
      "  mov r12, r0\n"
      "  b 9b\n"

      /* a difference of magnitudes? */
      "30:\n"
      "  adds r6, r7\n"
      "  cmp r6, #8\n"
      "  bhi 34f\n"
      "  lsls r0, r6\n"
      "31:\n" /* r1 the larger one but for equal exponents */
      "  subs r0, r1, r0\n"
      "  bls 33f\n"
      "  bmi 5b\n"
      "32:\n"
      "  subs r3, #1\n"
      "  adds r0, r0\n"
      "  bpl 32b\n"
      "  mov lr, r3\n"
      "  b 5b\n"
      "33:\n"
      "  beq 35f\n"
      "  eors r3, r7\n"
      "  rsbs r0, r0, #0\n"
      "  b 32b\n"
      "35:\n"
      "  mov lr, r0\n"
      "  b 9b\n"

      /* exponents further apart, or the product's is the larger one */
      "34:\n"
      "  cmp r3, #0\n"
      "  beq 45f\n"
      "  movs r5, r2\n"
      "  eors r5, r3\n" /* negative: a difference */
      "  bmi 36f\n"
      "  adds r6, r7\n"
      "36:\n"
      "  cmp r6, #0\n"
      "  bgt 37f\n"
      "  rsbs r6, r6, #0\n"
      "  movs r4, r0\n"
      "  lsrs r0, r6\n"
      "  movs r2, r0\n"
      "  lsls r2, r6\n"
      "  cmp r2, r4\n"
      "  beq 38f\n"
      "  movs r4, #1\n"
      "  orrs r0, r4\n" /* something is below */
      "38:\n"
      "  cmp r5, #0\n"
      "  bmi 31b\n"
      "  b 4b\n"
      "37:\n"
      "  subs r6, #8\n"
      "  subs r2, #8\n"
      "  movs r3, r2\n"
      "  mov lr, r3\n"
      "  lsls r4, r0, #8\n" /* the product is the larger one, r1 the sum */
      "  cmp r6, #25\n"
      "  bhi 39f\n"
      "  movs r0, r1\n"
      "  lsrs r0, r6\n"
      "  movs r2, r0\n"
      "  lsls r2, r6\n"
      "  cmp r2, r1\n"
      "  beq 41f\n"
      "  movs r2, #1\n"
      "  orrs r0, r2\n"
      "41:\n"
      "  movs r1, r4\n"
      "  b 38b\n"
      "39:\n"
      "  mov r12, r4\n"
      "  b 9b\n"
      /* the first product of a sum */
      "45:\n"
      "  subs r2, #8\n"
      "  mov lr, r2\n"
      "  lsls r0, #8\n"
      "  mov r12, r0\n"
      "  b 9b\n"

      /* pack */
      "40:\n"
      "  mov r0, r12\n"
      "  lsrs r0, #8\n"
      "  mov r1, lr\n"
      "  lsrs r2, r1, #31\n"
      "  lsls r2, #31\n"
      "  eors r1, r2\n"
      "  subs r1, #119\n" /* the exponent field less 1 */
      "  bmi 42f\n"
      "  lsls r1, #23\n"
      "  adds r0, r1\n"
      "43:\n"
      "  adds r0, r2\n"
      "  add r3, sp, #36\n"
      "  ldmia r3, {r1-r4}\n"
      "  str r0, [r3]\n"
      "  ldr r0, [sp, #92]\n"
      "  adds r3, r0\n"
      "  adds r1, r2\n"
      "  add r5, sp, #36\n"
      "  subs r4, #1\n"
      "  stmia r5!, {r1-r4}\n"
      "  beq 44f\n"
      "  b 6b\n"
      "44:\n"
      "  add sp, #56\n"
      "  pop {r4-r7}\n"
      "  mov r8, r4\n"
      "  mov r9, r5\n"
      "  mov r10, r6\n"
      "  mov r11, r7\n"
      "  pop {r4-r7, pc}\n"
      "42:\n" /* an exact subnormal difference */
      "  rsbs r1, r1, #0\n"
      "  lsrs r0, r1\n"
      "  b 43b\n");
}

#endif
