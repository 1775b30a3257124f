"""Predict the times of unmeasured operators: fit a function of their work to measured times."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from ..device.board import Rates
from ..graph.work import Work


def family(name: str) -> str:
    """Return which operators take times like those of the operator with the signature `name`.

    It is the kernel. Convolutions with groups have loops of their own.
    """
    kernel, _, sizes = name.partition(" ")
    is_grouped = kernel.startswith("conv2d") and "groups=1" not in sizes.split()
    return f"{kernel} in groups" if is_grouped else kernel


def fit_rates(
    points: Sequence[tuple[Work, float]], weights: Sequence[float] | None = None
) -> Rates:
    """Fit non-negative rates to `points` (work, time in us) by least squares of the relative error.

    `weights`: of the relative errors of the points; None: 1.
    The number of rates above 0 is at most half the number of points, and at least one of these
    rates is not `base_us`. Otherwise a few points would lead to wrong times for larger operators.
    """
    # If several sets of rates fit equally, the first one counts. Loops and other operations are
    # often proportional in operators that run whole. A part that ends no sums has only loops.
    rows = [(1.0, work.macs, work.loops, work.other_flops, work.bytes) for work, _ in points]
    found = _least_squares(rows, [time for _, time in points], (1, 2, 3, 4), weights)
    base_us, us_per_mac, us_per_loop, us_per_flop, us_per_byte = found
    return Rates(base_us, us_per_mac, us_per_flop, us_per_byte, us_per_loop)


def fit_plane(
    points: Sequence[tuple[float, float]], values: Sequence[float]
) -> tuple[float, float, float]:
    """Fit value = base + slope1 * x + slope2 * y to the points (x, y), by the method of fit_rates.

    Returns (base, slope1, slope2). All three are 0 or more.
    """
    rows = [(1.0, x, y) for x, y in points]
    base, first, second = _least_squares(rows, values, least=(0, 1))
    return base, first, second


def _least_squares(
    rows: Sequence[tuple[float, ...]],
    values: Sequence[float],
    least: tuple[int, ...],
    weights: Sequence[float] | None = None,
) -> tuple[float, ...]:
    """Solve non-negative least squares of the relative error by trying every set of columns.

    A set contains at least one of the columns in `least`, and at most half as many columns as there
    are values. All `values` must be positive.
    """
    weight = np.asarray(weights or 1.0) / np.maximum(np.asarray(values, dtype=float), 1e-9)
    matrix = np.asarray(rows, dtype=float) * weight[:, None]
    target = np.asarray(values, dtype=float) * weight
    # Scale the columns, because they differ by orders of magnitude: this preserves precision.
    scale = np.maximum(matrix.max(axis=0), 1e-30)
    best, least_error = np.zeros(matrix.shape[1]), float(target @ target)
    for size in range(1, max(1, len(values) // 2) + 1):
        for columns in combinations(range(matrix.shape[1]), size):
            if not set(columns) & set(least):
                continue
            part = matrix[:, columns] / scale[list(columns)]
            solution = np.linalg.lstsq(part, target, rcond=None)[0]
            error = float(np.sum((part @ solution - target) ** 2))
            if (solution >= 0).all() and error < least_error * (1 - 1e-9):
                least_error = error
                best = np.zeros(matrix.shape[1])
                best[list(columns)] = solution / scale[list(columns)]
    return tuple(float(value) for value in best)
