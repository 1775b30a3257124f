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
static struct gates gates_of(const struct poet_layer *layer, const float *a,
                             const float *h, uint32_t i) {
  const uint32_t w = layer->w;
  struct gates g;
  g.term = poet_recurrent(layer, h, i);
  g.reset = poet_logistic(a[i] + poet_recurrent(layer, h, w + i));
  g.update = poet_logistic(a[w + i] + poet_recurrent(layer, h, 2 * w + i));
  g.new = poet_tanhf(a[2 * w + i] + g.reset * g.term);
  return g;
}

/* Return the state of plain unit i after a step. */
static float plain_state(const struct poet_layer *layer, const float *a,
                         const float *h, uint32_t i) {
  const float sum = a[i] + poet_recurrent(layer, h, i);
  return !layer->has_relu ? poet_tanhf(sum) : sum < 0.0f ? 0.0f : sum;
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
      for (uint32_t j = 0; j < w; j++) {
        if (k == w) {
          h[w + j] = plain_state(&layer, a, h, j);
          continue;
        }
        const struct gates g = gates_of(&layer, a, h, j);
        h[w + j] = (1.0f - g.update) * g.new + g.update * h[j];
      }
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
  for (uint32_t i = 0; i < w; i++) {
    const struct gates g = gates_of(layer, a, h, i);
    float dh = dy[i];
    if (later != NULL) {
      dh += kept[i] + poet_products(later, layer->weight + i, w, 3 * w);
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
  for (uint32_t i = 0; i < w; i++) {
    float dh = dy[i];
    if (later != NULL) {
      dh += poet_products(later, layer->weight + i, w, w);
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
