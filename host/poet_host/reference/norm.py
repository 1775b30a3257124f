"""Kernels in NumPy: batch and layer normalisation."""

import numpy as np

from .floats import Array, f32, ordered_sum
from .op import Op, by_channel, kernel


def _mean_rstd(op: Op, stats: Array) -> tuple[Array, Array]:
    rows = stats[:, :, None, None]
    rstd: Array = f32(1) / np.sqrt(rows[1] + op.epsilon)
    return rows[0], rstd


def _xhat(op: Op, x: Array, stats: Array) -> Array:
    mean, rstd = _mean_rstd(op, stats)
    return (x - mean) * rstd


@kernel
def batchnorm_stats(op: Op, x: Array) -> Array:
    flat = by_channel(x)
    mean = ordered_sum(flat) / op.per_channel
    distance = flat - mean[:, None]
    return np.stack([mean, ordered_sum(distance * distance) / op.per_channel])


@kernel
def batchnorm(op: Op, x: Array, stats: Array, gamma: Array, beta: Array) -> Array:
    return _xhat(op, x, stats) * gamma[:, None, None] + beta[:, None, None]


@kernel
def batchnorm_running(op: Op, stats: Array, running: Array) -> Array:
    count = op.per_channel
    unbiased: np.float32 = count / (count - f32(1)) if count > 1 else f32(1)
    recent: Array = stats * np.array([[f32(1)], [unbiased]])
    return (f32(1) - op.update_rate) * running + op.update_rate * recent


@kernel
def batchnorm_sums(op: Op, x: Array, stats: Array, dy: Array) -> Array:
    product = dy * _xhat(op, x, stats)
    return np.stack([ordered_sum(by_channel(dy)), ordered_sum(by_channel(product))])


@kernel
def batchnorm_grad_input(
    op: Op, x: Array, stats: Array, gamma: Array, dy: Array, sums: Array
) -> Array:
    scale = gamma[:, None, None] * _mean_rstd(op, stats)[1]
    means = sums[:, :, None, None] / op.per_channel
    dx: Array = scale * ((dy - means[0]) - _xhat(op, x, stats) * means[1])
    return dx


@kernel
def batchnorm_grad_input_frozen(op: Op, stats: Array, gamma: Array, dy: Array) -> Array:
    return dy * (gamma[:, None, None] * _mean_rstd(op, stats)[1])


@kernel
def batchnorm_grad_param(op: Op, sums: Array) -> Array:
    row: Array = sums[min(op.variant, 1)]
    return row.copy()


def _row_xhat(op: Op, x: Array, stats: Array) -> Array:
    mean, rstd = stats[:, :, None]
    xhat: Array = (x - mean) * rstd
    return xhat


@kernel
def layernorm_stats(op: Op, x: Array) -> Array:
    mean = ordered_sum(x) / f32(op.c)
    distance = x - mean[:, None]
    variance = ordered_sum(distance * distance) / f32(op.c)
    return np.stack([mean, f32(1) / np.sqrt(variance + op.epsilon)])


@kernel
def layernorm(op: Op, x: Array, stats: Array, gamma: Array, beta: Array) -> Array:
    return _row_xhat(op, x, stats) * gamma + beta


@kernel
def layernorm_grad_input(op: Op, x: Array, stats: Array, gamma: Array, dy: Array) -> Array:
    xhat, g = _row_xhat(op, x, stats), dy * gamma
    mean = ordered_sum(g)[:, None] / f32(op.c)
    slope = ordered_sum(g * xhat)[:, None] / f32(op.c)
    dx: Array = stats[1, :, None] * ((g - mean) - xhat * slope)
    return dx


@kernel
def layernorm_grad_weight(op: Op, x: Array, stats: Array, dy: Array) -> Array:
    return ordered_sum((dy * _row_xhat(op, x, stats)).T)
