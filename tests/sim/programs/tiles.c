/* Sums of products of the Cortex-M4F, on operands from a generator. Prints
   hashes of the results' bits. The same program, compiled for the host, is the
   oracle: there each function is its definition in C.

   PART: 0 tiles, 1 other functions, 2 all functions with a special number at
   each position. BATCHES: number of batches. SEED: start of the generator. */
#include "m4f/axpy_m4f.h"
#include "m4f/lanes_m4f.h"
#include "numbers.h"
#include "m4f/strip_m4f.h"
#include "m4f/tile_m4f.h"

enum { POOL = 640, NEAR = 160, BLOCKS = 9 };

static float pool[3][POOL];
static float *const results = pool[2];

/* Every `rare`-th number is a special one, if `rare` is not 0; every fourth is
   a zero of either sign; the others lie between 2^-20 and 4. */
static float value(uint32_t rare) {
  const uint32_t mantissa = draw(0) & 0x7fffff, some = draw(0);
  if (rare && draw(rare) == 0)
    return from_bits(specials[some % SPECIALS]);
  if (some >> 8 & some >> 9 & 1)
    return from_bits(some << 31);
  return from_bits(some << 31 | (107 + (some >> 1) % 22) << 23 | mantissa);
}

static void fill(uint32_t rare) {
  const uint32_t zeros = draw(8) == 0; /* one operand */
  for (uint32_t i = 0; i < POOL; i++) {
    pool[0][i] = value(rare);
    pool[1][i] = zeros ? 0.0f : value(rare);
    results[i] = 1.0f;
  }
}

static void add_results(void) {
  for (uint32_t i = 0; i < POOL; i++)
    add_to_hash(results[i]);
}

#if POET_M4F
/* Call a function with values in all registers. Return 0 if it has kept those
   that it must keep. */
__attribute__((naked)) static uint32_t lost(void (*function)(void *)
                                                __attribute__((unused)),
                                            void *argument
                                            __attribute__((unused))) {
#define EACH_CORE(DO) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)
#define EACH_FLOAT(DO)                                                         \
  DO(16)                                                                       \
  DO(17)                                                                       \
  DO(18)                                                                       \
  DO(19)                                                                       \
  DO(20)                                                                       \
  DO(21) DO(22) DO(23) DO(24) DO(25) DO(26) DO(27) DO(28) DO(29) DO(30) DO(31)
#define EACH_OTHER(DO)                                                         \
  DO(0)                                                                        \
  DO(1)                                                                        \
  DO(2)                                                                        \
  DO(3)                                                                        \
  DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11) DO(12) DO(13) DO(14) DO(15)
#define SET_CORE(i) "mov r" #i ", #0x44444444\n add r" #i ", #" #i "\n"
#define SET_FLOAT(i) "add r1, #1\n vmov s" #i ", r1\n"
#define LOOK_CORE(i)                                                           \
  "mov r1, #0x44444444\n add r1, #" #i "\n eor r1, r" #i "\n orr r0, r1\n"
#define LOOK_FLOAT(i)                                                          \
  "add r2, #1\n vmov r3, s" #i "\n eor r3, r2\n orr r0, r3\n"
  __asm volatile(
      "push {r3-r11, lr}\n"
      "vpush {s16-s31}\n"
      "mov r12, r0\n"
      "mov r0, r1\n"
      "mov r1, #0x45454545\n" EACH_OTHER(SET_FLOAT) EACH_FLOAT(SET_FLOAT)
          EACH_CORE(SET_CORE) "mov r1, #0x46464646\n mov r2, r1\n mov r3, r1\n"
                              "blx r12\n"
                              "movs r0, #0\n" EACH_CORE(
                                  LOOK_CORE) "mov r2, #0x45454545\n add r2, "
                                             "#16\n" EACH_FLOAT(
                                                 LOOK_FLOAT) "vpop "
                                                             "{s16-"
                                                             "s31}\n"
                                                             "pop "
                                                             "{r3-r11,"
                                                             " pc}\n");
}

#define CALL(function, argument)                                               \
  do {                                                                         \
    if (lost((void (*)(void *))(function), argument) != 0)                     \
      print("a register is lost");                                             \
  } while (0)
#endif

