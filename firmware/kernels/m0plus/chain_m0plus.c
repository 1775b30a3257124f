/*
 * chain_m0plus.c - a chain of operations for each element, on a core without
 * floating point. chain_m0plus.h lists the operations and the C that they
 * equal, bit for bit.
 *
 * Between operations the number stays unpacked: its mantissa, and its sign and
 * exponent as in IEEE 754. The code computes numbers whose exponent field lies
 * between 63 and 191, and needs no other tests: it leaves the chain before or
 * after an operation whose operand or result lies outside. The caller computes
 * the rest of that element. Sums with any exponent of the operand are right:
 * zero and subnormal numbers are too small to count, and a larger result lies
 * outside.
 *
 * The code may run at any address, so that it can be copied to RAM. Registers:
 *
 *   r0        mantissa of the number, bit 23 is set
 *   r1        its sign in bit 31, its exponent field in bits 23 to 30
 *   r2, r3    the same of the operand; first the two words of the step
 *   r4 to r6  scratch
 *   r7        next step
 *   r8        4 * index of the element
 *   r9, r10   mantissa, sign and exponent of the kept number
 *   r11       1 << 23
 *   r12       4 * index of the end
 *   lr        -126 << 23
 *
 * Stack: 0 first step, 4 state, 8 step to continue with, 12 a step that leaves.
 *
 * Cycles without wait states, each with 6 for the way to the next step:
 * multiply 30, add 20 (same sign, exponent at most 8 less) to 45; a load of an
 * element 8 more; set 8, keep and set 10, end of an element 18.
 */
#include "chain_m0plus.h"

#if POET_M0PLUS

#include <stddef.h>

_Static_assert(sizeof(struct poet_step) == 12, "steps");
_Static_assert(offsetof(struct poet_chain_state, end) == 4, "end");
_Static_assert(offsetof(struct poet_chain_state, number) == 8, "number");
_Static_assert(offsetof(struct poet_chain_state, kept) == 12, "kept");
_Static_assert(offsetof(struct poet_chain_state, at) == 16, "at");

#define NEXT_STEP                                                              \
  "  ldmia r7!, {r2-r4}\n"                                                     \
  "  mov pc, r4\n"

/* The operand is element r8 of the array at r2. */
#define ELEMENT                                                                \
  "  add r2, r8\n"                                                             \
  "  ldr r2, [r2]\n"
#define UNPACK                                                                 \
  "  lsrs r3, r2, #23\n"                                                       \
  "  lsls r3, #23\n"                                                           \
  "  lsls r2, #9\n"                                                            \
  "  lsrs r2, #9\n"                                                            \
  "  add r2, r11\n"

/* Set V if the exponent field of `of` lies between 64 and 191. */
#define TEST(of, scratch)                                                      \
  "  lsls " scratch ", " of ", #1\n"                                           \
  "  adds " scratch ", " scratch "\n"

