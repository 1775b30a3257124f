/*
 * strip_m4f.c - sums of one lane, eight at a time, on a Cortex-M4F: where an
 * operand has too few lanes for the tiles of tile_m4f.c. The same rules for
 * loads, results and fused operations hold. Each function equals the C code in
 * strip_m4f.h, bit for bit.
 *
 * Cycles: poet_strips 28 for 8 products. poet_rows_ahead and _back 217 for 72,
 * of which 23 begin and store the eight sums. poet_outer 109 for 16 updates in
 * two rows. A call takes about 60 in addition.
 */
#include "strip_m4f.h"

#if POET_M4F

#include <stddef.h>

/* Offsets that the assembly uses. */
_Static_assert(offsetof(struct poet_strips, count) == 20, "count");
_Static_assert(offsetof(struct poet_strips, begun) == 24, "begun");
_Static_assert(offsetof(struct poet_rows, weight) == 52, "weight");
_Static_assert(offsetof(struct poet_outer, rate) == 24, "rate");

// clang-format off

/* poet_strips. r0, r1: next terms of a and b; r2: step of b; r3: terms left; r4:
 * sums; r5: strips left; r6, r7, r12: a, b and terms of a strip; lr: begun. s0: factor of
 * a; s1 to s7, s24: products; s8 to s15: sums; s16 to s23: factors of b. */
#define STRIP_TERM(at)                                                         \
  "vldr s0, [r0, #" #at "]\n"                                                  \
  "vldr s16, [r1, #0]\n"                                                       \
  "vldr s17, [r1, #4]\n"                                                       \
  "vldr s18, [r1, #8]\n"                                                       \
  "vldr s19, [r1, #12]\n"                                                      \
  "vldr s20, [r1, #16]\n"                                                      \
  "vldr s21, [r1, #20]\n"                                                      \
  "vldr s22, [r1, #24]\n"                                                      \
  "vldr s23, [r1, #28]\n"                                                      \
  "add r1, r2\n"                                                               \
  "vmul.f32 s1, s0, s16\n"                                                     \
  "vmul.f32 s2, s0, s17\n"                                                     \
  "vmul.f32 s3, s0, s18\n"                                                     \
  "vmul.f32 s4, s0, s19\n"                                                     \
  "vadd.f32 s8, s8, s1\n"                                                      \
  "vadd.f32 s9, s9, s2\n"                                                      \
  "vadd.f32 s10, s10, s3\n"                                                    \
  "vadd.f32 s11, s11, s4\n"                                                    \
  "vmul.f32 s1, s0, s20\n"                                                     \
  "vmul.f32 s2, s0, s21\n"                                                     \
  "vmul.f32 s3, s0, s22\n"                                                     \
  "vmul.f32 s4, s0, s23\n"                                                     \
  "vadd.f32 s12, s12, s1\n"                                                    \
  "vadd.f32 s13, s13, s2\n"                                                    \
  "vadd.f32 s14, s14, s3\n"                                                    \
  "vadd.f32 s15, s15, s4\n"

__attribute__((naked, noinline)) void
poet_strips(const struct poet_strips *strips __attribute__((unused))) {
  __asm volatile(
    ".syntax unified\n"
    "push {r4-r7, lr}\n"
    "vpush {s16-s23}\n"
    "ldrb lr, [r0, #24]\n"
    "ldm r0, {r0-r5}\n"
    "mov r6, r0\n"
    "mov r7, r1\n"
    "mov r12, r3\n"
    "1: vldm r4, {s8-s15}\n"
    "movs r0, #0\n"
    "cmp lr, #0\n"
    "bne 6f\n"
    "vmov s8, r0\n"
    "vmov s9, r0\n"
    "vmov s10, r0\n"
    "vmov s11, r0\n"
    "vmov s12, r0\n"
    "vmov s13, r0\n"
    "vmov s14, r0\n"
    "vmov s15, r0\n"
    "6: mov r0, r6\n"
    "mov r1, r7\n"
    "subs r3, r12, #4\n"
    "blo 3f\n"
    "2:\n" STRIP_TERM(0) STRIP_TERM(4) STRIP_TERM(8) STRIP_TERM(12)
    "add r0, #16\n"
    "subs r3, #4\n"
    "bhs 2b\n"
    "3: adds r3, #4\n"
    "beq 5f\n"
    "4:\n" STRIP_TERM(0)
    "add r0, #4\n"
    "subs r3, #1\n"
    "bne 4b\n"
    "5: vstmia r4!, {s8-s15}\n"
    "add r7, #32\n"
    "subs r5, #1\n"
    "bne 1b\n"
    "vpop {s16-s23}\n"
    "pop {r4-r7, pc}\n");
}

