/* tile_vector.h - sums of products on a processor with vectors of floats: SSE,
 * AVX and AVX-512 of x86-64, NEON of AArch64. */
#ifndef POET_TILE_VECTOR_H
#define POET_TILE_VECTOR_H

#include "../tile.h"

#if POET_VECTOR
/* Floats in a vector. The registers hold sums of POET_HEIGHT lanes of a and
 * POET_VECTORS vectors of b. */
#if defined(__AVX512F__)
enum { POET_LANES = 16, POET_HEIGHT = 8, POET_VECTORS = 3 };
#elif defined(__aarch64__)
enum { POET_LANES = 4, POET_HEIGHT = 8, POET_VECTORS = 3 };
#elif defined(__AVX__)
enum { POET_LANES = 8, POET_HEIGHT = 4, POET_VECTORS = 2 };
#else
enum { POET_LANES = 4, POET_HEIGHT = 4, POET_VECTORS = 2 };
#endif

/* Before a loop whose own instructions would be many. */
#define POET_UNROLLED _Pragma("GCC unroll 8")

/* Distances of a column of both operands from the first one. */
struct poet_column {
  int32_t a, b;
};

/* Two operands whose products are summed. The terms of a sum lie in rows. Steps
 * are distances in floats. The lanes of b lie side by side. */
struct poet_panel {
  const float *a, *b; /* first term of lane 0 */
  int32_t a_lane, a_column, a_row;
  int32_t b_column, b_row;
  const struct poet_column *list; /* replaces a_column, b_column if not NULL */
  uint32_t columns, rows;
};

/* Return the least multiple of POET_LANES that is not below `count`. */
static inline uint32_t poet_whole_vectors(uint32_t count) {
  return (count + POET_LANES - 1) / POET_LANES * POET_LANES;
}

/* Add the products of lane i of a and lane j of b to sums[i * next + j], one
 * after the other, for i < a_lanes and j < b_lanes, a multiple of POET_LANES.
 */
void poet_panel(const struct poet_panel *panel, uint32_t a_lanes,
                uint32_t b_lanes, float *sums, uint32_t next);
#endif

#endif
