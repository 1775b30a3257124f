/* state_labels.h - the labels of a search, by state and in order. */
#pragma once

#include "state_clock.h"

struct label {
  set ram, storage;
  double cost, least; /* so far, and of all paths with this label */
  int32_t parent, run, stage;
  int32_t same;     /* the next label of the same state; -1: none */
  bool is_dead;     /* replaced by another one */
  bool is_expanded; /* its moves have been followed */
};

struct entry {
  double least;
  int32_t label;
};

struct state_search {
  const struct state_problem *p;
  const struct state_search *coarser;
  struct label *labels;
  double *clocks; /* of each label, if time matters */
  struct entry *heap;
  int32_t *heads; /* by hash, the first label of each state; -1: none */
  size_t count, room, waiting, states, slots;
  double upper, bound;
  int32_t goal;                  /* the label of the path; -1: none */
  bool is_full;                  /* no memory is left */
  const struct state_move *move; /* that `arrive` follows */
  int32_t from;
  double best; /* of the moves from a label, when costs are backed up */
};

static inline size_t state_stride(const struct state_search *s) {
  return s->p->timed ? state_clock_size(s->p) : 0;
}

static inline double *state_clock_of(const struct state_search *s,
                                     size_t label) {
  return s->clocks + label * state_stride(s);
}

/* The labels that wait to be expanded, the first one first. */
void state_push(struct state_search *s, struct entry it);
struct entry state_pop(struct state_search *s);
/* Return the place of the first label of a state; it is -1 if there is none. */
int32_t *state_slot(const struct state_search *s, int32_t stage, set ram,
                    set storage);
/* Make room for one more label. Return false without memory. */
bool state_grow(struct state_search *s);
