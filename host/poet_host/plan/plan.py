"""Plan: the statements that a board executes, and what they cost."""

from dataclasses import dataclass
from typing import Literal

Op = Literal["compute", "page_in", "page_out", "free"]
Status = Literal["optimal", "feasible", "infeasible", "unknown"]


@dataclass(frozen=True)
class Statement:
    """One statement; `node` is a node's name. Offsets are bytes, multiples of 4, or None."""

    op: Op
    node: str
    offset: int | None = None
    workspace_offset: int | None = None


@dataclass(frozen=True)
class Plan:
    """A schedule of one training step with its proof: energy, bound, time, peak.

    `status` infeasible or unknown: no statements, and the costs are None.
    `smallest_ram_bytes`: when infeasible, the smallest budget for which a plan is known.
    """

    status: Status
    ram_bytes: int
    deadline_us: float | None
    energy_uj: float | None
    bound_uj: float | None
    gap: float | None
    time_us: float | None
    total_energy_uj: float | None
    peak_bytes: int | None
    solve_s: float
    statements: tuple[Statement, ...] = ()
    smallest_ram_bytes: int | None = None
    smallest_deadline_us: float | None = None
    method: str = "poet"
