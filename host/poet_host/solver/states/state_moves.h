/* state_moves.h - sets of tensors, and the room that a run needs in RAM. */
#pragma once

#include "state_search.h"

#include <stdbool.h>
#include <stddef.h>

enum { STATE_TENSORS = 128 };

typedef struct state_set set;

static inline set set_and(set a, set b) {
  return (set){{a.words[0] & b.words[0], a.words[1] & b.words[1]}};
}

static inline set set_or(set a, set b) {
  return (set){{a.words[0] | b.words[0], a.words[1] | b.words[1]}};
}

static inline set set_minus(set a, set b) {
  return (set){{a.words[0] & ~b.words[0], a.words[1] & ~b.words[1]}};
}

static inline bool set_any(set a) {
  return (a.words[0] | a.words[1]) != 0;
}

static inline bool set_equal(set a, set b) {
  return a.words[0] == b.words[0] && a.words[1] == b.words[1];
}

static inline bool set_has(set a, int i) {
  return (a.words[i >> 6] >> (i & 63) & 1) != 0;
}

static inline set set_one(int i) {
  set one = {{0, 0}};
  one.words[i >> 6] = UINT64_C(1) << (i & 63);
  return one;
}

/* Take the first tensor out of a set that is not empty, and return it. */
static inline int set_pop(set *a) {
  int word = a->words[0] == 0;
  int bit = __builtin_ctzll(a->words[word]);
  a->words[word] &= a->words[word] - 1;
  return 64 * word + bit;
}

/* Call `visit` with each set that is in RAM when a run begins: `ram` without a
   minimal set of tensors that makes room. `pinned` cannot leave. */
typedef void state_visit(void *context, set ram);
void state_each_room(const struct state_problem *problem, set ram, set pinned,
                     int64_t own_bytes, int64_t own_padding, state_visit *visit,
                     void *context);

uint64_t state_hash(int stage, set a, set b);
