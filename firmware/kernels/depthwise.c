/*
 * depthwise.c - convolutions with one channel in a group or few products, and
 * the gradient of their weights. Tiles (tile.h) would compute few sums at a
 * time.
 */
#include "depthwise.h"

#include <string.h>

#include "m4f/axpy_m4f.h"
#include "m4f/lanes_m4f.h"
#include "sink.h"
#include "m4f/strip_m4f.h"
#include "tile.h"

enum { PAIRS = 16 }; /* gradients at a time */
enum { KNOWN = 4 };  /* rows, and columns, whose spans are computed once */

/* to += weight * from, for elements of some rows. On a Cortex-M4F, poet_axpy is
 * an assembly function. */
static void add(const struct poet_axpy *x) {
#if POET_M4F
  poet_axpy(x);
#else
  const float *from = x->from;
  float *to = x->to;
  const int32_t from_step = x->from_step / 4, to_step = x->to_step / 4;
  for (uint32_t row = 0; row < x->rows; row++) {
    uint32_t left = x->count;
    for (; left >= 2; left -= 2) {
      const float first = to[0] + x->weight * from[0];
      const float next = to[to_step] + x->weight * from[from_step];
      to[0] = first;
      to[to_step] = next;
      to += 2 * to_step, from += 2 * from_step;
    }
    if (left) {
      *to += x->weight * *from;
      to += to_step, from += from_step;
    }
    to += x->to_next / 4, from += x->from_next / 4;
  }
#endif
}

/* Add the products of one tap and one read channel to the made channels of
 * `planes` groups of samples, from group `first` on. */
static inline void add_tap(const struct convolution *v, const float *from,
                           float *to, uint32_t first, uint32_t planes,
                           const struct span *h, const struct span *w,
                           const float *weight) {
  const struct poet_op *op = v->op;
  const uint32_t output = h->first * op->ow + w->first;
  const uint32_t input = h->from * op->w + w->from;
  const bool back = v->w.back;
  int32_t input_row = 4 * (int32_t)(op->stride_h * op->w);
  int32_t output_row = 4 * (int32_t)op->ow;
  int32_t input_step = 4 * (int32_t)op->stride_w, output_step = 4;
  struct poet_axpy x = {.count = w->count, .rows = h->count};
  if (w->count < POET_TILE && h->count > w->count) { /* long columns */
    x = (struct poet_axpy){.count = h->count, .rows = w->count};
    const int32_t row = input_row;
    input_row = input_step, input_step = row;
    output_step = output_row, output_row = 4;
  }
  const int32_t count = (int32_t)x.count;
  const int32_t input_next = input_row - count * input_step;
  const int32_t output_next = output_row - count * output_step;
  x.from_step = back ? output_step : input_step;
  x.to_step = back ? input_step : output_step;
  x.from_next = back ? output_next : input_next;
  x.to_next = back ? input_next : output_next;
  from += back ? output : input;
  to += back ? input : output;
  from += first * v->read * v->read_plane;
  to += first * v->made * v->made_plane;
  uint32_t group = first % op->groups;
  x.to = to;
  for (; planes; planes--) {
    const float *of_group = weight + group * v->group_step;
    x.from = from;
    for (uint32_t made = v->made; made; made--) {
      x.weight = *of_group;
      add(&x);
      x.to += v->made_plane;
      of_group += v->made_step;
    }
    from += v->read * v->read_plane;
    group = group + 1 == op->groups ? 0 : group + 1;
  }
}

#if POET_M4F
/* Compute the rows of span h of one channel, of which each row of the window
 * lies inside, as strips: the last one may repeat sums of the one before. */
static void strips_of_rows(const struct convolution *v, const struct span *h,
                           const float *from, const float *weight, float *to) {
  static const float zero = 0.0f;
  const uint32_t width = v->w.made;
  const int32_t row = 4 * (int32_t)width, taps = (int32_t)h->taps;
  struct poet_rows r; /* with an initialiser, memset would be called */
  r.step = v->h.back ? -row : row;
  r.next = row - taps * r.step;
  r.rows = h->count;
  r.to_next = 4 * width;
  r.taps = h->taps;
  weight += 3 * h->tap;
  for (float *to_row = r.weight; to_row != r.weight + 3 * taps; to_row += 3) {
    const float a = weight[0], b = weight[1], c = weight[2];
    to_row[0] = a, to_row[1] = b, to_row[2] = c;
    weight += 3;
  }
  from += h->from * width;
  to += h->first * width;
  for (uint32_t j = 0; j < width; j += POET_STRIP) {
    const uint32_t at = j + POET_STRIP < width ? j : width - POET_STRIP;
    const bool first = at == 0, last = at + POET_STRIP == width;
    r.from = from + at;
    r.to = to + at;
    r.left = first ? &zero : r.from - 1;
    r.left_step = first ? 0 : r.step;
    r.left_next = first ? 0 : r.next;
    r.right = last ? &zero : r.from + POET_STRIP;
    r.right_step = last ? 0 : r.step;
    r.right_next = last ? 0 : r.next;
    if (v->w.back) {
      poet_rows_back(&r);
    } else {
      poet_rows_ahead(&r);
    }
  }
}

