/*
 * depthwise.c - convolutions with one channel in a group, and the gradient of
 * their weights. Tiles (tile.h) would compute one sum at a time.
 */
#include "depthwise.h"

#include <string.h>

#include "sink.h"
#include "strip_m4f.h"
#include "tile.h"

/* Add, to all made elements of a plane, the products of one weight and the read
 * elements that meet it. */
static void add_tap(const struct convolution *v, uint32_t kh, uint32_t kw,
                    const float *from, float weight, float *to) {
  const struct poet_op *op = v->op;
  const struct span h =
      poet_outputs_of(kh, op->stride_h, op->pad_h, op->h, op->oh);
  const struct span w =
      poet_outputs_of(kw, op->stride_w, op->pad_w, op->w, op->ow);
  const uint32_t output = h.first * op->ow + w.first;
  const uint32_t input = h.from * op->w + w.from;
  const uint32_t next_input = op->stride_h * op->w;
  const uint32_t to_step = v->w.back ? op->stride_w : 1;
  const uint32_t from_step = v->w.back ? 1 : op->stride_w;
  to += v->w.back ? input : output;
  from += v->w.back ? output : input;
  for (uint32_t i = 0; i < h.count; i++) {
    const float *x = from;
    float *y = to;
    uint32_t left = w.count;
    for (; left >= 2; left -= 2) {
      const float first = y[0] + weight * x[0];
      const float next = y[to_step] + weight * x[from_step];
      y[0] = first;
      y[to_step] = next;
      y += 2 * to_step, x += 2 * from_step;
    }
    if (left) {
      *y += weight * *x;
    }
    to += v->w.back ? next_input : op->ow;
    from += v->w.back ? op->ow : next_input;
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
  struct poet_rows r = {.step = v->h.back ? -row : row,
                        .rows = h->count,
                        .to_next = 4 * width,
                        .taps = h->taps};
  r.next = row - taps * r.step;
  memcpy(r.weight, weight + 3 * h->tap, 3 * h->taps * sizeof *weight);
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
      op->pad_w != 1 || v->w.made < POET_STRIP || v->begun) {
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

static void convolve_by_taps(const struct convolution *v, const float *from,
                             float *to) {
  const struct poet_op *op = v->op;
  if (!v->begun) {
    memset(to, 0, op->n * op->groups * v->made_plane * sizeof *to);
  }
  for (uint32_t i = 0; i < op->n * op->groups; i++) {
    const float *weight = v->weight + i % op->groups * v->group_step;
    for (uint32_t c = 0; c < v->read; c++) {
      for (uint32_t kh = 0; kh < op->kernel_h; kh++) {
        for (uint32_t kw = 0; kw < op->kernel_w; kw++) {
          add_tap(v, kh, kw, from, weight[kh * op->kernel_w + kw], to);
        }
      }
      from += v->read_plane;
      weight += v->read_step;
    }
    to += v->made_plane;
  }
}

void poet_depthwise(const struct convolution *v, const float *from, float *to) {
  bool done = false;
#if POET_M4F
  done = convolve_in_strips(v, from, to);
#endif
  if (!done) {
    convolve_by_taps(v, from, to);
  }
  const struct poet_op *op = v->op;
  for (uint32_t i = 0; v->bias != NULL && i < op->n * op->groups; i++) {
    for (uint32_t j = 0; j < v->made_plane; j++) {
      *to++ += v->bias[i % op->groups];
    }
  }
}

/* Add, to the sums of three adjacent taps, the products of `rows` rows of x and
 * of dy. Rows have `width` > 1 elements and padding of one. */
static void add_rows(const float *x, const float *dy, uint32_t rows,
                     uint32_t width, float sums[3]) {
  float left = sums[0], middle = sums[1], right = sums[2];
  for (; rows; rows--) {
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
  sums[0] = left, sums[1] = middle, sums[2] = right;
}

/* Rows of three taps, and padding that makes output rows as wide as input rows.
 */
bool poet_depthwise_grad_weight(const struct poet_call *call, const float *x,
                                const float *dy) {
  const struct poet_op *op = call->op;
  if (POET_M0PLUS || op->groups != op->c || op->groups != op->k ||
      op->kernel_w != 3 || op->stride_h != 1 || op->stride_w != 1 ||
      op->pad_w != 1 || op->w < 2) {
    return false;
  }
  const uint32_t x_plane = op->h * op->w, y_plane = op->oh * op->ow;
  for (uint32_t k = 0; k < op->k; k++) {
    for (uint32_t kh = 0; kh < op->kernel_h; kh++) {
      const uint32_t first = (k * op->kernel_h + kh) * 3;
      const struct span h =
          poet_outputs_of(kh, op->stride_h, op->pad_h, op->h, op->oh);
      float sums[3] = {poet_begin(call, first), poet_begin(call, first + 1),
                       poet_begin(call, first + 2)};
      for (uint32_t n = 0; n < op->n; n++) {
        const uint32_t plane = n * op->k + k;
        add_rows(x + plane * x_plane + h.from * op->w,
                 dy + plane * y_plane + h.first * op->w, h.count, op->w, sums);
      }
      poet_sink(call, 2, first, sums, 3);
    }
  }
  return true;
}
