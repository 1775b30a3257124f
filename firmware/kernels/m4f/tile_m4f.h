/* tile_m4f.h - tiles of 4 by 4 sums on a Cortex-M4F. */
#ifndef POET_TILE_M4F_H
#define POET_TILE_M4F_H

#include "../tile.h"

#if POET_M4F
/* Tiles side by side. Each has four lanes of a and four of b. */
struct poet_block {
  const float *a[POET_TILE], *b[POET_TILE]; /* first terms; changed */
  const struct poet_terms *terms;           /* at least one */
  float *sums;            /* of lane 0 of a and of the lanes of b */
  uint32_t row;           /* bytes from there to the sums of lane 1 of a */
  int32_t a_next, b_next; /* bytes to the lanes of the next tile */
  uint32_t next;          /* bytes to its sums */
  uint32_t count;         /* of tiles, at least one */
};

typedef void poet_block_fn(struct poet_block *block);

/* What each function requires:
 *            a                    b
 *   _uu      terms adjacent       terms adjacent
 *   _ub      terms adjacent       lanes adjacent
 *   _ug      terms adjacent       -
 *   _bu      lanes adjacent       terms adjacent
 *   _bb      lanes adjacent       lanes adjacent
 *   _gg      -                    -
 *   _up, _un terms adjacent       lanes adjacent, terms at distance 1, -1;
 *                                 three columns */
poet_block_fn poet_block_uu, poet_block_ub, poet_block_ug, poet_block_bu,
    poet_block_bb, poet_block_gg, poet_block_up, poet_block_un;

#endif

#endif
