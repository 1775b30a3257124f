/*
 * lanes_m4f.c - which functions compute the lanes of a tile on a Cortex-M4F,
 * and those for one lane, where tiles of 4 by 4 would do little work. The rules
 * of tile_m4f.c for loads, results and fused operations hold. Each function in
 * assembly equals the C code in lanes_m4f.h, bit for bit.
 *
 * Cycles: poet_eight 32 for 8 products if the terms of b are adjacent, else 39,
 * and 20 for a row; poet_dot 26 for 4 products if the terms of a are adjacent,
 * else 11 for one, and 15 for a row. A call takes 40 to 80 in addition.
 */
#include "lanes_m4f.h"

#include "tile_m4f.h"

#if POET_M4F

#include <stddef.h>

/* Offsets that the assembly uses. */
_Static_assert(offsetof(struct poet_eight, a) == 32, "a");
_Static_assert(offsetof(struct poet_eight, terms) == 36, "terms");
_Static_assert(offsetof(struct poet_eight, sums) == 40, "sums");
_Static_assert(offsetof(struct poet_terms, a_row) == 0, "a_row");
_Static_assert(offsetof(struct poet_terms, b_row) == 4, "b_row");
_Static_assert(offsetof(struct poet_terms, a_step) == 12, "a_step");
_Static_assert(offsetof(struct poet_terms, b_step) == 16, "b_step");
_Static_assert(offsetof(struct poet_terms, rows) == 20, "rows");
_Static_assert(offsetof(struct poet_terms, planes) == 24, "planes");
_Static_assert(offsetof(struct poet_terms, a_plane) == 28, "a_plane");
_Static_assert(offsetof(struct poet_terms, b_plane) == 32, "b_plane");
_Static_assert(offsetof(struct poet_terms, columns) == 36, "columns");

// clang-format off

/* poet_eight. r0 to r7: next terms of the lanes of b; r8: next term of a; r9,
 * r10: rows left in the plane, terms left in the row; r11, r12: steps of b and
 * a; lr: struct poet_terms. s0: factor of a; s1 to s8: factors of b; s9 to s12:
 * products; s16 to s23: sums. The stack holds the address of the argument and,
 * 4 bytes further, the planes left. */
#define EIGHT_LOAD(at)                                                         \
  "vldr s1, [r0, #" #at "]\n"                                                  \
  "vldr s2, [r1, #" #at "]\n"                                                  \
  "vldr s3, [r2, #" #at "]\n"                                                  \
  "vldr s4, [r3, #" #at "]\n"                                                  \
  "vldr s5, [r4, #" #at "]\n"                                                  \
  "vldr s6, [r5, #" #at "]\n"                                                  \
  "vldr s7, [r6, #" #at "]\n"                                                  \
  "vldr s8, [r7, #" #at "]\n"
#define EIGHT_PRODUCTS                                                         \
  "vmul.f32 s9, s0, s1\n"                                                      \
  "vmul.f32 s10, s0, s2\n"                                                     \
  "vmul.f32 s11, s0, s3\n"                                                     \
  "vmul.f32 s12, s0, s4\n"                                                     \
  "vadd.f32 s16, s16, s9\n"                                                    \
  "vadd.f32 s17, s17, s10\n"                                                   \
  "vadd.f32 s18, s18, s11\n"                                                   \
  "vadd.f32 s19, s19, s12\n"                                                   \
  "vmul.f32 s9, s0, s5\n"                                                      \
  "vmul.f32 s10, s0, s6\n"                                                     \
  "vmul.f32 s11, s0, s7\n"                                                     \
  "vmul.f32 s12, s0, s8\n"                                                     \
  "vadd.f32 s20, s20, s9\n"                                                    \
  "vadd.f32 s21, s21, s10\n"                                                   \
  "vadd.f32 s22, s22, s11\n"                                                   \
  "vadd.f32 s23, s23, s12\n"
