/*
 * conv2d.c - two-dimensional convolution with groups, and the gradient of its
 * input, as tiles of sums (tile.h). conv2d_grad.c has the gradient of the
 * weights.
 *
 * The letters in shapes, such as (n, c, h, w), are fields of struct poet_op.
 * Output channel k reads the c / groups input channels of its group.
 *
 * poet_conv2d and poet_conv2d_grad_input are one function, convolve: each
 * *made* element is a sum of *read* elements times weights. Along an axis, made
 * elements that meet the same elements of the window (the same *taps*) form a
 * *span*. A pair of spans is a rectangle of sums with the same number of terms,
 * so the inner loops need no test for padding. A tile is four channels of four
 * neighbours in such a rectangle.
 */
#include <stddef.h>
#include "vector/conv_vector.h"
#include "depthwise.h"
#include "m4f/lanes_m4f.h"
#include "m0plus/lanes_m0plus.h"
#include "poet/kernel.h"
#include "tile.h"

/* Return true for a gradient of inputs of which some meet no tap. */
static bool is_sparse(const struct convolution *v) {
  return v->h.back && (v->h.stride > v->h.kernel || v->w.stride > v->w.kernel);
}

#if POET_M0PLUS
#define rectangle poet_rectangle
#else
enum { STRIP = POET_WIDE / 2 }; /* channels at a time */

/* Element (i, j) of the rectangle of two spans, in all channels of a sample. */
struct origin {
  const float *from; /* (groups * read, h.read, w.read) */
  float *to;         /* (groups * made, h.made, w.made) */
  const struct span *h, *w;
  uint32_t i, j;
};

/* Compute `count` <= POET_TILE neighbours, of which `o` is the first, in all
 * channels: along a column if `down`, else along a row. */
static void strip(const struct convolution *v, struct poet_tile *t,
                  const struct origin *o, bool down, uint32_t count) {
  const uint32_t h_made = v->h.back ? v->h.stride : 1;
  const uint32_t w_made = v->w.back ? v->w.stride : 1;
  const uint32_t h_read = v->h.back ? 1 : v->h.stride;
  const uint32_t w_read = v->w.back ? 1 : v->w.stride;
  const uint32_t next = down ? h_made * v->w.made : w_made;
  const float *weight = v->weight + o->h->tap * v->op->kernel_w + o->w->tap;
  const float *bias = v->bias;
  t->b.lane = (int32_t)(down ? h_read * v->w.read : w_read);
  const float *from = o->from + (o->h->from + o->i * h_read) * v->w.read +
                      o->w->from + o->j * w_read;
  float *to = o->to + (o->h->first + o->i * h_made) * v->w.made + o->w->first +
              o->j * w_made;
  for (uint32_t group = v->op->groups; group; group--) {
    t->b.at = from;
    t->a.at = weight;
    uint32_t k = 0;
    if (next == 1 && count == POET_TILE) {
      k = poet_full_lanes(v->made);
      poet_tile(t, k, count, to, v->made_plane);
      for (uint32_t lane = 0; bias != NULL && lane < k; lane++) {
        float *at = to + lane * v->made_plane;
        const float by = *bias++;
        at[0] += by, at[1] += by, at[2] += by, at[3] += by;
      }
      to += k * v->made_plane;
      t->a.at += k * v->made_step;
    }
    for (; k < v->made; k += STRIP) {
      const uint32_t lanes = poet_wide_lanes(v->made - k, STRIP);
      float sums[STRIP][POET_TILE];
      for (uint32_t lane = 0; t->begun && lane < lanes; lane++) {
        for (uint32_t l = 0; l < count; l++) {
          sums[lane][l] = to[lane * v->made_plane + l * next];
        }
      }
      poet_tile(t, lanes, count, sums[0], POET_TILE);
      for (uint32_t lane = 0; lane < lanes; lane++) {
        float *at = to;
        if (count == POET_TILE && bias == NULL) {
          at[0] = sums[lane][0], at[next] = sums[lane][1];
          at[2 * next] = sums[lane][2], at[3 * next] = sums[lane][3];
          to += v->made_plane;
          continue;
        }
        for (uint32_t l = 0; l < count; l++) {
          *at = bias != NULL ? sums[lane][l] + *bias : sums[lane][l];
          at += next;
        }
        if (bias != NULL) {
          bias++;
        }
        to += v->made_plane;
      }
      t->a.at += STRIP * v->made_step;
    }
    from += v->read * v->read_plane;
    weight += v->group_step;
  }
}

#if POET_M4F
/* Compute elements anywhere in the rectangle of two spans, in all channels:
 * those whose first channel is at to[0] to to[count - 1]. */