/* poet_rows_ahead and _back. r0 to r2: next elements, left and right of them;
 * r3: where the sums go; r4 to r9: steps; r10: rows left; r11: step of the sums;
 * r12, lr: rows of weights, and those left. s0 to s9: elements; s10 to s18:
 * weights; s19 to s26: sums; s27 to s30: products. */
#define ROWS_LOAD                                                              \
  "vldr s0, [r1]\n"                                                            \
  "vldr s1, [r0, #0]\n"                                                        \
  "vldr s2, [r0, #4]\n"                                                        \
  "vldr s3, [r0, #8]\n"                                                        \
  "vldr s4, [r0, #12]\n"                                                       \
  "vldr s5, [r0, #16]\n"                                                       \
  "vldr s6, [r0, #20]\n"                                                       \
  "vldr s7, [r0, #24]\n"                                                       \
  "vldr s8, [r0, #28]\n"                                                       \
  "vldr s9, [r2]\n"                                                            \
  "add r0, r4\n"                                                               \
  "add r1, r5\n"                                                               \
  "add r2, r6\n"
#define ROWS_TERM_0(w)                                                         \
  "vmul.f32 s27, " w ", s0\n"                                                     \
  "vmul.f32 s28, " w ", s1\n"                                                     \
  "vmul.f32 s29, " w ", s2\n"                                                     \
  "vmul.f32 s30, " w ", s3\n"                                                     \
  "vadd.f32 s19, s19, s27\n"                                                   \
  "vadd.f32 s20, s20, s28\n"                                                   \
  "vadd.f32 s21, s21, s29\n"                                                   \
  "vadd.f32 s22, s22, s30\n"                                                   \
  "vmul.f32 s27, " w ", s4\n"                                                     \
  "vmul.f32 s28, " w ", s5\n"                                                     \
  "vmul.f32 s29, " w ", s6\n"                                                     \
  "vmul.f32 s30, " w ", s7\n"                                                     \
  "vadd.f32 s23, s23, s27\n"                                                   \
  "vadd.f32 s24, s24, s28\n"                                                   \
  "vadd.f32 s25, s25, s29\n"                                                   \
  "vadd.f32 s26, s26, s30\n"
#define ROWS_TERM_1(w)                                                         \
  "vmul.f32 s27, " w ", s1\n"                                                     \
  "vmul.f32 s28, " w ", s2\n"                                                     \
  "vmul.f32 s29, " w ", s3\n"                                                     \
  "vmul.f32 s30, " w ", s4\n"                                                     \
  "vadd.f32 s19, s19, s27\n"                                                   \
  "vadd.f32 s20, s20, s28\n"                                                   \
  "vadd.f32 s21, s21, s29\n"                                                   \
  "vadd.f32 s22, s22, s30\n"                                                   \
  "vmul.f32 s27, " w ", s5\n"                                                     \
  "vmul.f32 s28, " w ", s6\n"                                                     \
  "vmul.f32 s29, " w ", s7\n"                                                     \
  "vmul.f32 s30, " w ", s8\n"                                                     \
  "vadd.f32 s23, s23, s27\n"                                                   \
  "vadd.f32 s24, s24, s28\n"                                                   \
  "vadd.f32 s25, s25, s29\n"                                                   \
  "vadd.f32 s26, s26, s30\n"
