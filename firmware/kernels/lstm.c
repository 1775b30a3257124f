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

static float sum_of(const struct poet_layer *layer, const float *a,
                    const float *h, uint32_t i) {
  return a[i] + poet_recurrent(layer, h, i);
}

/* Compute the gates of unit i. `before`: h, then the cell, before the step. */
static struct gates gates_of(const struct poet_layer *layer, const float *a,
                             const float *before, uint32_t i) {
  const uint32_t w = layer->w;
  struct gates g;
  g.input = poet_logistic(sum_of(layer, a, before, i));
  g.forget = poet_logistic(sum_of(layer, a, before, w + i));
  g.cell = poet_tanhf(sum_of(layer, a, before, 2 * w + i));
  g.output = poet_logistic(sum_of(layer, a, before, 3 * w + i));
  g.state = g.forget * before[w + i] + g.input * g.cell;
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
      for (uint32_t j = 0; j < w; j++) {
        const struct gates g = gates_of(&layer, a, to, j);
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
  for (uint32_t i = 0; i < w; i++) {
    const struct gates g = gates_of(layer, a, before, i);
    const float t = poet_tanhf(g.state);
    float dh = dy[i];
    if (later != NULL) {
      dh += poet_products(later, layer->weight + i, w, 4 * w);
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
