/*
 * conv2d.c - two-dimensional convolution with groups, and its two gradients, as
 * tiles of sums (tile.h).
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
#include <string.h>

#include "poet/kernel.h"
#include "sink.h"
#include "tile.h"

/* One axis of a convolution. `back`: it is that of the gradient of the input,
 * which goes backwards through read elements as taps ascend. */
struct axis {
  uint32_t kernel, stride, pad;
  uint32_t read, made; /* number of elements */
  bool back;
};

/* Made elements with the same taps: `count` of them, from element `first` on.
 * They lie `stride` apart if `back`, else side by side. The first of them meets
 * `taps` taps, from `tap` on; these lie `stride` apart if `back`. `from` is the
 * read element of the first tap. */
struct span {
  uint32_t first, count;
  uint32_t tap, taps;
  uint32_t from;
};

/* Return the span of made element `at` alone. */
static struct span taps_of(const struct axis *x, uint32_t at) {
  struct span s = {.first = at, .count = 1};
  if (x->back) {
    s.from = (at + x->pad) / x->stride;
    s.tap = (at + x->pad) - s.from * x->stride;
    if (s.from >= x->read) {
      s.tap += (s.from - (x->read - 1)) * x->stride;
      s.from = x->read - 1;
    }
    s.taps =
        s.tap < x->kernel ? (x->kernel - s.tap + x->stride - 1) / x->stride : 0;
    if (s.taps > s.from + 1) {
      s.taps = s.from + 1;
    }
  } else {
    const uint32_t first = at * x->stride;
    uint32_t end = x->read + x->pad > first ? x->read + x->pad - first : 0;
    end = end < x->kernel ? end : x->kernel;
    s.tap = first < x->pad ? x->pad - first : 0;
    s.taps = end > s.tap ? end - s.tap : 0;
    s.from = first + s.tap - x->pad;
  }
  return s;
}

/* Return the longest span that begins with made element `at`. */
static struct span span_at(const struct axis *x, uint32_t at) {
  const uint32_t step = x->back ? x->stride : 1;
  struct span s = taps_of(x, at);
  for (at += step; at < x->made; at += step) {
    const struct span next = taps_of(x, at);
    if (next.tap != s.tap || next.taps != s.taps) {
      break;
    }
    s.count++;
  }
  return s;
}

/* Return the outputs of a convolution for which tap `at` lies inside of the
 * input: `count` of them, from `first` on. `from` is the input element that the
 * first of them meets. */
static struct span outputs_of(uint32_t at, uint32_t stride, uint32_t pad,
                              uint32_t in_size, uint32_t out_size) {
  const uint32_t begin = at < pad ? (pad - at + stride - 1) / stride : 0;
  uint32_t end =
      at < in_size + pad ? (in_size + pad - at + stride - 1) / stride : 0;
  end = end < out_size ? end : out_size;
  return (struct span){.first = begin,
                       .count = end > begin ? end - begin : 0,
                       .from = begin * stride + at - pad};
}

struct convolution {
  const struct poet_op *op;
  struct axis h, w;
  const float *weight, *bias;    /* bias: of each made channel, or NULL */
  uint32_t made, read;           /* channels of a group */
  uint32_t made_step, read_step; /* distance between their weights */
  uint32_t group_step;           /* from the weights of a group to the next */
  uint32_t made_plane, read_plane;
};

/* Compute `count` <= POET_TILE neighbours in all channels: along a column if
 * `down`, else along a row. The first of them is element (i, j) of the spans.
 * `from`: all read channels, `to`: all made channels. */
static void strip(const struct convolution *v, struct poet_tile *t,
                  const float *from, float *to, const struct span *h,
                  const struct span *w, uint32_t i, uint32_t j, bool down,
                  uint32_t count) {
  const uint32_t h_made = v->h.back ? v->h.stride : 1;
  const uint32_t w_made = v->w.back ? v->w.stride : 1;
  const uint32_t h_read = v->h.back ? 1 : v->h.stride;
  const uint32_t w_read = v->w.back ? 1 : v->w.stride;
  const uint32_t next = down ? h_made * v->w.made : w_made;
  const float *weight = v->weight + h->tap * v->op->kernel_w + w->tap;
  const float *bias = v->bias;
  t->b.lane = (int32_t)(down ? h_read * v->w.read : w_read);
  from += (h->from + i * h_read) * v->w.read + w->from + j * w_read;
  to += (h->first + i * h_made) * v->w.made + w->first + j * w_made;
  for (uint32_t group = v->op->groups; group; group--) {
    t->b.at = from;
    t->a.at = weight;
    for (uint32_t k = 0; k < v->made; k += POET_TILE) {
      const uint32_t lanes = poet_lanes(v->made - k);
      float sums[POET_TILE][POET_TILE];
      poet_tile(t, lanes, count, sums);
      for (uint32_t lane = 0; lane < lanes; lane++) {
        float *at = to;
        for (uint32_t l = 0; l < count; l++) {
          *at = bias != NULL ? sums[lane][l] + *bias : sums[lane][l];
          at += next;
        }
        bias += bias != NULL;
        to += v->made_plane;
      }
      t->a.at += POET_TILE * v->made_step;
    }
    from += v->read * v->read_plane;
    weight += v->group_step;
  }
}