__attribute__((naked, noinline)) void
poet_chain_enter(struct poet_chain_state *state __attribute__((unused)),
                 const struct poet_step *first __attribute__((unused))) {
  __asm volatile(
      ".syntax unified\n"
      "  push {r4-r7, lr}\n"
      "  mov r4, r8\n"
      "  mov r5, r9\n"
      "  mov r6, r10\n"
      "  mov r7, r11\n"
      "  push {r4-r7}\n"
      "  adr r3, 51f\n"
      "  push {r0-r3}\n"
      "  str r1, [sp, #0]\n"
      "  str r0, [sp, #4]\n"
      "  movs r7, r1\n"
      "  ldr r4, [r0, #0]\n"
      "  mov r8, r4\n"
      "  ldr r4, [r0, #4]\n"
      "  mov r12, r4\n"
      "  movs r4, #1\n"
      "  lsls r4, #23\n"
      "  mov r11, r4\n"
      "  movs r4, #0xc1\n"
      "  lsls r4, #24\n"
      "  mov lr, r4\n" /* */
      NEXT_STEP ".align 2\n"
      ".global poet_chain_code\n"
      "poet_chain_code:\n"

      /* take: the element. Reached with any number */
      "1:\n" ELEMENT UNPACK TEST("r3", "r4") //
      "  bvc 90f\n"
      "  movs r0, r2\n"
      "  movs r1, r3\n" NEXT_STEP

      /* keep the number, then set */
      "3:\n"
      "  mov r9, r0\n"
      "  mov r10, r1\n"
      /* set: a constant */
      "2:\n"
      "  movs r0, r2\n"
      "  movs r1, r3\n" NEXT_STEP

      /* save the number as the constant of a step */
      "4:\n"
      "  stmia r2!, {r0, r1}\n" NEXT_STEP

      /* put the number into the element */
      "5:\n"
      "  add r2, r8\n"
      "  adds r0, r1\n"
      "  mov r4, r11\n"
      "  subs r0, r4\n"
      "  str r0, [r2]\n"

      /* next element */
      "6:\n"
      "  movs r4, #4\n"
      "  add r8, r4\n"
      "  cmp r8, r12\n"
      "  beq 91f\n"
      "  ldr r7, [sp, #0]\n" NEXT_STEP

      /* multiply by itself */
      "10:\n"
      "  movs r2, r0\n"
      "  movs r3, r1\n"
      "  b 14f\n"
      /* multiply by the kept number */
      "11:\n"
      "  mov r2, r9\n"
      "  mov r3, r10\n"
      "  b 14f\n"
      /* multiply by the element; if it is 0, leave out r3 bytes of steps */
      "12:\n"
      "  movs r6, r3\n" ELEMENT TEST("r2", "r4") //
      "  bvc 18f\n" UNPACK                       //
      /* multiply by a constant */
      "14:\n"
      "  add r3, lr\n"
      "  adds r1, r3\n"
      "  lsls r4, r1, #1\n"
      "  adds r4, r4\n"
      "  bvc 19f\n"
      "  uxtb r4, r2\n"
      "  lsrs r3, r2, #8\n"
      "  uxtb r5, r0\n"
      "  lsrs r0, #8\n"
      "  muls r5, r2\n" /* low 8 bits of the number times the operand */
      "  muls r4, r0\n" /* high 16 times low 8 of the operand */
      "  muls r0, r3\n" /* high 16 times high 16 */
      "  lsrs r3, r5, #8\n"
      "  adds r4, r3\n"
      "  lsrs r3, r4, #8\n"
      "  adds r0, r3\n" /* the product >> 16; r4, r5: what is below */
      "  bmi 15f\n"
      "  mov r3, r11\n"
      "  subs r1, r3\n"
      "  adds r0, r0\n"
      "15:\n"
      "  adds r0, #128\n"
      "  bcs 16f\n"
      "  lsls r3, r0, #24\n"
      "  beq 17f\n"
      "  lsrs r0, #8\n" NEXT_STEP
      /* rounded up to the next power of two */
      "16:\n"
      "  mov r0, r11\n"
      "  add r1, r11\n" NEXT_STEP
      /* half way, unless something is below */
      "17:\n"
      "  lsrs r0, #8\n"
      "  orrs r4, r5\n"
      "  lsls r4, #24\n"
      "  bne 29f\n"
      "  lsrs r0, #1\n"
      "  lsls r0, #1\n"
      "29:\n" NEXT_STEP
      /* the element is 0, or is not in the range */
      "18:\n"
      "  bne 90f\n"
      "  cmp r6, #0\n"
      "  beq 90f\n"
      "  adds r7, r6\n" NEXT_STEP
      /* the product may not be in the range */
      "19:\n"
      "  subs r1, r3\n"

      /* leave before this step */
      "90:\n"
      "  subs r7, #12\n"
      /* leave before the next step, which may be that of another element */
      "91:\n"
      "  str r7, [sp, #8]\n"
      "  ldr r3, [sp, #12]\n"
      "  ldr r3, [r3, #8]\n"
      "  mov pc, r3\n"

      /* add the kept number */
      "20:\n"
      "  mov r2, r9\n"
      "  mov r3, r10\n"
      "  b 22f\n"
      /* add the element */
      "21:\n" ELEMENT UNPACK
      /* add a constant */
      "22:\n"
      "  subs r4, r1, r3\n"
      "  lsrs r4, #23\n" /* bit 8: signs differ; then the distance */
      "  cmp r4, #8\n"
      "  bhi 30f\n"
      "  lsls r2, #8\n"
      "  lsrs r2, r4\n"
      "23:\n" /* sum of magnitudes: r0 the larger one, r2 aligned */
      "  lsls r0, #8\n"
      "  adds r0, r2\n"
      "  bcs 26f\n"
      "24:\n"
      "  adds r0, #128\n"
      "  bcs 27f\n"
      "  lsls r2, r0, #24\n"
      "  beq 28f\n"
      "25:\n"
      "  lsrs r0, #8\n" NEXT_STEP
      /* one bit more */
      "26:\n"
      "  add r1, r11\n"
      "  lsls r2, r0, #31\n"
      "  lsrs r0, #1\n"
      "  movs r4, #1\n"
      "  lsls r4, #31\n"
      "  orrs r0, r4\n"
      "  lsrs r2, #31\n"
      "  orrs r0, r2\n" /* below half: only whether it is 0 counts */
      "  b 43f\n"
      /* rounded up to the next power of two */
      "27:\n"
      "  mov r0, r11\n"
      "  add r1, r11\n"
      "  lsls r0, #8\n"
      "  b 43f\n"
      /* half way */
      "28:\n"
      "  lsrs r0, #9\n"
      "  lsls r0, #1\n" NEXT_STEP

      "30:\n"
      "  movs r6, r1\n"
      "  eors r6, r3\n" /* negative: a difference of magnitudes */
      "  lsls r4, #24\n"
      "  asrs r4, #24\n"
      "  bmi 34f\n"
      "  cmp r4, #8\n"
      "  bls 32f\n"
      "31:\n"
      "  cmp r4, #25\n"
      "  bhi 33f\n"
      "  lsls r2, #8\n"
      "  movs r5, r2\n"
      "  lsrs r2, r4\n"
      "  movs r3, r2\n"
      "  lsls r3, r4\n"
      "  cmp r3, r5\n"
      "  beq 37f\n"
      "  movs r3, #1\n"
      "  orrs r2, r3\n" /* something is below */
      "  b 37f\n"
      "32:\n"
      "  lsls r2, #8\n"
      "  lsrs r2, r4\n"
      "37:\n"
      "  cmp r6, #0\n"
      "  bpl 23b\n"
      "  lsls r0, #8\n"
      "  subs r0, r2\n"
      "  bls 40f\n"
      "  bmi 24b\n"
      "41:\n" /* at most 25 bits, exact, if more than one bit is lost */
      "  mov r4, r11\n"
      "42:\n"
      "  subs r1, r4\n"
      "  adds r0, r0\n"
      "  bpl 42b\n"
      /* round, and leave if the exponent is not in the range */
      "43:\n" TEST("r1", "r4") //
      "  bvs 24b\n"
      "  ldr r4, [sp, #12]\n"
      "  cmp r4, r7\n"
      "  beq 24b\n"
      "  str r7, [sp, #8]\n"
      "  movs r7, r4\n"
      "  b 24b\n"
      /* too small to count, or so large that the distance is wrong */
      "33:\n"
      "  lsls r5, r3, #1\n"
      "  bpl 39f\n"
      "  lsls r5, #1\n"
      "  bmi 90b\n"
      "39:\n" NEXT_STEP

      /* the operand is the larger one, or is far smaller */
      "34:\n"
      "  lsls r5, r3, #1\n"
      "  bpl 35f\n"
      "  lsls r5, #1\n"
      "  bmi 90b\n"
      "36:\n"
      "  movs r1, r3\n"
      "  rsbs r4, r4, #0\n"
      "  movs r5, r0\n"
      "  movs r0, r2\n"
      "  movs r2, r5\n"
      "  cmp r4, #8\n"
      "  bls 32b\n"
      "  b 31b\n"
      "35:\n"
      "  lsls r5, #1\n"
      "  bpl 39b\n"
      "  b 36b\n"
      /* equal exponents: the difference is 0 or has the operand's sign */
      "40:\n"
      "  beq 45f\n"
      "  rsbs r0, r0, #0\n"
      "  movs r1, r3\n"
      "  b 41b\n"
      "45:\n"
      "  mov r0, r11\n"
      "  movs r1, #0\n"
      "  b 91b\n"
      ".align 2\n"
      ".global poet_chain_code_end\n"
      "poet_chain_code_end:\n"

      /* leave */
      "50:\n"
      "  ldr r3, [sp, #4]\n"
      "  ldr r2, [sp, #8]\n"
      "  str r2, [r3, #16]\n"
      "  mov r2, r11\n"
      "  adds r0, r1\n"
      "  subs r0, r2\n"
      "  str r0, [r3, #8]\n"
      "  mov r0, r9\n"
      "  subs r0, r2\n"
      "  add r0, r10\n"
      "  str r0, [r3, #12]\n"
      "  mov r0, r8\n"
      "  str r0, [r3, #0]\n"
      "  add sp, #16\n"
      "  pop {r4-r7}\n"
      "  mov r8, r4\n"
      "  mov r9, r5\n"
      "  mov r10, r6\n"
      "  mov r11, r7\n"
      "  pop {r4-r7, pc}\n"
      /* a step that leaves */
      ".align 2\n"
      "51:\n"
      "  .word 0, 0, 50b\n"

      /* where the operations of enum poet_operation begin */
      ".global poet_chain_offsets\n"
      "poet_chain_offsets:\n"
#define OFFSET(label) "  .short " #label "b - poet_chain_code\n"
      OFFSET(1) OFFSET(2) OFFSET(3) OFFSET(4) OFFSET(5) OFFSET(6) OFFSET(10)
          OFFSET(11) OFFSET(12) OFFSET(14) OFFSET(20) OFFSET(21) OFFSET(22)
              OFFSET(39));
}

#endif
