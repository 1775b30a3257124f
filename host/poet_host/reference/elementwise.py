"""Kernels whose every output is a function of few inputs, in NumPy, and sums along axes."""

import numpy as np

from . import floats as exact
from .floats import Array, exp, f32, logistic, murmur3, ordered_sum
from .op import Op, kernel


@kernel
def relu(op: Op, x: Array) -> Array:
    x = x.reshape(op.input_shape)
    return np.where(x <= 0, f32(0), x)


@kernel
def relu_grad(op: Op, y: Array, dy: Array) -> Array:
    return np.where(y.reshape(op.input_shape) > 0, dy.reshape(op.input_shape), f32(0))


@kernel
def relu6(op: Op, x: Array) -> Array:
    x = x.reshape(op.input_shape)
    return np.where(x <= 0, f32(0), np.where(x >= 6, f32(6), x))


@kernel
def relu6_grad(op: Op, y: Array, dy: Array) -> Array:
    y = y.reshape(op.input_shape)
    return np.where((y > 0) & (y < 6), dy.reshape(op.input_shape), f32(0))


@kernel
def clip(op: Op, x: Array) -> Array:
    x = x.reshape(op.input_shape)
    return np.where(
        x <= op.lower_bound, op.lower_bound, np.where(x >= op.upper_bound, op.upper_bound, x)
    )


@kernel
def clip_grad(op: Op, x: Array, dy: Array) -> Array:
    x = x.reshape(op.input_shape)
    inside = (x >= op.lower_bound) & (x <= op.upper_bound)
    return np.where(inside, dy.reshape(op.input_shape), f32(0))


@kernel
def sigmoid(op: Op, x: Array) -> Array:
    return logistic(x.reshape(op.input_shape))


@kernel
def sigmoid_grad(op: Op, y: Array, dy: Array) -> Array:
    y = y.reshape(op.input_shape)
    return dy.reshape(op.input_shape) * (y * (f32(1) - y))


@kernel
def tanh(op: Op, x: Array) -> Array:
    return exact.tanh(x.reshape(op.input_shape))


@kernel
def tanh_grad(op: Op, y: Array, dy: Array) -> Array:
    y = y.reshape(op.input_shape)
    return dy.reshape(op.input_shape) * (f32(1) - y * y)


_SQRT_HALF, _SQRT_2_PI, _CUBIC = f32(0.70710678), f32(0.79788456), f32(0.044715)


def _gelu_part(op: Op, x: Array) -> Array:
    if op.variant:
        return exact.tanh(_SQRT_2_PI * (x + _CUBIC * (x * x * x)))
    return exact.erf(x * _SQRT_HALF)


@kernel
def gelu(op: Op, x: Array) -> Array:
    x = x.reshape(op.input_shape)
    return f32(0.5) * x * (f32(1) + _gelu_part(op, x))


@kernel
def gelu_grad(op: Op, x: Array, dy: Array) -> Array:
    x = x.reshape(op.input_shape)
    t, square, half = _gelu_part(op, x), x * x, f32(0.5) * _SQRT_2_PI
    if op.variant:
        slope = half * ((f32(1) - t * t) * (f32(1) + f32(3) * _CUBIC * square))
    else:
        slope = half * exp(f32(-0.5) * square)
    return dy.reshape(op.input_shape) * (f32(0.5) * (f32(1) + t) + x * slope)


@kernel
def dropout(op: Op, x: Array) -> Array:
    words = murmur3(op.seed, op.step, op.key, np.arange(x.size, dtype=np.uint32))
    uniform = (words >> np.uint32(8)).astype(np.float32) * f32(2.0**-24)
    scaled = x.reshape(op.input_shape) * (f32(1) / (f32(1) - op.probability))
    return np.where(uniform.reshape(op.input_shape) >= op.probability, scaled, f32(0))


# Tensors that are repeated along some axes, and the sums along axes that are their gradients.


def _without(op: Op, axes: int) -> tuple[int, ...]:
    """The shape of x, but 1 along the axes whose bit is set."""
    return tuple(1 if axes >> i & 1 else size for i, size in enumerate(op.input_shape))


def _pair(op: Op, a: Array, b: Array) -> tuple[Array, Array]:
    shapes = _without(op, op.variant), _without(op, op.variant >> 4)
    return (
        np.broadcast_to(a.reshape(shapes[0]), op.input_shape),
        np.broadcast_to(b.reshape(shapes[1]), op.input_shape),
    )


@kernel
def add(op: Op, a: Array, b: Array) -> Array:
    return np.add(*_pair(op, a, b))


@kernel
def sub(op: Op, a: Array, b: Array) -> Array:
    return np.subtract(*_pair(op, a, b))


@kernel
def mul(op: Op, a: Array, b: Array) -> Array:
    return np.multiply(*_pair(op, a, b))


@kernel
def scale(op: Op, x: Array) -> Array:
    return np.broadcast_to(x.reshape(_without(op, op.variant)), op.input_shape) * op.factor


@kernel
def reduce(op: Op, x: Array) -> Array:
    gone = [i for i in range(4) if op.variant >> i & 1]
    kept = [i for i in range(4) if i not in gone]
    terms = x.reshape(op.input_shape).transpose(kept + gone)
    terms = terms.reshape(*terms.shape[: len(kept)], -1)
    return (ordered_sum(terms) * op.factor).reshape(_without(op, op.variant))


@kernel
def reduce_product(op: Op, x: Array, z: Array) -> Array:
    return reduce(op, x.reshape(op.input_shape) * z.reshape(_without(op, op.variant >> 4)))


# Numbers that only move.


@kernel
def transpose(op: Op, x: Array) -> Array:
    order = [op.variant >> 2 * i & 3 for i in range(4)]
    return np.ascontiguousarray(x.reshape(op.input_shape).transpose(order)).copy()


@kernel
def concat(op: Op, a: Array, b: Array) -> Array:
    return np.concatenate([a.reshape(op.input_shape), b.reshape(op.n, op.k, op.h, op.w)], axis=1)


@kernel
def slice(op: Op, x: Array) -> Array:
    return x.reshape(op.input_shape)[:, op.oh : op.oh + op.k].copy()


@kernel
def slice_grad(op: Op, dy: Array) -> Array:
    dx = np.zeros(op.input_shape, f32)
    dx[:, op.oh : op.oh + op.k] = dy.reshape(op.n, op.k, op.h, op.w)
    return dx
