"""Kernels in NumPy: layers that walk along time, and their gradients."""

import numpy as np

from .floats import Array, f32, logistic, ordered_sum, tanh
from .op import Op, kernel


def _rows(op: Op, is_back: bool) -> list[int]:
    """Return the rows of the steps of a walk, in its order."""
    return list(range(op.n))[:: -1 if is_back else 1]


def _recurrent(op: Op, w: Array, b: Array, h: Array) -> Array:
    """Return the products of the states h (c, w) with the weight, by gate: (gates, c, w)."""
    terms = ordered_sum(h[:, None, :] * w.reshape(1, op.k, op.w)) + b.reshape(-1)
    gates: Array = terms.reshape(op.c, -1, op.w).swapaxes(0, 1)
    return gates


def _from_later(op: Op, later: Array, w: Array) -> Array:
    """Return the sums of gradients (c, k) times the rows of the weight."""
    total = np.zeros((op.c, op.w), f32)
    for i, row in enumerate(w.reshape(op.k, op.w)):
        total += later[:, i, None] * row
    return total


def _gru_gates(op: Op, a: Array, h: Array, w: Array, b: Array) -> tuple[Array, Array, Array, Array]:
    """Return the gates r, z and n, and the recurrent term of n."""
    term, reset, update = _recurrent(op, w, b, h)
    a = a.reshape(op.c, 3, op.w)
    r, z = logistic(a[:, 0] + reset), logistic(a[:, 1] + update)
    return r, z, tanh(a[:, 2] + r * term), term


def _plain_state(op: Op, a: Array, h: Array, w: Array, b: Array) -> Array:
    """Return the states of plain units, which have no gates, after a step."""
    total: Array = a.reshape(op.c, op.w) + _recurrent(op, w, b, h)[0]
    return np.where(total < 0, f32(0), total) if op.groups & 2 else tanh(total)


@kernel
def gru(op: Op, a: Array, w: Array, b: Array, h: Array) -> Array:
    y = np.empty(op.input_shape, f32)
    h = h.reshape(op.c, op.w)
    for row in _rows(op, bool(op.groups & 1)):
        y[row, :, 0] = h
        if op.k == op.w:
            h = _plain_state(op, a[row], h, w, b)
        else:
            _, z, n, _ = _gru_gates(op, a[row], h, w, b)
            h = (f32(1) - z) * n + z * h
        y[row, :, 1] = h
    return y


@kernel
def gru_grad(op: Op, a: Array, states: Array, w: Array, b: Array, dy: Array) -> Array:
    d = np.empty((op.n, op.c, op.oh // op.w, op.w), f32)
    later, kept = None, np.zeros((op.c, op.w), f32)
    one = f32(1)
    for row in _rows(op, not op.groups & 1):
        h, y = states[row, :, 0], states[row, :, 1]
        dh = dy[row].reshape(op.c, op.w)
        if op.k == op.w:
            dh = dh if later is None else dh + _from_later(op, later, w)
            later = np.where(y == 0, f32(0), dh) if op.groups & 2 else dh * (one - y * y)
            d[row, :, 0] = later
            continue
        r, z, n, term = _gru_gates(op, a[row], h, w, b)
        if later is not None:
            dh = dh + (kept + _from_later(op, later, w))
        dn = dh * (one - z) * (one - n * n)
        d[row, :, 0], d[row, :, 1] = dn * r, dn * term * (r * (one - r))
        d[row, :, 2], d[row, :, 3] = dh * (h - n) * (z * (one - z)), dn
        kept = dh * z
        d[row, :, 4:] = kept[:, None]
        later = d[row, :, :3].reshape(op.c, op.k)
    return d


def _lstm_gates(
    op: Op, a: Array, states: Array, w: Array, b: Array
) -> tuple[Array, Array, Array, Array, Array]:
    """Return the gates i, f, g and o, and the cell after the step. `states`: h, then the cell."""
    terms = a.reshape(op.c, 4, op.w).swapaxes(0, 1) + _recurrent(op, w, b, states[:, 0])
    i, f, g, o = logistic(terms[0]), logistic(terms[1]), tanh(terms[2]), logistic(terms[3])
    return i, f, g, o, f * states[:, 1] + i * g


@kernel
def lstm(op: Op, a: Array, w: Array, b: Array, h: Array, cell: Array) -> Array:
    y = np.empty(op.input_shape, f32)
    states = [h.reshape(op.c, op.w), cell.reshape(op.c, op.w)]
    for row in _rows(op, bool(op.groups & 1)):
        before: Array = np.stack(states, 1)
        y[row, :, :2] = before
        *_, o, after = _lstm_gates(op, a[row], before, w, b)
        states = [o * tanh(after), after]
        y[row, :, 2] = states[0]
        if op.h > 3:
            y[row, :, 3] = after
    return y


@kernel
def lstm_grad(op: Op, a: Array, states: Array, w: Array, b: Array, dy: Array) -> Array:
    d = np.empty((op.n, op.c, op.oh // op.w, op.w), f32)
    later, kept = None, np.zeros((op.c, op.w), f32)
    one = f32(1)
    for row in _rows(op, not op.groups & 1):
        before = states[row, :, :2]
        i, f, g, o, after = _lstm_gates(op, a[row], before, w, b)
        t = tanh(after)
        dh = dy[row].reshape(op.c, -1, op.w)[:, -2 if op.h > 3 else 0]
        if later is not None:
            dh = dh + _from_later(op, later, w)
        dc = dh * o * (one - t * t)
        if op.h > 3:
            dc = dc + dy[row].reshape(op.c, op.h, op.w)[:, 3]
        if later is not None:
            dc = dc + kept
        d[row, :, 0], d[row, :, 1] = dc * g * (i * (one - i)), dc * before[:, 1] * (f * (one - f))
        d[row, :, 2], d[row, :, 3] = dc * i * (one - g * g), dh * t * (o * (one - o))
        kept = dc * f
        d[row, :, 4:] = kept[:, None]
        later = d[row, :, :4].reshape(op.c, op.k)
    return d