static void scattered(const struct convolution *v, struct poet_tile *t,
                      const float *from[POET_TILE], float *to[POET_TILE],
                      const struct span *h, const struct span *w,
                      uint32_t count) {
  const float *weight = v->weight + h->tap * v->op->kernel_w + w->tap;
  const float *bias = v->bias;
  for (uint32_t l = count; l < POET_TILE; l++) {
    from[l] = from[0];
  }
  for (uint32_t group = v->op->groups; group; group--) {
    t->a.at = weight;
    for (uint32_t k = 0; k < v->made; k += STRIP) {
      const uint32_t lanes = poet_wide_lanes(v->made - k, STRIP);
      float sums[STRIP][POET_TILE];
      for (uint32_t lane = 0; t->begun && lane < lanes; lane++) {
        for (uint32_t l = 0; l < count; l++) {
          sums[lane][l] = to[l][lane * v->made_plane];
        }
      }
      if (count > 1 && h->taps && w->taps) {
        poet_blocks_apart(t, lanes, from, sums[0], POET_TILE);
      } else {
        for (uint32_t l = 0; l < count; l++) { /* if there are no taps */
          t->b.at = from[l];
          poet_tile(t, lanes, 1, &sums[0][l], POET_TILE);
        }
      }
      for (uint32_t lane = 0; lane < lanes; lane++) {
        for (uint32_t l = 0; l < count; l++) {
          *to[l] = bias != NULL ? sums[lane][l] + *bias : sums[lane][l];
          to[l] += v->made_plane;
        }
        if (bias != NULL) {
          bias++;
        }
      }
      t->a.at += STRIP * v->made_step;
    }
    for (uint32_t l = 0; l < POET_TILE; l++) {
      from[l] += v->read * v->read_plane;
    }
    weight += v->group_step;
  }
}

/* Compute a rectangle of two spans from column `first` on, in all samples. */
static void columns(const struct convolution *v, struct poet_tile *t,
                    const float *from, float *to, const struct span *h,
                    const struct span *w, uint32_t first) {
  const uint32_t h_made = v->h.back ? v->h.stride : 1;
  const uint32_t w_made = v->w.back ? v->w.stride : 1;
  const uint32_t h_read = v->h.back ? 1 : v->h.stride;
  const uint32_t w_read = v->w.back ? 1 : v->w.stride;
  const float *reads[POET_TILE];
  float *makes[POET_TILE];
  uint32_t count = 0;
  for (uint32_t n = 0; n < v->op->n; n++) {
    for (uint32_t i = 0; i < h->count; i++) {
      for (uint32_t j = first; j < w->count; j++) {
        reads[count] =
            from + (h->from + i * h_read) * v->w.read + w->from + j * w_read;
        makes[count] =
            to + (h->first + i * h_made) * v->w.made + w->first + j * w_made;
        if (++count == POET_TILE) {
          scattered(v, t, reads, makes, h, w, count);
          count = 0;
        }
      }
    }
    from += v->op->groups * v->read * v->read_plane;
    to += v->op->groups * v->made * v->made_plane;
  }
  if (count) {
    scattered(v, t, reads, makes, h, w, count);
  }
}
#endif

/* Compute the rectangle of two spans in all channels of all samples. */
static void rectangle(const struct convolution *v, struct poet_tile *t,
                      const float *from, float *to, const struct span *h,
                      const struct span *w) {
  const uint32_t across = poet_full_lanes(w->count);
  t->rows = h->taps;
  t->columns = w->taps;
  poet_tile_shape(t);
#if POET_M4F
  columns(v, t, from, to, h, w, across);
#endif
  for (uint32_t n = 0; n < v->op->n; n++) {
    for (uint32_t j = across; !POET_M4F && j < w->count; j++) {
      for (uint32_t i = 0; i < h->count; i += POET_TILE) {
        const struct origin o = {from, to, h, w, i, j};
        strip(v, t, &o, true, poet_lanes(h->count - i));
      }
    }
    for (uint32_t i = 0; i < h->count; i++) {
      for (uint32_t j = 0; j < across; j += POET_TILE) {
        const struct origin o = {from, to, h, w, i, j};
        strip(v, t, &o, false, POET_TILE);
      }
    }
    from += v->op->groups * v->read * v->read_plane;
    to += v->op->groups * v->made * v->made_plane;
  }
}
#endif

/* Return true if tiles would take longer than one tap after the other. On a
 * Cortex-M4F, the limits are measured: products of an element in a group, for
 * rows of some width. */
