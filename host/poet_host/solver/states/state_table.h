/* state_table.h - the least cost from each set of coarse tensors in RAM. */
#pragma once

#include "state_moves.h"

enum {
  PRICED = 3,         /* tensors with a price in one stage, at most */
  PAID = 1 << PRICED, /* sets of those whose price has been paid */
};

struct state_edge {
  int32_t target, run; /* number of a set in the stage after the run */
  double page_in;      /* cost of what the run pages in */
};

struct state_table {
  const struct state_problem *p;
  set coarse;
  int32_t *slots; /* by hash, the number of each stage and set; -1: none */
  size_t slot_count;
  int32_t *first; /* set of each stage, and their number */
  set *sets;
  size_t *edge_first; /* of each set, and their number */
  struct state_edge *edges;
  size_t edge_count, edge_room, most;
  double *value; /* of each set and set of paid prices */
  struct state_edge **best;
  const double *cost, *prices;
  double *still;      /* prices of each tensor from each stage on */
  int priced[PRICED]; /* in the stage that is visited */
  int priced_count;
  int32_t stage, from; /* of the edges that are added */
  const struct state_move *move;
  bool is_full;
};

/* Return the least cost without the prices that tensors on storage still pay.
 */
double state_table_rest(const struct state_table *table, int32_t stage, set ram,
                        set storage);
