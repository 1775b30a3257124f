/* Float operations and sums of products, on operands from a generator. Prints a
   hash of the results' bits for each batch. The same program, compiled for the
   host, is the oracle: its floats are those of the processor.

   PART: 0 operations, 1 sums, 2 sums with a special number at each position.
   BATCHES: number of batches. SEED: start of the generator. */
#include "dot_m0plus.h"
#include "tile.h"

#include <string.h>

#ifdef __arm__
#include "test.h"
#else
#include <stdio.h>

static void print_hex(uint32_t value) {
  printf("%08x\n", (unsigned)value);
}
#endif

enum { POOL = 420, OPERATIONS = 512, TILES = 8, DOT = 36 };

static float pool[2][POOL];
static uint32_t state = SEED, hash;

static uint32_t draw(uint32_t end) {
  state ^= state << 13;
  state ^= state >> 17;
  state ^= state << 5;
  return end ? (state >> 4) % end : state;
}

static float from_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static uint32_t to_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

/* The bits of a NaN are not defined. */
static void add_to_hash(float x) {
  const uint32_t bits = to_bits(x);
  hash = (hash ^ (bits << 1 > 0xff000000u ? 0x7fc00000u : bits)) * 16777619u;
  hash ^= hash >> 15;
}

static const uint32_t specials[] = {
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x807fffff,
    0x00800000, 0x80800000, 0x00ffffff, 0x7f7fffff, 0xff7fffff, 0x7f800000,
    0xff800000, 0x7fc00000, 0x7f800001, 0x3f800000, 0xbf800000, 0x34000000};
enum { SPECIALS = sizeof specials / sizeof *specials };

/* C does not define the order of two calls of draw in one expression. */
static uint32_t normal(uint32_t low, uint32_t end, uint32_t mantissa) {
  const uint32_t sign = draw(2) << 31;
  return sign | (low + draw(end - low)) << 23 | mantissa;
}

/* A mantissa of few bits, from the highest on; then perhaps the lowest. */
static uint32_t short_of(uint32_t mantissa, uint32_t some) {
  const uint32_t lost = 10 + some % 13;
  return (mantissa >> lost << lost) | (some >> 8 & some >> 9 & 1);
}

/* Kinds 0 to 8 are tame (poet_tame) with each other. */
enum { TAME = 9, KINDS = 13 };

static float number(uint32_t kind) {
  const uint32_t mantissa = draw(0) & 0x7fffff;
  const uint32_t some = draw(0);
  switch (kind) {
  case 0: /* as normally distributed */
    return from_bits(normal(127 - some % 10, 128, mantissa));
  case 1: /* cancellation */
    return from_bits(normal(125, 129, mantissa));
  case 2: /* ties */
    return from_bits(normal(115, 140, short_of(mantissa, some)));
  case 3: /* wide */
    return from_bits(normal(65, 177, mantissa));
  case 4: /* next to powers of two */
    return from_bits(
        normal(110, 140, some & 16 ? mantissa & 3 : mantissa | 0x7ffffc));
  case 5: /* half of them zero */
    return from_bits(some & 16 ? some << 31 : normal(120, 129, mantissa));
  case 6:
    return from_bits(normal(118, 136, 0));
  case 7:
    return (float)((int32_t)(some % 33) - 16);
  case 8: /* differences are subnormal */
    return from_bits(normal(65, 68, mantissa));
  case 9:
    return from_bits(some);
  case 10:
    return from_bits(specials[some % SPECIALS]);
  case 11: /* subnormal numbers and products */
    return from_bits(normal(0, 70, mantissa));
  default: /* overflow */
    return from_bits(normal(180, 255, some & 16 ? mantissa : mantissa >> 12));
  }
}

static void operations(void) {
  const uint32_t a_kind = draw(KINDS);
  const uint32_t b_kind = draw(KINDS);
  const uint32_t near = draw(4); /* 0: b is almost -a */
  for (uint32_t i = 0; i < OPERATIONS; i++) {
    const float a = number(a_kind), other = number(b_kind);
    const uint32_t next = (to_bits(a) ^ 0x80000000u) + draw(7) - 3;
    const float b = near ? other : from_bits(next);
    add_to_hash(a + b);
    add_to_hash(a - b);
    add_to_hash(a * b);
    add_to_hash(a / b);
  }
}

#if POET_M0PLUS
/* Calls poet_dots with other values in the registers that it must keep. Returns
   0 if it has kept them. */
__attribute__((naked)) static uint32_t
lost(const struct poet_tile *t, const float *a, float *sums, uint32_t lanes) {
  __asm volatile("push {r4-r7, lr}\n"
                 "mov r4, r8\n mov r5, r9\n mov r6, r10\n mov r7, r11\n"
                 "push {r4-r7}\n"
                 "movs r4, #0x51\n mov r8, r4\n movs r5, #0x52\n mov r9, r5\n"
                 "movs r5, #0x62\n"
                 "movs r6, #0x53\n mov r10, r6\n movs r7, #0x54\n mov r11, r7\n"
                 "movs r6, #0x63\n movs r7, #0x64\n"
                 "ldr r4, =poet_dots\n"
                 "blx r4\n"
                 "movs r0, #0\n"
                 "mov r1, r8\n sub r1, #0x51\n orr r0, r1\n"
                 "mov r1, r9\n sub r1, #0x52\n orr r0, r1\n"
                 "mov r1, r10\n sub r1, #0x53\n orr r0, r1\n"
                 "mov r1, r11\n sub r1, #0x54\n orr r0, r1\n"
                 "sub r5, #0x62\n orr r0, r5\n"
                 "sub r6, #0x63\n orr r0, r6\n"
                 "sub r7, #0x64\n orr r0, r7\n"
                 "pop {r4-r7}\n"
                 "mov r8, r4\n mov r9, r5\n mov r10, r6\n mov r11, r7\n"
                 "pop {r4-r7, pc}\n"
                 ".ltorg\n");
}
#endif