static float sum_of(const struct poet_tile *t, uint32_t i, uint32_t j,
                    float begun) {
  float sum = t->begun ? begun : 0.0f;
  const float *a = t->a.at + (int32_t)i * t->a.lane;
  const float *b = t->b.at + (int32_t)j * t->b.lane;
  for (int32_t plane = 0; plane < (int32_t)t->planes; plane++)
    for (int32_t row = 0; row < (int32_t)t->rows; row++)
      for (int32_t column = 0; column < (int32_t)t->columns; column++)
        sum += a[plane * t->a.plane + row * t->a.row + column * t->a.column] *
               b[plane * t->b.plane + row * t->b.row + column * t->b.column];
  return sum;
}

/* Steps that the function of a kind requires (tile_m4f.h). */
static struct poet_tile tile_of(uint32_t kind) {
  struct poet_tile t = {.columns = 2 + draw(draw(2) ? 4 : 12),
                        .rows = 1 + draw(3),
                        .planes = 1 + draw(3)};
  t.a = (struct poet_walk){pool[0] + 8 + draw(8), (int32_t)draw(8),
                           1 + (int32_t)draw(3), 1 + (int32_t)draw(12),
                           1 + (int32_t)draw(40)};
  t.b = (struct poet_walk){pool[1] + 60 + draw(8), (int32_t)draw(8),
                           (int32_t)draw(4) - 1, (int32_t)draw(13) - 1,
                           (int32_t)draw(41) - 1};
  if (kind <= 2 || kind >= 6)
    t.a.column = 1;
  if (kind == 0 || kind == 3 || kind == 6)
    t.b.column = 1;
  if (kind == 1 || kind == 4 || kind == 6 || kind == 7)
    t.b.lane = 1;
  if (kind == 3 || kind == 4)
    t.a.lane = 1;
  if (kind == 7)
    t.b.column = -1;
  if (kind == 8)
    t.b.column = 1;
  if (kind >= 6)
    t.columns = 3, t.rows += 1;
  return t;
}

/* A function in assembly, with tiles side by side in both operands. */
static void block(uint32_t kind, const struct poet_tile *t) {
  const uint32_t count = 1 + draw(3), row = 4 + draw(3);
  const int32_t a_next = (int32_t)draw(9) - 2, b_next = (int32_t)draw(9) - 2;
  const uint32_t next = 4 * row + draw(5);
#if POET_M4F
  static poet_block_fn *const functions[BLOCKS] = {
      poet_block_uu, poet_block_ub, poet_block_ug, poet_block_bu, poet_block_bb,
      poet_block_gg, poet_block_up, poet_block_un, poet_block_uu};
  struct poet_block b = {.terms = &t->terms,
                         .sums = results,
                         .row = 4 * row,
                         .a_next = 4 * a_next,
                         .b_next = 4 * b_next,
                         .next = 4 * next,
                         .count = count};
  for (int32_t i = 0; i < 4; i++) {
    b.a[i] = t->a.at + i * t->a.lane;
    b.b[i] = t->b.at + i * t->b.lane;
  }
  CALL(functions[kind], &b);
#else
  struct poet_tile of = *t;
  for (uint32_t n = 0; n < count; n++) {
    for (uint32_t i = 0; i < 16; i++) {
      float *at = results + n * next + i / 4 * row + i % 4;
      *at = sum_of(&of, i / 4, i % 4, *at);
    }
    of.a.at += a_next, of.b.at += b_next;
  }
#endif
  add_results();
}

/* Return if the tile suits the function. */
static uint32_t shape(uint32_t kind, struct poet_tile *t) {
  *t = tile_of(kind);
  t->begun = draw(3) == 0;
  /* Shaping must not merge rows into columns where three are required. */
  if (kind >= 6 && t->a.row == 3)
    t->a.row = 4;
  poet_tile_shape(t);
  return kind < 6 || t->terms.columns == 3;
}

static void tiles(void) {
  for (uint32_t kind = 0; kind < BLOCKS; kind++) {
    struct poet_tile t;
    if (shape(kind, &t))
      block(kind, &t);
    const uint32_t wide = draw(2);
    const uint32_t a_lanes = 1 + draw(wide ? 4 : 15);
    const uint32_t b_lanes = 1 + draw(wide ? 15 : 4);
    float sums[16 * 16];
    memcpy(sums, pool[0], sizeof sums);
    poet_tile(&t, a_lanes, b_lanes, sums, 16);
    for (uint32_t i = 0; i < a_lanes; i++)
      for (uint32_t j = 0; j < b_lanes; j++) {
        const float sum = sum_of(&t, i, j, pool[0][16 * i + j]);
        add_to_hash(sums[16 * i + j]);
        if (memcmp(&sum, &sums[16 * i + j], sizeof sum) && sum == sum)
          print("poet_tile is wrong");
      }
  }
}

