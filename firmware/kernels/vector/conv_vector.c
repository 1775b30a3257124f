/*
 * conv_vector.c - convolutions in vectors.
 *
 * Some rows of the read channels are copied into a buffer, once for each tap of
 * a row of the window: there, the elements that the tap meets lie side by side,
 * with the padding as zeros, and rows follow each other. So the made elements
 * of several rows are lanes of a panel (tile_vector.h). The stride of
 * poet_conv2d splits the read rows into phases. That of poet_conv2d_grad_input
 * splits the made elements into phases along both axes.
 *
 * A term of padding is a weight times 0. It changes no sum if the weight is
 * finite, as a sum that begins with 0 is never -0. If it is not, the sum is
 * NaN, and all sums are computed again elsewhere. Sums that begin with others
 * cannot be computed again, so the weights are tested before.
 */
#include "conv_vector.h"

#if POET_VECTOR
#include <stddef.h>
#include <string.h>

#include "../mathf.h"

enum {
  TAPS = 64,        /* of a window */
  BUFFER = 1 << 15, /* floats */
  LANES = 512,      /* at a time */
  FEW = 8,          /* products of an element of the buffer */
};

bool poet_are_finite(const float *x, uint32_t count) {
  uint32_t special = 0;
  POET_UNROLLED for (uint32_t i = 0; i < count; i++) {
    special |= (poet_bits(x[i]) & 0x7f800000u) + 0x00800000u;
  }
  return special < 0x80000000u;
}

/* One axis of a convolution: made elements first, first + made_step, ... Of
 * these, element i meets tap m at read element base + i * read_step + m * ahead
 */
struct line {
  uint32_t first, made_step, count;
  uint32_t tap, tap_step, taps; /* those of a made element */
  int32_t base, read_step, ahead;
};

/* Return the line of the made elements from `first` on. */
static struct line line_of(const struct axis *x, uint32_t first) {
  struct line l = {.first = first, .made_step = 1, .tap_step = 1, .ahead = 1};
  if (x->back) {
    const uint32_t padded = first + x->pad;
    l.made_step = l.tap_step = x->stride;
    l.tap = padded % x->stride;
    l.base = (int32_t)(padded / x->stride);
    l.read_step = 1;
    l.ahead = -1;
  } else {
    l.base = -(int32_t)x->pad;
    l.read_step = (int32_t)x->stride;
  }
  l.count = (x->made - first + l.made_step - 1) / l.made_step;
  l.taps =
      x->kernel > l.tap ? (x->kernel - l.tap + l.tap_step - 1) / l.tap_step : 0;
  return l;
}

/* The made elements of one phase, and the buffer: (read channels, taps of a
 * row, phases, rows, elements of a row). */
struct plane {
  struct line h, w;
  uint32_t phases, more;        /* rows in addition to the made ones */
  uint32_t phase, tap, channel; /* distances in the buffer */
  struct poet_column taps[TAPS];
};

/* Copy the elements at, at + step, ... of a row of `length` elements, with
 * zeros for those that do not exist. */
static void copy_row(const float *from, int32_t length, int32_t at,
                     int32_t step, float *to, uint32_t count) {
  uint32_t i = 0;
  for (; i < count && at < 0; i++, at += step) {
    to[i] = 0.0f;
  }
  if (step == 1 && at < length) {
    const uint32_t left = (uint32_t)(length - at);
    const uint32_t inside = left < count - i ? left : count - i;
    memcpy(to + i, from + at, inside * sizeof *to);
    i += inside;
  } else {
    for (; i < count && at < length; i++, at += step) {
      to[i] = from[at];
    }
  }
  for (; i < count; i++) {
    to[i] = 0.0f;
  }
}

/* Copy `count` adjacent rows of `width` elements, of which each is that which
 * lies `ahead` elements after it in its row, or 0. */
static void copy_rows(const float *from, uint32_t width, uint32_t count,
                      int32_t ahead, float *to) {
  const uint32_t distance = (uint32_t)(ahead < 0 ? -ahead : ahead);
  const uint32_t zeros = distance < width ? distance : width;
  float *edge = ahead < 0 ? to : to + width - zeros;
  if (zeros < width) {
    memcpy(ahead < 0 ? to + zeros : to, ahead < 0 ? from : from + zeros,
           (count * width - zeros) * sizeof *to);
  }
  for (; zeros && count; count--) {
    for (uint32_t i = 0; i < zeros; i++) {
      edge[i] = 0.0f;
    }
    edge += width;
  }
}

