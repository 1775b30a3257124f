/*
 * tile_m4f.c - tiles of 4 by 4 sums on a Cortex-M4F.
 *
 * Each function equals this C function, bit for bit:
 *
 *   for each lane i of a, for each lane j of b:
 *     float sum = begun ? *at : 0;
 *     for each term: sum = sum + a[i] * b[j];
 *     *at = sum;
 *
 * Registers in the loops:
 *
 *   r0 to r3    addresses of the next terms of the lanes of a; only r0 if the
 *               lanes are adjacent
 *   r4 to r7    the same of b
 *   r8          terms left in the row; scratch between rows
 *   r9, r12     rows left in the plane, planes left
 *   r10, r11    steps to the next terms of a and b, in bytes
 *   lr          struct poet_terms
 *   s0 to s3    factors of a
 *   s4 to s9    factors of b
 *   s10 to s13  products
 *   s16 to s31  sums: of lane 0 of a and lanes 0 to 3 of b, of lane 1, ...
 *
 * Loads are adjacent because a load takes one cycle after another load, else
 * two. No instruction uses the result of the one before it, which would cost a
 * cycle. Multiplications and additions are separate: the fused ones round once,
 * and take 3 cycles instead of 1 + 1 (Cortex-M4 TRM, table 7-1).
 *
 * Cycles of a term of 16 products: 9 for 8 loads and 32 for arithmetic; moves
 * and the loop take 3 to 10 more. A row of three terms takes 126 in _up and
 * _un, 141 in _uu and in _ug if the terms of b are at distance -1; a row of two
 * terms 108 in _gg. A call takes about 70 cycles in addition, a tile 90,
 * another row 12 to 25, a plane 20.
 */
#include "tile_m4f.h"

#if POET_M4F

#include <stddef.h>

/* Offsets that the assembly uses. */
_Static_assert(offsetof(struct poet_block, b) == 16, "b");
_Static_assert(offsetof(struct poet_block, terms) == 32, "terms");
_Static_assert(offsetof(struct poet_block, sums) == 36, "sums");
_Static_assert(offsetof(struct poet_block, row) == 40, "row");
_Static_assert(offsetof(struct poet_block, a_next) == 44, "a_next");
_Static_assert(offsetof(struct poet_block, b_next) == 48, "b_next");
_Static_assert(offsetof(struct poet_block, next) == 52, "next");
_Static_assert(offsetof(struct poet_block, count) == 56, "count");
_Static_assert(offsetof(struct poet_terms, a_row) == 0, "a_row");
_Static_assert(offsetof(struct poet_terms, b_row) == 4, "b_row");
_Static_assert(offsetof(struct poet_terms, a_step) == 12, "a_step");
_Static_assert(offsetof(struct poet_terms, rows) == 20, "rows");
_Static_assert(offsetof(struct poet_terms, planes) == 24, "planes");
_Static_assert(offsetof(struct poet_terms, a_plane) == 28, "a_plane");
_Static_assert(offsetof(struct poet_terms, b_plane) == 32, "b_plane");
_Static_assert(offsetof(struct poet_terms, columns) == 36, "columns");
_Static_assert(offsetof(struct poet_terms, begun) == 40, "begun");

// clang-format off

/* Four products with one factor of b, added to their sums: 8 cycles. */
#define ADD(b, i, j, k, l)                                                     \
  "vmul.f32 s10, s0, " b "\n"                                                  \
  "vmul.f32 s11, s1, " b "\n"                                                  \
  "vmul.f32 s12, s2, " b "\n"                                                  \
  "vmul.f32 s13, s3, " b "\n"                                                  \
  "vadd.f32 " i ", " i ", s10\n"                                               \
  "vadd.f32 " j ", " j ", s11\n"                                               \
  "vadd.f32 " k ", " k ", s12\n"                                               \
  "vadd.f32 " l ", " l ", s13\n"
#define PRODUCTS(b0, b1, b2, b3)                                               \
  ADD(b0, "s16", "s20", "s24", "s28")                                          \
  ADD(b1, "s17", "s21", "s25", "s29")                                          \
  ADD(b2, "s18", "s22", "s26", "s30")                                          \
  ADD(b3, "s19", "s23", "s27", "s31")
#define TERM PRODUCTS("s4", "s5", "s6", "s7")

