"""A nest with its costs."""

from dataclasses import dataclass

from .nests import Nest


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