#define ROWS_TERM_2(w)                                                         \
  "vmul.f32 s27, " w ", s2\n"                                                     \
  "vmul.f32 s28, " w ", s3\n"                                                     \
  "vmul.f32 s29, " w ", s4\n"                                                     \
  "vmul.f32 s30, " w ", s5\n"                                                     \
  "vadd.f32 s19, s19, s27\n"                                                   \
  "vadd.f32 s20, s20, s28\n"                                                   \
  "vadd.f32 s21, s21, s29\n"                                                   \
  "vadd.f32 s22, s22, s30\n"                                                   \
  "vmul.f32 s27, " w ", s6\n"                                                     \
  "vmul.f32 s28, " w ", s7\n"                                                     \
  "vmul.f32 s29, " w ", s8\n"                                                     \
  "vmul.f32 s30, " w ", s9\n"                                                     \
  "vadd.f32 s23, s23, s27\n"                                                   \
  "vadd.f32 s24, s24, s28\n"                                                   \
  "vadd.f32 s25, s25, s29\n"                                                   \
  "vadd.f32 s26, s26, s30\n"
#define AHEAD(u, v, w) ROWS_LOAD ROWS_TERM_0(u) ROWS_TERM_1(v) ROWS_TERM_2(w)
#define BACK(u, v, w) ROWS_LOAD ROWS_TERM_2(u) ROWS_TERM_1(v) ROWS_TERM_0(w)
#define ROWS(THREE)                                                            \
  __asm volatile(                                                              \
    ".syntax unified\n"                                                          \
    "push {r4-r11, lr}\n"                                                        \
    "vpush {s16-s31}\n"                                                          \
    "add r1, r0, #52\n"                                                          \
    "vldm r1, {s10-s18}\n"                                                       \
    "ldm r0, {r0-r12}\n"                                                         \
    "1: movs lr, #0\n"                                                           \
    "vmov s19, lr\n"                                                             \
    "vmov s20, lr\n"                                                             \
    "vmov s21, lr\n"                                                             \
    "vmov s22, lr\n"                                                             \
    "vmov s23, lr\n"                                                             \
    "vmov s24, lr\n"                                                             \
    "vmov s25, lr\n"                                                             \
    "vmov s26, lr\n"                                                             \
    "mov lr, r12\n"                                                              \
    THREE("s10", "s11", "s12")                                                 \
    "subs lr, #1\n"                                                              \
    "beq 2f\n"                                                                   \
    THREE("s13", "s14", "s15")                                                 \
    "subs lr, #1\n"                                                              \
    "beq 2f\n"                                                                   \
    THREE("s16", "s17", "s18")                                                 \
    "2: vstm r3, {s19-s26}\n"                                                    \
    "add r0, r7\n"                                                               \
    "add r1, r8\n"                                                               \
    "add r2, r9\n"                                                               \
    "add r3, r11\n"                                                              \
    "subs r10, #1\n"                                                             \
    "bne 1b\n"                                                                   \
    "vpop {s16-s31}\n"                                                           \
    "pop {r4-r11, pc}\n")

__attribute__((naked, noinline)) void
poet_rows_ahead(const struct poet_rows *rows __attribute__((unused))) {
  ROWS(AHEAD);
}

__attribute__((naked, noinline)) void
poet_rows_back(const struct poet_rows *rows __attribute__((unused))) {
  ROWS(BACK);
}

/* poet_outer. r0, r4: elements of w, in this row and the next; r1: next of g; r2:
 * pairs of rows left; r3: bytes of a row; r5: w of the strip; r6: next of x; r7,
 * r8: g and pairs; r9: strips left. s0 to s7: x; s8: g; s9: rate; s10: 0; s16 to
 * s23: w; s24 to s31: steps. */
#define OUTER_LOAD(from)                                                       \
  "vldr s16, [" from ", #0]\n"                                                 \
  "vldr s17, [" from ", #4]\n"                                                 \
  "vldr s18, [" from ", #8]\n"                                                 \
  "vldr s19, [" from ", #12]\n"                                                \
  "vldr s20, [" from ", #16]\n"                                                \
  "vldr s21, [" from ", #20]\n"                                                \
  "vldr s22, [" from ", #24]\n"                                                \
  "vldr s23, [" from ", #28]\n"
