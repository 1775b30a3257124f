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

/* Compute the gates of unit i, whose sums are those of number j. `cell`: before
 * the step. */
static struct gates gates_of(const struct poet_layer *layer, const float *a,
                             float (*sums)[POET_UNITS], uint32_t j, float cell,
                             uint32_t i) {
  const uint32_t w = layer->w;
  const float *bias = layer->bias + i;
  struct gates g;
  a += i;
  g.input = poet_logistic(a[0] + (sums[0][j] + bias[0]));
  g.forget = poet_logistic(a[w] + (sums[1][j] + bias[w]));
  g.cell = poet_tanhf(a[2 * w] + (sums[2][j] + bias[2 * w]));
  g.output = poet_logistic(a[3 * w] + (sums[3][j] + bias[3 * w]));
  g.state = g.forget * cell + g.input * g.cell;
  return g;
}

void poet_lstm(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const uint32_t w = op->w;
  const uint32_t width = op->h * w;
  const struct poet_layer layer = {call->in[1], call->in[2], w, false, false};
  const float *h = call->in[3], *cell = call->in[4]; /* (c, w) each */
  uint32_t next = w; /* from one sample of h to the next one */
  if (!call->first) {
    h = call->sums; /* (c, 2, w) */
    cell = h + w;
    next = 2 * w;
  }
  for (uint32_t i = 0; i < op->n; i++) {
    const uint32_t row = poet_step_row(op, i, op->groups & 1);
    const float *a = (const float *)call->in[0] + row * 4 * w; /* (c, 4, w) */
    float *y = (float *)call->out + row * width;               /* (c, h, w) */
    float *after = NULL; /* the cell after this step */
    uint32_t after_next = width;
    if (i + 1 < op->n) {
      after = (float *)call->out +
              poet_step_row(op, i + 1, op->groups & 1) * width + w;
    } else if (!call->last) {
      after = call->sums + w;
      after_next = 2 * w;
    }
    for (uint32_t c = 0; c < op->c; c++) {
      float *to = y + c * width;
      memcpy(to, h + c * next, w * sizeof *to);
      if (i == 0) {
        memcpy(to + w, cell + c * next, w * sizeof *to);
      }
      float sums[4][POET_UNITS];
      for (uint32_t j = 0; j < w; j++) {
        if (j % POET_UNITS == 0) {
          poet_gate_sums(&layer, to, 4, j, poet_units(w - j), sums);
        }
        const struct gates g =
            gates_of(&layer, a, sums, j % POET_UNITS, to[w + j], j);
        to[2 * w + j] = g.output * poet_tanhf(g.state);
        if (after != NULL) {
          after[c * after_next + j] = g.state;
        }
        if (op->h > 3) {
          to[3 * w + j] = g.state;
        }
      }
      a += 4 * w;
    }
    h = y + 2 * w;
    next = width;
  }
  for (uint32_t c = 0; c < op->c && !call->last; c++) {
    memcpy(call->sums + c * 2 * w, h + c * next, w * sizeof *h);
  }
}

static void lstm_step_back(const struct poet_layer *layer, const float *a,
                           const float *before, const float *dy,
                           const float *later, const float *kept, float *d,
                           float *keep) {
  const uint32_t w = layer->w;
  float sums[4][POET_UNITS], from_later[POET_UNITS];
  for (uint32_t i = 0, j = 0; i < w; i++, j++) {
    if (i % POET_UNITS == 0) {
      j = 0;
      poet_gate_sums(layer, before, 4, i, poet_units(w - i), sums);
      if (later != NULL) {
        poet_later_sums(layer, later, 4 * w, i, poet_units(w - i), from_later);
      }
    }
    const struct gates g = gates_of(layer, a, sums, j, before[w + i], i);
    const float t = poet_tanhf(g.state);
    float dh = dy[i];
    if (later != NULL) {
      dh += from_later[j];
    }
    float dc = dh * g.output * (1.0f - t * t);
    if (layer->has_cell) {
      dc += dy[w + i];
    }
    if (later != NULL) {
      dc += kept[i];
    }
    d[i] = dc * g.cell * (g.input * (1.0f - g.input));
    d[w + i] = dc * before[w + i] * (g.forget * (1.0f - g.forget));
    d[2 * w + i] = dc * g.input * (1.0f - g.cell * g.cell);
    d[3 * w + i] = dh * t * (g.output * (1.0f - g.output));
    if (keep != NULL) {
      keep[i] = dc * g.forget;
    }
  }
}

void poet_lstm_grad(const struct poet_call *call) {
  poet_walk_back(call, lstm_step_back);
}
