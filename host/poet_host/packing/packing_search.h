/* packing_search.h - the function that Python calls. The host reads this file
   too, without the lines that begin with #: it has only plain declarations. */
#pragma once

#include <stdint.h>

enum packing_result {
  PACKING_NONE,    /* proved: the blocks cannot be packed */
  PACKING_FOUND,   /* `offsets` is a packing */
  PACKING_UNKNOWN, /* a limit or the lack of memory ended the search */
};

/* Blocks alive at the same time must not overlap. All sizes have one unit. */
struct packing_problem {
  int count;    /* of the blocks, which are in the order of `begin` */
  int sections; /* of time: a block is alive from `begin` until before `end` */
  int64_t capacity;      /* no offset + size exceeds it */
  const int32_t *begin;  /* of each block */
  const int32_t *end;    /* of each block */
  const int64_t *size;   /* of each block, more than 0 */
  const int64_t *latest; /* the highest offset that each block may have */
};

struct packing_effort {
  int64_t max_steps;  /* one step: looking at one block in one section */
  double max_seconds; /* negative: without a limit of time */
  int64_t steps;      /* that the search has taken */
  int64_t nodes;      /* of the search tree, over all restarts */
};

enum packing_result packing_search(const struct packing_problem *problem,
                                   struct packing_effort *effort,
                                   int64_t *offsets);
