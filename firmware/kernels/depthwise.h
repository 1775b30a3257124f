/* depthwise.h - convolutions with one channel in a group, and the description
 * of a convolution. */
#ifndef POET_DEPTHWISE_H
#define POET_DEPTHWISE_H

#include "axis.h"
#include "poet/kernel.h"

/* poet_conv2d, or poet_conv2d_grad_input (conv2d.c). */
struct convolution {
  const struct poet_op *op;
  struct axis h, w;
  bool begun;                    /* made elements hold sums of earlier calls */
  const float *weight, *bias;    /* bias: of each made channel, or NULL */
  uint32_t made, read;           /* channels of a group */
  uint32_t made_step, read_step; /* distance between their weights */
  uint32_t group_step;           /* from the weights of a group to the next */
  uint32_t made_plane, read_plane; /* distance between channels */
};

/* Compute a convolution with so few products that the set-up of tiles would
 * take longer, such as a depthwise one. `from`: all read channels, `to`: all
 * made channels. */
void poet_depthwise(const struct convolution *v, const float *from, float *to);

/* Set all made elements to 0. */
void poet_clear(const struct convolution *v, float *to);

/* Add the biases, if there are any, to all made elements. */
void poet_add_bias(const struct convolution *v, float *to);

/* Compute the gradients of weights, if their operator is one that is faster
 * without tiles, such as a depthwise one; else return false. x: (n, c, h, w),
 * dy: (n, k, oh, ow) */
bool poet_depthwise_grad_weight(const struct poet_call *call, const float *x,
                                const float *dy);

#endif