/* Loads of the factors of one term. */
#define A_APART(at)                                                            \
  "vldr s0, [r0, #" #at "]\n"                                                  \
  "vldr s1, [r1, #" #at "]\n"                                                  \
  "vldr s2, [r2, #" #at "]\n"                                                  \
  "vldr s3, [r3, #" #at "]\n"
#define B_APART(at)                                                            \
  "vldr s4, [r4, #" #at "]\n"                                                  \
  "vldr s5, [r5, #" #at "]\n"                                                  \
  "vldr s6, [r6, #" #at "]\n"                                                  \
  "vldr s7, [r7, #" #at "]\n"
#define A_ADJACENT                                                             \
  "vldr s0, [r0]\n"                                                            \
  "vldr s1, [r0, #4]\n"                                                        \
  "vldr s2, [r0, #8]\n"                                                        \
  "vldr s3, [r0, #12]\n"
#define B_ADJACENT                                                             \
  "vldr s4, [r4]\n"                                                            \
  "vldr s5, [r4, #4]\n"                                                        \
  "vldr s6, [r4, #8]\n"                                                        \
  "vldr s7, [r4, #12]\n"

/* Moves of the addresses. */
#define A_FOUR(by)                                                             \
  "add r0, " by "\n"                                                           \
  "add r1, " by "\n"                                                           \
  "add r2, " by "\n"                                                           \
  "add r3, " by "\n"
#define B_FOUR(by)                                                             \
  "add r4, " by "\n"                                                           \
  "add r5, " by "\n"                                                           \
  "add r6, " by "\n"                                                           \
  "add r7, " by "\n"
#define A_ONE(by) "add r0, " by "\n"
#define B_ONE(by) "add r4, " by "\n"
#define NONE(by)

/* Labels: 7 sums that are begun, 8 first addresses, 9 next tile, 10 next plane,
 * 11 next row, 13 end of a row, 15 end of a tile. The stack holds the address of
 * the block. */
#define BEGIN(STEPS)                                                           \
  ".syntax unified\n"                                                          \
  "push {r0, r4-r11, lr}\n"                                                    \
  "vpush {s16-s31}\n"                                                          \
  "mov r12, r0\n"                                                              \
  "ldr lr, [r0, #32]\n"                                                        \
  "9: ldr r0, [lr, #40]\n"                                                     \
  "cbnz r0, 7f\n"                                                              \
  "vmov s16, r0\n"                                                             \
  "vmov s17, r0\n"                                                             \
  "vmov s18, r0\n"                                                             \
  "vmov s19, r0\n"                                                             \
  "vmov s20, r0\n"                                                             \
  "vmov s21, r0\n"                                                             \
  "vmov s22, r0\n"                                                             \
  "vmov s23, r0\n"                                                             \
  "vmov s24, r0\n"                                                             \
  "vmov s25, r0\n"                                                             \
  "vmov s26, r0\n"                                                             \
  "vmov s27, r0\n"                                                             \
  "vmov s28, r0\n"                                                             \
  "vmov s29, r0\n"                                                             \
  "vmov s30, r0\n"                                                             \
  "vmov s31, r0\n"                                                             \
  "b 8f\n"                                                                     \
  "7: ldrd r8, r9, [r12, #36]\n"                                               \
  "vldm r8, {s16-s19}\n"                                                       \
  "add r8, r9\n"                                                               \
  "vldm r8, {s20-s23}\n"                                                       \
  "add r8, r9\n"                                                               \
  "vldm r8, {s24-s27}\n"                                                       \
  "add r8, r9\n"                                                               \
  "vldm r8, {s28-s31}\n"                                                       \
  "8: ldm r12, {r0-r7}\n"                                                      \
  STEPS                                                                        \
  "ldr r12, [lr, #24]\n"                                                       \
  "10: ldr r9, [lr, #20]\n"
#define STEP_A "ldr r10, [lr, #12]\n"
#define STEP_B "ldr r11, [lr, #16]\n"
#define ROW "11: ldr r8, [lr, #36]\n"

/* The next row, plane, or the end. */
#define NEXT(A, B)                                                             \
  "13: subs r9, #1\n"                                                          \
  "beq 14f\n"                                                                  \
  "ldr r8, [lr, #0]\n" A("r8")                                                 \
  "ldr r8, [lr, #4]\n" B("r8")                                                 \
  "b 11b\n"                                                                    \
  "14: subs r12, #1\n"                                                         \
  "beq 15f\n"                                                                  \
  "ldr r8, [lr, #28]\n" A("r8")                                                \
  "ldr r8, [lr, #32]\n" B("r8")                                                \
  "b 10b\n"
