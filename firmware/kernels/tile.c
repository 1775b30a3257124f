/*
 * tile.c - the inner loops of every product: convolutions, linear layers and
 * matrix products.
 *
 * A tile is computed by the fastest way that its size and its operands allow:
 * poet_dots on a core without floating point (dot_m0plus.c), otherwise sixteen
 * sums at a time, or four. Each sum has its own accumulator and takes its terms
 * in the same order in all of them, so the bits are the same.
 */
#include "tile.h"

#include <string.h>

#include "m4f/lanes_m4f.h"

#if POET_VECTOR && !defined(__clang__)
/* GCC would load several terms of a sum as a vector, then add its elements one
 * by one. That is slower. */
#pragma GCC optimize("no-tree-loop-vectorize")
#endif

void poet_tile_shape(struct poet_tile *tile) {
  struct poet_walk a = tile->a, b = tile->b;
  uint32_t columns = tile->columns, rows = tile->rows, planes = tile->planes;
  /* Remove levels of one step, so that the innermost loop is long. */
  for (uint32_t i = 0; i < 2 && columns == 1; i++) {
    columns = rows, rows = planes, planes = 1;
    a.column = a.row, a.row = a.plane;
    b.column = b.row, b.row = b.plane;
  }
  if (a.row == a.column * (int32_t)columns &&
      b.row == b.column * (int32_t)columns) {
    columns *= rows, rows = planes, planes = 1;
    a.row = a.plane, b.row = b.plane;
  }
  if (rows == 1) {
    rows = planes, planes = 1;
    a.row = a.plane, b.row = b.plane;
  }
  const int32_t c = (int32_t)columns, r = (int32_t)rows - 1;
  tile->terms = (struct poet_terms){
      .begun = tile->begun,
      .plain = tile->tame && !tile->begun && columns && rows && planes,
      .columns = columns,
      .rows = rows,
      .planes = planes,
      .a_length = 4 * a.column * c,
      .a_step = 4 * a.column,
      .b_step = 4 * b.column,
      .a_row = 4 * (a.row - a.column * c),
      .b_row = 4 * (b.row - b.column * c),
      .a_plane = 4 * (a.plane - a.row * r - a.column * c),
      .b_plane = 4 * (b.plane - b.row * r - b.column * c)};
}

#if !POET_M0PLUS
#if !POET_M4F
/* An operand as the loops below walk through it: steps in floats to the next
 * term, the next row and the next plane. */
struct steps {
  int32_t column, row, plane;
};

static struct steps steps_of_a(const struct poet_terms *t) {
  return (struct steps){t->a_step / 4, t->a_row / 4,
                        (t->a_plane - t->a_row) / 4};
}

static struct steps steps_of_b(const struct poet_terms *t) {
  return (struct steps){t->b_step / 4, t->b_row / 4,
                        (t->b_plane - t->b_row) / 4};
}

/* Set *to to the product of two lanes. */
static void one_by_one(const struct poet_terms *t, struct steps as,
                       const float *a, struct steps bs, const float *b,
                       float *to) {
  float sum = t->begun ? *to : 0.0f;
  for (uint32_t planes = t->planes; planes; planes--) {
    for (uint32_t rows = t->rows; rows; rows--) {
      uint32_t left = t->columns;
      for (; left >= 2; left -= 2) {
        const float first = a[0] * b[0], next = a[as.column] * b[bs.column];
        sum += first;
        sum += next;
        a += 2 * as.column, b += 2 * bs.column;
      }
      if (left) {
        sum += *a * *b;
        a += as.column, b += bs.column;
      }
      a += as.row, b += bs.row;
    }
    a += as.plane, b += bs.plane;
  }
  *to = sum;
}
#endif

bool poet_tame(const float *a, uint32_t a_count, const float *b,
               uint32_t b_count) {
  (void)a, (void)a_count, (void)b, (void)b_count;
  return false;
}

#if !POET_M4F
/* Set sums[0] and sums[next] to the products of the lane at x and each of two
 * lanes from y on. */
static void one_by_two(const struct poet_terms *t, struct steps xs,
                       const float *x, struct steps ys, const float *y0,
                       int32_t lane, float *sums, uint32_t next) {
  const float *y1 = y0 + lane;
  float s0 = 0.0f, s1 = 0.0f;
  if (t->begun) {
    s0 = sums[0], s1 = sums[next];
  }
  for (uint32_t planes = t->planes; planes; planes--) {
    for (uint32_t rows = t->rows; rows; rows--) {
      uint32_t left = t->columns;
      for (; left >= 2; left -= 2) {
        const float f = x[0], g0 = y0[0], g1 = y1[0];
        const float f2 = x[xs.column], h0 = y0[ys.column], h1 = y1[ys.column];
        s0 += f * g0, s1 += f * g1;
        s0 += f2 * h0, s1 += f2 * h1;
        x += 2 * xs.column, y0 += 2 * ys.column, y1 += 2 * ys.column;
      }
      if (left) {
        s0 += *x * *y0, s1 += *x * *y1;
        x += xs.column, y0 += ys.column, y1 += ys.column;
      }
      x += xs.row, y0 += ys.row, y1 += ys.row;
    }
    x += xs.plane, y0 += ys.plane, y1 += ys.plane;
  }
  sums[0] = s0, sums[next] = s1;
}

