/* recurrent.h - what layers that walk along time share. A walk goes from step 0
 * to the last one, or backwards if bit 0 of `groups` is 1. A gradient walks the
 * other way. */
#ifndef POET_RECURRENT_H
#define POET_RECURRENT_H

#include "poet/kernel.h"
#include "tile.h"

/* The recurrent weight (k, w) and bias (k) of w units. */
struct poet_layer {
  const float *weight, *bias;
  uint32_t w;
  bool has_relu; /* plain units: relu instead of tanh */
  bool
      has_cell; /* the row of dy has w gradients of the cell after those of h */
};

/* Return the first row of step i of a walk: there is one for each sample. */
static inline uint32_t poet_step_row(const struct poet_op *op, uint32_t i,
                                     bool is_back) {
  return (is_back ? op->n - 1 - i : i) * op->c;
}

/* Units whose sums are computed at a time: few where the stack is small. */
#if POET_M0PLUS
enum { POET_UNITS = 4 };
#else
enum { POET_UNITS = 8 };
#endif

/* Return how many units are computed next, if `left` remain. */
static inline uint32_t poet_units(uint32_t left) {
  return left < POET_UNITS ? left : POET_UNITS;
}

/* Set sums[gate][j] to row gate * w + first + j of the recurrent weight times
 * the state h, for `gates` gates and `count` units. */
void poet_gate_sums(const struct poet_layer *layer, const float *h,
                    uint32_t gates, uint32_t first, uint32_t count,
                    float (*sums)[POET_UNITS]);
/* Set sums[j] to column first + j of the recurrent weight times `later`, which
 * has a gradient for each of `rows` rows. */
void poet_later_sums(const struct poet_layer *layer, const float *later,
                     uint32_t rows, uint32_t first, uint32_t count,
                     float *sums);

/* Computes the gradients d of one sample and step, in blocks of w. `before`:
 * the states before the step. `later`: those gradients of the step after it
 * that belong to the recurrent weight, or NULL. `kept`: the part of a state's
 * gradient that comes from the step after it, apart from the products with
 * `later`. `keep`: the same for the step before, or NULL. `kept` may be block 3
 * of d. */
typedef void poet_step_back_fn(const struct poet_layer *layer, const float *a,
                               const float *before, const float *dy,
                               const float *later, const float *kept, float *d,
                               float *keep);

/* Compute the gradients of all steps. A row has 4 blocks or, if the gradient of
 * the initial state is wanted, 5: then what is kept for the step before comes
 * last. Otherwise it lies in the row of that step, where its block 3 comes
 * later. In call->sums, it follows the gradients of the recurrent weight. */
void poet_walk_back(const struct poet_call *call, poet_step_back_fn *step_back);

#endif