#define EIGHT_MOVE(by)                                                         \
  "add r0, " by "\n"                                                           \
  "add r1, " by "\n"                                                           \
  "add r2, " by "\n"                                                           \
  "add r3, " by "\n"                                                           \
  "add r4, " by "\n"                                                           \
  "add r5, " by "\n"                                                           \
  "add r6, " by "\n"                                                           \
  "add r7, " by "\n"

__attribute__((naked, noinline)) void
poet_eight(struct poet_eight *eight __attribute__((unused))) {
  __asm volatile(
    ".syntax unified\n"
    "push {r0, r1, r4-r11, lr}\n"
    "vpush {s16-s23}\n"
    "ldrd r8, lr, [r0, #32]\n"
    "add r10, r0, #40\n"
    "vldm r10, {s16-s23}\n"
    "ldr r10, [lr, #24]\n"
    "str r10, [sp, #36]\n"
    "ldrd r12, r11, [lr, #12]\n"
    "ldm r0, {r0-r7}\n"
    "10: ldr r9, [lr, #20]\n"
    "11: ldr r10, [lr, #36]\n"
    "cmp r11, #4\n"
    "bne 3f\n"
    "subs r10, #2\n"
    "blo 2f\n"
    "1: vldr s0, [r8]\n"
    EIGHT_LOAD(0)
    "add r8, r12\n"
    EIGHT_PRODUCTS
    "vldr s0, [r8]\n"
    EIGHT_LOAD(4)
    "add r8, r12\n"
    EIGHT_PRODUCTS
    EIGHT_MOVE("#8")
    "subs r10, #2\n"
    "bhs 1b\n"
    "2: adds r10, #2\n"
    "beq 13f\n"
    "3: vldr s0, [r8]\n"
    EIGHT_LOAD(0)
    "add r8, r12\n"
    EIGHT_MOVE("r11")
    EIGHT_PRODUCTS
    "subs r10, #1\n"
    "bne 3b\n"
    "13: subs r9, #1\n"
    "beq 14f\n"
    "ldr r10, [lr, #0]\n"
    "add r8, r10\n"
    "ldr r10, [lr, #4]\n"
    EIGHT_MOVE("r10")
    "b 11b\n"
    "14: ldr r10, [sp, #36]\n"
    "subs r10, #1\n"
    "beq 15f\n"
    "str r10, [sp, #36]\n"
    "ldrd r9, r10, [lr, #28]\n"
    "add r8, r9\n"
    EIGHT_MOVE("r10")
    "b 10b\n"
    "15: ldr r0, [sp, #32]\n"
    "add r0, #40\n"
    "vstm r0, {s16-s23}\n"
    "vpop {s16-s23}\n"
    "pop {r0, r1, r4-r11, pc}\n");
}

/* poet_dot. r0: struct poet_terms; r1, r2: next terms of a and b; r3: planes
 * left; r4, r5: steps of a and b; r6, r7: rows left in the plane, terms left in
 * the row; r8 to r10: addresses of the terms of b after the next; r11, r12:
 * steps to the next row; lr: terms of a row. s0: sum; s1 to s4: factors of a,
 * and products; s5 to s8: factors of b. */
