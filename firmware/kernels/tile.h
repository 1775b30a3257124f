/* tile.h - sums of products, several at a time. Every convolution, linear layer
 * and matrix product is made of them. */
#ifndef POET_TILE_H
#define POET_TILE_H

#include "poet/exact.h"
#include "poet/small.h"

#include <stdbool.h>
#include <stdint.h>

/* True for a Cortex-M0+ with its assembly files. Define POET_PORTABLE to
 * compile C only. */
#if defined(__ARM_ARCH_6M__) && !defined(POET_PORTABLE)
#define POET_M0PLUS 1
#else
#define POET_M0PLUS 0
#endif

/* The same for a Cortex-M4F. */
#if defined(__ARM_ARCH_7EM__) && defined(__ARM_FP) && !defined(POET_PORTABLE)
#define POET_M4F 1
#else
#define POET_M4F 0
#endif

/* The same for a processor with vectors of floats (tile_vector.h). */
#if (defined(__SSE2__) || defined(__aarch64__)) && !defined(POET_PORTABLE)
#define POET_VECTOR 1
#else
#define POET_VECTOR 0
#endif

/* True if elementwise loops do two or four elements at a time, so that loads
 * are adjacent. Where operations are calls, they take longer than loads. */
#define POET_UNROLL (!POET_M0PLUS)

#define POET_TILE 4u
#define POET_WIDE (POET_M0PLUS ? 2 * POET_TILE : 4 * POET_TILE)

/* True if the build has code for few lanes, without tiles, and if so few lanes
 * are faster that way. */
#define POET_FEW (!POET_M0PLUS && !POET_SMALL)
#define POET_IS_FEW(lanes) (POET_FEW && (lanes) < POET_TILE)

/* How a tile walks through an operand. Steps are distances in floats: between
 * the lanes, and between the terms of a sum, which lie in columns, rows and
 * planes. Between the terms of `a`, no step is 0. */
struct poet_walk {
  const float *at; /* first term of lane 0 */
  int32_t lane, column, row, plane;
};

/* The terms of a sum, as the inner loops walk through them: distances in bytes.
 * poet_tile_shape computes them. */
struct poet_terms {
  int32_t a_row, b_row; /* from the end of a row to the next row */
  int32_t a_length;     /* of a row */
  int32_t a_step, b_step;
  uint32_t rows, planes;
  int32_t a_plane, b_plane; /* from the end of a plane to the next plane */
  uint32_t columns;
  uint32_t begun; /* that of the tile */
  uint32_t plain; /* tame, not begun, and there are terms */
};

struct poet_tile {
  struct poet_walk a, b;
  uint32_t columns, rows, planes; /* numbers of terms */
  bool begun; /* the sums hold values, to which the terms are added */
  bool tame;  /* what poet_tame returns for the operands */
  struct poet_terms terms; /* set by poet_tile_shape */
};

/* Return the number of lanes of the next tile, if `left` lanes remain. */
static inline uint32_t poet_lanes(uint32_t left) {
  return left < POET_TILE ? left : POET_TILE;
}

/* The same for several tiles side by side. */
static inline uint32_t poet_wide_lanes(uint32_t left, uint32_t most) {
  return left < most ? left : most;
}

/* Return true if the numbers of both operands lie in ranges that poet_dots can
 * sum (dot_m0plus.h). Always false where there is no poet_dots. */
bool poet_tame(const float *a, uint32_t a_count, const float *b,
               uint32_t b_count);

/* Set tile->terms. Call it after each change of the tile other than of `lane`
 * and `at`. */
void poet_tile_shape(struct poet_tile *tile);

/* Return how many of `lanes` lanes poet_tile computes without changing others.
 */
static inline uint32_t poet_full_lanes(uint32_t lanes) {
  return lanes - lanes % POET_TILE;
}

/* Set sums[i * row + j] to the sum of the products of lane i of a and lane j of
 * b, for i < a_lanes and j < b_lanes. Each sum has its own accumulator, which
 * begins with 0 or, if `begun`, with the sum's value, which must not be -0.
 * Terms are added in order of planes, rows and columns; columns change fastest.
 * Except with POET_M0PLUS, one operand has at most POET_TILE lanes, and sums up
 * to the next multiples of POET_TILE may be changed. */
void poet_tile(const struct poet_tile *tile, uint32_t a_lanes, uint32_t b_lanes,
               float *sums, uint32_t row);

#endif
