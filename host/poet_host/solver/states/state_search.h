/* state_search.h - the functions that Python calls. The host reads this file
   too, without the lines that begin with #: it has only plain declarations. */
#pragma once

#include <stdint.h>

/* A set of tensors, or of facts that a run may need, one bit each. */
struct state_set {
  uint64_t words[2];
};

/* What changes a state: a computation, a transfer, or nothing. */
struct state_run {
  struct state_set needs;   /* must be in RAM */
  struct state_set reads;   /* must be on storage */
  struct state_set forbids; /* must not be on storage */
  struct state_set absent;  /* leaves RAM before */
  struct state_set makes;   /* is in RAM after it, */
  struct state_set drops;   /* except these */
  struct state_set stores;  /* is on storage after it */
  int64_t own_bytes;        /* for what it makes, and for its workspace */
  int64_t own_padding;
  double cost;
  double processor_us, transfers_us, commit_us;
  int32_t lanes; /* bit 0: the processor, bit 1: the transfers */
};

/* A run that is possible in a stage, and the stage after it. */
struct state_move {
  int32_t run, next;
};

/* A plan begins in stage 0 and ends in stage `stages`. */
struct state_problem {
  int32_t tensors, stages, runs;
  int32_t
      timed; /* whether runs occupy lanes; if not, runs page in their needs */
  int64_t ram_bytes;
  const int64_t *size;    /* of each tensor */
  const int64_t *padding; /* of each tensor: of all in RAM, the largest counts
                             not. NULL: there is none */
  const double *page_in;  /* its cost for each tensor; negative: impossible */
  const struct state_run *run;
  const struct state_move *move;  /* those of stage 0, of stage 1, ... */
  const int32_t *first;           /* move of each stage, and their number */
  const struct state_set *useful; /* in RAM, in each stage and at the end */
  const struct state_set *usable; /* on storage, in each stage and at the end */
  const struct state_set *due;   /* of each stage: must be in RAM then or later,
                                    and can only be paged in */
  const double *rest, *rest_us;  /* least cost and time from each stage on */
  struct state_set ram, storage; /* when the plan begins */
  double value_per_us, latest_us, commit_share;
};

/* One step of a path. */
struct state_step {
  int32_t stage, run;
  struct state_set paged, freed; /* before the run */
};

enum state_result {
  STATES_FOUND, /* the path is a cheapest one */
  STATES_NONE,  /* no path is cheaper than the upper limit */
  STATES_LIMIT, /* the search can go on */
  STATES_NO_MEMORY,
};

struct state_search;

/* Return a search, or NULL without memory. `coarser` may be NULL, or a search
   of the same problem with fewer tensors: then it is an estimate. The problem
   and `coarser` must outlive the search. */
struct state_search *state_search_new(const struct state_problem *problem,
                                      const struct state_search *coarser);
/* Go on for so many labels, and leave out what costs `upper` or more. */
enum state_result state_search_run(struct state_search *search, int64_t labels,
                                   double upper);
/* Raise the estimates of all states by those of the states after them. Return
   false without memory. */
_Bool state_search_back_up(struct state_search *search);
/* Return the greatest lower bound so far. */
double state_search_bound(const struct state_search *search);
int64_t state_search_labels(const struct state_search *search);
/* Write the last steps of the path that was found. Return how many it has. */
int32_t state_search_path(const struct state_search *search,
                          struct state_step *steps, int32_t most);
void state_search_free(struct state_search *search);
