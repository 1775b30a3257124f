"""A nest with its costs, and the Pareto front of costs."""

from dataclasses import dataclass

import numpy as np

from ..plan.nests import Nest
from .nest_traffic import Array


@dataclass(frozen=True)
class PricedNest:
    """A nest with its costs."""

    nest: Nest
    workspace_bytes: int
    time_us: float  # of the processor
    transfer_us: float  # of the transfer lane
    wall_us: float
    energy_uj: float
    moved_in_bytes: int
    moved_out_bytes: int


def wall_us(processor: Array, parallel: Array, serial: Array, ends: Array) -> Array:
    """Return the time of nests.

    Transfers of rings with two slots run next to the cells, except for the first load and the last
    store (`ends`). Transfers of rings with one slot do not (`serial`): the cells wait for them, so
    their processor time is not in `processor`.
    """
    return np.maximum(processor, parallel) + serial + ends


def front(rows: Array) -> list[int]:
    """Return the columns of `rows` that no other column equals or beats in every row.

    Of equal columns, one is returned.
    """
    order = np.lexsort(rows[::-1])
    chosen: list[int] = []
    while len(order):
        left = rows[:, order]
        least = np.minimum.accumulate(left, axis=1)
        certain = np.ones(len(order), bool)
        certain[1:] = (left[1:, 1:] < least[1:, :-1]).any(axis=0)
        best = order[certain]
        chosen += [int(i) for i in best]
        rest = order[~certain]
        for i in best:
            if not len(rest):
                break
            rest = rest[~(rows[:, rest] >= rows[:, i, None]).all(axis=0)]
        order = rest
    return chosen
