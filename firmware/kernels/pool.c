/* pool.c - maximum and average over windows, average over the whole plane, and
 * their gradients. There are n * c planes of h * w elements. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "mathf.h"
#include "poet/kernel.h"
#include "sums.h"

/* A function with a copy for each use, except where flash is small. */
#if POET_M0PLUS
#define SPECIALISED __attribute__((noinline))
#else
#define SPECIALISED inline __attribute__((always_inline))
#endif

/* The part of a window that lies inside of the input, along one axis. It is
 * never empty, because the padding is narrower than the window. */
struct part {
  uint32_t begin, count;
};

/* Convert a coordinate in the padded input to one in the input, limited to
 * the range 0 to `size`. */
static inline uint32_t less_padding(uint32_t at, uint32_t pad, uint32_t size) {
  const uint32_t inside = at < pad ? 0 : at - pad;
  return inside < size ? inside : size;
}

static SPECIALISED struct part limited(uint32_t from, uint32_t kernel,
                                       uint32_t pad, uint32_t size) {
  const uint32_t begin = less_padding(from, pad, size);
  const uint32_t end = less_padding(from + kernel, pad, size);
  return (struct part){begin, end - begin};
}

/* Return the part of the window that begins at `from` in the padded input. */
static inline struct part part_of(uint32_t from, uint32_t kernel, uint32_t pad,
                                  uint32_t size) {
  if (pad == 0 && from + kernel <= size) {
    return (struct part){from, kernel};
  }
  return limited(from, kernel, pad, size);
}

/* The rows of x that share a window with the rows of the output in this call.
 * A gradient of a part of x needs also the rows of x around it. */
struct band {
  uint32_t count;
  uint32_t above; /* number of them before the first row of the part */
  uint32_t pad;   /* rows of padding before them */
};

static struct band band_of(const struct poet_call *call, bool back) {
  const struct poet_op *op = call->op, *whole = call->whole;
  struct band band = {op->h, 0, op->pad_h};
  if (back && op->h != whole->h) {
    const uint32_t first = call->index / op->w % whole->h;
    band.above = band.pad < first ? band.pad : first;
    band.pad -= band.above;
    const uint32_t rest = whole->h - (first - band.above);
    band.count = (op->oh - 1) * op->stride_h + op->kernel_h - band.pad;
    if (op->oh == whole->oh || band.count > rest) {
      band.count = rest;
    }
  }
  return band;
}

static struct part rows_of(const struct poet_op *op, const struct band *band,
                           uint32_t oh) {
  return part_of(oh * op->stride_h, op->kernel_h, band->pad, band->count);
}

/* Return the window's first largest element. If the window has a NaN, return
 * its last NaN, as in PyTorch. */
static inline const float *first_largest(const float *x, uint32_t rows,
                                         uint32_t columns, uint32_t width) {
  const float *best = x;
  poet_order_t highest = poet_order(-INFINITY);
  do {
    const float *end = x + columns;
    do {
      const poet_order_t order = poet_order(*x);
      if (order > highest || poet_is_nan(order)) {
        highest = order;
        best = x;
      }
    } while (++x != end);
    x += width - columns;
  } while (--rows);
  return best;
}

/* Compute the output or, if dy (n, c, oh, ow) is not NULL, the gradient of the
 * input. The gradient finds the largest element again, so no index is stored.
 * A window may have its largest element outside of the part. */
static void maxpool(const struct poet_call *call, const float *dy) {
  const struct poet_op *op = call->op;
  const struct band band = band_of(call, dy != NULL);
  const uint32_t width = op->w, size = op->h * width;
  const uint32_t above = band.above * width;
  const float *x = call->in[0]; /* (n, c, band.count, w) */
  /* output (n, c, oh, ow), or gradient of the input (n, c, h, w) */
  float *out = call->out;

  for (uint32_t plane = 0; plane < op->n * op->c; plane++) {
    const float *first = x + above; /* of the part */
    if (dy != NULL) {
      memset(out, 0, size * sizeof *out);
    }
    for (uint32_t oh = 0; oh < op->oh; oh++) {
      const struct part rows = rows_of(op, &band, oh);
      const float *from = x + rows.begin * width;
      uint32_t column = 0;
      for (uint32_t left = op->ow; left; left--) {
        const struct part columns =
            part_of(column, op->kernel_w, op->pad_w, width);
        const float *best = first_largest(from + columns.begin, rows.count,
                                          columns.count, width);
        column += op->stride_w;
        if (dy != NULL) {
          const uint32_t at = (uint32_t)(best - first);
          if (at < size) {
            out[at] += *dy;
          }
          dy++;
        } else {
          *out++ = *best;
        }
      }
    }
    x += band.count * width;
    out += dy != NULL ? size : 0;
  }
}