static bool is_few(const struct convolution *v) {
#if POET_M4F
  if (v->made == 1 && v->read == 1) {
    return true;
  }
  const uint32_t width = v->w.made / (v->w.back ? v->w.stride : 1);
  const uint32_t most = v->made == 1 && !v->w.back ? 9 * width
                        : width < 3                ? 8
                        : width < 13               ? 3 * width
                                                   : 40;
  const uint64_t products =
      (uint64_t)poet_products(&v->h) * poet_products(&v->w);
  return v->made * v->read * products <=
         (uint64_t)most * (v->h.made * v->w.made);
#else
  return v->made == 1 && POET_IS_FEW(1);
#endif
}

static void convolve(const struct convolution *v, const float *from,
                     float *to) {
  const struct poet_op *op = v->op;
  const uint32_t weights = op->groups * v->group_step;
  const uint32_t read = op->n * op->groups * v->read * v->read_plane -
                        v->read_plane + v->h.read * v->w.read;
  const uint32_t h_phases = v->h.back ? op->stride_h : 1;
  const uint32_t w_phases = v->w.back ? op->stride_w : 1;
  const int32_t row = (int32_t)v->w.read;
  if (is_few(v)) {
    poet_depthwise(v, from, to);
    return;
  }
#if POET_VECTOR
  if (poet_convolve_planes(v, from, to)) {
    return;
  }
#endif
  struct poet_tile t = {.a = {.lane = (int32_t)v->made_step,
                              .column = (int32_t)w_phases,
                              .row = (int32_t)h_phases * op->kernel_w,
                              .plane = (int32_t)v->read_step},
                        .b = {.column = v->w.back ? -1 : 1,
                              .row = v->h.back ? -row : row,
                              .plane = (int32_t)v->read_plane},
                        .planes = v->read,
                        .begun = v->begun,
                        .tame = poet_tame(from, read, v->weight, weights)};
  const bool sparse = is_sparse(v);
  if (sparse && !v->begun) {
    poet_clear(v, to);
  }
  for (uint32_t h_phase = 0; h_phase < h_phases; h_phase++) {
    for (uint32_t i = h_phase; i < v->h.made;) {
      const struct span h = poet_span_at(&v->h, i);
      for (uint32_t w_phase = 0; w_phase < w_phases; w_phase++) {
        for (uint32_t j = w_phase; j < v->w.made;) {
          const struct span w = poet_span_at(&v->w, j);
          if (!sparse || (h.taps && w.taps)) {
            rectangle(v, &t, from, to, &h, &w);
          }
          j += w.count * w_phases;
        }
      }
      i += h.count * h_phases;
    }
  }
#if POET_M0PLUS
  poet_add_bias(v, to);
#endif
}

void poet_conv2d(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const uint32_t taps = (uint32_t)op->kernel_h * op->kernel_w;
  const uint32_t group_c = op->c / op->groups, group_k = op->k / op->groups;
  const uint32_t made_step = poet_apart(call->row, group_c * taps);
  const struct convolution v = {
      .op = op,
      .h = {op->kernel_h, op->stride_h, op->pad_h, op->h, op->oh, false},
      .w = {op->kernel_w, op->stride_w, op->pad_w, op->w, op->ow, false},
      .weight = call->in[1], /* (k, c / groups, kernel_h, kernel_w) */
      .bias = op->input_count > 2 && call->last ? call->in[2] : NULL, /* (k) */
      .begun = !call->first,
      .made = group_k,
      .read = group_c,
      .made_step = made_step,
      .read_step = taps,
      .group_step = (group_k - 1) * made_step + group_c * taps,
      .made_plane = poet_apart(call->out_plane, op->oh * op->ow),
      .read_plane = poet_apart(call->in_plane, op->h * op->w)};
  convolve(&v, call->in[0], call->out); /* x (n, c, h, w), y (n, k, oh, ow) */
}

void poet_conv2d_grad_input(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const uint32_t taps = (uint32_t)op->kernel_h * op->kernel_w;
  const uint32_t group_c = op->c / op->groups, group_k = op->k / op->groups;
  const uint32_t read_step = poet_apart(call->row, group_c * taps);
  const struct convolution v = {
      .op = op,
      .h = {op->kernel_h, op->stride_h, op->pad_h, op->oh, op->h, true},
      .w = {op->kernel_w, op->stride_w, op->pad_w, op->ow, op->w, true},
      .weight = call->in[1], /* (k, c / groups, kernel_h, kernel_w) */
      .begun = !call->first,
      .made = group_c,
      .read = group_k,
      .made_step = taps,
      .read_step = read_step,
      .group_step = (group_k - 1) * read_step + group_c * taps,
      .made_plane = poet_apart(call->out_plane, op->h * op->w),
      .read_plane = poet_apart(call->in_plane, op->oh * op->ow)};
  convolve(&v, call->in[0], call->out); /* dy (n, k, oh, ow), dx (n, c, h, w) */
}
