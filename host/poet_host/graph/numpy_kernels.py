"""Every kernel of isa.def in NumPy, under its name in `KERNELS`.

Sums run over their terms in the order that firmware/include/poet/kernel.h defines, one
vector operation a term, over all elements of the output at once. Shapes and formulas are
documented there too. A kernel of a parameter's gradient returns the complete gradient; the
sink is the caller's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .exact import Array, exp, f32, log, murmur3, ordered_sum

Labels = NDArray[np.int32]
_ZERO = f32(0)


@dataclass(frozen=True)
class Op:
    """The fields of `struct poet_op` that kernels read, and the step."""

    step: int
    n: int = 0
    c: int = 0
    h: int = 0
    w: int = 0
    k: int = 0
    oh: int = 0
    ow: int = 0
    kernel_h: int = 0
    kernel_w: int = 0
    stride_h: int = 0
    stride_w: int = 0
    pad_h: int = 0
    pad_w: int = 0
    groups: int = 0
    variant: int = 0
    seed: int = 0
    key: int = 0
    learning_rate: np.float32 = _ZERO
    momentum: np.float32 = _ZERO
    weight_decay: np.float32 = _ZERO
    epsilon: np.float32 = _ZERO

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.n, self.c, self.h, self.w)

    @property
    def grouped_input(self) -> tuple[int, ...]:
        return (self.n, self.groups, self.c // self.groups, self.h, self.w)

    @property
    def grouped_output(self) -> tuple[int, ...]:
        return (self.n, self.groups, self.k // self.groups, self.oh, self.ow)

    @property
    def grouped_weight(self) -> tuple[int, ...]:
        of_group = (self.k // self.groups, self.c // self.groups)
        return (self.groups, *of_group, self.kernel_h, self.kernel_w)

    @property
    def pooled_shape(self) -> tuple[int, ...]:
        return (self.n, self.c, self.oh, self.ow)

    @property
    def per_channel(self) -> np.float32:
        """Elements of which a channel's statistics are, as a float."""
        return f32(self.n * self.h * self.w)


KERNELS: dict[str, Callable[..., Array]] = {}


def _kernel(function: Callable[..., Array]) -> Callable[..., Array]:
    KERNELS[function.__name__] = function
    return function


# Windows that slide over the input: convolution and pooling.


