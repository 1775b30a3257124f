/*
 * grad_vector.c - the gradient of a convolution's weights in vectors.
 *
 * Rows of x are copied into a buffer in the order (row, column, channel), with
 * the padding of columns as zeros. There, the elements that the taps of a row
 * of the window meet, in all channels, lie side by side: they are the lanes of
 * a panel (tile_vector.h). The other operand is dy, whose lanes are channels.
 *
 * A term of padding is an element of dy times 0. It changes no sum if dy is
 * finite, as a sum that begins with 0 is never -0.
 */
#include <string.h>

#include "conv_vector.h"
#include "../sink.h"

#if POET_VECTOR
enum {
  LANES = 64,       /* taps of a row times channels */
  BUFFER = 1 << 14, /* floats */
  SUMS = 1 << 14,
};

/* Some input and output channels of a group. */
struct part {
  uint32_t group, c, inputs, k, outputs;
  uint32_t width; /* of the sums of a row of taps and of an output channel */
  float *sums;    /* (kernel_h, outputs, width) */
};

/* Return where the gradients of a tap lie in the parameter. */
static struct poet_place place_of(const struct poet_call *call,
                                  const struct part *part, uint32_t tap) {
  const struct poet_op *op = call->op;
  const uint32_t group_c = op->c / op->groups, group_k = op->k / op->groups;
  const uint32_t taps = (uint32_t)op->kernel_h * op->kernel_w;
  const uint32_t k = part->group * group_k + part->k;
  const uint32_t row = poet_apart(call->row, group_c * taps);
  return (struct poet_place){.first = k * row + part->c * taps + tap,
                             .rows = part->outputs,
                             .columns = part->inputs,
                             .row = row,
                             .column = taps};
}

/* Return the sums of a tap. */
static float *sums_of(const struct poet_op *op, const struct part *part,
                      uint32_t tap) {
  return part->sums + tap / op->kernel_w * part->outputs * part->width +
         tap % op->kernel_w * part->inputs;
}

static uint32_t padded_width(const struct poet_op *op) {
  return (op->ow - 1) * op->stride_w + op->kernel_w;
}

/* Copy `rows` rows of `inputs` channels. from: the first row in channel 0. */
static void fill(const struct poet_op *op, const float *from, uint32_t inputs,
                 uint32_t rows, float *to) {
  const uint32_t width = padded_width(op);
  const uint32_t before = op->pad_w < width ? op->pad_w : width;
  const uint32_t after = width - before;
  const uint32_t inside = after < op->w ? after : op->w;
  for (uint32_t row = 0; row < rows; row++) {
    memset(to, 0, before * inputs * sizeof *to);
    memset(to + (before + inside) * inputs, 0,
           (after - inside) * inputs * sizeof *to);
    for (uint32_t c = 0; inside && c < inputs; c++) {
      const float *x = from + c * op->h * op->w;
      float *y = to + op->pad_w * inputs + c;
      POET_UNROLLED for (uint32_t i = 0; i < inside; i++) {
        *y = x[i];
        y += inputs;
      }
    }
    from += op->w;
    to += width * inputs;
  }
}

/* Add the terms of output rows `first` to first + rows - 1 of a sample, whose
 * channel 0 is at x and dy. */