static void sum(struct poet_tile *t, uint32_t count, uint32_t a_lanes,
                uint32_t b_lanes) {
  float sums[POET_TILE][POET_TILE];
  const uint32_t kind = draw(2) ? 0 : draw(KINDS);
  t->begun = draw(3) == 0;
  for (uint32_t i = 0; i < POET_TILE; i++)
    for (uint32_t j = 0; j < POET_TILE; j++)
      sums[i][j] = draw(8) ? number(kind) + 0.0f : 0.0f; /* never -0 */
  t->tame = poet_tame(pool[0], count, pool[1], count);
  poet_tile_shape(t);
  poet_tile(t, a_lanes, b_lanes, sums[0], POET_TILE);
  for (uint32_t i = 0; i < a_lanes; i++)
    for (uint32_t j = 0; j < b_lanes; j++)
      add_to_hash(sums[i][j]);
#if POET_M0PLUS
  float again[POET_TILE];
  if (t->tame && !t->begun && (lost(t, t->a.at, again, b_lanes) != 0 ||
                  memcmp(again, sums[0], b_lanes * sizeof *again)))
    print("poet_dots depends on registers");
#endif
}

/* Steps are `least` or more. */
static struct poet_walk walk(const float *from, int32_t least) {
  struct poet_walk w = {.at = from + draw(8)};
  w.lane = (int32_t)draw(40);
  w.column = least + (int32_t)draw(3);
  w.row = least + (int32_t)draw(12);
  w.plane = least + (int32_t)draw(40);
  return w;
}

static void sums(void) {
  /* 0: products cancel almost; 1: one is 2^20 to 2^25 times the other */
  const uint32_t near = draw(4);
  const uint32_t small = near == 0 && draw(2);
  const uint32_t a_kind = near == 1 ? 6 + draw(2) : small ? 8 : draw(TAME);
  const uint32_t b_kind = near == 1 ? 6 + draw(2) : small ? 8 : draw(TAME);
  for (uint32_t i = 0; i < POOL; i++) {
    pool[0][i] = number(a_kind);
    pool[1][i] = number(b_kind);
  }
  for (uint32_t i = 1; near < 2 && i < POOL; i += 2) {
    const uint32_t b = to_bits(pool[1][i - 1]);
    pool[0][i] = pool[0][i - 1];
    if (near == 1) {
      pool[0][i] *= (float)(1u << (20 + draw(6)));
      pool[1][i] = pool[1][i - 1];
      continue;
    }
    pool[1][i] = from_bits(b << 1 ? (b ^ 0x80000000u) + draw(5) - 2 : b);
  }
  /* Sums that are 0 follow others: lanes of zeros, products that cancel. */
  const uint32_t zeros = draw(4) ? 0 : 200;
  for (uint32_t i = 0; i < zeros; i++)
    pool[1][POOL - 1 - i] = from_bits((i & 1) << 31);
  for (uint32_t i = 0; i < TILES; i++) {
    struct poet_tile t = {.a = walk(pool[0], 1), .b = walk(pool[1] + 50, -1)};
    const uint32_t most = draw(2) ? 4 : 20;
    t.columns = 1 + draw(most);
    t.rows = 1 + draw(4);
    t.planes = 1 + draw(4);
    if (near < 2 && i < 2) {
      t.a.at = pool[0], t.b.at = pool[1] + 50;
      t.a.column = t.b.column = 1, t.a.lane = t.b.lane = 2;
      t.columns = 2, t.rows = t.planes = 1;
    }
    if (zeros && i == 2) {
      t.b = (struct poet_walk){pool[1] + POOL - 1, 0, 0, 0, 0};
      t.a.column = t.a.row = t.a.plane = 1;
      t.columns = t.rows = 2, t.planes = 300;
    }
    const uint32_t a_lanes = 1 + draw(4);
    sum(&t, POOL, a_lanes, 1 + draw(4));
  }
}

static void special_sums(void) {
  struct poet_tile t = {.a = {pool[0], 0, 1, 3, 9},
                        .b = {pool[1], 0, 1, 3, 9},
                        .columns = 3,
                        .rows = 3,
                        .planes = DOT / 9};
  for (uint32_t at = 0; at < 2 * DOT; at++) {
    for (uint32_t i = 0; i < 2 * DOT; i++)
      pool[i / DOT][i % DOT] = number(0);
    const float special = from_bits(specials[draw(SPECIALS)]);
    pool[at / DOT][at % DOT] = special;
    sum(&t, DOT, 1, 1);
  }
}

int main(void) {
  for (uint32_t i = 0; i < BATCHES; i++) {
    PART == 0 ? operations() : PART == 1 ? sums() : special_sums();
    print_hex(hash);
  }
  return 0;
}
