/* Float operations, exp and sums of products, on operands from a generator.
   Prints a hash of the results' bits for each batch. The same program, compiled
   for the host, is the oracle: its floats are those of the processor.

   PART: 0 operations, 1 sums, 2 sums with a special number at each position,
   3 polynomials, 4 comparisons, conversions and roots.
   BATCHES: number of batches. SEED: start of the generator. */
#include <math.h>

#include "m0plus/dot_m0plus.h"
#include "mathf.h"
#include "numbers.h"
#include "tile.h"

enum { POOL = 420, OPERATIONS = 512, TILES = 8, DOT = 36, TERMS = 10 };

static float pool[2][POOL];

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
    /* next to ln 2 / 2, where exp reduces its argument in another way */
    const uint32_t border = (draw(2) << 31 | 0x3eb17218u) + draw(7) - 3;
    add_to_hash(poet_exp(draw(4) ? a : from_bits(border)));
  }
}

#if POET_M0PLUS
/* The same as `lost` below for poet_horner. */
__attribute__((naked)) static uint32_t lost_by_horner(float x, const float *c,
                                                      uint32_t count) {
  KEEPS_REGISTERS("poet_horner");
}
#else
static float poet_horner(float x, const float *c, uint32_t count) {
  float p = c[0];
  for (uint32_t i = 1; i < count; i++)
    p = p * x + c[i];
  return p;
}
#endif

/* Any mantissa, one of few bits, or one next to a power of two. */
static uint32_t mantissa_of(uint32_t kind) {
  const uint32_t mantissa = draw(0) >> 9, some = draw(0);
  return kind == 0   ? mantissa
         : kind == 1 ? short_of(mantissa, some)
         : some & 16 ? mantissa & 3
                     : mantissa | 0x7ffffc;
}

/* Polynomials of sizes that poet_horner allows. Some sums are almost 0. */
static void polynomials(void) {
  float c[TERMS];
  for (uint32_t left = 40; left; left--) {
    const uint32_t x_kind = draw(3), kind = draw(3), tiny = draw(8);
    const uint32_t count = 1 + draw(TERMS), low = draw(2) ? 113 : 126;
    const uint32_t x_mantissa = mantissa_of(x_kind);
    const float x = from_bits(normal(tiny ? 105 : 0, 129, x_mantissa));
    for (uint32_t i = 0; i < count; i++) {
      const uint32_t mantissa = mantissa_of(kind);
      c[i] = from_bits(normal(low, 128, mantissa));
      if (i && draw(4) == 0) {
        const uint32_t minus = to_bits(poet_horner(x, c, i) * x) ^ 1u << 31;
        const uint32_t field = minus << 1 >> 24;
        if (field >= 113 && field < 127)
          c[i] = from_bits(minus + draw(5) - 2);
      }
    }
    add_to_hash(poet_horner(x, c, count));
#if POET_M0PLUS
    if (lost_by_horner(x, c, count))
      print("poet_horner depends on registers");
#endif
  }
}

#if POET_M0PLUS
/* Calls poet_dots with other values in the registers that it must keep. Returns
   0 if it has kept them. */
__attribute__((naked)) static uint32_t lost(const struct poet_tile *t,
                                            const float *a, float *sums,
                                            uint32_t lanes, uint32_t step) {
  KEEPS_REGISTERS("poet_dots");
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
  if (t->tame && !t->begun &&
      (lost(t, t->a.at, again, b_lanes, 4) != 0 ||
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

static void compare(float a, float b) {
  add_bits_to_hash((uint32_t)(a < b) | (uint32_t)(a <= b) << 1 |
                   (uint32_t)(a > b) << 2 | (uint32_t)(a >= b) << 3 |
                   (uint32_t)(a == b) << 4 | (uint32_t)isunordered(a, b) << 5);
}

static void comparisons(void) {
  const uint32_t kind = draw(KINDS);
  for (uint32_t i = 0; i < OPERATIONS; i++) {
    const float a = number(kind), other = number(draw(2) ? kind : 10);
    const float near = from_bits(to_bits(a) + draw(5) - 2);
    const float b = draw(2) ? near : other;
    compare(a, b);
    compare(b, a);
    compare(a, -a);
    const float square = a * a; /* whose root is a, or next to it */
    add_to_hash(sqrtf(a));
    add_to_hash(sqrtf(from_bits(to_bits(square) + draw(5) - 2)));
    const uint32_t some = draw(0), shift = draw(32), rest = draw(3);
    const uint32_t integer =
        (draw(2) ? some : short_of(some, draw(0))) >> shift;
    add_to_hash((float)(integer + rest - 1));
    add_to_hash((float)(int32_t)(integer + rest - 1));
    add_to_hash((float)(int32_t)(1 - rest - integer));
  }
  for (uint32_t i = 0; i < SPECIALS; i++) {
    const float a = from_bits(specials[i]);
    add_to_hash(sqrtf(a));
    for (uint32_t j = 0; j < SPECIALS; j++) {
      const float b = from_bits(specials[j]), x = number(kind);
      compare(a, b);
      compare(a, x);
      compare(x, b);
    }
  }
}

int main(void) {
  for (uint32_t i = 0; i < BATCHES; i++) {
    PART == 0   ? operations()
    : PART == 1 ? sums()
    : PART == 2 ? special_sums()
    : PART == 3 ? polynomials()
                : comparisons();
    print_hex(hash);
  }
  return 0;
}
