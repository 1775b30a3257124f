/*
 * kernel.h - the operators of isa.def as C functions, and what they compute.
 *
 * A kernel reads its inputs, writes every element of its output and nothing
 * else; sizes come from the operator's fields alone. No kernel needs a
 * workspace. The output of an overwriting operator is the very memory of the
 * input that it overwrites; all other inputs are apart from the output.
 *
 * Operands, dense and row-major, in fields of struct poet_op:
 *
 *   x    (n, c, h, w)           y, dy  (n, k, oh, ow)     of conv2d
 *   w    (k, c / groups, kernel_h, kernel_w)              of conv2d
 *   x    (n, c * h * w)         y, dy  (n, k)             of linear
 *   w    (k, c * h * w)         bias   (k)                of linear
 *   x    (n, c, h, w)           y, dy  (n, c, oh, ow)     of pooling
 *   x    (n, c, h, w)           y, dy  (n, c)             of global_avgpool
 *   x, y (n, c, h, w)           gamma, beta (c)           of batchnorm
 *   stats, running, sums (2, c)                           of batchnorm
 *   dy   (n, k, oh, ow), linear's with oh = ow = 1        of grad_bias
 *   logits (n, c)               labels (n) int32          of softmax_xent
 *   n * c * h * w elements in each operand                of all others
 *   a loss is one float
 *
 * Numbers are exact: float32, round to nearest, every operation rounded by
 * itself (compile with -ffp-contract=off), no double. A sum is one accumulator
 * that begins with 0 and takes its terms in ascending order, the last index
 * running fastest; what lies in the padding is no term:
 *
 *   conv2d               over c / groups, kernel_h, kernel_w, then + bias
 *   conv2d_grad_input    over k / groups, kernel_h, kernel_w
 *   conv2d_grad_weight   over n, oh, ow
 *   linear               over c * h * w, then + bias
 *   linear_grad_input    over k
 *   linear_grad_weight   over n
 *   grad_bias            over n, oh, ow
 *   batchnorm_stats, _sums    over n, h, w; the variance in a second pass
 *   avgpool2d            over the window
 *   maxpool2d_grad, avgpool2d_grad    over the windows, oh, ow
 *   global_avgpool       over h, w
 *   softmax_xent         over c within a sample, then over n
 *   mse                  over all elements
 *
 * Formulas, evaluated as the brackets say, m = (float)(n * h * w):
 *
 *   rstd   = 1 / sqrt(var + epsilon),  xhat = (x - mean) * rstd
 *   batchnorm            xhat * gamma + beta
 *   batchnorm_stats      mean = (sum x) / m, var = (sum (x - mean)^2) / m
 *   batchnorm_running    (1 - momentum) * old + momentum * new, where new is
 *                        mean, and var * (m / (m - 1)), or var if m = 1
 *   batchnorm_grad_input (gamma * rstd) * ((dy - sums[0] / m)
 *                                          - xhat * (sums[1] / m))
 *   batchnorm_grad_input_frozen    dy * (gamma * rstd)
 *   avgpool2d            sum / (kernel_h * kernel_w), gradient likewise
 *   dropout              x * (1 / (1 - p)) where the element's uniform number
 *                        is >= p (dropout.c), else 0; p = epsilon
 *   softmax_xent         mean of log(sum exp(x - max)) - (x[label] - max)
 *   softmax_xent_grad    (exp(x - max) / sum - (1 at the label)) / n
 *   mse_grad             (x - target) * (2 / elements)
 *   sinks                with wd = weight_decay, and g' = g + wd * w, but
 *                        g' = g if wd = 0:  sgd w - lr * g', momentum
 *                        mu * v + g';  accumulate acc + g
 *
 * Not-a-numbers pass through every kernel up to the loss. A label outside
 * 0 .. c - 1 makes the loss not a number.
 */
#ifndef POET_KERNEL_H
#define POET_KERNEL_H

#include "poet/records.h"

struct poet_call {
  const struct poet_op *op;
  const void *in[POET_INPUTS]; /* op->input_count of them, in isa.def's order */
  void *out;
  void *workspace;
  uint32_t step; /* dropout draws anew in each */
};

typedef void poet_kernel_fn(const struct poet_call *call);

#define KERNEL(code, name, inputs, effect) poet_kernel_fn poet_##name;
#include "poet/isa.def"

/* Elements of each operand of an elementwise operator. */
static inline uint32_t poet_elements(const struct poet_op *op) {
  return op->n * op->c * op->h * op->w;
}

/* The kernel of a row of isa.def, or NULL: no such row, or `none`. */
poet_kernel_fn *poet_kernel(uint8_t code);

#endif
