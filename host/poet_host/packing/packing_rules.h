/* packing_rules.h - the state of a search for a packing, and the rules that
   raise the least offsets of blocks. */
#pragma once

#include "packing_search.h"

#include <stdbool.h>
#include <stddef.h>

struct block {
  int64_t low;     /* the least offset still possible; if placed, the offset */
  int64_t support; /* the highest end of placed blocks alive at its time */
  double weight;   /* its part in failures */
  double key;      /* of blocks equally low, the largest key is first */
  bool placed;
};

struct section {
  int *blocks;        /* its blocks, the unplaced ones first */
  int unplaced;       /* number of unplaced blocks; the rest is about these */
  int64_t size;       /* the sum of sizes */
  int64_t least_end;  /* the least end that a block can have, */
  int64_t second_end; /* the least end of the other blocks, */
  int least_block;    /* and the block that has the least end */
  int lowest;         /* how many blocks can be the lowest one */
  bool dirty;         /* whether the rules have to run again */
};

struct change { /* what a block had before */
  int block;
  int64_t low, support;
};

struct search {
  const struct packing_problem *p;
  struct packing_effort *effort;
  struct block *blocks;
  struct section *sections;
  int dirty_begin, dirty_end; /* no other section is dirty */
  struct change *trail;
  size_t changes, max_changes;
  int *pool;  /* memory of the lists of all sections */
  int *stack; /* placed blocks, in their order */
  int depth;
  bool forced_first;  /* first place a block that alone can be the lowest one */
  int64_t nodes_left; /* of this restart */
  double ends_at;
  bool is_over;  /* a limit ended this restart */
  bool is_final; /* a limit, or the lack of memory, ended the search */
  uint64_t random;
};

/* Allocate the state of the empty search `s`, with all blocks unplaced and all
   sections dirty. Return false if memory is short, or blocks are too many. */
bool prepare(struct search *s);
void release(struct search *s);

/* Raise the least offset of a block. Return whether the block still fits. */
bool raise_low(struct search *s, int block, int64_t low);
/* The least end that another unplaced block alive at the same time can have. */
int64_t least_end_below(const struct search *s, int block);
/* Apply all rules to blocks `first` to `last` - 1, whose sections are dirty.
   Return false if they do not fit. */
bool propagate(struct search *s, int first, int last);
/* Place a block at its least offset, below all unplaced blocks. Return whether
   these still fit. */
bool place(struct search *s, int block);
/* Undo all that came after `depth` placed blocks and `changes` changes. */
void undo(struct search *s, int depth, size_t changes);