#define END(A, B)                                                              \
  "15: ldr r12, [sp, #64]\n"                                                   \
  "ldrd r8, r9, [r12, #36]\n"                                                  \
  "mov r10, r8\n"                                                              \
  "vstm r10, {s16-s19}\n"                                                      \
  "add r10, r9\n"                                                              \
  "vstm r10, {s20-s23}\n"                                                      \
  "add r10, r9\n"                                                              \
  "vstm r10, {s24-s27}\n"                                                      \
  "add r10, r9\n"                                                              \
  "vstm r10, {s28-s31}\n"                                                      \
  "ldrd r10, r11, [r12, #52]\n"                                                \
  "subs r11, #1\n"                                                             \
  "beq 16f\n"                                                                  \
  "str r11, [r12, #56]\n"                                                      \
  "add r8, r10\n"                                                              \
  "str r8, [r12, #36]\n"                                                       \
  "ldrd r8, r9, [r12, #44]\n"                                                  \
  "ldm r12, {r0-r7}\n" A("r8") B("r9")                                         \
  "stm r12, {r0-r7}\n"                                                         \
  "b 9b\n"                                                                     \
  "16: vpop {s16-s31}\n"                                                       \
  "pop {r0, r4-r11, pc}\n"

/* A row, four terms at a time, then one at a time. T(at) is the term at this
 * distance. */
#define FOURS(T, A, B)                                                         \
  "subs r8, #4\n"                                                              \
  "blo 2f\n"                                                                   \
  "1:\n" T(0) T(4) T(8) T(12) A("#16") B("#16")                                \
  "subs r8, #4\n"                                                              \
  "bhs 1b\n"                                                                   \
  "2: adds r8, #4\n"                                                           \
  "beq 13f\n"                                                                  \
  "3:\n" T(0) A("#4") B("#4")                                                  \
  "subs r8, #1\n"                                                              \
  "bne 3b\n"

/* A row, two terms at a time. T moves the addresses. */
#define TWOS(T)                                                                \
  "subs r8, #2\n"                                                              \
  "blo 2f\n"                                                                   \
  "1:\n" T T                                                                   \
  "subs r8, #2\n"                                                              \
  "bhs 1b\n"                                                                   \
  "2: adds r8, #2\n"                                                           \
  "beq 13f\n" T

/* All rows of three terms: W computes one. r10 and r11 lead to the next row
 * from the start of one. B_BACK: how far W moves b. */
#define ROWS_OF_THREE(W, B, B_BACK)                                            \
  "ldr r10, [lr, #0]\n"                                                        \
  "add r10, #12\n"                                                             \
  "ldr r11, [lr, #4]\n"                                                        \
  "add r11, #" #B_BACK "\n"                                                    \
  "b 21f\n"                                                                    \
  "20:\n" A_FOUR("r10") B("r11")                                               \
  "21:\n" W                                                                    \
  "subs r9, #1\n"                                                              \
  "bne 20b\n"                                                                  \
  "subs r12, #1\n"                                                             \
  "beq 15f\n"                                                                  \
  "ldr r9, [lr, #28]\n"                                                        \
  "add r9, #12\n" A_FOUR("r9")                                                 \
  "ldr r9, [lr, #32]\n"                                                        \
  "add r9, #" #B_BACK "\n" B("r9")                                             \
  "ldr r9, [lr, #20]\n"                                                        \
  "b 21b\n"

#define FUNCTION(name)                                                         \
  __attribute__((naked, noinline)) void name(struct poet_block *block          \
                                             __attribute__((unused)))

#define T_UU(at) A_APART(at) B_APART(at) TERM
FUNCTION(poet_block_uu) {
  __asm volatile(BEGIN("")
    "ldr r8, [lr, #36]\n"
    "cmp r8, #3\n"
    "bne 11f\n"
    ROWS_OF_THREE(T_UU(0) T_UU(4) T_UU(8), B_FOUR, 12)
    ROW FOURS(T_UU, A_FOUR, B_FOUR) NEXT(A_FOUR, B_FOUR) END(A_FOUR, B_FOUR));
}