/* Compute the rectangle of two spans in all channels. */
static void rectangle(const struct convolution *v, struct poet_tile *t,
                      const float *from, float *to, const struct span *h,
                      const struct span *w) {
  const uint32_t across = w->count / POET_TILE * POET_TILE;
  t->rows = h->taps;
  t->columns = w->taps;
  poet_tile_shape(t);
  for (uint32_t i = 0; i < h->count; i++) {
    for (uint32_t j = 0; j < across; j += POET_TILE) {
      strip(v, t, from, to, h, w, i, j, false, POET_TILE);
    }
  }
  for (uint32_t j = across; j < w->count; j++) {
    for (uint32_t i = 0; i < h->count; i += POET_TILE) {
      strip(v, t, from, to, h, w, i, j, true, poet_lanes(h->count - i));
    }
  }
}

/* Add, to all made elements of a plane, the products of one weight and the read
 * elements that meet it. */
static void add_tap(const struct convolution *v, uint32_t kh, uint32_t kw,
                    const float *from, float weight, float *to) {
  const struct poet_op *op = v->op;
  const struct span h = outputs_of(kh, op->stride_h, op->pad_h, op->h, op->oh);
  const struct span w = outputs_of(kw, op->stride_w, op->pad_w, op->w, op->ow);
  const uint32_t output = h.first * op->ow + w.first;
  const uint32_t input = h.from * op->w + w.from;
  const uint32_t next_input = op->stride_h * op->w;
  const uint32_t to_step = v->w.back ? op->stride_w : 1;
  const uint32_t from_step = v->w.back ? 1 : op->stride_w;
  to += v->w.back ? input : output;
  from += v->w.back ? output : input;
  for (uint32_t i = 0; i < h.count; i++) {
    for (uint32_t j = 0; j < w.count; j++) {
      to[j * to_step] += weight * from[j * from_step];
    }
    to += v->w.back ? next_input : op->ow;
    from += v->w.back ? op->ow : next_input;
  }
}

/* Compute a convolution with one made channel in a group, such as a depthwise
 * one, whose sums are too few for tiles. */
static void convolve_one(const struct convolution *v, const float *from,
                         float *to) {
  const struct poet_op *op = v->op;
  for (uint32_t i = 0; i < op->n * op->groups; i++) {
    const uint32_t group = i % op->groups;
    const float *weight = v->weight + group * v->group_step;
    memset(to, 0, v->made_plane * sizeof *to);
    for (uint32_t c = 0; c < v->read; c++) {
      for (uint32_t kh = 0; kh < op->kernel_h; kh++) {
        for (uint32_t kw = 0; kw < op->kernel_w; kw++) {
          add_tap(v, kh, kw, from, weight[kh * op->kernel_w + kw], to);
        }
      }
      from += v->read_plane;
      weight += v->read_step;
    }
    for (uint32_t j = 0; v->bias != NULL && j < v->made_plane; j++) {
      to[j] += v->bias[group];
    }
    to += v->made_plane;
  }
}

static void convolve(const struct convolution *v, const float *from,
                     float *to) {
  const struct poet_op *op = v->op;
  const uint32_t weights = op->groups * v->group_step;
  const uint32_t read = op->groups * v->read * v->read_plane;
  const uint32_t h_phases = v->h.back ? op->stride_h : 1;
  const uint32_t w_phases = v->w.back ? op->stride_w : 1;
  const int32_t row = (int32_t)v->w.read;
  if (v->made == 1 && POET_IS_FEW(1)) {
    convolve_one(v, from, to);
    return;
  }
  struct poet_tile t = {.a = {.lane = (int32_t)v->made_step,
                              .column = (int32_t)w_phases,
                              .row = (int32_t)h_phases * op->kernel_w,
                              .plane = (int32_t)v->read_step},
                        .b = {.column = v->w.back ? -1 : 1,
                              .row = v->h.back ? -row : row,
                              .plane = (int32_t)v->read_plane},
                        .planes = v->read,
                        .tame =
                            poet_tame(from, op->n * read, v->weight, weights)};
  for (uint32_t n = 0; n < op->n; n++) {
    for (uint32_t h_phase = 0; h_phase < h_phases; h_phase++) {
      for (uint32_t i = h_phase; i < v->h.made;) {
        const struct span h = span_at(&v->h, i);
        for (uint32_t w_phase = 0; w_phase < w_phases; w_phase++) {
          for (uint32_t j = w_phase; j < v->w.made;) {
            const struct span w = span_at(&v->w, j);
            rectangle(v, &t, from, to, &h, &w);
            j += w.count * w_phases;
          }
        }
        i += h.count * h_phases;
      }
    }
    from += read;
    to += op->groups * v->made * v->made_plane;
  }
}

