"""A nest with its costs."""

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
