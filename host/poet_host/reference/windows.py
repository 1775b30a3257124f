"""Kernels in NumPy: windows that slide over the input, in convolution and pooling."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .floats import Array, f32, ordered_sum
from .op import KERNELS, Op, kernel


def _meeting(
    at: int, stride: int, pad: int, in_size: int, out_size: int
) -> tuple[slice, slice] | None:
    """Return two slices along one axis: outputs, and the inputs that they read.

    Each output reads the element at index `at` of its window. The first slice selects the outputs
    for which this element is not in the padding. The second slice selects the elements that these
    outputs read. Return None if there are no such outputs.
    """
    first = max(0, -((at - pad) // stride))
    end = min(out_size, (in_size - 1 + pad - at) // stride + 1)
    if first >= end:
        return None
    begin = first * stride + at - pad
    return slice(first, end), slice(begin, begin + (end - 1 - first) * stride + 1, stride)


def _taps(op: Op) -> list[tuple[tuple[int, int], tuple[Any, ...], tuple[Any, ...]]]:
    """Return ((kh, kw), index of outputs, index of inputs) for each element of the window.

    The two indices select the outputs whose element (kh, kw) of the window is not in the padding,
    and the inputs at this element.
    """
    found = []
    for kh in range(op.kernel_h):
        for kw in range(op.kernel_w):
            rows = _meeting(kh, op.stride_h, op.pad_h, op.h, op.oh)
            columns = _meeting(kw, op.stride_w, op.pad_w, op.w, op.ow)
            if rows and columns:
                found.append(((kh, kw), (..., rows[0], columns[0]), (..., rows[1], columns[1])))
    return found


def _clipped(stride: int, pad: int, size: int, kernel: int, out: int) -> list[tuple[slice, slice]]:
    """Return two slices along one axis for each output: in its window, and in the input.

    Both select the part of the window that is not in the padding.
    """
    found = []
    for start in range(-pad, out * stride - pad, stride):
        begin, end = max(0, start), max(0, start, min(size, start + kernel))
        found.append((slice(begin - start, end - start), slice(begin, end)))
    return found


@kernel
def conv2d(op: Op, x: Array, w: Array, bias: Array | None = None) -> Array:
    x, w = x.reshape(op.grouped_input), w.reshape(op.grouped_weight)
    y = np.zeros(op.grouped_output, f32)
    taps = _taps(op)
    for c in range(w.shape[2]):
        plane, weight = x[:, :, None, c], w[None, :, :, c, :, :, None, None]
        for (kh, kw), outputs, inputs in taps:
            y[outputs] += plane[inputs] * weight[:, :, :, kh, kw]
    return y if bias is None else y + bias.reshape(op.groups, -1, 1, 1)


@kernel
def conv2d_grad_input(op: Op, dy: Array, w: Array) -> Array:
    dy, w = dy.reshape(op.grouped_output), w.reshape(op.grouped_weight)
    dx = np.zeros(op.grouped_input, f32)
    taps = _taps(op)
    for k in range(w.shape[1]):
        plane, weight = dy[:, :, None, k], w[None, :, k, :, :, :, None, None]
        for (kh, kw), outputs, inputs in taps:
            dx[inputs] += plane[outputs] * weight[:, :, :, kh, kw]
    return dx


@kernel
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
    return dw


KERNELS |= {
    "maxpool2d": lambda op, x: _largest(op, x)[0],
    "global_avgpool": lambda op, x: ordered_sum(x, axes=2) / f32(op.h * op.w),
}


@kernel
def maxpool2d_grad(op: Op, x: Array, dy: Array) -> Array:
    at = _largest(op, x)[1].reshape(op.n * op.c, -1)
    dx = np.zeros((op.n * op.c, op.h * op.w), f32)
    np.add.at(dx, (np.arange(op.n * op.c)[:, None], at), dy.reshape(at.shape))
    return dx


def _largest(op: Op, x: Array) -> tuple[Array, NDArray[np.int64]]:
    """Return the largest element of each window, and the element's index in the plane.

    If several elements are the largest, the first of them is used.
    """
    place = np.arange(op.h * op.w).reshape(op.h, op.w)
    best = np.zeros(op.pooled_shape, f32)
    index = np.full(op.pooled_shape, -1)
    for _, outputs, inputs in _taps(op):
        value, old = x[inputs], best[outputs]
        better = (index[outputs] < 0) | (value > old) | np.isnan(value)
        best[outputs] = np.where(better, value, old)
        index[outputs] = np.where(better, place[inputs], index[outputs])
    return best, index


def _areas(op: Op) -> Array | np.float32:
    """Return the number of elements in the mean of each window."""
    if not op.variant:
        return f32(op.kernel_h * op.kernel_w)
    inside = np.zeros(op.pooled_shape[2:], f32)
    for _, outputs, _ in _taps(op):
        inside[outputs] += f32(1)
    return inside


@kernel
def avgpool2d(op: Op, x: Array) -> Array:
    y = np.zeros(op.pooled_shape, f32)
    for _, outputs, inputs in _taps(op):
        y[outputs] += x[inputs]
    return y / _areas(op)


@kernel
def avgpool2d_grad(op: Op, dy: Array) -> Array:
    share: Array = dy / _areas(op)
    dx = np.zeros(op.input_shape, f32)
    # In reverse order, because each input must add the terms of its outputs in ascending order.
    for _, outputs, inputs in reversed(_taps(op)):
        dx[inputs] += share[outputs]
    return dx


@kernel
def global_avgpool_grad(op: Op, dy: Array) -> Array:
    share = dy[:, :, None, None] / f32(op.h * op.w)
    return np.broadcast_to(share, op.input_shape).copy()