__attribute__((naked, noinline)) float
poet_dot(const struct poet_terms *terms __attribute__((unused)),
         const float *a __attribute__((unused)),
         const float *b __attribute__((unused)),
         float sum __attribute__((unused))) {
  __asm volatile(
    ".syntax unified\n"
    "push {r4-r11, lr}\n"
    "ldr r3, [r0, #24]\n"
    "ldrd r4, r5, [r0, #12]\n"
    "ldrd r11, r12, [r0, #0]\n"
    "ldr lr, [r0, #36]\n"
    "10: ldr r6, [r0, #20]\n"
    "11: mov r7, lr\n"
    "cmp r4, #4\n"
    "bne 3f\n"
    "subs r7, #4\n"
    "blo 2f\n"
    "1: add r8, r2, r5\n"
    "add r9, r8, r5\n"
    "add r10, r9, r5\n"
    "vldr s5, [r2]\n"
    "vldr s6, [r8]\n"
    "vldr s7, [r9]\n"
    "vldr s8, [r10]\n"
    "vldmia r1!, {s1-s4}\n"
    "add r2, r10, r5\n"
    "vmul.f32 s1, s1, s5\n"
    "vmul.f32 s2, s2, s6\n"
    "vadd.f32 s0, s0, s1\n"
    "vmul.f32 s3, s3, s7\n"
    "vadd.f32 s0, s0, s2\n"
    "vmul.f32 s4, s4, s8\n"
    "vadd.f32 s0, s0, s3\n"
    "subs r7, #4\n"
    "vadd.f32 s0, s0, s4\n"
    "bhs 1b\n"
    "2: adds r7, #4\n"
    "beq 13f\n"
    "3: vldr s1, [r1]\n"
    "vldr s5, [r2]\n"
    "add r1, r4\n"
    "vmul.f32 s1, s1, s5\n"
    "add r2, r5\n"
    "subs r7, #1\n"
    "vadd.f32 s0, s0, s1\n"
    "bne 3b\n"
    "13: subs r6, #1\n"
    "beq 14f\n"
    "add r1, r11\n"
    "add r2, r12\n"
    "b 11b\n"
    "14: subs r3, #1\n"
    "beq 15f\n"
    "ldrd r7, r8, [r0, #28]\n"
    "add r1, r7\n"
    "add r2, r8\n"
    "b 10b\n"
    "15: pop {r4-r11, pc}\n");
}

// clang-format on

/* Lanes that do not exist are copies of the last one. */
static void set_lanes(const float **at, const float *first, int32_t lane,
                      uint32_t lanes) {
  at[0] = first;
  at[1] = lanes > 1 ? at[0] + lane : at[0];
  at[2] = lanes > 2 ? at[1] + lane : at[1];
  at[3] = lanes > 3 ? at[2] + lane : at[2];
}

static void run(struct poet_block *block, bool a_adjacent, bool b_adjacent) {
  const struct poet_terms *t = block->terms;
  if (POET_SMALL) {
    poet_block_gg(block);
  } else if (t->a_step == 4) {
    if (b_adjacent && t->columns == 3 && t->b_step == 4) {
      poet_block_up(block);
    } else if (b_adjacent && t->columns == 3 && t->b_step == -4) {
      poet_block_un(block);
    } else if (t->b_step == 4) {
      poet_block_uu(block);
    } else if (b_adjacent) {
      poet_block_ub(block);
    } else {
      poet_block_ug(block);
    }
  } else if (a_adjacent && t->b_step == 4) {
    poet_block_bu(block);
  } else if (a_adjacent && b_adjacent) {
    poet_block_bb(block);
  } else {
    poet_block_gg(block);
  }
}

void poet_blocks(const struct poet_tile *tile, const float *a, uint32_t a_lanes,
                 const float *b, uint32_t b_lanes, float *sums, uint32_t row) {
  struct poet_block block;
  block.terms = &tile->terms;
  block.sums = sums;
  block.row = 4 * row;
  block.count = 1;
  if (b_lanes > POET_TILE) {
    block.count = b_lanes / POET_TILE;
    block.a_next = 0;
    block.b_next = 4 * (int32_t)POET_TILE * tile->b.lane;
    block.next = 4 * POET_TILE;
  } else if (a_lanes > POET_TILE) {
    block.count = a_lanes / POET_TILE;
    block.a_next = 4 * (int32_t)POET_TILE * tile->a.lane;
    block.b_next = 0;
    block.next = 4 * POET_TILE * row;
  }
  set_lanes(block.a, a, tile->a.lane, a_lanes);
  set_lanes(block.b, b, tile->b.lane, b_lanes);
  run(&block, tile->a.lane == 1 && a_lanes >= POET_TILE,
      tile->b.lane == 1 && b_lanes >= POET_TILE);
}

