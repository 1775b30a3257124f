"""Problem: a cost graph, a RAM budget and a deadline; all that a planner sees.

The cost graph is the interchange format of docs/reference/file-formats.md: nodes in execution
order with bytes, times and energies. Everything here is plain data, indexed by position.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from ..errors import BadInput
from ..profile.profile import Profile

if TYPE_CHECKING:
    from .plan import Plan


@dataclass(frozen=True)
class CostNode:
    """One tensor and what it costs. `inputs` and `overwrites` are positions in the graph."""

    name: str
    inputs: tuple[int, ...]
    bytes: int
    time_us: float = 0.0
    energy_uj: float = 0.0
    page_in_us: float = 0.0
    page_in_uj: float = 0.0
    page_out_us: float = 0.0
    page_out_uj: float = 0.0
    page_in_cpu_us: float = 0.0
    page_out_cpu_us: float = 0.0
    stored: bool = False
    keep: bool = False
    overwrites: int | None = None
    workspace_bytes: int = 0
    once: bool = False  # computed exactly once (an update of a training graph)


@dataclass(frozen=True)
class CostGraph:
    """Nodes in execution order. `storage` False: rematerialisation only."""

    name: str
    nodes: tuple[CostNode, ...]
    storage: bool = True
    base_power_uw: float = 0.0

    def __repr__(self) -> str:
        return f"<CostGraph {self.name}: {len(self.nodes)} nodes>"

    @cached_property
    def index(self) -> dict[str, int]:
        """The position of each node, by name."""
        return {node.name: i for i, node in enumerate(self.nodes)}

    @cached_property
    def keep_everything(self) -> "Plan | None":
        """The keep-everything plan, to which `50%` and `1.2x` refer. None if the graph has none."""
        from .keepall import keep_everything  # it imports this module

        try:
            return keep_everything(self)
        except BadInput:
            return None


@dataclass(frozen=True)
class Problem:
    """What a planner solves."""

    graph: CostGraph
    ram_bytes: int
    deadline_us: float | None = None  # of a step; None: no deadline
    # That the costs come from; None: they come from a cost graph's file.
    profile: Profile | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        deadline = "no deadline" if self.deadline_us is None else f"{self.deadline_us:,.0f} us"
        return f"<Problem {self.graph.name}: {self.ram_bytes:,} bytes, {deadline}>"

    @property
    def keep_everything(self) -> "Plan | None":
        """The keep-everything plan of the graph; computed once. None if the graph has none."""
        keep = self.graph.keep_everything
        return keep and replace(keep, problem=self)
