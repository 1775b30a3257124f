/* recurrent.c - the walk of gradients of layers that walk along time. */
#include "recurrent.h"

#include <stddef.h>
#include <string.h>

void poet_walk_back(const struct poet_call *call,
                    poet_step_back_fn *step_back) {
  const struct poet_op *op = call->op;
  const uint32_t w = op->w, width = op->oh, k = op->k;
  const bool is_back = op->groups & 1, has_cell = op->h > 3;
  const struct poet_layer layer = {call->in[2], call->in[3], w, op->groups & 2,
                                   has_cell};
  const bool is_wide = width > 4 * w;
  /* dy has the rows of the states if these have the cell after each step */
  const float *const dy = (const float *)call->in[4] + (has_cell ? 2 * w : 0);
  const uint32_t dy_next = has_cell ? op->h * w : w;
  float *const out = call->out; /* (n, c, oh) */
  const float *later = call->first ? NULL : call->sums;
  const float *kept = later != NULL ? later + k : NULL;
  uint32_t next = k + w; /* from one sample of `later` to the next one */

  for (uint32_t i = 0; i < op->n; i++) {
    const uint32_t row = poet_step_row(op, i, !is_back);
    float *keep = NULL;
    uint32_t keep_next = width;
    if (is_wide) {
      keep = out + row * width + 4 * w;
    } else if (i + 1 < op->n) {
      keep = out + poet_step_row(op, i + 1, !is_back) * width + (width - w);
    } else if (!call->last) {
      keep = call->sums + k;
      keep_next = k + w;
    }
    for (uint32_t c = 0; c < op->c; c++) {
      step_back(&layer, (const float *)call->in[0] + (row + c) * k,
                (const float *)call->in[1] + (row + c) * op->h * w,
                dy + (row + c) * dy_next,
                later != NULL ? later + c * next : NULL,
                later != NULL ? kept + c * next : NULL, out + (row + c) * width,
                keep != NULL ? keep + c * keep_next : NULL);
    }
    later = out + row * width;
    kept = keep;
    next = width;
  }
  for (uint32_t c = 0; c < op->c && !call->last; c++) {
    float *to = call->sums + c * (k + w);
    memcpy(to, later + c * next, k * sizeof *to);
    if (is_wide) {
      memcpy(to + k, kept + c * next, w * sizeof *to);
    }
  }
}
