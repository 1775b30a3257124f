/* recurrent.c - sums of layers that walk along time, and the walk of their
 * gradients. */
#include "recurrent.h"

#include <stddef.h>
#include <string.h>

/* Set sums[j] to the sum of the products of `terms` numbers at a, and of those
 * at b + j * lane, which lie `term` apart. Inlined, because one of the steps is
 * 1. */
static inline void sums_of(const float *a, const float *b, uint32_t lane,
                           uint32_t term, uint32_t terms, uint32_t count,
                           float *sums) {
#if POET_M0PLUS
  struct poet_tile t = {
      .a = {.at = a, .column = 1},
      .b = {.at = b, .lane = (int32_t)lane, .column = (int32_t)term},
      .columns = terms,
      .rows = 1,
      .planes = 1};
  t.tame = poet_tame(a, terms, b, (count - 1) * lane + (terms - 1) * term + 1);
  poet_tile_shape(&t);
  poet_tile(&t, 1, count, sums, count);
#else
  for (; count >= POET_TILE; count -= POET_TILE) {
    const float *x = a, *y0 = b, *y1 = y0 + lane, *y2 = y1 + lane;
    const float *y3 = y2 + lane;
    float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;
    for (uint32_t i = terms; i; i--) {
      const float f = *x++;
      s0 += f * *y0, s1 += f * *y1, s2 += f * *y2, s3 += f * *y3;
      y0 += term, y1 += term, y2 += term, y3 += term;
    }
    sums[0] = s0, sums[1] = s1, sums[2] = s2, sums[3] = s3;
    sums += POET_TILE, b += POET_TILE * lane;
  }
  for (; count; count--) {
    const float *y = b;
    float sum = 0.0f;
    for (uint32_t i = 0; i < terms; i++) {
      sum += a[i] * *y;
      y += term;
    }
    *sums++ = sum;
    b += lane;
  }
#endif
}

void poet_gate_sums(const struct poet_layer *layer, const float *h,
                    uint32_t gates, uint32_t first, uint32_t count,
                    float (*sums)[POET_UNITS]) {
  const uint32_t w = layer->w;
  const float *rows = layer->weight + first * w;
  for (uint32_t gate = 0; gate < gates; gate++) {
    sums_of(h, rows, w, 1, w, count, sums[gate]);
    rows += w * w;
  }
}

void poet_later_sums(const struct poet_layer *layer, const float *later,
                     uint32_t rows, uint32_t first, uint32_t count,
                     float *sums) {
  sums_of(later, layer->weight + first, 1, layer->w, rows, count, sums);
}

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
