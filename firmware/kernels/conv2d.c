/*
 * conv2d.c - two-dimensional convolution with groups, and its two gradients.
 *
 * The letters in shapes, such as (n, c, h, w), are fields of struct poet_op.
 * Output channel k reads the c / groups input channels of its group. The outer
 * loops select planes; the inner functions add one element of the window at a
 * time, over all outputs for which this element lies inside of the input. So
 * padding costs no time, and each output sums its terms in the order of
 * kernel.h: over c / groups, kernel_h, kernel_w.
 */
#include <string.h>

#include "poet/kernel.h"
#include "sink.h"

/* One element of the window, and the outputs for which this element lies inside
 * of the input and not in the padding: rows row_begin to row_end - 1, columns
 * column_begin to column_end - 1. For output (row, column), the window element
 * lies on the element of the input plane with this index: row * stride_h * w +
 * column * stride_w + shift. The sum is computed modulo 2^32, so that the
 * unsigned field `shift` can stand for a negative number. */
struct tap {
  uint32_t row_begin, row_end;
  uint32_t column_begin, column_end;
  uint32_t shift;
};

/* Return the first output for which window element `at` is not in the padding
 * before the input. */
static uint32_t first_inside(uint32_t at, uint32_t stride, uint32_t pad) {
  return at < pad ? (pad - at + stride - 1) / stride : 0;
}

/* Return the first output for which window element `at` is in the padding after
 * the input. */
static uint32_t end_inside(uint32_t at, uint32_t stride, uint32_t pad,
                           uint32_t in_size, uint32_t out_size) {
  const uint32_t end =
      at < in_size + pad ? (in_size + pad - at + stride - 1) / stride : 0;
  return end < out_size ? end : out_size;
}

static struct tap tap_at(const struct poet_op *op, uint32_t kh, uint32_t kw) {
  return (struct tap){
      .row_begin = first_inside(kh, op->stride_h, op->pad_h),
      .row_end = end_inside(kh, op->stride_h, op->pad_h, op->h, op->oh),
      .column_begin = first_inside(kw, op->stride_w, op->pad_w),
      .column_end = end_inside(kw, op->stride_w, op->pad_w, op->w, op->ow),
      .shift = (kh - op->pad_h) * op->w + kw - op->pad_w};
}

/* Compute y += x * weight. x: one plane (h, w), y: one plane (oh, ow) */
static void add_to_output(const struct poet_op *op, struct tap tap,
                          const float *x, float weight, float *y) {
  const uint32_t stride = op->stride_w;
  for (uint32_t row = tap.row_begin; row < tap.row_end; row++) {
    float *y_row = y + row * op->ow;
    uint32_t i =
        row * op->stride_h * op->w + tap.column_begin * stride + tap.shift;
    for (uint32_t j = tap.column_begin; j < tap.column_end; j++) {
      y_row[j] += x[i] * weight;
      i += stride;
    }
  }
}

/* Compute dx += dy * weight. dx: one plane (h, w), dy: one plane (oh, ow) */
static void add_to_input(const struct poet_op *op, struct tap tap,
                         const float *dy, float weight, float *dx) {
  const uint32_t stride = op->stride_w;
  for (uint32_t row = tap.row_begin; row < tap.row_end; row++) {
    const float *dy_row = dy + row * op->ow;
    uint32_t i =
        row * op->stride_h * op->w + tap.column_begin * stride + tap.shift;
    for (uint32_t j = tap.column_begin; j < tap.column_end; j++) {
      dx[i] += dy_row[j] * weight;
      i += stride;
    }
  }
}

/* Return `sum` plus all products of x and dy. x: one plane (h, w), dy: one
 * plane (oh, ow) */
static float add_products(const struct poet_op *op, struct tap tap,
                          const float *x, const float *dy, float sum) {
  const uint32_t stride = op->stride_w;
  for (uint32_t row = tap.row_begin; row < tap.row_end; row++) {
    const float *dy_row = dy + row * op->ow;
    uint32_t i =
        row * op->stride_h * op->w + tap.column_begin * stride + tap.shift;
    for (uint32_t j = tap.column_begin; j < tap.column_end; j++) {
      sum += x[i] * dy_row[j];
      i += stride;
    }
  }
  return sum;
}