/* Set sums[0], sums[next], ... to the products of the lane at x and each of the
 * `lanes` lanes from y on. */
static void one_by_four(const struct poet_terms *t, struct steps xs,
                        const float *x, struct steps ys, const float *y0,
                        int32_t lane, uint32_t lanes, float *sums,
                        uint32_t next) {
  if (lanes == 2) {
    one_by_two(t, xs, x, ys, y0, lane, sums, next);
    return;
  }
  const float *y1 = lanes > 1 ? y0 + lane : y0;
  const float *y2 = lanes > 2 ? y1 + lane : y1;
  const float *y3 = lanes > 3 ? y2 + lane : y2;
  float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;
  if (t->begun) {
    s0 = sums[0];
    s1 = lanes > 1 ? sums[next] : 0.0f;
    s2 = lanes > 2 ? sums[2 * next] : 0.0f;
    s3 = lanes > 3 ? sums[3 * next] : 0.0f;
  }
#define MOVE(x_by, y_by)                                                       \
  x += (x_by), y0 += (y_by), y1 += (y_by), y2 += (y_by), y3 += (y_by)
#define TERM(i, j)                                                             \
  do {                                                                         \
    const float f = x[i], g0 = y0[j], g1 = y1[j], g2 = y2[j], g3 = y3[j];      \
    s0 += f * g0, s1 += f * g1, s2 += f * g2, s3 += f * g3;                    \
  } while (0)
  for (uint32_t planes = t->planes; planes; planes--) {
    for (uint32_t rows = t->rows; rows; rows--) {
      uint32_t left = t->columns;
      if (xs.column == 1 && ys.column == 1) {
        for (; left >= 4; left -= 4) {
          TERM(0, 0);
          TERM(1, 1);
          TERM(2, 2);
          TERM(3, 3);
          MOVE(4, 4);
        }
      } else {
        for (; left >= 2; left -= 2) {
          TERM(0, 0);
          TERM(xs.column, ys.column);
          MOVE(2 * xs.column, 2 * ys.column);
        }
      }
      for (; left; left--) {
        TERM(0, 0);
        MOVE(xs.column, ys.column);
      }
      MOVE(xs.row, ys.row);
    }
    MOVE(xs.plane, ys.plane);
  }
#undef TERM
#undef MOVE
  sums[0] = s0, sums[next] = s1, sums[2 * next] = s2, sums[3 * next] = s3;
}

/* Four lanes by four. `lane` is the step between the lanes of b. */
static inline __attribute__((always_inline)) void
four_by_four(const struct poet_tile *tile, const float *a0, const float *b0,
             int32_t lane, float *sums, uint32_t row) {
  const struct poet_terms *t = &tile->terms;
  const struct steps as = steps_of_a(t), bs = steps_of_b(t);
  const float *a1 = a0 + tile->a.lane;
  const float *a2 = a1 + tile->a.lane, *a3 = a2 + tile->a.lane;
  float s00 = 0, s01 = 0, s02 = 0, s03 = 0, s10 = 0, s11 = 0, s12 = 0, s13 = 0;
  float s20 = 0, s21 = 0, s22 = 0, s23 = 0, s30 = 0, s31 = 0, s32 = 0, s33 = 0;
  if (t->begun) {
    const float *s = sums;
    s00 = s[0], s01 = s[1], s02 = s[2], s03 = s[3], s += row;
    s10 = s[0], s11 = s[1], s12 = s[2], s13 = s[3], s += row;
    s20 = s[0], s21 = s[1], s22 = s[2], s23 = s[3], s += row;
    s30 = s[0], s31 = s[1], s32 = s[2], s33 = s[3];
  }
#define MOVE(a_by, b_by)                                                       \
  a0 += (a_by), a1 += (a_by), a2 += (a_by), a3 += (a_by), b0 += (b_by)
  for (uint32_t planes = t->planes; planes; planes--) {
    for (uint32_t rows = t->rows; rows; rows--) {
      for (uint32_t left = t->columns; left; left--) {
        const float y0 = b0[0], y1 = b0[lane], y2 = b0[2 * lane];
        const float y3 = b0[3 * lane];
        float x = *a0;
        s00 += x * y0, s01 += x * y1, s02 += x * y2, s03 += x * y3;
        x = *a1;
        s10 += x * y0, s11 += x * y1, s12 += x * y2, s13 += x * y3;
        x = *a2;
        s20 += x * y0, s21 += x * y1, s22 += x * y2, s23 += x * y3;
        x = *a3;
        s30 += x * y0, s31 += x * y1, s32 += x * y2, s33 += x * y3;
        MOVE(as.column, bs.column);
      }
      MOVE(as.row, bs.row);
    }
    MOVE(as.plane, bs.plane);
  }
#undef MOVE
  sums[0] = s00, sums[1] = s01, sums[2] = s02, sums[3] = s03;
  sums += row;
  sums[0] = s10, sums[1] = s11, sums[2] = s12, sums[3] = s13;
  sums += row;
  sums[0] = s20, sums[1] = s21, sums[2] = s22, sums[3] = s23;
  sums += row;
  sums[0] = s30, sums[1] = s31, sums[2] = s32, sums[3] = s33;
}

