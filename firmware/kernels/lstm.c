/*
 * lstm.c - a layer of long short-term memory, and its gradient.
 *
 * The products of the input are computed before: `a` has them for each of n
 * steps, c samples and w units, for the gates input, forget, cell and output.
 * The rows of the recurrent weight have the same order, and the gradients of a
 * step too. The states are the output h, and the cell.
 *
 * The output has both states before each step, and h after it. So a walk needs
 * no memory of its own: what a step needs of the step before lies in the output
 * or, if that is in another part, in call->sums. If the cell is wanted (h is
 * 4), the output has it after each step too, and dy has the same blocks as the
 * output, of which only the last two are read.
 */
#include <stddef.h>
#include <string.h>

#include "mathf.h"
#include "recurrent.h"

struct gates {
  float input, forget, cell, output;
  float state; /* of the cell, after the step */
};

/* Compute the gates of unit i. `cell`: before the step. */
static struct gates gates_of(const struct poet_layer *layer, uint32_t i,
                             const float *a, float cell) {
  const uint32_t w = layer->w;
  const float *bias = layer->bias + i, *sums = layer->sums[0] + i % POET_UNITS;
  struct gates g;
  a += i;
  g.input = poet_logistic(a[0] + (sums[0] + bias[0]));
  g.forget = poet_logistic(a[w] + (sums[POET_UNITS] + bias[w]));
  g.cell = poet_tanhf(a[2 * w] + (sums[2 * POET_UNITS] + bias[2 * w]));
  g.output = poet_logistic(a[3 * w] + (sums[3 * POET_UNITS] + bias[3 * w]));
  g.state = g.forget * cell + g.input * g.cell;
  return g;
}

static void lstm_step(const struct poet_layer *layer, uint32_t i,
                      const float *a, float *states, float *after) {
  const uint32_t w = layer->w;
  states += i;
  const struct gates g = gates_of(layer, i, a, states[w]);
  states[2 * w] = g.output * poet_tanhf(g.state);
  if (after != NULL) {
    after[i] = g.state;
  }
  if (layer->has_cell) {
    states[3 * w] = g.state;
  }
}

void poet_lstm(const struct poet_call *call) {
  poet_walk(call, lstm_step);
}

static void lstm_step_back(const struct poet_layer *layer, uint32_t i,
                           const float *a, const float *before, const float *dy,
                           const float *kept, float *d, float *keep) {
  const uint32_t w = layer->w;
  before += i, dy += i, d += i;
  const struct gates g = gates_of(layer, i, a, before[w]);
  const float t = poet_tanhf(g.state);
  float dh = dy[0];
  if (kept != NULL) {
    dh += layer->later[i % POET_UNITS];
  }
  float dc = dh * g.output * (1.0f - t * t);
  if (layer->has_cell) {
    dc += dy[w];
  }
  if (kept != NULL) {
    dc += kept[i];
  }
  d[0] = dc * g.cell * (g.input * (1.0f - g.input));
  d[w] = dc * before[w] * (g.forget * (1.0f - g.forget));
  d[2 * w] = dc * g.input * (1.0f - g.cell * g.cell);
  d[3 * w] = dh * t * (g.output * (1.0f - g.output));
  if (keep != NULL) {
    keep[i] = dc * g.forget;
  }
}

void poet_lstm_grad(const struct poet_call *call) {
  poet_walk_back(call, lstm_step_back);
}
