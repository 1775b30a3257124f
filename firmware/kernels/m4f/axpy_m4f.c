/*
 * axpy_m4f.c - rows of depthwise convolutions on a Cortex-M4F. The rules of
 * tile_m4f.c for loads, results and fused operations hold. Each function equals
 * the C code in axpy_m4f.h, bit for bit.
 *
 * Cycles: poet_axpy 46 for 8 products if all elements are adjacent, else 31 to
 * 36 for 4; what is left of a row takes 12 for each. poet_three 40 for 12
 * products, 22 for 6 and 15 for 3 that are left. A row takes 10 to 25 in
 * addition, a call 40.
 */
#include "axpy_m4f.h"

#if POET_M4F

#include <stddef.h>

/* Offsets that the assembly uses. */
_Static_assert(offsetof(struct poet_axpy, weight) == 32, "weight");
_Static_assert(offsetof(struct poet_three, sums) == 16, "sums");

// clang-format off

/* poet_axpy. r0, r1: next elements of from and to; r2, r3: count and rows left;
 * r4, r5: steps; r6, r7: steps to the next row; r8: elements left; r9 to r11:
 * addresses of the elements after the next. s0: weight; s1 to s8, then only s1
 * to s4: elements of from, and products; s9 to s16, then s5 to s8: of to. */
#define AXPY_FOUR                                                              \
  "vmul.f32 s1, s0, s1\n"                                                      \
  "vmul.f32 s2, s0, s2\n"                                                      \
  "vmul.f32 s3, s0, s3\n"                                                      \
  "vmul.f32 s4, s0, s4\n"                                                      \
  "vadd.f32 s5, s5, s1\n"                                                      \
  "vadd.f32 s6, s6, s2\n"                                                      \
  "vadd.f32 s7, s7, s3\n"                                                      \
  "vadd.f32 s8, s8, s4\n"

__attribute__((naked, noinline)) void
poet_axpy(const struct poet_axpy *axpy __attribute__((unused))) {
  __asm volatile(
    ".syntax unified\n"
    "push {r4-r11, lr}\n"
    "vpush {s16}\n"
    "vldr s0, [r0, #32]\n"
    "ldm r0, {r0-r7}\n"
    "1: subs r8, r2, #4\n"
    "blo 7f\n"
    "cmp r4, #4\n"
    "bne 4f\n"
    "cmp r5, #4\n"
    "bne 6f\n"
    "subs r8, #4\n"
    "blo 3f\n"
    "2: vldmia r0!, {s1-s8}\n"
    "vldm r1, {s9-s16}\n"
    "vmul.f32 s1, s0, s1\n"
    "vmul.f32 s2, s0, s2\n"
    "vmul.f32 s3, s0, s3\n"
    "vmul.f32 s4, s0, s4\n"
    "vmul.f32 s5, s0, s5\n"
    "vmul.f32 s6, s0, s6\n"
    "vmul.f32 s7, s0, s7\n"
    "vmul.f32 s8, s0, s8\n"
    "vadd.f32 s9, s9, s1\n"
    "vadd.f32 s10, s10, s2\n"
    "vadd.f32 s11, s11, s3\n"
    "vadd.f32 s12, s12, s4\n"
    "vadd.f32 s13, s13, s5\n"
    "vadd.f32 s14, s14, s6\n"
    "vadd.f32 s15, s15, s7\n"
    "vadd.f32 s16, s16, s8\n"
    "vstmia r1!, {s9-s16}\n"
    "subs r8, #8\n"
    "bhs 2b\n"
    "3: adds r8, #4\n"
    "bmi 7f\n"
    "vldmia r0!, {s1-s4}\n"
    "vldm r1, {s5-s8}\n"
    AXPY_FOUR
    "vstmia r1!, {s5-s8}\n"
    "subs r8, #4\n"
    "b 7f\n"
    "4: cmp r5, #4\n"
    "bne 6f\n"
    "5: add r9, r0, r4\n"
    "add r10, r9, r4\n"
    "add r11, r10, r4\n"
    "vldr s1, [r0]\n"
    "vldr s2, [r9]\n"
    "vldr s3, [r10]\n"
    "vldr s4, [r11]\n"
    "vldr s5, [r1, #0]\n"
    "vldr s6, [r1, #4]\n"
    "vldr s7, [r1, #8]\n"
    "vldr s8, [r1, #12]\n"
    "add r0, r11, r4\n"
    AXPY_FOUR
    "vstmia r1!, {s5-s8}\n"
    "subs r8, #4\n"
    "bhs 5b\n"
    "b 7f\n"
    "6: add r9, r0, r4\n"
    "add r10, r9, r4\n"
    "add r11, r10, r4\n"
    "vldr s1, [r0]\n"
    "vldr s2, [r9]\n"
    "vldr s3, [r10]\n"
    "vldr s4, [r11]\n"
    "add r0, r11, r4\n"
    "add r9, r1, r5\n"
    "add r10, r9, r5\n"
    "add r11, r10, r5\n"
    "vldr s5, [r1]\n"
    "vldr s6, [r9]\n"
    "vldr s7, [r10]\n"
    "vldr s8, [r11]\n"
    AXPY_FOUR
    "vstr s5, [r1]\n"
    "vstr s6, [r9]\n"
    "vstr s7, [r10]\n"
    "vstr s8, [r11]\n"
    "add r1, r11, r5\n"
    "subs r8, #4\n"
    "bhs 6b\n"
    "7: adds r8, #4\n"
    "beq 9f\n"
    "8: vldr s1, [r0]\n"
    "vldr s5, [r1]\n"
    "add r0, r4\n"
    "vmul.f32 s1, s0, s1\n"
    "subs r8, #1\n"
    "vadd.f32 s5, s5, s1\n"
    "vstr s5, [r1]\n"
    "add r1, r5\n"
    "bne 8b\n"
    "9: subs r3, #1\n"
    "beq 10f\n"
    "add r0, r6\n"
    "add r1, r7\n"
    "b 1b\n"
    "10: vpop {s16}\n"
    "pop {r4-r11, pc}\n");
}

