/*
 * kernel.h - the operators of isa.def as C functions, and their definitions.
 *
 * A kernel reads its inputs and writes every element of its output and nothing
 * else. All sizes come from the fields of struct poet_op. No kernel needs a
 * workspace. The output of an overwriting operator is the same memory as the
 * input that it overwrites. No other input overlaps the output.
 *
 * isa.def defines the shape of each operand by a letter. The bits of `variant`
 * change shapes and orders of axes:
 *
 *   add, sub, mul, scale   if bit i is set, a (or x) has size 1 along axis i of
 *                n, c, h, w; if bit 4 + i is set, b has size 1 along axis i
 *   reduce, reduce_product   if bit i is set, the sum goes over axis i; if bit
 *                4 + i is set, z has size 1 along axis i
 *   transpose    axis i of y is axis (variant >> 2 * i) & 3 of x
 *   matmul       the flags 1 (for a) and 2 (for b) exchange the last two axes;
 *                then the flags 4 (for a), 8 (for b) and 16 (for y) exchange
 *                the middle two axes
 *   gru, lstm, _grad   0x54, so that dy has size 1 along h, and the initial
 *                states along n and h
 *
 * A slice begins at channel oh. For the grad_bias of linear, oh and ow are 1.
 *
 * Numbers are exact: float32, round to nearest, each operation rounded
 * separately (exact.h), no double. A sum is one accumulator that starts at 0
 * and adds its terms in ascending order of index; the last index listed changes
 * fastest. Padding adds no term:
 *
 *   conv2d               over c / groups, kernel_h, kernel_w, then + bias
 *   conv2d_grad_input    over k / groups, kernel_h, kernel_w
 *   conv2d_grad_weight   over n, oh, ow
 *   linear               over c * h * w, then + bias
 *   linear_grad_input    over k
 *   linear_grad_weight   over n
 *   grad_bias            over n, oh, ow
 *   batchnorm_stats, _sums    over n, h, w; the variance in a second pass. A
 *                        call has all of the terms, or terms of one pass
 *   avgpool2d            over the window
 *   maxpool2d_grad, avgpool2d_grad    over the windows, oh, ow
 *   global_avgpool       over h, w
 *   softmax_xent, weighted_xent    over c within a sample, then over n
 *   mse                  over all elements
 *   reduce               over the axes that are summed
 *   matmul               over k
 *   softmax, _grad       over w; a masked element adds 0
 *   layernorm_stats, _grad_input    over c; the variance in a second pass
 *   layernorm_grad_weight    over n
 *   embedding_grad       over those n whose token selects the row; none for the
 *                        row `padding` - 1
 *   gru, lstm            over w, then + bias
 *   gru_grad, lstm_grad  the same, and over the rows of the recurrent weight
 *
 * Formulas, evaluated in the order of the brackets, with m = (float)(n * h *
 * w):
 *
 *   rstd   = 1 / sqrt(var + epsilon),  xhat = (x - mean) * rstd
 *   batchnorm            xhat * gamma + beta
 *   batchnorm_stats      mean = (sum x) / m, var = (sum (x - mean)^2) / m
 *   batchnorm_running    (1 - update_rate) * old + update_rate * new, where new
 *                        is the mean or, for the variance,
 *                        var * (m / (m - 1)); if m = 1, new is var
 *   batchnorm_grad_input (gamma * rstd) * ((dy - sums[0] / m)
 *                                          - xhat * (sums[1] / m))
 *   batchnorm_grad_input_frozen    dy * (gamma * rstd)
 *   avgpool2d            sum / (kernel_h * kernel_w) or, with `variant` 1,
 *                        sum / number of elements that are not padding; the
 *                        gradient has the same divisor
 *   dropout              x * (1 / (1 - p)) where the element's uniform number
 *                        is >= p (dropout.c), else 0; p = probability
 *   softmax_xent         mean of log(sum exp(x - max)) - (x[label] - max)
 *   softmax_xent_grad    (exp(x - max) / sum - (1 at the label)) / n
 *   weighted_xent        sum of t * (log(sum exp(x - max)) - (x - max)), where
 *                        t is the weight of the class, times upper_bound at the
 *                        label or lower_bound elsewhere; 0 if the label is c
 *                        or more
 *   weighted_xent_grad   exp(x - max) / sum * (sum t) - t
 *   mse_grad             (x - target) * (2 / elements)
 *   scale                x * factor
 *   reduce, reduce_product, matmul    sum * factor
 *   clip                 lower_bound <= y <= upper_bound
 *   sigmoid_grad         dy * (y * (1 - y))
 *   tanh_grad            dy * (1 - y * y)
 *   gelu                 0.5 x * (1 + t), t = erf(x * sqrt(1/2)) or, with
 *                        `variant` 1,
 *                        t = tanh(sqrt(2/pi) * (x + 0.044715 * (x * x * x)))
 *   elementary           by `variant`: 0 x <= 0 ? 0 - x : x,
 *                        1 max(x, 0) + log(1 + exp(-|x|)),
 *                        2 x > 0 ? x : factor * (exp(x) - 1), 3 exp(x),
 *                        4 1 / x, 5 log(x), 6 sqrt(x)
 *   elementary_grad      dy * slope: 0 the sign of x, 1 1 / (1 + exp(-x)),
 *                        2 x > 0 ? 1 : factor * exp(x), 3 exp(x),
 *                        4 -((1 / x) * (1 / x)), 5 1 / x, 6 0.5 / sqrt(x)
 *   sine                 sin(x), 1 cos(x), 2 -sin(x), 3 -cos(x) by `variant`
 *   softmax              exp(x - max) / sum of the visible elements; 0 for
 *                        the others. An element is visible if its mask is not
 *                        0 and, with `variant` 1, w <= h
 *   layernorm_stats      mean = (sum x) / c,
 *                        rstd = 1 / sqrt((sum (x - mean)^2) / c + epsilon)
 *   layernorm            xhat * gamma + beta
 *   layernorm_grad_input rstd * ((dy * gamma - s / c) - xhat * (t / c)) with
 *                        s = sum dy * gamma, t = sum (dy * gamma) * xhat
 *   average, _square     m + (1 - mu) / (1 - mu^step) * (g' - m), where
 *                        mu = beta; _square: g'^2 instead of g' and, with
 *                        `variant` 1, (1 - mu) instead of the quotient
 *   adam_step            w - lr * (m / (sqrt(v) + epsilon) + wd * w); without
 *                        the last term if wd = weight_decay is 0
 *   gru                  of a step, with h the state before it and the gates n,
 *                        r, z of s = w h + b: r = sigmoid(a[0] + s[1]),
 *                        z = sigmoid(a[1] + s[2]), n = tanh(a[2] + r * s[0]);
 *                        the state after it is (1 - z) * n + z * h. With
 *                        `groups` 1, the steps go from the last to the first
 *   gru_grad             d = dy + (d' * z' + sum) for the state after a step,
 *                        with d', z' and the sum over q', dr', dz' of the step
 *                        after it; dn = d * (1 - z) * (1 - n * n),
 *                        q = dn * r, dr = dn * s[0] * (r * (1 - r)),
 *                        dz = d * (h - n) * (z * (1 - z)). The output has q,
 *                        dr, dz, dn and, if oh = 5 * w, d * z
 *   lstm                 of a step, with the states h and m before it and the
 *                        gates i, f, g, o of s = w h + b: those of a + s, with
 *                        tanh for g and sigmoid for the others; the states
 *                        after it are m' = f * m + i * g and o * tanh(m')
 *   lstm_grad            d = dy + sum, with the sum over di', df', dg', do' of
 *                        the step after it; t = tanh(m'),
 *                        e = d * o * (1 - t * t) + e' * f', with e' and f' of
 *                        the step after it; di = e * g * (i * (1 - i)),
 *                        df = e * m * (f * (1 - f)), dg = e * i * (1 - g * g),
 *                        do = d * t * (o * (1 - o)). The output has di, df, dg,
 *                        do and, if oh = 5 * w, e * f
 *   sinks                g' = g + wd * w with wd = weight_decay; g' = g if
 *                        wd = 0. sgd: w - lr * g'. momentum: mu * v + g'.
 *                        accumulate: acc + g
 *
 * Every kernel passes a NaN from its input to its output, so that the NaN
 * reaches the loss. A label outside 0 .. c - 1 makes the loss NaN. A token
 * outside 0 .. k - 1 makes its row NaN.
 *
 * A call may compute a part of an operator, whose operands it has in part. The
 * column `parts` of isa.def lists the axes along which operators may be cut. A
 * part of an operand is dense and row-major: the elements that lie in a range
 * along each axis; see `row`, `in_plane` and `out_plane` for exceptions.
 * Calls that add terms to the same sums follow each other in the order of the
 * terms.
 */