/* One lane of a, and lanes of b that begin anywhere. */
static void eight(void) {
  struct poet_tile t = tile_of(draw(BLOCKS));
  struct poet_eight e = {.a = t.a.at, .terms = &t.terms};
  if (draw(4) == 0) /* one term */
    t.columns = t.rows = t.planes = 1, t.b.plane = 1;
  poet_tile_shape(&t);
  for (uint32_t j = 0; j < POET_EIGHT; j++) {
    e.b[j] = t.b.at + draw(8);
    e.sums[j] = results[j];
  }
#if POET_M4F
  CALL(poet_eight, &e);
#else
  for (uint32_t j = 0; j < POET_EIGHT; j++) {
    t.begun = true;
    t.b.at = e.b[j];
    e.sums[j] = sum_of(&t, 0, 0, e.sums[j]);
  }
#endif
  memcpy(results + 1, e.sums, sizeof e.sums);
  add_results();
}

/* As CALL passes one argument, the others are here. */
struct dot {
  const struct poet_terms *terms;
  const float *a, *b;
  float sum;
};

#if POET_M4F
static void dot_of(void *argument) {
  struct dot *d = argument;
  d->sum = poet_dot(d->terms, d->a, d->b, d->sum);
}
#endif

static void dot(void) {
  struct poet_tile t = tile_of(draw(BLOCKS));
  t.a.column = draw(2) ? 1 : t.a.column;
  poet_tile_shape(&t);
  struct dot d = {&t.terms, t.a.at, t.b.at, results[0]};
#if POET_M4F
  CALL(dot_of, &d);
#else
  t.begun = true;
  d.sum = sum_of(&t, 0, 0, d.sum);
#endif
  results[1] = d.sum;
  add_results();
}

static void axpy(void) {
  const uint32_t to_strided = draw(2);
  const struct poet_axpy x = {.from = pool[0] + 60 + draw(8),
                              .to = results + draw(8),
                              .count = 1 + draw(draw(2) ? 5 : 20),
                              .rows = 1 + draw(3),
                              .from_step = draw(2) ? 4 : 4 * (int32_t)draw(4),
                              .to_step =
                                  to_strided ? 4 * (2 + (int32_t)draw(4)) : 4,
                              .from_next = 4 * (int32_t)draw(9) - 8,
                              .to_next = 4 * (int32_t)draw(9) - 8,
                              .weight = pool[1][draw(4)]};
#if POET_M4F
  CALL(poet_axpy, (void *)&x);
#else
  const float *from = x.from;
  float *to = x.to;
  for (uint32_t row = 0; row < x.rows; row++) {
    for (uint32_t j = 0; j < x.count; j++) {
      *to = *to + x.weight * *from;
      from += x.from_step / 4, to += x.to_step / 4;
    }
    from += x.from_next / 4, to += x.to_next / 4;
  }
#endif
  add_results();
}

static void three(void) {
  struct poet_three t = {.x = pool[0] + draw(8),
                         .dy = pool[1] + draw(8),
                         .rows = 1 + draw(3),
                         .width = 2 + draw(15)};
  memcpy(t.sums, results + draw(4), sizeof t.sums);
#if POET_M4F
  CALL(poet_three, &t);
#else
  for (uint32_t row = 0; row < t.rows; row++) {
    for (uint32_t j = 0; j < t.width; j++) {
      if (j > 0)
        t.sums[0] += t.dy[j] * t.x[j - 1];
      t.sums[1] += t.dy[j] * t.x[j];
      if (j + 1 < t.width)
        t.sums[2] += t.dy[j] * t.x[j + 1];
    }
    t.x += t.width, t.dy += t.width;
  }
#endif
  memcpy(results + 4, t.sums, sizeof t.sums);
  add_results();
}

static void strips(void) {
  const struct poet_strips s = {.a = pool[0] + draw(8),
                                .b = pool[1] + draw(8),
                                .b_step = 4 * draw(40),
                                .terms = 1 + draw(13),
                                .sums = results,
                                .count = 1 + draw(3),
                                .begun = draw(3) == 0};
#if POET_M4F
  CALL(poet_strips, (void *)&s);
#else
  for (uint32_t j = 0; j < s.count * POET_STRIP; j++) {
    float sum = s.begun ? s.sums[j] : 0.0f;
    for (uint32_t i = 0; i < s.terms; i++)
      sum += s.a[i] * s.b[i * s.b_step / 4 + j];
    s.sums[j] = sum;
  }
#endif
  add_results();
}

