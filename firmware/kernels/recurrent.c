/* recurrent.c - sums of layers that walk along time, and the walk of their
 * gradients. */
#include "recurrent.h"

#include <stddef.h>
#include <string.h>

/* Set sums[j] to the sum of the products of `terms` numbers at a, and of those
 * at b + j * lane, which lie `term` apart; if `begun`, add them to it. Inlined,
 * because one of the steps is 1. */
static inline void sums_of(const float *a, const float *b, uint32_t lane,
                           uint32_t term, uint32_t terms, uint32_t count,
                           bool begun, float *sums) {
#if POET_M0PLUS
  struct poet_tile t = {
      .a = {.at = a, .column = 1},
      .b = {.at = b, .lane = (int32_t)lane, .column = (int32_t)term},
      .columns = terms,
      .rows = 1,
      .planes = 1,
      .begun = begun};
  t.tame = poet_tame(a, terms, b, (count - 1) * lane + (terms - 1) * term + 1);
  poet_tile_shape(&t);
  poet_tile(&t, 1, count, sums, count);
#else
  for (; count >= POET_TILE; count -= POET_TILE) {
    const float *x = a, *y0 = b, *y1 = y0 + lane, *y2 = y1 + lane;
    const float *y3 = y2 + lane;
    float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;
    if (begun) {
      s0 = sums[0], s1 = sums[1], s2 = sums[2], s3 = sums[3];
    }
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
    float sum = begun ? *sums : 0.0f;
    for (uint32_t i = 0; i < terms; i++) {
      sum += a[i] * *y;
      y += term;
    }
    *sums++ = sum;
    b += lane;
  }
#endif
}

/* Return the first row of step i of a walk: there is one for each sample. */
static uint32_t step_row(const struct poet_op *op, uint32_t i, bool is_back) {
  return (is_back ? op->n - 1 - i : i) * op->c;
}

/* Return true if the call has the last rows of the weight. */
static bool has_last_rows(const struct poet_call *call) {
  return call->row + call->op->k == call->whole->k;
}

/* If the call has only some rows of the weight, add their products with the
 * state h and with `later` (k), or NULL, to the sums of a sample. In
 * call->sums, the sums of all samples follow `kept` floats. Return true if the
 * step of the sample can be computed. */
static bool add_rows(const struct poet_call *call, struct poet_layer *layer,
                     uint32_t kept, uint32_t sample, const float *h,
                     const float *later) {
  const uint32_t w = layer->w, rows = call->op->k;
  if (rows == layer->k) {
    return true;
  }
  layer->all = call->sums + kept + sample * (layer->k + w);
  sums_of(h, layer->weight, w, 1, w, rows, false, layer->all + call->row);
  if (later != NULL) {
    sums_of(later + call->row, layer->weight, 1, w, rows, w, call->row != 0,
            layer->all + layer->k);
  }
  return has_last_rows(call);
}

/* Set the sums of unit i and of those after it. `h`: the state, or NULL if its
 * products are not wanted. `later`: gradients (k), or NULL. */
static void set_sums(struct poet_layer *layer, uint32_t i, const float *h,
                     const float *later) {
  const uint32_t w = layer->w;
  const uint32_t count = w - i < POET_UNITS ? w - i : POET_UNITS;
  if (layer->all != NULL) {
    for (uint32_t gate = 0; gate < layer->k / w; gate++) {
      memcpy(layer->sums[gate], layer->all + gate * w + i, count * sizeof *h);
    }
    memcpy(layer->later, layer->all + layer->k + i, count * sizeof *h);
    return;
  }
  float *sums = layer->sums[0];
  for (uint32_t row = i; h != NULL && row < layer->k; row += w) {
    sums_of(h, layer->weight + row * w, w, 1, w, count, false, sums);
    sums += POET_UNITS;
  }
  if (later != NULL) {
    sums_of(later, layer->weight + i, 1, w, layer->k, count, false,
            layer->later);
  }
}

