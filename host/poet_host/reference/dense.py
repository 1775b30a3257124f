"""Kernels in NumPy: matrix products, attention and embeddings."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .floats import Array, exp, f32, ordered_sum
from .op import KERNELS, Op, by_channel, kernel

Tokens = NDArray[np.int32]


@kernel
def linear(op: Op, x: Array, w: Array, bias: Array | None = None) -> Array:
    x, w = x.reshape(op.n, -1), w.reshape(op.k, -1)
    y = np.zeros((op.n, op.k), f32)
    for c in range(w.shape[1]):
        y += x[:, None, c] * w[None, :, c]
    return y if bias is None else y + bias


@kernel
def linear_grad_input(op: Op, dy: Array, w: Array) -> Array:
    w = w.reshape(op.k, -1)
    dx = np.zeros((op.n, w.shape[1]), f32)
    for k in range(op.k):
        dx += dy[:, k, None] * w[None, k]
    return dx


@kernel
def linear_grad_weight(op: Op, x: Array, dy: Array) -> Array:
    x = x.reshape(op.n, -1)
    dw = np.zeros((op.k, x.shape[1]), f32)
    for n in range(op.n):
        dw += dy[n, :, None] * x[n]
    return dw


def _matrices(op: Op, x: Array, rows: int, columns: int, flags: int) -> Array:
    """View `x` as matrices: an array of shape (n, groups, rows, columns).

    If bit 0 of `flags` is set, each matrix is stored transposed. If bit 2 of `flags` is set, row i
    in memory contains row i of the matrices of all attention heads.
    """
    stored = (columns, rows) if flags & 1 else (rows, columns)
    if flags & 4:
        x = x.reshape(op.n, stored[0], op.groups, stored[1]).swapaxes(1, 2)
    x = x.reshape(op.n, op.groups, *stored)
    return x.swapaxes(2, 3) if flags & 1 else x


@kernel
def matmul(op: Op, a: Array, b: Array) -> Array:
    a = _matrices(op, a, op.h, op.k, op.variant)
    b = _matrices(op, b, op.k, op.w, op.variant >> 1)
    y = np.zeros((op.n, op.groups, op.h, op.w), f32)
    for k in range(op.k):
        y += a[..., :, k, None] * b[..., None, k, :]
    y = y * op.factor
    return np.ascontiguousarray(y.swapaxes(1, 2) if op.variant & 16 else y)


@kernel
def softmax(op: Op, x: Array, mask: Tokens | None = None) -> Array:
    seen: NDArray[Any] = np.ones(op.input_shape, bool)
    if mask is not None:
        seen = seen & (mask[:, None, None] != 0)
    if op.variant:
        seen = seen & (np.arange(op.w) <= np.arange(op.h)[:, None])
    top = np.fmax.reduce(np.where(seen, x, f32(-np.inf)), axis=-1, keepdims=True)
    top = np.where(np.isnan(top), f32(-np.inf), top)
    powers = np.where(seen, exp(x - top), f32(0))
    total = ordered_sum(powers)[..., None]
    return np.where(total != 0, powers / total, f32(0))


KERNELS |= {
    "grad_bias": lambda op, dy: ordered_sum(by_channel(dy)),
    "softmax_grad": lambda op, y, dy: y * (dy - ordered_sum(y * dy)[..., None]),
}


@kernel
def embedding(op: Op, tokens: Tokens, w: Array) -> Array:
    known = (tokens >= 0) & (tokens < op.k)
    return np.where(known[:, None], w[np.where(known, tokens, 0)], f32(np.nan))


@kernel
def embedding_grad(op: Op, tokens: Tokens, dy: Array) -> Array:
    dw = np.zeros((op.k, op.c), f32)
    for token, row in zip(tokens, dy, strict=True):
        if 0 <= token < op.k and token + 1 != op.padding:
            dw[token] += row
    return dw