static void rows(uint32_t back) {
  struct poet_rows r = {.from = pool[0] + 200 + draw(8),
                        .left = pool[0] + 200 + draw(8),
                        .right = pool[0] + 200 + draw(8),
                        .to = results,
                        .step = 4 * (int32_t)draw(40) - 80,
                        .left_step = 4 * (int32_t)draw(9) - 8,
                        .right_step = 4 * (int32_t)draw(9) - 8,
                        .next = 4 * (int32_t)draw(9) - 8,
                        .left_next = 4 * (int32_t)draw(9) - 8,
                        .right_next = 4 * (int32_t)draw(9) - 8,
                        .rows = 1 + draw(3),
                        .to_next = 4 * (8 + draw(4)),
                        .taps = 1 + draw(3)};
  memcpy(r.weight, pool[1] + draw(100), sizeof r.weight);
#if POET_M4F
  CALL(back ? poet_rows_back : poet_rows_ahead, &r);
#else
  for (uint32_t row = 0; row < r.rows; row++) {
    float sums[POET_STRIP] = {0};
    for (uint32_t i = 0; i < 3 * r.taps; i++) {
      for (uint32_t j = 0; j < POET_STRIP; j++) {
        const uint32_t at = j + (back ? 2 - i % 3 : i % 3); /* 1 + index */
        sums[j] += r.weight[i] * (at == 0   ? *r.left
                                  : at == 9 ? *r.right
                                            : r.from[at - 1]);
      }
      if (i % 3 == 2) {
        r.from += r.step / 4;
        r.left += r.left_step / 4;
        r.right += r.right_step / 4;
      }
    }
    memcpy(r.to, sums, sizeof sums);
    r.from += r.next / 4;
    r.left += r.left_next / 4;
    r.right += r.right_next / 4;
    r.to += r.to_next / 4;
  }
#endif
  add_results();
}

static void outer(void) {
  const struct poet_outer o = {.w = results,
                               .x = pool[0] + draw(8),
                               .g = pool[1] + draw(8),
                               .row = 4 * (24 + draw(9)),
                               .pairs = 1 + draw(3),
                               .strips = 1 + draw(3),
                               .rate = value(9)};
  memcpy(results, pool[0] + 100, (POOL - 100) * sizeof *results);
#if POET_M4F
  CALL(poet_outer, (void *)&o);
#else
  for (uint32_t i = 0; i < 2 * o.pairs; i++)
    for (uint32_t j = 0; j < o.strips * POET_STRIP; j++)
      results[i * o.row / 4 + j] -= o.rate * (0.0f + o.g[i] * o.x[j]);
#endif
  add_results();
}

static void rows_ahead(void) {
  rows(0);
}

static void rows_back(void) {
  rows(1);
}

static void (*const others[])(void) = {strips, rows_ahead, rows_back, outer,
                                       eight,  dot,        axpy,      three};
enum { OTHERS = sizeof others / sizeof *others };

/* Call a function once for each position in its operands and sums, with a
   special number there. */
static void special(uint32_t function) {
  fill(0);
  const uint32_t begin = state;
  const uint32_t first = draw(SPECIALS);
  for (uint32_t at = 0; at < 3 * NEAR; at++) {
    float *const place = &pool[at / NEAR][at % NEAR];
    for (uint32_t i = 0; i < POOL; i++)
      results[i] = 1.0f;
    const float before = *place;
    *place = from_bits(specials[(first + at) % SPECIALS]);
    state = begin; /* the same call */
    struct poet_tile t;
    if (function >= BLOCKS)
      others[function - BLOCKS]();
    else if (shape(function, &t))
      block(function, &t);
    *place = before;
    if (at % NEAR == NEAR - 1)
      print_hex(hash);
  }
}

int main(void) {
  static const uint32_t rareness[] = {0, 0, 0, 300, 60, 10};
  for (uint32_t i = 0; i < BATCHES; i++) {
    for (uint32_t j = 0; PART == 2 && j < BLOCKS + OTHERS; j++)
      special(j);
    if (PART < 2) {
      fill(rareness[draw(6)]);
      for (uint32_t j = 0; PART == 1 && j < OTHERS; j++)
        others[j]();
      if (PART == 0)
        tiles();
      print_hex(hash);
    }
  }
  return 0;
}
