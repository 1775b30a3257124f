/*
 * gru.c - a layer of gated or plain recurrent units, and its gradient.
 *
 * Plain units (k is w) have one product instead of three gates: the new state
 * is its tanh or, if bit 1 of `groups` is 1, its relu. The rest is about gates.
 *
 * The products of the input are computed before: `a` has them for each of n
 * steps, c samples and w units, for the gates reset, update and new. The rows
 * of the recurrent weight are those of the gates new, reset and update. So of
 * the gradients (q, reset, update, new) of a step, the first three belong to
 * the recurrent weight, and the last three to the input. q is that of the
 * recurrent term of the new gate.
 *
 * The output has the states before and after each step. So a walk needs no
 * memory of its own: what a step needs of the step before lies in the output
 * or, if that is in another part, in call->sums (c, w).
 */
#include <stddef.h>
#include <string.h>

#include "mathf.h"
#include "recurrent.h"

struct gates {
  float term; /* the recurrent term of the new gate, before the reset gate */
  float reset, update, new;
};

/* Compute the gates of unit i. */
static struct gates gates_of(const struct poet_layer *layer, uint32_t i,
                             const float *a) {
  const uint32_t w = layer->w;
  const float *bias = layer->bias + i, *sums = layer->sums[0] + i % POET_UNITS;
  struct gates g;
  a += i;
  g.term = sums[0] + bias[0];
  g.reset = poet_logistic(a[0] + (sums[POET_UNITS] + bias[w]));
  g.update = poet_logistic(a[w] + (sums[2 * POET_UNITS] + bias[2 * w]));
  g.new = poet_tanhf(a[2 * w] + g.reset * g.term);
  return g;
}

static void gru_step(const struct poet_layer *layer, uint32_t i, const float *a,
                     float *h, float *cell) {
  const struct gates g = gates_of(layer, i, a);
  (void)cell;
  h += i;
  h[layer->w] = (1.0f - g.update) * g.new + g.update * h[0];
}

static void plain_step(const struct poet_layer *layer, uint32_t i,
                       const float *a, float *h, float *cell) {
  const float sum = a[i] + (layer->sums[0][i % POET_UNITS] + layer->bias[i]);
  (void)cell;
  h[layer->w + i] = !layer->has_relu ? poet_tanhf(sum)
                    : sum < 0.0f     ? 0.0f
                                     : sum;
}

void poet_gru(const struct poet_call *call) {
  poet_walk(call, call->whole->k == call->op->w ? plain_step : gru_step);
}

static void gru_step_back(const struct poet_layer *layer, uint32_t i,
                          const float *a, const float *h, const float *dy,
                          const float *kept, float *d, float *keep) {
  const uint32_t w = layer->w;
  const struct gates g = gates_of(layer, i, a);
  float dh = dy[i];
  if (kept != NULL) {
    dh += kept[i] + layer->later[i % POET_UNITS];
  }
  const float dn = dh * (1.0f - g.update) * (1.0f - g.new * g.new);
  d += i;
  d[0] = dn * g.reset;
  d[w] = dn * g.term * (g.reset * (1.0f - g.reset));
  d[2 * w] = dh * (h[i] - g.new) * (g.update * (1.0f - g.update));
  d[3 * w] = dn;
  if (keep != NULL) {
    keep[i] = dh * g.update;
  }
}

static void plain_step_back(const struct poet_layer *layer, uint32_t i,
                            const float *a, const float *h, const float *dy,
                            const float *kept, float *d, float *keep) {
  const float after = h[layer->w + i];
  (void)a, (void)keep;
  float dh = dy[i];
  if (kept != NULL) {
    dh += layer->later[i % POET_UNITS];
  }
  if (!layer->has_relu) {
    d[i] = dh * (1.0f - after * after);
  } else {
    d[i] = after == 0.0f ? 0.0f : dh;
  }
}

void poet_gru_grad(const struct poet_call *call) {
  const bool is_plain = call->whole->k == call->op->w;
  poet_walk_back(call, is_plain ? plain_step_back : gru_step_back);
}
