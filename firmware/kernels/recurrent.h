/* recurrent.h - what layers that walk along time share. A walk goes from step 0
 * to the last one, or backwards if bit 0 of `groups` is 1. A gradient walks the
 * other way. */
#ifndef POET_RECURRENT_H
#define POET_RECURRENT_H

#include "poet/kernel.h"

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

/* Return the sum of products, whose second factors lie `next` apart. */
static inline float poet_products(const float *a, const float *b, uint32_t next,
                                  uint32_t count) {
  float sum = 0.0f;
  do {
    sum += *a++ * *b;
    b += next;
  } while (--count);
  return sum;
}

/* Return row i of the recurrent weight times the state h, plus the bias. */
static inline float poet_recurrent(const struct poet_layer *layer,
                                   const float *h, uint32_t i) {
  return poet_products(h, layer->weight + i * layer->w, 1, layer->w) +
         layer->bias[i];
}

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