void poet_conv2d(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0]; /* (n, c, h, w) */
  const float *bias =
      op->input_count > 2 ? call->in[2] : NULL; /* (k), or NULL */
  float *y = call->out;                         /* (n, k, oh, ow) */
  const uint32_t x_plane = op->h * op->w, y_plane = op->oh * op->ow;
  const uint32_t group_c = op->c / op->groups, group_k = op->k / op->groups;

  for (uint32_t n = 0; n < op->n; n++) {
    /* weights, of shape (k, c / groups, kernel_h, kernel_w) */
    const float *weight = call->in[1];
    for (uint32_t k = 0; k < op->k; k++) {
      const uint32_t first_c = k / group_k * group_c;
      memset(y, 0, y_plane * sizeof *y);
      for (uint32_t c = first_c; c < first_c + group_c; c++) {
        for (uint32_t kh = 0; kh < op->kernel_h; kh++) {
          for (uint32_t kw = 0; kw < op->kernel_w; kw++) {
            add_to_output(op, tap_at(op, kh, kw), x + c * x_plane, *weight++,
                          y);
          }
        }
      }
      if (bias != NULL) {
        for (uint32_t i = 0; i < y_plane; i++) {
          y[i] += bias[k];
        }
      }
      y += y_plane;
    }
    x += op->c * x_plane;
  }
}

void poet_conv2d_grad_input(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *dy = call->in[0]; /* (n, k, oh, ow) */
  /* weights, of shape (k, c / groups, kernel_h, kernel_w) */
  const float *w = call->in[1];
  float *dx = call->out; /* (n, c, h, w) */
  const uint32_t x_plane = op->h * op->w, y_plane = op->oh * op->ow;
  const uint32_t group_c = op->c / op->groups, group_k = op->k / op->groups;
  const uint32_t taps = (uint32_t)op->kernel_h * op->kernel_w;

  for (uint32_t n = 0; n < op->n; n++) {
    for (uint32_t c = 0; c < op->c; c++) {
      const uint32_t first_k = c / group_c * group_k;
      memset(dx, 0, x_plane * sizeof *dx);
      for (uint32_t k = first_k; k < first_k + group_k; k++) {
        const float *weight = w + (k * group_c + c % group_c) * taps;
        for (uint32_t kh = 0; kh < op->kernel_h; kh++) {
          for (uint32_t kw = 0; kw < op->kernel_w; kw++) {
            add_to_input(op, tap_at(op, kh, kw), dy + k * y_plane, *weight++,
                         dx);
          }
        }
      }
      dx += x_plane;
    }
    dy += op->k * y_plane;
  }
}

void poet_conv2d_grad_weight(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];  /* (n, c, h, w) */
  const float *dy = call->in[1]; /* (n, k, oh, ow) */
  const uint32_t x_plane = op->h * op->w, y_plane = op->oh * op->ow;
  const uint32_t group_c = op->c / op->groups, group_k = op->k / op->groups;
  uint32_t i = 0;

  for (uint32_t k = 0; k < op->k; k++) {
    const uint32_t first_c = k / group_k * group_c;
    for (uint32_t c = first_c; c < first_c + group_c; c++) {
      for (uint32_t kh = 0; kh < op->kernel_h; kh++) {
        for (uint32_t kw = 0; kw < op->kernel_w; kw++) {
          const struct tap tap = tap_at(op, kh, kw);
          float g = 0.0f;
          for (uint32_t n = 0; n < op->n; n++) {
            g = add_products(op, tap, x + (n * op->c + c) * x_plane,
                             dy + (n * op->k + k) * y_plane, g);
          }
          poet_sink(call, 2, i++, &g, 1);
        }
      }
    }
  }
}