static void add_rows(const struct poet_op *op, const struct part *part,
                     const float *x, const float *dy, uint32_t first,
                     uint32_t rows, float *buffer) {
  const uint32_t row = padded_width(op) * part->inputs;
  const uint32_t from = first * op->stride_h; /* padded rows */
  const uint32_t to = from + (rows - 1) * op->stride_h + op->kernel_h;
  const uint32_t begin = from < op->pad_h ? 0 : from - op->pad_h;
  uint32_t end = to < op->pad_h ? 0 : to - op->pad_h;
  end = end < op->h ? end : op->h;
  if (begin < end) {
    fill(op, x + begin * op->w, part->inputs, end - begin, buffer);
  }
  struct poet_panel panel = {.a_lane = (int32_t)(op->oh * op->ow),
                             .a_column = 1,
                             .a_row = (int32_t)op->ow,
                             .b_column = (int32_t)(op->stride_w * part->inputs),
                             .b_row = (int32_t)(op->stride_h * row),
                             .columns = op->ow};
  for (uint32_t kh = 0; kh < op->kernel_h; kh++) {
    const struct span h =
        poet_outputs_of(kh, op->stride_h, op->pad_h, op->h, op->oh);
    const uint32_t h_end = h.first + h.count;
    const uint32_t i = h.first < first ? first : h.first;
    const uint32_t i_end = h_end < first + rows ? h_end : first + rows;
    if (i >= i_end) {
      continue;
    }
    panel.rows = i_end - i;
    panel.a = dy + i * op->ow;
    panel.b = buffer + (i * op->stride_h + kh - op->pad_h - begin) * row;
    poet_panel(&panel, part->outputs, part->width,
               part->sums + kh * part->outputs * part->width, part->width);
  }
}

/* Compute the gradients of a part, and pass them to the sink. `most`: output
 * rows whose input rows fit into the buffer. */
static void gradients(const struct poet_call *call, const struct part *part,
                      const float *x, const float *dy, uint32_t most,
                      float *buffer) {
  const struct poet_op *op = call->op;
  const uint32_t group_c = op->c / op->groups, group_k = op->k / op->groups;
  const uint32_t taps = (uint32_t)op->kernel_h * op->kernel_w;
  const uint32_t c = part->group * group_c + part->c;
  const uint32_t k = part->group * group_k + part->k;
  memset(part->sums, 0,
         op->kernel_h * part->outputs * part->width * sizeof *part->sums);
  for (uint32_t tap = 0; tap < taps; tap++) {
    const struct poet_place place = place_of(call, part, tap);
    poet_begin_tile(call, &place, sums_of(op, part, tap), part->width);
  }
  for (uint32_t n = 0; n < op->n; n++) {
    for (uint32_t i = 0; i < op->oh; i += most) {
      add_rows(op, part, x + (n * op->c + c) * op->h * op->w,
               dy + (n * op->k + k) * op->oh * op->ow, i,
               op->oh - i < most ? op->oh - i : most, buffer);
    }
  }
  for (uint32_t tap = 0; tap < taps; tap++) {
    const struct poet_place place = place_of(call, part, tap);
    poet_sink_tile(call, 2, &place, sums_of(op, part, tap), part->width);
  }
}

bool poet_grad_weight_panels(const struct poet_call *call, const float *x,
                             const float *dy) {
  const struct poet_op *op = call->op;
  const uint32_t group_c = op->c / op->groups, group_k = op->k / op->groups;
  const uint32_t inputs = LANES / op->kernel_w;
  if (!inputs || group_k < 2 ||
      !poet_are_finite(dy, op->n * op->k * op->oh * op->ow)) {
    return false;
  }
  const uint32_t blocks = (group_c + inputs - 1) / inputs;
  struct part part = {.inputs = (group_c + blocks - 1) / blocks};
  part.width = poet_whole_vectors(op->kernel_w * part.inputs);
  const uint32_t outputs = SUMS / (op->kernel_h * part.width);
  const uint32_t fitting = BUFFER / (padded_width(op) * part.inputs);
  if (!outputs || fitting < op->kernel_h) {
    return false;
  }
  const uint32_t most = (fitting - op->kernel_h) / op->stride_h + 1;
  float buffer[BUFFER + POET_LANES], sums[SUMS];
  part.sums = sums;
  const uint32_t step = part.inputs;
  for (; part.group < op->groups; part.group++) {
    for (part.c = 0; part.c < group_c; part.c += step) {
      part.inputs = group_c - part.c < step ? group_c - part.c : step;
      for (part.k = 0; part.k < group_k; part.k += outputs) {
        part.outputs = group_k - part.k < outputs ? group_k - part.k : outputs;
        gradients(call, &part, x, dy, most, buffer);
      }
    }
  }
  return true;
}
#endif