void poet_maxpool2d(const struct poet_call *call) {
  maxpool(call, NULL);
}

void poet_maxpool2d_grad(const struct poet_call *call) {
  maxpool(call, call->in[1]);
}

/* Compute the mean of each window or, if `back`, the gradient of the input:
 * each output divides its gradient equally among the elements of its window,
 * and these shares are summed. */
static SPECIALISED void avgpool(const struct poet_call *call, bool back) {
  const struct poet_op *op = call->op;
  const struct band band = band_of(call, back);
  const uint32_t width = op->w, size = op->h * width;
  const float *in = call->in[0]; /* (n, c, h, w) or, if `back`, the output's */
  float *out = call->out;        /* (n, c, oh, ow) or, if `back`, the input's */
  const float whole = (float)((uint32_t)op->kernel_h * op->kernel_w);
  if (back) {
    memset(out, 0, poet_elements(op) * sizeof *out);
  }
  for (uint32_t plane = 0; plane < op->n * op->c; plane++) {
    for (uint32_t oh = 0; oh < op->oh; oh++) {
      const struct part rows = rows_of(op, &band, oh);
      const struct part here =
          band.above == 0 && band.count == op->h
              ? rows
              : part_of(rows.begin, rows.count, band.above, op->h);
      uint32_t column = 0;
      for (uint32_t left = op->ow; left; left--) {
        const struct part columns =
            part_of(column, op->kernel_w, op->pad_w, width);
        /* With `variant` 1, only elements inside of the input are counted. */
        const float area =
            op->variant ? (float)(rows.count * columns.count) : whole;
        const float share = back ? *in++ / area : 0.0f;
        const uint32_t first = here.begin * width + columns.begin;
        const float *x = in + first;
        float *dx = out + first, sum = 0.0f;
        for (uint32_t rows_left = here.count; rows_left; rows_left--) {
          uint32_t columns_left = columns.count;
          do {
            if (back) {
              *dx++ += share;
            } else {
              sum += *x++;
            }
          } while (--columns_left);
          x += width - columns.count, dx += width - columns.count;
        }
        if (!back) {
          *out++ = sum / area;
        }
        column += op->stride_w;
      }
    }
    in += back ? 0 : size;
    out += back ? size : 0;
  }
}

void poet_avgpool2d(const struct poet_call *call) {
  avgpool(call, false);
}

void poet_avgpool2d_grad(const struct poet_call *call) {
  avgpool(call, true);
}

/* Compute the mean of each plane. `size`: of the part of a plane in this call;
 * `area`: of the whole plane. */
static SPECIALISED void means(const struct poet_call *call, uint32_t size,
                              float area, bool first, bool last) {
  const float *x = call->in[0]; /* (n, c, h, w) */
  float *y = call->out;         /* (n, c) */
  uint32_t left = call->op->n * call->op->c;
  do {
    const float sum = poet_sum(first ? 0.0f : *y, x, size);
    *y++ = last ? sum / area : sum;
    x += size;
  } while (--left);
}

void poet_global_avgpool(const struct poet_call *call) {
  const uint32_t size = call->op->h * call->op->w;
#if !POET_M0PLUS
  if (call->first && call->last) { /* without tests in each plane */
    means(call, size, (float)size, true, true);
    return;
  }
#endif
  means(call, size, (float)(call->whole->h * call->whole->w), call->first,
        call->last);
}

void poet_global_avgpool_grad(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *dy = call->in[0]; /* (n, c) */
  float *dx = call->out;         /* (n, c, h, w) */
  const float area = (float)(call->whole->h * call->whole->w);

  for (uint32_t plane = 0; plane < op->n * op->c; plane++) {
    const float share = dy[plane] / area;
    for (uint32_t i = 0; i < op->h * op->w; i++) {
      *dx++ = share;
    }
  }
}
