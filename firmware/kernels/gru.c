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

/* Compute the gates of unit i, whose sums are those of number j. */
static struct gates gates_of(const struct poet_layer *layer, const float *a,
                             float (*sums)[POET_UNITS], uint32_t j,
                             uint32_t i) {
  const uint32_t w = layer->w;
  const float *bias = layer->bias + i;
  struct gates g;
  g.term = sums[0][j] + bias[0];
  g.reset = poet_logistic(a[i] + (sums[1][j] + bias[w]));
  g.update = poet_logistic(a[w + i] + (sums[2][j] + bias[2 * w]));
  g.new = poet_tanhf(a[2 * w + i] + g.reset * g.term);
  return g;
}

/* Return the state of a plain unit after a step, from what its gate gets. */
static float plain_state(const struct poet_layer *layer, float sum) {
  return !layer->has_relu ? poet_tanhf(sum) : sum < 0.0f ? 0.0f : sum;
}

/* Compute the states after a step of one sample. They follow those before. */
static void gru_step(const struct poet_layer *layer, const float *a,
                     uint32_t gates, float *h) {
  const uint32_t w = layer->w;
  for (uint32_t first = 0; first < w; first += POET_UNITS) {
    const uint32_t count = poet_units(w - first);
    float sums[3][POET_UNITS];
    poet_gate_sums(layer, h, gates, first, count, sums);
    for (uint32_t j = 0; j < count; j++) {
      const uint32_t i = first + j;
      if (gates == 1) {
        h[w + i] = plain_state(layer, a[i] + (sums[0][j] + layer->bias[i]));
        continue;
      }
      const struct gates g = gates_of(layer, a, sums, j, i);
      h[w + i] = (1.0f - g.update) * g.new + g.update * h[i];
    }
  }
}

void poet_gru(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const uint32_t w = op->w, k = op->k;
  const struct poet_layer layer = {call->in[1], call->in[2], w, op->groups & 2,
                                   false};
  const float *from = call->first ? call->in[3] : call->sums; /* (c, w) */
  uint32_t next = w; /* from one sample to the next one */

  for (uint32_t i = 0; i < op->n; i++) {
    const uint32_t row = poet_step_row(op, i, op->groups & 1);
    const float *a = (const float *)call->in[0] + row * k; /* (c, k) */
    float *y = (float *)call->out + row * 2 * w;           /* (c, 2, w) */
    for (uint32_t c = 0; c < op->c; c++) {
      float *h = y + c * 2 * w;
      memcpy(h, from + c * next, w * sizeof *h);
      gru_step(&layer, a, k == w ? 1 : 3, h);
      a += k;
    }
    from = y + w;
    next = 2 * w;
  }
  for (uint32_t c = 0; c < op->c && !call->last; c++) {
    memcpy(call->sums + c * w, from + c * next, w * sizeof *from);
  }
}

static void gru_step_back(const struct poet_layer *layer, const float *a,
                          const float *h, const float *dy, const float *later,
                          const float *kept, float *d, float *keep) {
  const uint32_t w = layer->w;
  float sums[3][POET_UNITS], from_later[POET_UNITS];
  for (uint32_t i = 0, j = 0; i < w; i++, j++) {
    if (i % POET_UNITS == 0) {
      j = 0;
      poet_gate_sums(layer, h, 3, i, poet_units(w - i), sums);
      if (later != NULL) {
        poet_later_sums(layer, later, 3 * w, i, poet_units(w - i), from_later);
      }
    }
    const struct gates g = gates_of(layer, a, sums, j, i);
    float dh = dy[i];
    if (later != NULL) {
      dh += kept[i] + from_later[j];
    }
    const float dn = dh * (1.0f - g.update) * (1.0f - g.new * g.new);
    d[i] = dn * g.reset;
    d[w + i] = dn * g.term * (g.reset * (1.0f - g.reset));
    d[2 * w + i] = dh * (h[i] - g.new) * (g.update * (1.0f - g.update));
    d[3 * w + i] = dn;
    if (keep != NULL) {
      keep[i] = dh * g.update;
    }
  }
}

static void plain_step_back(const struct poet_layer *layer, const float *a,
                            const float *h, const float *dy, const float *later,
                            const float *kept, float *d, float *keep) {
  const uint32_t w = layer->w;
  const float *after = h + w;
  (void)a, (void)kept, (void)keep;
  float from_later[POET_UNITS];
  for (uint32_t i = 0, j = 0; i < w; i++, j++) {
    if (i % POET_UNITS == 0 && later != NULL) {
      j = 0;
      poet_later_sums(layer, later, w, i, poet_units(w - i), from_later);
    }
    float dh = dy[i];
    if (later != NULL) {
      dh += from_later[j];
    }
    if (!layer->has_relu) {
      d[i] = dh * (1.0f - after[i] * after[i]);
    } else {
      d[i] = after[i] == 0.0f ? 0.0f : dh;
    }
  }
}

void poet_gru_grad(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  poet_walk_back(call, op->k == op->w ? plain_step_back : gru_step_back);
}
