/*
 * tile_vector.c - sums of products in vectors (tile_vector.h). Neighbouring
 * sums are the elements of a vector; each of them takes its terms one by one,
 * and a product is rounded before it is added, so the bits are those of tile.c.
 */
#include "tile_vector.h"

#if POET_VECTOR
#include <stdbool.h>
#include <stddef.h>

/* May lie at any address of a float. */
typedef float vector
    __attribute__((vector_size(4 * POET_LANES), aligned(4), may_alias));

/* AArch64 multiplies by an element of a vector, so the lanes of a are copied
 * side by side. x86-64 loads any float into all elements of a vector. */
#if defined(__aarch64__)
#define PACKED 1
enum { TERMS = 512 }; /* at a time */
#else
#define PACKED 0
#endif

/* The terms that a block adds. */
struct terms {
  const float *a[POET_HEIGHT]; /* packed: only a[0], which has all lanes */
  const float *b;
  float *sums[POET_HEIGHT];
};

/* POET_HEIGHT lanes of a, and a few vectors of b. `listed`: the panel has a
 * list. Inlined, so that `vectors` and `listed` are constants. */
static inline __attribute__((always_inline)) void
block(const struct poet_panel *p, const struct terms *t, uint32_t vectors,
      bool listed) {
  vector s[POET_HEIGHT][POET_VECTORS];
  POET_UNROLLED for (uint32_t i = 0; i < POET_HEIGHT; i++) {
    POET_UNROLLED for (uint32_t j = 0; j < vectors; j++) {
      s[i][j] = ((const vector *)t->sums[i])[j];
    }
  }
  const float *b = t->b, *packed = t->a[0];
  ptrdiff_t row = 0;
  for (uint32_t rows = p->rows; rows; rows--) {
    const float *y = b;
    ptrdiff_t at = row;
    for (uint32_t column = 0; column < p->columns; column++) {
      const float *from = listed ? b + p->list[column].b : y;
      if (listed && !PACKED) {
        at = row + p->list[column].a;
      }
      vector x[POET_VECTORS];
      POET_UNROLLED for (uint32_t j = 0; j < vectors; j++) {
        x[j] = ((const vector *)from)[j];
      }
      vector w[2] = {{0}};
      if (PACKED) {
        w[0] = ((const vector *)packed)[0], w[1] = ((const vector *)packed)[1];
        packed += POET_HEIGHT;
      }
      POET_UNROLLED for (uint32_t i = 0; i < POET_HEIGHT; i++) {
        const float by = PACKED ? w[i / 4][i % 4] : t->a[i][at];
        POET_UNROLLED for (uint32_t j = 0; j < vectors; j++) {
          s[i][j] += by * x[j];
        }
      }
      at += p->a_column;
      y += p->b_column;
    }
    b += p->b_row;
    row += p->a_row;
  }
  POET_UNROLLED for (uint32_t i = 0; i < POET_HEIGHT; i++) {
    POET_UNROLLED for (uint32_t j = 0; j < vectors; j++) {
      ((vector *)t->sums[i])[j] = s[i][j];
    }
  }
}

static void blocks(const struct poet_panel *p, const struct terms *t,
                   uint32_t vectors) {
  const bool listed = p->list != NULL;
  if (vectors < 2) {
    listed ? block(p, t, 1, true) : block(p, t, 1, false);
  } else if (vectors < POET_VECTORS) {
    listed ? block(p, t, 2, true) : block(p, t, 2, false);
  } else {
    listed ? block(p, t, POET_VECTORS, true) : block(p, t, POET_VECTORS, false);
  }
}

#if PACKED
/* Copy the terms of POET_HEIGHT lanes in their order. */
static void pack(const struct poet_panel *p, const float *const a[POET_HEIGHT],
                 float *to) {
  for (uint32_t row = 0; row < p->rows; row++) {
    for (uint32_t column = 0; column < p->columns; column++) {
      const ptrdiff_t at = (ptrdiff_t)row * p->a_row +
                           (p->list != NULL ? p->list[column].a
                                            : (ptrdiff_t)column * p->a_column);
      for (uint32_t i = 0; i < POET_HEIGHT; i++) {
        *to++ = a[i][at];
      }
    }
  }
}
#endif

/* Up to POET_HEIGHT lanes of a. */
static void strip(const struct poet_panel *p, uint32_t a_lanes,
                  uint32_t b_lanes, float *sums, uint32_t next) {
  float unused[POET_VECTORS * POET_LANES] = {0};
  struct terms t;
  for (uint32_t i = 0; i < POET_HEIGHT; i++) {
    t.a[i] = p->a + (i < a_lanes ? (int32_t)i * p->a_lane : 0);
  }
#if PACKED
  float packed[TERMS * POET_HEIGHT];
  pack(p, t.a, packed);
  t.a[0] = packed;
#endif
  for (uint32_t left = b_lanes / POET_LANES, j = 0; left;) {
    const uint32_t passes = (left + POET_VECTORS - 1) / POET_VECTORS;
    const uint32_t vectors = (left + passes - 1) / passes;
    t.b = p->b + j;
    for (uint32_t i = 0; i < POET_HEIGHT; i++) {
      t.sums[i] = i < a_lanes ? sums + i * next + j : unused;
    }
    blocks(p, &t, vectors);
    left -= vectors;
    j += vectors * POET_LANES;
  }
}

#if PACKED
/* Call strip for as many terms at a time as it can pack. */
static void strips(const struct poet_panel *panel, uint32_t a_lanes,
                   uint32_t b_lanes, float *sums, uint32_t next) {
  struct poet_panel p = *panel;
  const uint32_t columns = p.columns < TERMS ? p.columns : TERMS;
  const uint32_t rows = columns < p.columns || !columns ? 1 : TERMS / columns;
  for (uint32_t row = 0; row < panel->rows; row += rows) {
    p.rows = panel->rows - row < rows ? panel->rows - row : rows;
    for (uint32_t column = 0; column < panel->columns; column += columns) {
      const uint32_t left = panel->columns - column;
      p.columns = left < columns ? left : columns;
      p.a = panel->a + (ptrdiff_t)row * p.a_row;
      p.b = panel->b + (ptrdiff_t)row * p.b_row;
      if (p.list != NULL) {
        p.list = panel->list + column;
      } else {
        p.a += (ptrdiff_t)column * p.a_column;
        p.b += (ptrdiff_t)column * p.b_column;
      }
      strip(&p, a_lanes, b_lanes, sums, next);
    }
  }
}
#else
#define strips strip
#endif

void poet_panel(const struct poet_panel *panel, uint32_t a_lanes,
                uint32_t b_lanes, float *sums, uint32_t next) {
  struct poet_panel p = *panel;
  for (uint32_t i = 0; i < a_lanes; i += POET_HEIGHT) {
    const uint32_t left = a_lanes - i;
    strips(&p, left < POET_HEIGHT ? left : POET_HEIGHT, b_lanes, sums, next);
    p.a += POET_HEIGHT * p.a_lane;
    sums += POET_HEIGHT * next;
  }
}
#endif
