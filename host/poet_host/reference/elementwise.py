"""Kernels in NumPy: elementwise functions, broadcasting, sums along axes, moves of elements."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .floats import Array, erf, exp, f32, log, logistic, murmur3, ordered_sum, sine, tanh
from .op import KERNELS, Op, kernel

Formula = Callable[[Op, Array], Any]

KERNELS |= {
    "relu": lambda op, x: np.where(x <= 0, f32(0), x),
    "relu_grad": lambda op, y, dy: np.where(y > 0, dy, f32(0)),
    "relu6": lambda op, x: np.where(x <= 0, f32(0), np.where(x >= 6, f32(6), x)),
    "relu6_grad": lambda op, y, dy: np.where((y > 0) & (y < 6), dy, f32(0)),
    "sigmoid": lambda op, x: logistic(x),
    "sigmoid_grad": lambda op, y, dy: dy * (y * (f32(1) - y)),
    "tanh": lambda op, x: tanh(x),
    "tanh_grad": lambda op, y, dy: dy * (f32(1) - y * y),
    "sine": lambda op, x: sine(x, op.variant),
    # These repeat operands along axes.
    "add": lambda op, a, b: a + np.broadcast_to(b, op.input_shape),
    "sub": lambda op, a, b: a - np.broadcast_to(b, op.input_shape),
    "mul": lambda op, a, b: a * np.broadcast_to(b, op.input_shape),
    "scale": lambda op, x: np.broadcast_to(x, op.input_shape) * op.factor,
    # These sum along axes, or move elements.
    "reduce": lambda op, x: _reduced(op, x),
    "reduce_product": lambda op, x, z: _reduced(op, x * z),
    "transpose": lambda op, x: x.transpose([op.variant >> 2 * i & 3 for i in range(4)]).copy(),
    "concat": lambda op, a, b: np.concatenate([a, b], axis=1),
    "slice": lambda op, x: x[:, op.oh : op.oh + op.k].copy(),
}


@kernel
def clip(op: Op, x: Array) -> Array:
    above = np.where(x >= op.upper_bound, op.upper_bound, x)
    return np.where(x <= op.lower_bound, op.lower_bound, above)


@kernel
def clip_grad(op: Op, x: Array, dy: Array) -> Array:
    inside = (x >= op.lower_bound) & (x <= op.upper_bound)
    return np.where(inside, dy, f32(0))


_SQRT_HALF, _SQRT_2_PI, _CUBIC = f32(0.70710678), f32(0.79788456), f32(0.044715)


def _gelu_part(op: Op, x: Array) -> Array:
    return tanh(_SQRT_2_PI * (x + _CUBIC * (x * x * x))) if op.variant else erf(x * _SQRT_HALF)


@kernel
def gelu(op: Op, x: Array) -> Array:
    return f32(0.5) * x * (f32(1) + _gelu_part(op, x))


@kernel
def gelu_grad(op: Op, x: Array, dy: Array) -> Array:
    t, square, half = _gelu_part(op, x), x * x, f32(0.5) * _SQRT_2_PI
    if op.variant:
        slope = half * ((f32(1) - t * t) * (f32(1) + f32(3) * _CUBIC * square))
    else:
        slope = half * exp(f32(-0.5) * square)
    return dy * (f32(0.5) * (f32(1) + t) + x * slope)


def _sign(op: Op, x: Array) -> Array:
    return np.where(x > 0, f32(1), np.where(x < 0, f32(-1), x - x))


def _softplus(op: Op, x: Array) -> Array:
    return np.where(x > 0, x, f32(0)) + log(f32(1) + exp(np.where(x > 0, -x, x)))


# Each function of `elementary` and its slope, by `variant`.
_ELEMENTARY: tuple[tuple[Formula, Formula], ...] = (
    (lambda op, x: np.where(x <= 0, f32(0) - x, x), _sign),
    (_softplus, lambda op, x: logistic(x)),
    (
        lambda op, x: np.where(x > 0, x, op.factor * (exp(x) - f32(1))),
        lambda op, x: np.where(x > 0, f32(1), op.factor * exp(x)),
    ),
    (lambda op, x: exp(x), lambda op, x: exp(x)),
    (lambda op, x: f32(1) / x, lambda op, x: -((f32(1) / x) * (f32(1) / x))),
    (lambda op, x: log(x), lambda op, x: f32(1) / x),
    (lambda op, x: np.sqrt(x), lambda op, x: f32(0.5) / np.sqrt(x)),
)


KERNELS |= {
    "elementary": lambda op, x: _ELEMENTARY[op.variant][0](op, x),
    "elementary_grad": lambda op, x, dy: dy * _ELEMENTARY[op.variant][1](op, x),
}


@kernel
def dropout(op: Op, x: Array) -> Array:
    words = murmur3(op.seed, op.step, op.key, np.arange(x.size, dtype=np.uint32))
    uniform = (words >> np.uint32(8)).astype(np.float32) * f32(2.0**-24)
    scaled = x * (f32(1) / (f32(1) - op.probability))
    return np.where(uniform.reshape(x.shape) >= op.probability, scaled, f32(0))


def _reduced(op: Op, x: Array) -> Array:
    gone = [i for i in range(4) if op.variant >> i & 1]
    kept = [i for i in range(4) if i not in gone]
    terms = x.transpose(kept + gone)
    terms = terms.reshape(*terms.shape[: len(kept)], -1)
    return ordered_sum(terms) * op.factor


@kernel
def slice_grad(op: Op, dy: Array) -> Array:
    dx = np.zeros(op.input_shape, f32)
    dx[:, op.oh : op.oh + op.k] = dy
    return dx