/* Compute a 3 by 3 convolution with one read channel. Return false if the
 * padding of rows must not become terms of 0: its products with infinite
 * weights would be NaN. Other terms of 0 change no sum, as no sum is -0. */
static bool convolve_in_strips(const struct convolution *v, const float *from,
                               float *to) {
  const struct poet_op *op = v->op;
  if (v->read != 1 || op->kernel_h != 3 || op->kernel_w != 3 ||
      op->stride_h != 1 || op->stride_w != 1 || op->pad_h > 1 ||
      op->pad_w != 1 || op->ow != op->w || v->w.made < POET_STRIP || v->begun) {
    return false;
  }
  for (uint32_t i = 0; i < 9u * op->groups; i++) {
    if (v->weight[i] - v->weight[i] != 0.0f) {
      return false;
    }
  }
  for (uint32_t i = 0; i < v->h.made;) {
    const struct span h = poet_span_at(&v->h, i);
    for (uint32_t plane = 0; plane < op->n * op->groups; plane++) {
      strips_of_rows(v, &h, from + plane * v->read_plane,
                     v->weight + plane % op->groups * 9,
                     to + plane * v->made_plane);
    }
    i += h.count;
  }
  return true;
}
#endif

static struct span rows_of(const struct poet_op *op, uint32_t kh) {
  return poet_outputs_of(kh, op->stride_h, op->pad_h, op->h, op->oh);
}

static struct span columns_of(const struct poet_op *op, uint32_t kw) {
  return poet_outputs_of(kw, op->stride_w, op->pad_w, op->w, op->ow);
}

/* One tap after the other. What is computed for a tap serves all planes on a
 * microcontroller; on a computer, a plane stays in the cache. */
static void convolve_by_taps(const struct convolution *v, const float *from,
                             float *to) {
  const struct poet_op *op = v->op;
  const uint32_t groups = op->n * op->groups;
  const uint32_t planes = POET_M4F ? groups : 1;
  struct span rows[KNOWN], columns[KNOWN];
  uint32_t at = 0;
  do {
    rows[at] = rows_of(op, at);
  } while (++at < KNOWN && at < op->kernel_h);
  at = 0;
  do {
    columns[at] = columns_of(op, at);
  } while (++at < KNOWN && at < op->kernel_w);
  if (!v->begun) {
    poet_clear(v, to);
  }
  for (uint32_t first = 0; first < groups; first += planes) {
    for (uint32_t c = 0; c < v->read; c++) {
      const float *weight = v->weight + c * v->read_step;
      const float *read = from + c * v->read_plane;
      for (uint32_t kh = 0; kh < op->kernel_h; kh++) {
        const struct span h = kh < KNOWN ? rows[kh] : rows_of(op, kh);
        for (uint32_t kw = 0; kw < op->kernel_w; kw++, weight++) {
          const struct span w = kw < KNOWN ? columns[kw] : columns_of(op, kw);
          if (h.count && w.count) {
            add_tap(v, read, to, first, planes, &h, &w, weight);
          }
        }
      }
    }
  }
}

void poet_depthwise(const struct convolution *v, const float *from, float *to) {
  bool done = false;
#if POET_M4F
  done = v->made == 1 && convolve_in_strips(v, from, to);
#endif
  if (!done) {
    convolve_by_taps(v, from, to);
  }
  poet_add_bias(v, to);
}

void poet_clear(const struct convolution *v, float *to) {
  const uint32_t elements = v->h.made * v->w.made;
  for (uint32_t left = v->op->n * v->op->groups * v->made; left; left--) {
    memset(to, 0, elements * sizeof *to);
    to += v->made_plane;
  }
}

void poet_add_bias(const struct convolution *v, float *to) {
  const uint32_t channels = v->op->groups * v->made;
  const uint32_t elements = v->h.made * v->w.made;
  for (uint32_t i = 0; v->bias != NULL && i < v->op->n * channels; i++) {
    for (uint32_t j = 0; j < elements; j++) {
      to[j] += v->bias[i % channels];
    }
    to += v->made_plane;
  }
}

/* Add, to the sums of three adjacent taps, the products of rows with padding of
 * one. On a Cortex-M4F, poet_three is an assembly function. */