void poet_walk(const struct poet_call *call, poet_step_fn *step) {
  const struct poet_op *op = call->op;
  const uint32_t w = op->w, k = call->whole->k, width = op->h * w;
  const uint32_t kept = op->h > 2 ? 2 * w : w; /* h, and the cell of an LSTM */
  const bool is_back = op->groups & 1;
  struct poet_layer layer = {.weight = call->in[1],
                             .bias = call->in[2],
                             .w = w,
                             .k = k,
                             .has_relu = op->groups & 2,
                             .has_cell = op->h > 3};
  const float *h = call->in[3], *cell = call->in[4]; /* (c, w) each */
  uint32_t next = w; /* from one sample of h to the next one */
  if (!call->first) {
    h = call->sums; /* (c, kept) */
    cell = h + w;
    next = kept;
  }
  for (uint32_t i = 0; i < op->n; i++) {
    const uint32_t row = step_row(op, i, is_back);
    const float *a = (const float *)call->in[0] + row * k; /* (c, k) */
    float *y = (float *)call->out + row * width;           /* (c, h, w) */
    float *after = NULL;                                   /* of a sample */
    uint32_t after_next = width;
    if (i + 1 < op->n) {
      after = (float *)call->out + step_row(op, i + 1, is_back) * width + w;
    } else if (!call->last) {
      after = call->sums + w;
      after_next = kept;
    }
    for (uint32_t c = 0; c < op->c; c++) {
      memcpy(y, h + c * next, w * sizeof *y);
      if (i == 0 && kept > w) {
        memcpy(y + w, cell + c * next, w * sizeof *y);
      }
      if (add_rows(call, &layer, op->c * kept, c, y, NULL)) {
        for (uint32_t j = 0; j < w; j++) {
          if (j % POET_UNITS == 0) {
            set_sums(&layer, j, y, NULL);
          }
          step(&layer, j, a, y, after);
        }
      }
      a += k, y += width;
      after = after != NULL ? after + after_next : NULL;
    }
    h = y - op->c * width + kept;
    next = width;
  }
  if (call->last || !has_last_rows(call)) {
    return;
  }
  for (uint32_t c = 0; c < op->c; c++) {
    memcpy(call->sums + c * kept, h + c * next, w * sizeof *h);
  }
}

void poet_walk_back(const struct poet_call *call,
                    poet_step_back_fn *step_back) {
  const struct poet_op *op = call->op;
  const uint32_t w = op->w, width = op->oh, k = call->whole->k;
  const bool is_back = op->groups & 1, has_cell = op->h > 3;
  struct poet_layer layer = {.weight = call->in[2],
                             .bias = call->in[3],
                             .w = w,
                             .k = k,
                             .has_relu = op->groups & 2,
                             .has_cell = has_cell};
  const bool is_wide = width > 4 * w;
  /* dy has the rows of the states if these have the cell after each step */
  const uint32_t dy_next = has_cell ? op->h * w : w;
  const float *later = call->first ? NULL : call->sums;
  const float *kept = later != NULL ? later + k : NULL;
  uint32_t next = k + w; /* from one sample of `later` to the next one */

  for (uint32_t i = 0; i < op->n; i++) {
    const uint32_t row = step_row(op, i, !is_back);
    const float *a = (const float *)call->in[0] + row * k;
    const float *before = (const float *)call->in[1] + row * op->h * w;
    const float *dy =
        (const float *)call->in[4] + row * dy_next + (has_cell ? 2 * w : 0);
    float *const out = call->out; /* (n, c, oh) */
    float *d = out + row * width, *keep = NULL;
    uint32_t keep_next = width;
    if (is_wide) {
      keep = d + 4 * w;
    } else if (i + 1 < op->n) {
      keep = out + step_row(op, i + 1, !is_back) * width + (width - w);
    } else if (!call->last) {
      keep = call->sums + k;
      keep_next = k + w;
    }
    float *const first_kept = keep;
    for (uint32_t c = 0; c < op->c; c++) {
      if (add_rows(call, &layer, op->c * (k + w), c, before, later)) {
        for (uint32_t j = 0; j < w; j++) {
          if (j % POET_UNITS == 0) {
            set_sums(&layer, j, k == w ? NULL : before, later);
          }
          step_back(&layer, j, a, before, dy, kept, d, keep);
        }
      }
      a += k, before += op->h * w, dy += dy_next, d += width;
      keep = keep != NULL ? keep + keep_next : NULL;
      later = later != NULL ? later + next : NULL;
      kept = kept != NULL ? kept + next : NULL;
    }
    later = out + row * width;
    kept = first_kept;
    next = width;
  }
  if (call->last || !has_last_rows(call)) {
    return;
  }
  for (uint32_t c = 0; c < op->c; c++) {
    float *to = call->sums + c * (k + w);
    memcpy(to, later + c * next, k * sizeof *to);
    if (is_wide) {
      memcpy(to + k, kept + c * next, w * sizeof *to);
    }
  }
}