/* poet_three. r0, r1: next elements of x and dy; r2: rows left; r3: width; r4:
 * elements left between the first and the last one of a row; r12: address of
 * the sums. s0 to s5: elements of x, the first two of which are kept; s6 to s9:
 * elements of dy; s10 to s12: products; s13 to s15: sums. */
#define THREE_SUMS(dy, x0, x1, x2)                                             \
  "vmul.f32 s10, " dy ", " x0 "\n"                                             \
  "vmul.f32 s11, " dy ", " x1 "\n"                                             \
  "vmul.f32 s12, " dy ", " x2 "\n"                                             \
  "vadd.f32 s13, s13, s10\n"                                                   \
  "vadd.f32 s14, s14, s11\n"                                                   \
  "vadd.f32 s15, s15, s12\n"

__attribute__((naked, noinline)) void
poet_three(struct poet_three *three __attribute__((unused))) {
  __asm volatile(
    ".syntax unified\n"
    "push {r4, lr}\n"
    "add r12, r0, #16\n"
    "vldm r12, {s13-s15}\n"
    "ldm r0, {r0-r3}\n"
    "1: vldmia r0!, {s0-s1}\n"
    "vldmia r1!, {s6}\n"
    "subs r4, r3, #6\n"
    "vmul.f32 s11, s6, s0\n"
    "vmul.f32 s12, s6, s1\n"
    "vadd.f32 s14, s14, s11\n"
    "vadd.f32 s15, s15, s12\n"
    "blo 3f\n"
    "2: vldmia r0!, {s2-s5}\n"
    "vldmia r1!, {s6-s9}\n"
    THREE_SUMS("s6", "s0", "s1", "s2")
    THREE_SUMS("s7", "s1", "s2", "s3")
    THREE_SUMS("s8", "s2", "s3", "s4")
    THREE_SUMS("s9", "s3", "s4", "s5")
    "vmov s0, s4\n"
    "vmov s1, s5\n"
    "subs r4, #4\n"
    "bhs 2b\n"
    "3: adds r4, #2\n"
    "bmi 4f\n"
    "vldmia r0!, {s2-s3}\n"
    "vldmia r1!, {s6-s7}\n"
    THREE_SUMS("s6", "s0", "s1", "s2")
    THREE_SUMS("s7", "s1", "s2", "s3")
    "vmov s0, s2\n"
    "vmov s1, s3\n"
    "subs r4, #2\n"
    "4: adds r4, #2\n"
    "beq 5f\n"
    "vldmia r0!, {s2}\n"
    "vldmia r1!, {s6}\n"
    THREE_SUMS("s6", "s0", "s1", "s2")
    "vmov s0, s1\n"
    "vmov s1, s2\n"
    "5: vldmia r1!, {s6}\n"
    "subs r2, #1\n"
    "vmul.f32 s10, s6, s0\n"
    "vmul.f32 s11, s6, s1\n"
    "vadd.f32 s13, s13, s10\n"
    "vadd.f32 s14, s14, s11\n"
    "bne 1b\n"
    "vstm r12, {s13-s15}\n"
    "pop {r4, pc}\n");
}

// clang-format on

#endif