#define OUTER_STORE(to)                                                        \
  "vstr s16, [" to ", #0]\n"                                                   \
  "vstr s17, [" to ", #4]\n"                                                   \
  "vstr s18, [" to ", #8]\n"                                                   \
  "vstr s19, [" to ", #12]\n"                                                  \
  "vstr s20, [" to ", #16]\n"                                                  \
  "vstr s21, [" to ", #20]\n"                                                  \
  "vstr s22, [" to ", #24]\n"                                                  \
  "vstr s23, [" to ", #28]\n"
#define OUTER_UPDATE                                                           \
  "vmul.f32 s24, s8, s0\n"                                                     \
  "vmul.f32 s25, s8, s1\n"                                                     \
  "vmul.f32 s26, s8, s2\n"                                                     \
  "vmul.f32 s27, s8, s3\n"                                                     \
  "vmul.f32 s28, s8, s4\n"                                                     \
  "vmul.f32 s29, s8, s5\n"                                                     \
  "vmul.f32 s30, s8, s6\n"                                                     \
  "vmul.f32 s31, s8, s7\n"                                                     \
  "vadd.f32 s24, s24, s10\n"                                                   \
  "vadd.f32 s25, s25, s10\n"                                                   \
  "vadd.f32 s26, s26, s10\n"                                                   \
  "vadd.f32 s27, s27, s10\n"                                                   \
  "vadd.f32 s28, s28, s10\n"                                                   \
  "vadd.f32 s29, s29, s10\n"                                                   \
  "vadd.f32 s30, s30, s10\n"                                                   \
  "vadd.f32 s31, s31, s10\n"                                                   \
  "vmul.f32 s24, s9, s24\n"                                                    \
  "vmul.f32 s25, s9, s25\n"                                                    \
  "vmul.f32 s26, s9, s26\n"                                                    \
  "vmul.f32 s27, s9, s27\n"                                                    \
  "vmul.f32 s28, s9, s28\n"                                                    \
  "vmul.f32 s29, s9, s29\n"                                                    \
  "vmul.f32 s30, s9, s30\n"                                                    \
  "vmul.f32 s31, s9, s31\n"                                                    \
  "vsub.f32 s16, s16, s24\n"                                                   \
  "vsub.f32 s17, s17, s25\n"                                                   \
  "vsub.f32 s18, s18, s26\n"                                                   \
  "vsub.f32 s19, s19, s27\n"                                                   \
  "vsub.f32 s20, s20, s28\n"                                                   \
  "vsub.f32 s21, s21, s29\n"                                                   \
  "vsub.f32 s22, s22, s30\n"                                                   \
  "vsub.f32 s23, s23, s31\n"

__attribute__((naked, noinline)) void
poet_outer(const struct poet_outer *outer __attribute__((unused))) {
  __asm volatile(
    ".syntax unified\n"
    "push {r4-r9, lr}\n"
    "vpush {s16-s31}\n"
    "vldr s9, [r0, #24]\n"
    "ldm r0, {r5-r9, r12}\n"
    "mov r3, r8\n"
    "mov r8, r9\n"
    "mov r9, r12\n"
    "movs r2, #0\n"
    "vmov s10, r2\n"
    "1: mov r0, r5\n"
    "mov r1, r7\n"
    "mov r2, r8\n"
    "vldmia r6!, {s0-s7}\n"
    "vldr s8, [r1]\n"
    OUTER_LOAD("r0")
    "2: add r4, r0, r3\n"
    OUTER_UPDATE
    OUTER_STORE("r0")
    "vldr s8, [r1, #4]\n"
    OUTER_LOAD("r4")
    "add r0, r4, r3\n"
    "add r1, #8\n"
    OUTER_UPDATE
    OUTER_STORE("r4")
    "subs r2, #1\n"
    "beq 3f\n"
    "vldr s8, [r1]\n"
    OUTER_LOAD("r0")
    "b 2b\n"
    "3: add r5, #32\n"
    "subs r9, #1\n"
    "bne 1b\n"
    "vpop {s16-s31}\n"
    "pop {r4-r9, pc}\n");
}

#endif