/* Up to four lanes by four. Not inlined: it needs many registers, which other
 * tiles would save too. */
static __attribute__((noinline)) void
few_by_few(const struct poet_tile *t, const float *a, uint32_t a_lanes,
           const float *b, uint32_t b_lanes, float *sums, uint32_t row) {
  const struct steps as = steps_of_a(&t->terms), bs = steps_of_b(&t->terms);
  if (a_lanes == POET_TILE && b_lanes == POET_TILE) {
    if (t->b.lane == 1) {
      four_by_four(t, a, b, 1, sums, row);
    } else {
      four_by_four(t, a, b, t->b.lane, sums, row);
    }
    return;
  }
  if (a_lanes == 1 && b_lanes == 1) {
    one_by_one(&t->terms, as, a, bs, b, sums);
  } else if (b_lanes < a_lanes) {
    for (uint32_t j = 0; j < b_lanes; j++) {
      one_by_four(&t->terms, bs, b + (int32_t)j * t->b.lane, as, a, t->a.lane,
                  a_lanes, sums + j, row);
    }
  } else {
    for (uint32_t i = 0; i < a_lanes; i++) {
      one_by_four(&t->terms, as, a + (int32_t)i * t->a.lane, bs, b, t->b.lane,
                  b_lanes, sums + i * row, 1);
    }
  }
}

/* Compute tiles side by side. */
static void few_tiles(const struct poet_tile *t, const float *a,
                      uint32_t a_lanes, const float *b, uint32_t b_lanes,
                      float *sums, uint32_t row) {
  for (uint32_t i = 0; i < a_lanes; i += POET_TILE) {
    for (uint32_t j = 0; j < b_lanes; j += POET_TILE) {
      few_by_few(t, a + (int32_t)i * t->a.lane, poet_lanes(a_lanes - i),
                 b + (int32_t)j * t->b.lane, poet_lanes(b_lanes - j),
                 sums + i * row + j, row);
    }
  }
}
#else
/* Compute tiles side by side. A tile with two lanes takes as long as a full
 * one. */
static void few_tiles(const struct poet_tile *t, const float *a,
                      uint32_t a_lanes, const float *b, uint32_t b_lanes,
                      float *sums, uint32_t row) {
  const uint32_t least = a_lanes < b_lanes ? a_lanes : b_lanes;
  if (least > 2 || (least == 2 && a_lanes + b_lanes > 4 &&
                    a_lanes <= POET_TILE && b_lanes <= POET_TILE)) {
    poet_blocks(t, a, a_lanes, b, b_lanes, sums, row);
  } else {
    poet_narrow(t, a, a_lanes, b, b_lanes, sums, row);
  }
}
#endif

static void compute(const struct poet_tile *t, uint32_t a_lanes,
                    uint32_t b_lanes, float *sums, uint32_t row) {
  const float *a = t->a.at, *b = t->b.at;
  const uint32_t a_left = a_lanes > POET_TILE ? a_lanes % POET_TILE : 0;
  const uint32_t b_left = b_lanes > POET_TILE ? b_lanes % POET_TILE : 0;
  a_lanes -= a_left, b_lanes -= b_left;
  few_tiles(t, a, a_lanes, b, b_lanes, sums, row);
  if (a_left) {
    few_tiles(t, a + (int32_t)a_lanes * t->a.lane, a_left, b, b_lanes,
              sums + a_lanes * row, row);
  } else if (b_left) {
    few_tiles(t, a, a_lanes, b + (int32_t)b_lanes * t->b.lane, b_left,
              sums + b_lanes, row);
  }
}

void poet_tile(const struct poet_tile *t, uint32_t a_lanes, uint32_t b_lanes,
               float *sums, uint32_t row) {
  if (!a_lanes || !b_lanes) {
    return;
  }
  if (!t->terms.columns || !t->terms.rows || !t->terms.planes) {
    for (; a_lanes && !t->begun; a_lanes--) {
      memset(sums, 0, b_lanes * sizeof *sums);
      sums += row;
    }
    return;
  }
  compute(t, a_lanes, b_lanes, sums, row);
}
#endif
