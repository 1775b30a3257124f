/* recurrent.h - what layers that walk along time share. A walk goes from step 0
 * to the last one, or backwards if bit 0 of `groups` is 1. A gradient walks the
 * other way. */
#ifndef POET_RECURRENT_H
#define POET_RECURRENT_H

#include "poet/kernel.h"
#include "tile.h"

/* Units whose sums are computed at a time: few where the stack is small. */
#if POET_M0PLUS
enum { POET_UNITS = 4 };
#else
enum { POET_UNITS = 8 };
#endif

/* A layer of w units, whose recurrent weight (k, w) and bias (k) have a block
 * of rows for each gate. */
struct poet_layer {
  const float *weight, *bias;
  uint32_t w, k;
  bool has_relu; /* plain units: relu instead of tanh */
  /* the row of the states has w cells after the states h after a step, and that
   * of dy has w gradients of them */
  bool has_cell;
  /* NULL, or the sums of all rows (k) and columns (w) of a sample, if calls
   * with parts of the weight have computed them */
  float *all;
  /* Unit i has number i % POET_UNITS in both: sums[gate] are products of rows
   * of the weight and the state before the step; `later` are products of
   * columns and the gradients of the step after it. */
  float sums[4][POET_UNITS], later[POET_UNITS];
};

/* Computes the states of unit i of one sample after a step, in blocks of w.
 * `states`: those before it, then those after it. `after`: where the next step
 * reads the cell of an LSTM, or NULL. */
typedef void poet_step_fn(const struct poet_layer *layer, uint32_t i,
                          const float *a, float *states, float *after);

/* Compute the states of all steps. */
void poet_walk(const struct poet_call *call, poet_step_fn *step);

/* Computes the gradients d of unit i of one sample and step, in blocks of w.
 * `before`: the states before the step. `kept`: the part of a state's gradient
 * that comes from the step after it, apart from layer->later; NULL if there is
 * no such step. `keep`: the same for the step before, or NULL. `kept` may be
 * block 3 of d. */
typedef void poet_step_back_fn(const struct poet_layer *layer, uint32_t i,
                               const float *a, const float *before,
                               const float *dy, const float *kept, float *d,
                               float *keep);

/* Compute the gradients of all steps. A row has 4 blocks or, if the gradient of
 * the initial state is wanted, 5: then what is kept for the step before comes
 * last. Otherwise it lies in the row of that step, where its block 3 comes
 * later. In call->sums, it follows the gradients of the recurrent weight. */
void poet_walk_back(const struct poet_call *call, poet_step_back_fn *step_back);

#endif