void poet_conv2d(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const uint32_t taps = (uint32_t)op->kernel_h * op->kernel_w;
  const uint32_t group_c = op->c / op->groups, group_k = op->k / op->groups;
  const struct convolution v = {
      .op = op,
      .h = {op->kernel_h, op->stride_h, op->pad_h, op->h, op->oh, false},
      .w = {op->kernel_w, op->stride_w, op->pad_w, op->w, op->ow, false},
      .weight = call->in[1], /* (k, c / groups, kernel_h, kernel_w) */
      .bias = op->input_count > 2 ? call->in[2] : NULL, /* (k), or NULL */
      .made = group_k,
      .read = group_c,
      .made_step = group_c * taps,
      .read_step = taps,
      .group_step = group_k * group_c * taps,
      .made_plane = op->oh * op->ow,
      .read_plane = op->h * op->w};
  convolve(&v, call->in[0], call->out); /* x (n, c, h, w), y (n, k, oh, ow) */
}

void poet_conv2d_grad_input(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const uint32_t taps = (uint32_t)op->kernel_h * op->kernel_w;
  const uint32_t group_c = op->c / op->groups, group_k = op->k / op->groups;
  const struct convolution v = {
      .op = op,
      .h = {op->kernel_h, op->stride_h, op->pad_h, op->oh, op->h, true},
      .w = {op->kernel_w, op->stride_w, op->pad_w, op->ow, op->w, true},
      .weight = call->in[1], /* (k, c / groups, kernel_h, kernel_w) */
      .made = group_c,
      .read = group_k,
      .made_step = taps,
      .read_step = group_c * taps,
      .group_step = group_k * group_c * taps,
      .made_plane = op->h * op->w,
      .read_plane = op->oh * op->ow};
  convolve(&v, call->in[0], call->out); /* dy (n, k, oh, ow), dx (n, c, h, w) */
}

void poet_conv2d_grad_weight(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];  /* (n, c, h, w) */
  const float *dy = call->in[1]; /* (n, k, oh, ow) */
  const uint32_t x_plane = op->h * op->w, y_plane = op->oh * op->ow;
  const uint32_t group_c = op->c / op->groups, group_k = op->k / op->groups;
  const uint32_t taps = (uint32_t)op->kernel_h * op->kernel_w;
  struct poet_tile t = {.a = {.lane = (int32_t)y_plane,
                              .column = 1,
                              .row = (int32_t)op->ow,
                              .plane = (int32_t)(op->k * y_plane)},
                        .b = {.lane = (int32_t)x_plane,
                              .column = op->stride_w,
                              .row = (int32_t)(op->stride_h * op->w),
                              .plane = (int32_t)(op->c * x_plane)},
                        .planes = op->n,
                        .tame = poet_tame(x, op->n * op->c * x_plane, dy,
                                          op->n * op->k * y_plane)};

  for (uint32_t tap = 0; tap < taps; tap++) {
    const struct span h =
        outputs_of(tap / op->kernel_w, op->stride_h, op->pad_h, op->h, op->oh);
    const struct span w =
        outputs_of(tap % op->kernel_w, op->stride_w, op->pad_w, op->w, op->ow);
    const float *from = x + h.from * op->w + w.from;
    t.rows = h.count;
    t.columns = w.count;
    poet_tile_shape(&t);
    t.a.at = dy + h.first * op->ow + w.first;
    for (uint32_t k = 0; k < op->k;) {
      const uint32_t in_group = k % group_k;
      const uint32_t outputs = poet_lanes(group_k - in_group);
      t.b.at = from;
      for (uint32_t c = 0; c < group_c; c += POET_TILE) {
        const uint32_t inputs = poet_lanes(group_c - c);
        float sums[POET_TILE][POET_TILE];
        poet_tile(&t, outputs, inputs, sums);
        for (uint32_t lane = 0; lane < outputs; lane++) {
          poet_sink_apart(call, 2, ((k + lane) * group_c + c) * taps + tap,
                          taps, sums[lane], inputs);
        }
        t.b.at += POET_TILE * x_plane;
      }
      k += outputs;
      t.a.at += outputs * y_plane;
      if (in_group + outputs == group_k) {
        from += group_c * x_plane;
      }
    }
  }
}
