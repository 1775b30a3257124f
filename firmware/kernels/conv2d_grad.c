/*
 * conv2d_grad.c - the gradient of the weights of a convolution (conv2d.c), as
 * tiles of sums (tile.h): one tap of the window after the other, for four
 * output channels and several input channels at a time.
 */
#include "vector/conv_vector.h"
#include "depthwise.h"
#include "poet/kernel.h"
#include "sink.h"
#include "tile.h"

/* Compute the gradients of one tap, for which `t` has all but the addresses of
 * x. `from`: the first element of x that meets the tap. */
static void grad_weight_of_tap(const struct poet_call *call,
                               struct poet_tile *t, const float *from,
                               uint32_t tap, uint32_t taps, uint32_t group_c,
                               uint32_t group_k) {
  const struct poet_op *op = call->op;
  const uint32_t x_plane = op->h * op->w, y_plane = op->oh * op->ow;
  const uint32_t row = poet_apart(call->row, group_c * taps);
  uint32_t in_group = 0;
  for (uint32_t k = 0; k < op->k;) {
    const uint32_t outputs = poet_lanes(group_k - in_group);
    t->b.at = from;
    for (uint32_t c = 0; c < group_c; c += POET_WIDE) {
      const uint32_t inputs = poet_wide_lanes(group_c - c, POET_WIDE);
      float sums[POET_TILE * POET_WIDE];
      const struct poet_place place = {.first = k * row + c * taps + tap,
                                       .rows = outputs,
                                       .columns = inputs,
                                       .row = row,
                                       .column = taps};
      poet_begin_tile(call, &place, sums, POET_WIDE);
      poet_tile(t, outputs, inputs, sums, POET_WIDE);
      poet_sink_tile(call, 2, &place, sums, POET_WIDE);
      t->b.at += POET_WIDE * x_plane;
    }
    k += outputs;
    in_group += outputs;
    t->a.at += outputs * y_plane;
    if (in_group == group_k) {
      from += group_c * x_plane;
      in_group = 0;
    }
  }
}

void poet_conv2d_grad_weight(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];  /* (n, c, h, w) */
  const float *dy = call->in[1]; /* (n, k, oh, ow) */
  const uint32_t x_plane = op->h * op->w, y_plane = op->oh * op->ow;
  const uint32_t group_c = op->c / op->groups, group_k = op->k / op->groups;
  const uint32_t taps = (uint32_t)op->kernel_h * op->kernel_w;
  if (poet_depthwise_grad_weight(call, x, dy)) {
    return;
  }
#if POET_VECTOR
  if (poet_grad_weight_panels(call, x, dy)) {
    return;
  }
#endif
  struct poet_tile t = {.a = {.lane = (int32_t)y_plane,
                              .column = 1,
                              .row = (int32_t)op->ow,
                              .plane = (int32_t)(op->k * y_plane)},
                        .b = {.lane = (int32_t)x_plane,
                              .column = op->stride_w,
                              .row = (int32_t)(op->stride_h * op->w),
                              .plane = (int32_t)(op->c * x_plane)},
                        .planes = op->n,
                        .begun = !call->first,
                        .tame = poet_tame(x, op->n * op->c * x_plane, dy,
                                          op->n * op->k * y_plane)};

  uint32_t tap = 0;
  for (uint32_t kh = 0; kh < op->kernel_h; kh++) {
    const struct span h =
        poet_outputs_of(kh, op->stride_h, op->pad_h, op->h, op->oh);
    t.rows = h.count;
    for (uint32_t kw = 0; kw < op->kernel_w; kw++) {
      const struct span w =
          poet_outputs_of(kw, op->stride_w, op->pad_w, op->w, op->ow);
      t.columns = w.count;
      poet_tile_shape(&t);
      t.a.at = dy + h.first * op->ow + w.first;
      grad_weight_of_tap(call, &t, x + h.from * op->w + w.from, tap++, taps,
                         group_c, group_k);
    }
  }
}