#ifndef POET_KERNEL_H
#define POET_KERNEL_H

#include <stdbool.h>

#include "poet/exact.h"
#include "poet/records.h"
#include "poet/small.h"

#ifdef __cplusplus
extern "C" {
#endif

struct poet_call {
  /* the operator with the sizes of this part, and with its own sizes; the same
   * record if it is not cut */
  const struct poet_op *op, *whole;
  /* pointers to the input tensors, in the order of isa.def; op->input_count of
   * them are valid */
  const void *in[POET_INPUTS];
  void *out;
  void *workspace;
  /* for a kernel with a sink, if not all terms are in this call: the sums, in
   * the shape of the output. They may be the output if the sink is `store`.
   * Other kernels leave unfinished sums in the output. For a layer along time:
   * what a part of its walk keeps for the next part. A part with some rows of
   * the recurrent weight keeps their sums too. */
  float *sums;
  /* For conv2d, conv2d_grad_input and linear_grad_weight: distance in floats
   * from an index of the first axis of in[1] to the next; for
   * conv2d_grad_weight, of the output and of what the sink reads. 0: dense. For
   * a layer along time: the first row of the recurrent weight in this call. */
  uint32_t row;
  /* For conv2d and conv2d_grad_input: distances in floats from a channel to the
   * next, of in[0] and of the output. 0: dense. */
  uint32_t in_plane, out_plane;
  uint32_t step; /* number of the training step, for dropout and Adam */
  /* Number of the part's first element among all elements of the operator's
   * output, 0 if the operator is not cut; for embedding, among those of the
   * table, for slice, of x. */
  uint32_t index;
  /* This call has the first, the last terms of its sums, or steps of a walk. */
  bool first, last;
  /* Number of the pass over the input, for a sum with two passes. 0 if this
   * call has all terms. */
  uint8_t pass;
};

typedef void poet_kernel_fn(const struct poet_call *call);

#define KERNEL(code, name, ...) poet_kernel_fn poet_##name;
#include "poet/isa.def"

/* Return the number of elements that each operand of an elementwise operator
 * has. */
static inline uint32_t poet_elements(const struct poet_op *op) {
  return op->n * op->c * op->h * op->w;
}

/* Return a distance in floats: that of a call, if it has one. */
static inline uint32_t poet_apart(uint32_t of_call, uint32_t dense) {
  return of_call ? of_call : dense;
}

#if POET_KERNELS == UINT64_MAX && POET_MORE_KERNELS == UINT64_MAX
#define POET_HAS_KERNEL(code) 1
#else
#define POET_HAS_KERNEL(code)                                                  \
  (((code) < 64 ? (uint64_t)(POET_KERNELS) : (uint64_t)(POET_MORE_KERNELS)) >> \
       ((code) & 63) &                                                         \
   1)
#endif

/* Return sin(pi / 2 x)^2, which is (1 - cos(pi x)) / 2, for x from 0 to 1.
 * Largest relative error: 4e-7. */
float poet_half_wave(float x);

/* Return the function of the kernel that has this code in isa.def. Return NULL
 * if the code is unknown, belongs to the kernel `none`, or is not in this
 * build. */
poet_kernel_fn *poet_kernel(uint8_t code);

#ifdef __cplusplus
}
#endif

#endif
