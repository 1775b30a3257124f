/* pool.c - maximum and average over windows, average over the whole plane, and
 * their gradients. There are n * c planes of h * w elements. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "mathf.h"
#include "poet/kernel.h"

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

static struct part rows_of(const struct poet_op *op, uint32_t oh) {
  return part_of(oh * op->stride_h, op->kernel_h, op->pad_h, op->h);
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
 */
static void maxpool(const struct poet_call *call, const float *dy) {
  const struct poet_op *op = call->op;
  const uint32_t width = op->w, size = op->h * width;
  const float *x = call->in[0]; /* (n, c, h, w) */
  /* output (n, c, oh, ow), or gradient of the input (n, c, h, w) */
  float *out = call->out;

  for (uint32_t plane = 0; plane < op->n * op->c; plane++) {
    if (dy != NULL) {
      memset(out, 0, size * sizeof *out);
    }
    for (uint32_t oh = 0; oh < op->oh; oh++) {
      const struct part rows = rows_of(op, oh);
      const float *from = x + rows.begin * width;
      uint32_t column = 0;
      for (uint32_t left = op->ow; left; left--) {
        const struct part columns =
            part_of(column, op->kernel_w, op->pad_w, width);
        const float *best = first_largest(from + columns.begin, rows.count,
                                          columns.count, width);
        column += op->stride_w;
        if (dy != NULL) {
          out[best - x] += *dy++;
        } else {
          *out++ = *best;
        }
      }
    }
    x += size;
    out += dy != NULL ? size : 0;
  }
}

void poet_maxpool2d(const struct poet_call *call) {
  maxpool(call, NULL);
}

void poet_maxpool2d_grad(const struct poet_call *call) {
  maxpool(call, call->in[1]);
}

/* Return the divisor of a window's sum: the number of elements of the window.
 * With `variant` 1, only elements inside of the input are counted. */
static float window_area(const struct poet_op *op, struct part rows,
                         struct part columns) {
  return (float)(op->variant ? rows.count * columns.count
                             : (uint32_t)op->kernel_h * op->kernel_w);
}

/* If dx is NULL, compute y, the mean of each window of x. If not, compute
 * dx: each output divides its gradient in dy equally among the elements of
 * its window, and dx sums these shares. x, dx: (n, c, h, w); y, dy: (n, c,
 * oh, ow) */
static SPECIALISED void avgpool(const struct poet_op *op, const float *x,
                                float *y, const float *dy, float *dx) {
  const uint32_t size = op->h * op->w;
  if (dx != NULL) {
    memset(dx, 0, poet_elements(op) * sizeof *dx);
  }
  for (uint32_t plane = 0; plane < op->n * op->c; plane++) {
    for (uint32_t oh = 0; oh < op->oh; oh++) {
      const struct part rows =
          limited(oh * op->stride_h, op->kernel_h, op->pad_h, op->h);
      const uint32_t from = plane * size + rows.begin * op->w;
      for (uint32_t ow = 0; ow < op->ow; ow++) {
        const struct part columns =
            limited(ow * op->stride_w, op->kernel_w, op->pad_w, op->w);
        const float area = window_area(op, rows, columns);
        const float share = dx != NULL ? *dy++ / area : 0.0f;
        float sum = 0.0f;
        uint32_t at = from + columns.begin;
        for (uint32_t row = rows.count; row; row--) {
          for (uint32_t i = at; i < at + columns.count; i++) {
            if (dx != NULL) {
              dx[i] += share;
            } else {
              sum += x[i];
            }
          }
          at += op->w;
        }
        if (dx == NULL) {
          *y++ = sum / area;
        }
      }
    }
  }
}

void poet_avgpool2d(const struct poet_call *call) {
  avgpool(call->op, call->in[0], call->out, NULL, NULL);
}

void poet_avgpool2d_grad(const struct poet_call *call) {
  avgpool(call->op, NULL, NULL, call->in[0], call->out);
}

/* Compute the mean of each plane. `size`: of the part of a plane in this call;
 * `area`: of the whole plane. */
static SPECIALISED void means(const struct poet_call *call, uint32_t size,
                              float area, bool first, bool last) {
  const float *x = call->in[0]; /* (n, c, h, w) */
  float *y = call->out;         /* (n, c) */
  for (uint32_t left = call->op->n * call->op->c; left; left--) {
    float sum = first ? 0.0f : *y;
    for (const float *end = x + size; x != end;) {
      sum += *x++;
    }
    *y++ = last ? sum / area : sum;
  }
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