/* Copy the rows row, row + p->h.read_step, ... of a channel for one tap. */
static void fill_rows(const struct convolution *v, const struct plane *p,
                      const float *from, int32_t row, uint32_t rows,
                      uint32_t tap, float *to) {
  const int32_t height = (int32_t)v->h.read, width = (int32_t)v->w.read;
  const int32_t at = p->w.base + (int32_t)tap * p->w.ahead;
  while (rows) {
    const bool inside = row >= 0 && row < height;
    uint32_t run = 1;
    if (inside && p->h.read_step == 1 && p->w.read_step == 1 &&
        p->w.count == v->w.read) {
      run = (uint32_t)(height - row);
      run = run < rows ? run : rows;
      copy_rows(from + row * width, v->w.read, run, at, to);
    } else {
      copy_row(inside ? from + row * width : from, inside ? width : 0, at,
               p->w.read_step, to, p->w.count);
    }
    row += (int32_t)run * p->h.read_step;
    rows -= run;
    to += run * p->w.count;
  }
}

/* Fill the buffer with what the made rows `first` to first + rows - 1 read.
 * `from`: the read channels of a group. */
static void fill(const struct convolution *v, const struct plane *p,
                 const float *from, uint32_t first, uint32_t rows,
                 float *buffer) {
  const int32_t most = p->h.ahead < 0 ? (int32_t)p->more : 0;
  const int32_t row = p->h.base - most + (int32_t)first * p->h.read_step;
  for (uint32_t c = 0; c < v->read; c++) {
    float *to = buffer + c * p->channel;
    for (uint32_t tap = 0; tap < p->w.taps; tap++) {
      for (uint32_t phase = 0; phase < p->phases; phase++) {
        fill_rows(v, p, from, row + (int32_t)phase, rows + p->more, tap, to);
        to += p->phase;
      }
    }
    from += v->read_plane;
  }
}

/* Determine the distances in a buffer for `rows` made rows. */
static void lay_out(const struct convolution *v, struct plane *p,
                    uint32_t rows) {
  const uint32_t step = (uint32_t)p->h.read_step;
  p->phase = (rows + p->more) * p->w.count;
  p->tap = p->phases * p->phase;
  p->channel = p->w.taps * p->tap;
  for (uint32_t i = 0, m = 0; i < p->h.taps; i++) {
    const uint32_t row = p->h.ahead < 0
                             ? (p->more - i) * p->w.count
                             : i % step * p->phase + i / step * p->w.count;
    for (uint32_t j = 0; j < p->w.taps; j++) {
      p->taps[m++] = (struct poet_column){
          .a = (int32_t)((p->h.tap + i * p->h.tap_step) * v->op->kernel_w +
                         p->w.tap + j * p->w.tap_step),
          .b = (int32_t)(row + j * p->tap)};
    }
  }
}

/* Write the sums of `count` lanes of a made channel, which are the made
 * elements from `at` on, numbered along rows. Return true if one of them is
 * NaN. */
static bool spread(const struct convolution *v, const struct plane *p,
                   uint32_t at, uint32_t count, const float *sums,
                   const float *bias, float *to) {
  const float by = bias != NULL ? *bias : 0.0f;
  uint32_t most = 0;
  const uint32_t step = p->w.made_step;
  const bool adjacent =
      step == 1 && p->h.made_step == 1 && p->w.count == v->w.made;
  while (count) {
    const uint32_t i = at / p->w.count, j = at % p->w.count;
    const uint32_t left = p->w.count - j;
    const uint32_t run = adjacent || count < left ? count : left;
    float *out = to + (p->h.first + i * p->h.made_step) * v->w.made +
                 p->w.first + j * step;
    for (uint32_t l = 0; l < run; l++) {
      const float y = bias != NULL ? sums[l] + by : sums[l];
      const uint32_t magnitude = poet_bits(y) & 0x7fffffffu;
      most = magnitude > most ? magnitude : most;
      out[l * step] = y;
    }
    count -= run, at += run, sums += run;
  }
  return most > 0x7f800000u; /* infinity */
}

/* Set sums to the values of the same made elements. */
static void begin(const struct convolution *v, const struct plane *p,
                  uint32_t at, uint32_t count, const float *to, float *sums) {
  for (; count; count--) {
    const uint32_t i = p->h.first + at / p->w.count * p->h.made_step;
    *sums++ = to[i * v->w.made + p->w.first + at % p->w.count * p->w.made_step];
    at++;
  }
}

/* Compute `lanes` made elements from made row `row` on, in all channels of a
 * group. Return true if a sum is NaN. */
