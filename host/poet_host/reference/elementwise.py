"""Kernels in NumPy: elementwise functions, broadcasting, sums along axes, moves of elements."""

import numpy as np

from . import floats
from .floats import Array, exp, f32, log, logistic, murmur3, ordered_sum
from .op import Op, kernel


@kernel
def relu(op: Op, x: Array) -> Array:
    return np.where(x <= 0, f32(0), x)


@kernel
def relu_grad(op: Op, y: Array, dy: Array) -> Array:
    return np.where(y > 0, dy, f32(0))


@kernel
def relu6(op: Op, x: Array) -> Array:
    return np.where(x <= 0, f32(0), np.where(x >= 6, f32(6), x))


@kernel
def relu6_grad(op: Op, y: Array, dy: Array) -> Array:
    return np.where((y > 0) & (y < 6), dy, f32(0))


@kernel
def clip(op: Op, x: Array) -> Array:
    above = np.where(x >= op.upper_bound, op.upper_bound, x)
    return np.where(x <= op.lower_bound, op.lower_bound, above)


@kernel
def clip_grad(op: Op, x: Array, dy: Array) -> Array:
    inside = (x >= op.lower_bound) & (x <= op.upper_bound)
    return np.where(inside, dy, f32(0))


@kernel
def sigmoid(op: Op, x: Array) -> Array:
    return logistic(x)


@kernel
def sigmoid_grad(op: Op, y: Array, dy: Array) -> Array:
    return dy * (y * (f32(1) - y))


@kernel
def tanh(op: Op, x: Array) -> Array:
    return floats.tanh(x)


@kernel
def tanh_grad(op: Op, y: Array, dy: Array) -> Array:
    return dy * (f32(1) - y * y)


_SQRT_HALF, _SQRT_2_PI, _CUBIC = f32(0.70710678), f32(0.79788456), f32(0.044715)


def _gelu_part(op: Op, x: Array) -> Array:
    if op.variant:
        return floats.tanh(_SQRT_2_PI * (x + _CUBIC * (x * x * x)))
    return floats.erf(x * _SQRT_HALF)


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


_MAGNITUDE, _SOFTPLUS, _ELU, _EXP, _INVERSE, _LOG = range(6)  # `variant`; the next one is sqrt


@kernel
@np.errstate(all="ignore")
def elementary(op: Op, x: Array) -> Array:
    if op.variant == _MAGNITUDE:
        return np.where(x <= 0, f32(0) - x, x)
    if op.variant == _SOFTPLUS:
        return np.where(x > 0, x, f32(0)) + log(f32(1) + exp(np.where(x > 0, -x, x)))
    if op.variant == _ELU:
        return np.where(x > 0, x, op.factor * (exp(x) - f32(1)))
    if op.variant == _INVERSE:
        return f32(1) / x
    if op.variant in (_EXP, _LOG):
        return exp(x) if op.variant == _EXP else log(x)
    return np.sqrt(x)


@kernel
@np.errstate(all="ignore")
def elementary_grad(op: Op, x: Array, dy: Array) -> Array:
    if op.variant == _MAGNITUDE:
        return dy * np.where(x > 0, f32(1), np.where(x < 0, f32(-1), x - x))
    if op.variant == _SOFTPLUS:
        return dy * logistic(x)
    if op.variant == _ELU:
        return dy * np.where(x > 0, f32(1), op.factor * exp(x))
    if op.variant == _INVERSE:
        return dy * -((f32(1) / x) * (f32(1) / x))
    if op.variant in (_EXP, _LOG):
        return dy * (exp(x) if op.variant == _EXP else f32(1) / x)
    root: Array = np.sqrt(x)
    return dy * (f32(0.5) / root)


@kernel
def dropout(op: Op, x: Array) -> Array:
    words = murmur3(op.seed, op.step, op.key, np.arange(x.size, dtype=np.uint32))
    uniform = (words >> np.uint32(8)).astype(np.float32) * f32(2.0**-24)
    scaled = x * (f32(1) / (f32(1) - op.probability))
    return np.where(uniform.reshape(x.shape) >= op.probability, scaled, f32(0))


# The next kernels repeat operands along axes. Their gradients are sums along these axes.


@kernel
def add(op: Op, a: Array, b: Array) -> Array:
    return a + np.broadcast_to(b, op.input_shape)


@kernel
def sub(op: Op, a: Array, b: Array) -> Array:
    return a - np.broadcast_to(b, op.input_shape)


@kernel
def mul(op: Op, a: Array, b: Array) -> Array:
    return a * np.broadcast_to(b, op.input_shape)


@kernel
def scale(op: Op, x: Array) -> Array:
    return np.broadcast_to(x, op.input_shape) * op.factor


@kernel
def reduce(op: Op, x: Array) -> Array:
    gone = [i for i in range(4) if op.variant >> i & 1]
    kept = [i for i in range(4) if i not in gone]
    terms = x.transpose(kept + gone)
    terms = terms.reshape(*terms.shape[: len(kept)], -1)
    return ordered_sum(terms) * op.factor


@kernel
def reduce_product(op: Op, x: Array, z: Array) -> Array:
    return reduce(op, x * z)


# Moved elements.


@kernel
def transpose(op: Op, x: Array) -> Array:
    order = [op.variant >> 2 * i & 3 for i in range(4)]
    return x.transpose(order).copy()


@kernel
def concat(op: Op, a: Array, b: Array) -> Array:
    return np.concatenate([a, b], axis=1)


@kernel
def slice(op: Op, x: Array) -> Array:
    return x[:, op.oh : op.oh + op.k].copy()


@kernel
def slice_grad(op: Op, dy: Array) -> Array:
    dx = np.zeros(op.input_shape, f32)
    dx[:, op.oh : op.oh + op.k] = dy
    return dx
