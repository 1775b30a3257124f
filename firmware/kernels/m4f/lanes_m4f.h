/* lanes_m4f.h - the lanes of a tile on a Cortex-M4F. All counts are at least
 * one. */
#ifndef POET_LANES_M4F_H
#define POET_LANES_M4F_H

#include "../tile.h"

enum { POET_EIGHT = 8 };

/* Eight sums of one lane of a and lanes of b that begin anywhere:
 * sums[j] = ((sums[j] + a[0] b[j][0]) + a[1] b[j][1]) + ... */
struct poet_eight {
  const float *b[POET_EIGHT], *a;
  const struct poet_terms *terms;
  float sums[POET_EIGHT];
};

#if POET_M4F
void poet_eight(struct poet_eight *eight);

/* Return ((sum + a[0] b[0]) + a[1] b[1]) + ... Floats are passed in registers
 * of the FPU, whatever the options of the compiler say. */
__attribute__((pcs("aapcs-vfp"))) float poet_dot(const struct poet_terms *terms,
                                                 const float *a, const float *b,
                                                 float sum);

/* Compute at least two lanes by two, of which one operand has at most four and
 * the other one at most four or a multiple of four: as poet_tile does, from
 * lanes that begin at a and b. */
void poet_blocks(const struct poet_tile *tile, const float *a, uint32_t a_lanes,
                 const float *b, uint32_t b_lanes, float *sums, uint32_t row);

/* The same for all lanes of a and four lanes of b that begin anywhere. */
void poet_blocks_apart(const struct poet_tile *tile, uint32_t a_lanes,
                       const float *const b[POET_TILE], float *sums,
                       uint32_t row);

/* Compute a tile of one lane by any number, or of few by few. */
void poet_narrow(const struct poet_tile *tile, const float *a, uint32_t a_lanes,
                 const float *b, uint32_t b_lanes, float *sums, uint32_t row);
#endif

#endif