void poet_blocks_apart(const struct poet_tile *tile, uint32_t a_lanes,
                       const float *const b[POET_TILE], float *sums,
                       uint32_t row) {
  for (uint32_t done = 0; done < a_lanes;) {
    const uint32_t left = a_lanes - done;
    const uint32_t lanes = left < POET_TILE ? left : poet_full_lanes(left);
    struct poet_block block;
    block.b[0] = b[0], block.b[1] = b[1], block.b[2] = b[2], block.b[3] = b[3];
    block.terms = &tile->terms;
    block.sums = sums + done * row;
    block.row = 4 * row;
    block.a_next = 4 * (int32_t)POET_TILE * tile->a.lane;
    block.b_next = 0;
    block.next = 4 * POET_TILE * row;
    block.count = (lanes + POET_TILE - 1) / POET_TILE;
    set_lanes(block.a, tile->a.at + (int32_t)done * tile->a.lane, tile->a.lane,
              lanes);
    run(&block, tile->a.lane == 1 && lanes >= POET_TILE, false);
    done += lanes;
  }
}

/* Compute one lane at x by `lanes` lanes from y on, whose sums lie `next`
 * apart.
 */
static void by_one(const struct poet_terms *terms, const float *x,
                   const float *y, int32_t lane, uint32_t lanes, float *sums,
                   uint32_t next) {
  struct poet_eight e = {.a = x, .terms = terms};
  for (; lanes;) {
    const uint32_t count = lanes < POET_EIGHT ? lanes : POET_EIGHT;
    for (uint32_t j = 0; j < POET_EIGHT; j++) {
      e.b[j] = y; /* lanes that do not exist are copies of the last one */
      y += j + 1 < count ? lane : 0;
      e.sums[j] = terms->begun && j < count ? sums[j * next] : 0.0f;
    }
    poet_eight(&e);
    for (uint32_t j = 0; j < count; j++) {
      *sums = e.sums[j];
      sums += next;
    }
    y += lane;
    lanes -= count;
  }
}

/* Exchange the operands. */
static struct poet_terms exchanged(const struct poet_terms *t) {
  struct poet_terms to = *t;
  to.a_row = t->b_row, to.b_row = t->a_row;
  to.a_step = t->b_step, to.b_step = t->a_step;
  to.a_plane = t->b_plane, to.b_plane = t->a_plane;
  return to;
}

void poet_narrow(const struct poet_tile *tile, const float *a, uint32_t a_lanes,
                 const float *b, uint32_t b_lanes, float *sums, uint32_t row) {
  const struct poet_terms *t = &tile->terms;
  const int32_t a_lane = tile->a.lane, b_lane = tile->b.lane;
  const uint32_t lanes = a_lanes > b_lanes ? a_lanes : b_lanes;
  if (lanes <= (t->columns < 4 ? 2 : 5)) { /* so many calls of poet_dot pay */
    for (uint32_t i = 0; i < a_lanes; i++) {
      for (uint32_t j = 0; j < b_lanes; j++) {
        float *sum = sums + i * row + j;
        *sum = poet_dot(t, a + (int32_t)i * a_lane, b + (int32_t)j * b_lane,
                        t->begun ? *sum : 0.0f);
      }
    }
  } else if (a_lanes > b_lanes) {
    const struct poet_terms terms = exchanged(t);
    for (uint32_t j = 0; j < b_lanes; j++) {
      by_one(&terms, b + (int32_t)j * b_lane, a, a_lane, a_lanes, sums + j,
             row);
    }
  } else {
    for (uint32_t i = 0; i < a_lanes; i++) {
      by_one(t, a + (int32_t)i * a_lane, b, b_lane, b_lanes, sums + i * row, 1);
    }
  }
}

#endif
