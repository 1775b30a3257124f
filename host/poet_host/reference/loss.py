"""Kernels in NumPy: losses and optimiser steps."""

import numpy as np
from numpy.typing import NDArray

from .floats import Array, exp, f32, log, ordered_sum, power
from .op import KERNELS, Op, kernel

Labels = NDArray[np.int32]


def _exponentials(logits: Array) -> tuple[Array, Array, Array]:
    """Return d (n, c), e^d (n, c) and the sums of e^d for each sample (n, 1).

    d is the logits minus the largest logit of the sample.
    """
    below = logits - logits.max(axis=1, keepdims=True)
    powers = exp(below)
    return below, powers, ordered_sum(powers)[:, None]


@kernel
def softmax_xent(op: Op, logits: Array, labels: Labels) -> Array:
    below, _, total = _exponentials(logits)
    labels = labels[:, None]
    known = (labels >= 0) & (labels < op.c)
    at_label = np.take_along_axis(below, np.where(known, labels, 0), axis=1)
    losses = np.where(known, log(total) - at_label, f32(np.nan))
    return ordered_sum(losses.reshape(1, op.n)) / f32(op.n)


@kernel
def softmax_xent_grad(op: Op, logits: Array, labels: Labels) -> Array:
    _, powers, total = _exponentials(logits)
    hit: Array = (np.arange(op.c) == labels[:, None]).astype(np.float32)
    return (powers / total - hit) / f32(op.n)


def _expected(op: Op, labels: Labels, weights: Array) -> Array:
    """Return (n, c): what each label expects of each class."""
    labels = labels[:, None]
    at_label = np.arange(op.c) == labels
    share = np.where(at_label, op.upper_bound, op.lower_bound)
    known = (labels >= 0) & (labels < op.c)
    result: Array = weights.reshape(-1) * np.where(known, share, f32(0))
    return result


@kernel
def weighted_xent(op: Op, logits: Array, labels: Labels, weights: Array) -> Array:
    below, _, total = _exponentials(logits)
    losses = ordered_sum(_expected(op, labels, weights) * (log(total) - below))
    return ordered_sum(losses.reshape(1, op.n))


@kernel
def weighted_xent_grad(op: Op, logits: Array, labels: Labels, weights: Array) -> Array:
    _, powers, total = _exponentials(logits)
    expected = _expected(op, labels, weights)
    return powers / total * ordered_sum(expected)[:, None] - expected


@kernel
def mse(op: Op, x: Array, target: Array) -> Array:
    distance = (x - target).reshape(1, -1)
    return ordered_sum(distance * distance) / f32(distance.size)


@kernel
def mse_grad(op: Op, x: Array, target: Array) -> Array:
    distance = x - target
    return distance * (f32(2) / f32(distance.size))


KERNELS |= {
    "apply_gradient": lambda op, dw: dw.copy(),
    "momentum_step": lambda op, w, v: w - op.learning_rate * v,
}


def _average(op: Op, old: Array, recent: Array) -> Array:
    one = f32(1)
    weight = (one - op.beta) / (one if op.variant else one - power(op.beta, op.step))
    return old + weight * (recent - old)


def _decayed(op: Op, dw: Array, w: Array | None) -> Array:
    return dw if w is None else dw + op.weight_decay * w


@kernel
def average(op: Op, dw: Array, m: Array, w: Array | None = None) -> Array:
    return _average(op, m, _decayed(op, dw, w))


@kernel
def average_square(op: Op, dw: Array, v: Array, w: Array | None = None) -> Array:
    g = _decayed(op, dw, w)
    return _average(op, v, g * g)


@kernel
def adam_step(op: Op, w: Array, m: Array, v: Array) -> Array:
    denominator: Array = np.sqrt(v) + op.epsilon
    change = m / denominator
    return w - op.learning_rate * (change + op.weight_decay * w if op.weight_decay else change)