static bool block(const struct convolution *v, const struct plane *p,
                  const float *buffer, const float *weight, const float *bias,
                  uint32_t row, uint32_t lanes, float *to) {
  struct poet_panel panel = {.a = weight,
                             .a_lane = (int32_t)v->made_step,
                             .a_row = (int32_t)v->read_step,
                             .b_row = (int32_t)p->channel,
                             .list = p->taps,
                             .columns = p->h.taps * p->w.taps,
                             .rows = v->read};
  bool is_nan = false;
  for (uint32_t k = 0; k < v->made; k += POET_HEIGHT) {
    const uint32_t made = v->made - k < POET_HEIGHT ? v->made - k : POET_HEIGHT;
    for (uint32_t at = 0; at < lanes; at += LANES) {
      const uint32_t count = lanes - at < LANES ? lanes - at : LANES;
      float sums[POET_HEIGHT][LANES];
      for (uint32_t l = 0; l < made; l++) {
        memset(sums[l], 0, poet_whole_vectors(count) * sizeof **sums);
        if (v->begun) {
          begin(v, p, row * p->w.count + at, count,
                to + (k + l) * v->made_plane, sums[l]);
        }
      }
      panel.b = buffer + at;
      poet_panel(&panel, made, poet_whole_vectors(count), sums[0], LANES);
      for (uint32_t l = 0; l < made; l++) {
        is_nan |= spread(v, p, row * p->w.count + at, count, sums[l],
                         bias != NULL ? bias + k + l : NULL,
                         to + (k + l) * v->made_plane);
      }
    }
    panel.a += POET_HEIGHT * v->made_step;
  }
  return is_nan;
}

/* Return the phase of the made elements from row `row` and column `column` on.
 */
static struct plane plane_at(const struct convolution *v, uint32_t row,
                             uint32_t column) {
  struct plane p = {.h = line_of(&v->h, row), .w = line_of(&v->w, column)};
  const uint32_t kernel = v->op->kernel_h, stride = v->op->stride_h;
  p.phases = v->h.back ? 1 : kernel < stride ? kernel : stride;
  p.more = v->h.back ? p.h.taps : (kernel - 1) / stride + 1;
  p.more -= p.more > 0;
  return p;
}

/* Return how many made rows fit into the buffer. */
static uint32_t rows_that_fit(const struct convolution *v,
                              const struct plane *p) {
  const uint32_t row = v->read * p->w.taps * p->phases * p->w.count;
  const uint32_t rows = BUFFER / (row ? row : 1);
  return rows > p->more ? rows - p->more : 0;
}

/* Compute the made elements of one phase. Return true if a sum is NaN. */
static bool plane(const struct convolution *v, struct plane *p,
                  const float *from, float *to) {
  const struct poet_op *op = v->op;
  const uint32_t fitting = rows_that_fit(v, p);
  const uint32_t blocks = (p->h.count + fitting - 1) / fitting;
  const uint32_t most = (p->h.count + blocks - 1) / blocks;
  float buffer[BUFFER + POET_LANES];
  lay_out(v, p, most);
  memset(buffer + v->read * p->channel, 0, POET_LANES * sizeof *buffer);
  bool is_nan = false;
  for (uint32_t n = 0; n < op->n; n++) {
    const float *weight = v->weight, *bias = v->bias;
    for (uint32_t group = 0; group < op->groups; group++) {
      for (uint32_t i = 0; i < p->h.count; i += most) {
        const uint32_t rows = p->h.count - i < most ? p->h.count - i : most;
        if (p->h.taps) {
          fill(v, p, from, i, rows, buffer);
        }
        is_nan |= block(v, p, buffer, weight, bias, i, rows * p->w.count, to);
      }
      from += v->read * v->read_plane;
      to += v->made * v->made_plane;
      weight += v->group_step;
      if (bias != NULL) {
        bias += v->made;
      }
    }
  }
  return is_nan;
}

bool poet_convolve_planes(const struct convolution *v, const float *from,
                          float *to) {
  const struct poet_op *op = v->op;
  const uint32_t h_phases = v->h.back ? v->h.stride : 1;
  const uint32_t w_phases = v->w.back ? v->w.stride : 1;
  const uint32_t lanes = v->h.made / h_phases * (v->w.made / w_phases);
  if ((uint32_t)op->kernel_h * op->kernel_w > TAPS || lanes < POET_LANES ||
      v->made * op->kernel_h < FEW ||
      (v->begun && !poet_are_finite(v->weight, op->groups * v->group_step))) {
    return false;
  }
  bool fit = true, is_nan = false;
  for (uint32_t i = 0; i < h_phases && i < v->h.made; i++) {
    for (uint32_t j = 0; j < w_phases && j < v->w.made; j++) {
      const struct plane p = plane_at(v, i, j);
      fit &= rows_that_fit(v, &p) > 0;
    }
  }
  for (uint32_t i = 0; fit && i < h_phases && i < v->h.made; i++) {
    for (uint32_t j = 0; j < w_phases && j < v->w.made; j++) {
      struct plane p = plane_at(v, i, j);
      is_nan |= plane(v, &p, from, to);
    }
  }
  return fit && (v->begun || !is_nan);
}
#endif