static void add_rows(struct poet_three *t) {
#if POET_M4F
  poet_three(t);
#else
  float left = t->sums[0], middle = t->sums[1], right = t->sums[2];
  const uint32_t width = t->width;
  const float *x = t->x, *dy = t->dy;
  for (uint32_t row = 0; row < t->rows; row++) {
    float before = x[0], at = x[1];
    middle += dy[0] * before;
    right += dy[0] * at;
    for (uint32_t j = 2; j < width; j++) {
      const float next = x[j], d = dy[j - 1];
      left += d * before;
      middle += d * at;
      right += d * next;
      before = at;
      at = next;
    }
    left += dy[width - 1] * before;
    middle += dy[width - 1] * at;
    x += width;
    dy += width;
  }
  t->sums[0] = left, t->sums[1] = middle, t->sums[2] = right;
#endif
}

#if POET_M4F
/* Compute the gradients of all pairs of channels, one at a time. The gradients
 * of a tap lie as far apart as a pair has taps. */
static void grad_weight_of_pairs(const struct poet_call *call, const float *x,
                                 const float *dy) {
  const struct poet_op *op = call->op;
  const uint32_t x_plane = op->h * op->w, y_plane = op->oh * op->ow;
  const uint32_t group_c = op->c / op->groups, group_k = op->k / op->groups;
  const uint32_t taps = (uint32_t)op->kernel_h * op->kernel_w;
  struct poet_tile t = {.a = {.column = 1,
                              .row = (int32_t)op->ow,
                              .plane = (int32_t)(op->k * y_plane)},
                        .b = {.column = op->stride_w,
                              .row = (int32_t)(op->stride_h * op->w),
                              .plane = (int32_t)(op->c * x_plane)},
                        .planes = op->n};
  for (uint32_t tap = 0; tap < taps; tap++) {
    const struct span h = poet_outputs_of(tap / op->kernel_w, op->stride_h,
                                          op->pad_h, op->h, op->oh);
    const struct span w = poet_outputs_of(tap % op->kernel_w, op->stride_w,
                                          op->pad_w, op->w, op->ow);
    const float *from = x + h.from * op->w + w.from;
    const float *of = dy + h.first * op->ow + w.first;
    t.rows = h.count;
    t.columns = w.count;
    poet_tile_shape(&t);
    const bool none = h.count == 0 || w.count == 0;
    uint32_t k = 0, c = 0, first_c = 0;
    for (uint32_t pair = 0; pair < op->k * group_c;) {
      float sums[PAIRS];
      const uint32_t left = op->k * group_c - pair;
      const struct poet_place place = {.first = pair * taps + tap,
                                       .rows = 1,
                                       .columns = left < PAIRS ? left : PAIRS,
                                       .column = taps};
      for (uint32_t i = 0; i < place.columns; i++) {
        const float sum = poet_begin(call, place.first + i * taps);
        sums[i] = none ? sum
                       : poet_dot(&t.terms, of + k * y_plane,
                                  from + (first_c + c) * x_plane, sum);
        if (++c == group_c) {
          c = 0, k++;
          first_c += k % group_k == 0 ? group_c : 0;
        }
      }
      poet_sink_tile(call, 2, &place, sums, 0);
      pair += place.columns;
    }
  }
}
#endif

/* Return true for a depthwise convolution with rows of three taps, and padding
 * that makes output rows as wide as input rows. */
static bool rows_of_three(const struct poet_op *op) {
  return op->groups == op->c && op->groups == op->k && op->kernel_w == 3 &&
         op->stride_h == 1 && op->stride_w == 1 && op->pad_w == 1 &&
         op->ow == op->w && op->w >= 2;
}

bool poet_depthwise_grad_weight(const struct poet_call *call, const float *x,
                                const float *dy) {
  const struct poet_op *op = call->op;
#if POET_M4F
  const uint32_t group_c = op->c / op->groups;
  const uint32_t row = group_c * op->kernel_h * op->kernel_w;
  if (op->k / op->groups * group_c <= POET_TILE && !rows_of_three(op) &&
      poet_apart(call->row, row) == row) {
    grad_weight_of_pairs(call, x, dy);
    return true;
  }
#endif
  if (POET_M0PLUS || !rows_of_three(op)) {
    return false;
  }
  const uint32_t x_plane = op->h * op->w, y_plane = op->oh * op->ow;
  for (uint32_t kh = 0; kh < op->kernel_h; kh++) {
    const struct span h =
        poet_outputs_of(kh, op->stride_h, op->pad_h, op->h, op->oh);
    for (uint32_t k = 0; k < op->k; k++) {
      const uint32_t first = (k * op->kernel_h + kh) * 3;
      struct poet_three t = {.rows = h.count,
                             .width = op->w,
                             .sums = {poet_begin(call, first),
                                      poet_begin(call, first + 1),
                                      poet_begin(call, first + 2)}};
      for (uint32_t n = 0; n < op->n && h.count; n++) {
        const uint32_t plane = n * op->k + k;
        t.x = x + plane * x_plane + h.from * op->w;
        t.dy = dy + plane * y_plane + h.first * op->w;
        add_rows(&t);
      }
      poet_sink(call, 2, first, t.sums, 3);
    }
  }
  return true;
}