#define T_UB(at) A_APART(at) B_ADJACENT "add r4, r11\n" TERM
FUNCTION(poet_block_ub) {
  __asm volatile(BEGIN(STEP_B) ROW FOURS(T_UB, A_FOUR, NONE)
    NEXT(A_FOUR, B_ONE) END(A_FOUR, B_ONE));
}

#define T_UG(at) A_APART(at) B_APART(0) B_FOUR("r11") TERM
#define T_UM(a_at, b_at) A_APART(a_at) B_APART(b_at) TERM
FUNCTION(poet_block_ug) {
  __asm volatile(BEGIN(STEP_B)
    "ldr r8, [lr, #36]\n"
    "cmp r8, #3\n"
    "bne 11f\n"
    "cmn r11, #4\n"
    "bne 11f\n"
    ROWS_OF_THREE(T_UM(0, 0) T_UM(4, -4) T_UM(8, -8), B_FOUR, -12)
    ROW FOURS(T_UG, A_FOUR, NONE)
    NEXT(A_FOUR, B_FOUR) END(A_FOUR, B_FOUR));
}

#define T_BU(at) A_ADJACENT B_APART(at) "add r0, r10\n" TERM
FUNCTION(poet_block_bu) {
  __asm volatile(BEGIN(STEP_A) ROW FOURS(T_BU, NONE, B_FOUR)
    NEXT(A_ONE, B_FOUR) END(A_ONE, B_FOUR));
}

#define T_BB(at) A_ADJACENT B_ADJACENT "add r0, r10\nadd r4, r11\n" TERM
FUNCTION(poet_block_bb) {
  __asm volatile(BEGIN(STEP_A STEP_B) ROW FOURS(T_BB, NONE, NONE)
    NEXT(A_ONE, B_ONE) END(A_ONE, B_ONE));
}

/* Rows of two terms are frequent: in gradients of strided convolutions. */
#define T_GG A_APART(0) B_APART(0) A_FOUR("r10") B_FOUR("r11") TERM
FUNCTION(poet_block_gg) {
  __asm volatile(BEGIN(STEP_A STEP_B)
    "ldr r8, [lr, #36]\n"
    "cmp r8, #2\n"
    "bne 11f\n"
    "20:\n" T_GG
    A_APART(0) B_APART(0)
    "ldr r8, [lr, #0]\n"
    "add r8, r10\n" A_FOUR("r8")
    "ldr r8, [lr, #4]\n"
    "add r8, r11\n" B_FOUR("r8") TERM
    "subs r9, #1\n"
    "bne 20b\n"
    "subs r12, #1\n"
    "beq 15f\n"
    "ldr r8, [lr, #28]\n"
    "ldr r9, [lr, #0]\n"
    "sub r8, r9\n" A_FOUR("r8")
    "ldr r8, [lr, #32]\n"
    "ldr r9, [lr, #4]\n"
    "sub r8, r9\n" B_FOUR("r8")
    "ldr r9, [lr, #20]\n"
    "b 20b\n"
    ROW TWOS(T_GG)
    NEXT(A_FOUR, B_FOUR) END(A_FOUR, B_FOUR));
}

/* The three terms of a row and the four lanes of b use only six elements. */
FUNCTION(poet_block_up) {
  __asm volatile(BEGIN("")
    ROWS_OF_THREE(
      A_APART(0) B_ADJACENT "vldr s8, [r4, #16]\nvldr s9, [r4, #20]\n"
      PRODUCTS("s4", "s5", "s6", "s7")
      A_APART(4) PRODUCTS("s5", "s6", "s7", "s8")
      A_APART(8) PRODUCTS("s6", "s7", "s8", "s9"), B_ONE, 12)
    END(A_FOUR, B_ONE));
}

FUNCTION(poet_block_un) {
  __asm volatile(BEGIN("")
    ROWS_OF_THREE(
      A_APART(0) B_ADJACENT "vldr s8, [r4, #-4]\nvldr s9, [r4, #-8]\n"
      PRODUCTS("s4", "s5", "s6", "s7")
      A_APART(4) PRODUCTS("s8", "s4", "s5", "s6")
      A_APART(8) PRODUCTS("s9", "s8", "s4", "s5"), B_ONE, -12)
    END(A_FOUR, B_ONE));
}

// clang-format on

#endif