def _meeting(
    at: int, stride: int, pad: int, in_size: int, out_size: int
) -> tuple[slice, slice] | None:
    """Outputs for which window element `at` is inside the input, and the inputs there."""
    first = max(0, -((at - pad) // stride))
    end = min(out_size, (in_size - 1 + pad - at) // stride + 1)
    if first >= end:
        return None
    begin = first * stride + at - pad
    return slice(first, end), slice(begin, begin + (end - 1 - first) * stride + 1, stride)


def _taps(op: Op) -> list[tuple[tuple[int, int], tuple[Any, ...], tuple[Any, ...]]]:
    """(kh, kw), index of outputs, index of inputs, for each element of the window."""
    found = []
    for kh in range(op.kernel_h):
        for kw in range(op.kernel_w):
            rows = _meeting(kh, op.stride_h, op.pad_h, op.h, op.oh)
            columns = _meeting(kw, op.stride_w, op.pad_w, op.w, op.ow)
            if rows and columns:
                found.append(((kh, kw), (..., rows[0], columns[0]), (..., rows[1], columns[1])))
    return found


def _clipped(stride: int, pad: int, size: int, kernel: int, out: int) -> list[tuple[slice, slice]]:
    """For each output, the window's elements inside the input, and the inputs there."""
    found = []
    for start in range(-pad, out * stride - pad, stride):
        begin, end = max(0, start), max(0, start, min(size, start + kernel))
        found.append((slice(begin - start, end - start), slice(begin, end)))
    return found


@_kernel
def conv2d(op: Op, x: Array, w: Array, bias: Array | None = None) -> Array:
    x, w = x.reshape(op.grouped_input), w.reshape(op.grouped_weight)
    y = np.zeros(op.grouped_output, f32)
    taps = _taps(op)
    for c in range(w.shape[2]):
        plane, weight = x[:, :, None, c], w[None, :, :, c, :, :, None, None]
        for (kh, kw), outputs, inputs in taps:
            y[outputs] += plane[inputs] * weight[:, :, :, kh, kw]
    y = y.reshape(op.n, op.k, op.oh, op.ow)
    return y if bias is None else y + bias.reshape(op.k, 1, 1)


@_kernel
def conv2d_grad_input(op: Op, dy: Array, w: Array) -> Array:
    dy, w = dy.reshape(op.grouped_output), w.reshape(op.grouped_weight)
    dx = np.zeros(op.grouped_input, f32)
    taps = _taps(op)
    for k in range(w.shape[1]):
        plane, weight = dy[:, :, None, k], w[None, :, k, :, :, :, None, None]
        for (kh, kw), outputs, inputs in taps:
            dx[inputs] += plane[outputs] * weight[:, :, :, kh, kw]
    return dx.reshape(op.input_shape)


@_kernel
def conv2d_grad_weight(op: Op, x: Array, dy: Array) -> Array:
    x, dy = x.reshape(op.grouped_input), dy.reshape(op.grouped_output)
    dw = np.zeros(op.grouped_weight, f32)
    rows = _clipped(op.stride_h, op.pad_h, op.h, op.kernel_h, op.oh)
    columns = _clipped(op.stride_w, op.pad_w, op.w, op.kernel_w, op.ow)
    for n in range(op.n):
        for oh, (tap_rows, x_rows) in enumerate(rows):
            for ow, (tap_columns, x_columns) in enumerate(columns):
                g = dy[n, :, :, None, oh, ow, None, None]
                dw[..., tap_rows, tap_columns] += g * x[n, :, None, :, x_rows, x_columns]
    return dw.reshape(op.k, -1, op.kernel_h, op.kernel_w)


@_kernel
def maxpool2d(op: Op, x: Array) -> Array:
    return _largest(op, x)[0]


@_kernel
def maxpool2d_grad(op: Op, x: Array, dy: Array) -> Array:
    at = _largest(op, x)[1].reshape(op.n * op.c, -1)
    dx = np.zeros((op.n * op.c, op.h * op.w), f32)
    np.add.at(dx, (np.arange(op.n * op.c)[:, None], at), dy.reshape(at.shape))
    return dx.reshape(op.input_shape)


def _largest(op: Op, x: Array) -> tuple[Array, NDArray[np.int64]]:
    """Value of each window's first largest element, and its index in the plane."""
    x = x.reshape(op.input_shape)
    place = np.arange(op.h * op.w).reshape(op.h, op.w)
    best = np.zeros(op.pooled_shape, f32)
    index = np.full(op.pooled_shape, -1)
    for _, outputs, inputs in _taps(op):
        value, old = x[inputs], best[outputs]
        better = (index[outputs] < 0) | (value > old) | np.isnan(value)
        best[outputs] = np.where(better, value, old)
        index[outputs] = np.where(better, place[inputs], index[outputs])
    return best, index


@_kernel
def avgpool2d(op: Op, x: Array) -> Array:
    x = x.reshape(op.input_shape)
    y = np.zeros(op.pooled_shape, f32)
    for _, outputs, inputs in _taps(op):
        y[outputs] += x[inputs]
    return y / f32(op.kernel_h * op.kernel_w)


@_kernel
def avgpool2d_grad(op: Op, dy: Array) -> Array:
    share = dy.reshape(op.pooled_shape) / f32(op.kernel_h * op.kernel_w)
    dx = np.zeros(op.input_shape, f32)
    for _, outputs, inputs in reversed(_taps(op)):  # which meets windows in ascending order
        dx[inputs] += share[outputs]
    return dx


@_kernel
def global_avgpool(op: Op, x: Array) -> Array:
    return ordered_sum(x.reshape(op.input_shape), axes=2) / f32(op.h * op.w)


@_kernel
def global_avgpool_grad(op: Op, dy: Array) -> Array:
    share = dy.reshape(op.n, op.c, 1, 1) / f32(op.h * op.w)
    return np.broadcast_to(share, op.input_shape).copy()


# Fully connected layers.


@_kernel
def linear(op: Op, x: Array, w: Array, bias: Array | None = None) -> Array:
    x, w = x.reshape(op.n, -1), w.reshape(op.k, op.c * op.h * op.w)
    y = np.zeros((op.n, op.k), f32)
    for c in range(w.shape[1]):
        y += x[:, None, c] * w[None, :, c]
    return y if bias is None else y + bias.reshape(op.k)


@_kernel
def linear_grad_input(op: Op, dy: Array, w: Array) -> Array:
    dy, w = dy.reshape(op.n, op.k), w.reshape(op.k, op.c * op.h * op.w)
    dx = np.zeros((op.n, w.shape[1]), f32)
    for k in range(op.k):
        dx += dy[:, k, None] * w[None, k]
    return dx.reshape(op.input_shape)


@_kernel
def linear_grad_weight(op: Op, x: Array, dy: Array) -> Array:
    x, dy = x.reshape(op.n, op.c * op.h * op.w), dy.reshape(op.n, op.k)
    dw = np.zeros((op.k, x.shape[1]), f32)
    for n in range(op.n):
        dw += dy[n, :, None] * x[n]
    return dw


@_kernel
def grad_bias(op: Op, dy: Array) -> Array:
    return ordered_sum(_by_channel(dy.reshape(op.n, op.k, op.oh, op.ow)))


# Batch normalisation.


def _by_channel(x: Array) -> Array:
    """(n, c, h, w) as (c, n * h * w)."""
    return np.moveaxis(x, 1, 0).reshape(x.shape[1], -1)


def _mean_rstd(op: Op, stats: Array) -> tuple[Array, Array]:
    rows = stats.reshape(2, op.c, 1, 1)
    rstd: Array = f32(1) / np.sqrt(rows[1] + op.epsilon)
    return rows[0], rstd


def _xhat(op: Op, x: Array, stats: Array) -> Array:
    mean, rstd = _mean_rstd(op, stats)
    return (x.reshape(op.input_shape) - mean) * rstd


@_kernel
def batchnorm_stats(op: Op, x: Array) -> Array:
    flat = _by_channel(x.reshape(op.input_shape))
    mean = ordered_sum(flat) / op.per_channel
    distance = flat - mean[:, None]
    return np.stack([mean, ordered_sum(distance * distance) / op.per_channel])


@_kernel
def batchnorm(op: Op, x: Array, stats: Array, gamma: Array, beta: Array) -> Array:
    return _xhat(op, x, stats) * gamma.reshape(op.c, 1, 1) + beta.reshape(op.c, 1, 1)


@_kernel
def batchnorm_running(op: Op, stats: Array, running: Array) -> Array:
    count = op.per_channel
    unbiased: np.float32 = count / (count - f32(1)) if count > 1 else f32(1)
    recent: Array = stats.reshape(2, op.c) * np.array([[f32(1)], [unbiased]])
    return (f32(1) - op.momentum) * running.reshape(2, op.c) + op.momentum * recent


@_kernel
def batchnorm_sums(op: Op, x: Array, stats: Array, dy: Array) -> Array:
    dy = dy.reshape(op.input_shape)
    product = dy * _xhat(op, x, stats)
    return np.stack([ordered_sum(_by_channel(dy)), ordered_sum(_by_channel(product))])


@_kernel
def batchnorm_grad_input(
    op: Op, x: Array, stats: Array, gamma: Array, dy: Array, sums: Array
) -> Array:
    scale = gamma.reshape(op.c, 1, 1) * _mean_rstd(op, stats)[1]
    means = sums.reshape(2, op.c, 1, 1) / op.per_channel
    dx: Array = scale * ((dy.reshape(op.input_shape) - means[0]) - _xhat(op, x, stats) * means[1])
    return dx


@_kernel
def batchnorm_grad_input_frozen(op: Op, stats: Array, gamma: Array, dy: Array) -> Array:
    return dy.reshape(op.input_shape) * (gamma.reshape(op.c, 1, 1) * _mean_rstd(op, stats)[1])


@_kernel
def batchnorm_grad_param(op: Op, sums: Array) -> Array:
    row: Array = sums.reshape(2, op.c)[min(op.variant, 1)]
    return row.copy()


# Elementwise operators.


@_kernel
def relu(op: Op, x: Array) -> Array:
    x = x.reshape(op.input_shape)
    return np.where(x <= 0, f32(0), x)


@_kernel
def relu_grad(op: Op, y: Array, dy: Array) -> Array:
    return np.where(y.reshape(op.input_shape) > 0, dy.reshape(op.input_shape), f32(0))


@_kernel
def relu6(op: Op, x: Array) -> Array:
    x = x.reshape(op.input_shape)
    return np.where(x <= 0, f32(0), np.where(x >= 6, f32(6), x))


@_kernel
def relu6_grad(op: Op, y: Array, dy: Array) -> Array:
    y = y.reshape(op.input_shape)
    return np.where((y > 0) & (y < 6), dy.reshape(op.input_shape), f32(0))


@_kernel
def add(op: Op, a: Array, b: Array) -> Array:
    return a.reshape(op.input_shape) + b.reshape(op.input_shape)


@_kernel
def dropout(op: Op, x: Array) -> Array:
    words = murmur3(op.seed, op.step, op.key, np.arange(x.size, dtype=np.uint32))
    uniform = (words >> np.uint32(8)).astype(np.float32) * f32(2.0**-24)
    scaled = x.reshape(op.input_shape) * (f32(1) / (f32(1) - op.epsilon))
    return np.where(uniform.reshape(op.input_shape) >= op.epsilon, scaled, f32(0))


# Losses and updates.


def _exponentials(op: Op, logits: Array) -> tuple[Array, Array, Array]:
    """Logits below their sample's largest (n, c), e to their power, and its sum (n, 1)."""
    below = logits.reshape(op.n, op.c)
    below = below - below.max(axis=1, keepdims=True)
    powers = exp(below)
    return below, powers, ordered_sum(powers)[:, None]


@_kernel
def softmax_xent(op: Op, logits: Array, labels: Labels) -> Array:
    below, _, total = _exponentials(op, logits)
    labels = labels.reshape(op.n, 1)
    known = (labels >= 0) & (labels < op.c)
    at_label = np.take_along_axis(below, np.where(known, labels, 0), axis=1)
    losses = np.where(known, log(total) - at_label, f32(np.nan))
    return ordered_sum(losses.reshape(1, op.n)) / f32(op.n)


@_kernel
def softmax_xent_grad(op: Op, logits: Array, labels: Labels) -> Array:
    _, powers, total = _exponentials(op, logits)
    hit: Array = (np.arange(op.c) == labels.reshape(op.n, 1)).astype(np.float32)
    return (powers / total - hit) / f32(op.n)


@_kernel
def mse(op: Op, x: Array, target: Array) -> Array:
    distance = x.reshape(1, -1) - target.reshape(1, -1)
    return ordered_sum(distance * distance) / f32(distance.size)


@_kernel
def mse_grad(op: Op, x: Array, target: Array) -> Array:
    distance = x.reshape(op.input_shape) - target.reshape(op.input_shape)
    return distance * (f32(2) / f32(distance.size))


@_kernel
def apply_gradient(op: Op, dw: Array) -> Array:
    return dw.reshape(op.input_shape).copy()


@_kernel
def momentum_step(op: Op, w: Array, v: Array) -> Array:
    return w.reshape(op.input_shape) - op.learning_rate * v.reshape(op.input_shape)
