"""Problem: a cost graph, a RAM budget, a deadline and an objective. A planner sees nothing else.

Nodes are listed in execution order. `inputs` and `overwrites` are indices into that list.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from msgspec import Meta

from ..errors import BadInput
from ..graph.cuts import Cut
from ..profile.profile import Profile
from ..schema import Count, Name
from .nests import Nest

if TYPE_CHECKING:
    from .plan import Plan

TOLERANCE = 1e-9  # relative tolerance when times or energies are compared
Objective = Literal["energy", "added-energy", "time"]
"""What a plan minimises. "energy": all that the battery loses in a step, including the power of the
sleeping board (microjoules). "added-energy": the energy above the sleeping board, as in the POET
paper (microjoules). "time": the time of a step (microseconds)."""
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
DEFAULT_OBJECTIVE: Objective = "energy"
Cost = Annotated[float, Meta(ge=0)]  # microseconds or microjoules


@dataclass(frozen=True)
class Mode:
    """One way to compute a node.

    A streamed operand stays on storage. It passes through a buffer, which is part of the workspace.
    """

    streamed_inputs: tuple[int, ...]  # indices of the inputs that are read from storage
    streamed_output: bool  # whether the output goes to storage, and never into RAM
    workspace_bytes: Count  # RAM that the computation needs, with its buffers
    time_us: Cost  # the processor's part of `wall_us`
    transfer_us: Cost  # the transfers' part of `wall_us`
    wall_us: Cost  # time for which the mode occupies both lanes
    energy_uj: Cost  # of the computation and its transfers
    moved_in_bytes: Count = 0  # bytes that are read from storage
    moved_out_bytes: Count = 0  # bytes that are written to storage
    overwrites: int | None = None  # see CostNode
    # Whether the next statement computes the node. It is in a mode that completes this node.
    deferred: bool = False
    # Index of the node before, which this mode computes too; None: it computes one node.
    completes: int | None = None
    completes_streamed: bool = False  # whether that node's output goes to storage

    @property
    def is_paired(self) -> bool:
        """Return whether the mode is one half of a pair: two nodes that one nest computes."""
        return self.deferred or self.completes is not None

    @property
    def streams(self) -> bool:
        """Return whether an operand is streamed, which needs storage."""
        return self.streamed_output or bool(self.streamed_inputs)


@dataclass(frozen=True)
class CostNode:
    """One tensor, with the costs of its computation and of its transfers."""

    name: Name
    inputs: tuple[int, ...]
    bytes: Count
    time_us: Cost = 0.0
    energy_uj: Cost = 0.0
    page_in_us: Cost = 0.0
    page_in_uj: Cost = 0.0
    page_out_us: Cost = 0.0
    page_out_uj: Cost = 0.0
    page_in_cpu_us: Cost = 0.0  # processor time that a page-in uses
    page_out_cpu_us: Cost = 0.0  # processor time that a page-out uses
    stored: bool = False  # whether the tensor is on storage at the start and never computed
    keep: bool = False  # whether the tensor must be on storage at the end
    overwrites: int | None = None  # index of an input of equal size whose memory the output takes
    workspace_bytes: Count = 0  # RAM that the computation needs in addition to inputs and output
    once: bool = False  # whether the node must be computed exactly once (an update of training)
    # Other ways to compute the node: modes 1, 2, ... Mode 0 is described by the fields above.
    modes: tuple[Mode, ...] = ()

    def mode(self, number: int) -> Mode:
        """Return mode `number` of a computed node. Mode 0 occupies the processor's lane alone."""
        return self.all_modes[number]

    @cached_property
    def all_modes(self) -> tuple[Mode, ...]:
        """Return mode 0, then the other modes."""
        time_us, workspace_bytes = self.time_us, self.workspace_bytes
        own = Mode(
            (), False, workspace_bytes, time_us, 0.0, time_us, self.energy_uj,
            overwrites=self.overwrites,
        )  # fmt: skip
        return (own, *self.modes)

    def whole_inputs(self, mode: int = 0) -> tuple[int, ...]:
        """Return the inputs that must be in RAM when the node is computed in this mode.

        They include the output of the node that the mode completes.
        """
        way = self.all_modes[mode]
        if way.deferred:
            return ()
        also = () if way.completes is None or way.completes_streamed else (way.completes,)
        if not way.streamed_inputs:
            return self.inputs + also
        return tuple(i for i in self.inputs if i not in way.streamed_inputs) + also

    def taken(self, mode: int = 0) -> int | None:
        """Return the input whose memory the output takes over in this mode, if there is one."""
        way = self.all_modes[mode]
        return None if way.streamed_output else way.overwrites

    def own_bytes(self, mode: int = 0) -> int:
        """Return the bytes of RAM that the computation needs for its output and workspace."""
        way = self.all_modes[mode]
        takes_none = way.streamed_output or way.overwrites is not None
        return way.workspace_bytes + (0 if takes_none else self.bytes)


@dataclass(frozen=True)
class CostGraph:
    """The nodes of one training step."""

    name: Name
    nodes: tuple[CostNode, ...]
    storage: bool = True  # False: stored tensors start in RAM, and nothing can be paged
    base_power_uw: Cost = 0.0  # power of the sleeping board and the idle card

    def __repr__(self) -> str:
        return f"<CostGraph {self.name}: {len(self.nodes)} nodes>"

    @cached_property
    def index(self) -> dict[str, int]:
        """Return the index of each node, by name."""
        return {node.name: i for i, node in enumerate(self.nodes)}

    @cached_property
    def has_modes(self) -> bool:
        """Return whether a node has a mode other than mode 0."""
        return any(node.modes for node in self.nodes)

    def runnable(self, i: int) -> dict[int, Mode]:
        """Return the modes of node i by number. Without storage, none can stream."""
        modes = enumerate(self.nodes[i].all_modes)
        return {k: mode for k, mode in modes if self.storage or not mode.streams}

    @cached_property
    def kept_sizes(self) -> tuple[int, ...]:
        """Return the bytes of each tensor that must be on storage when a step ends."""
        return tuple(node.bytes for node in self.nodes if node.keep)

    @cached_property
    def keep_everything(self) -> "Plan | None":
        """Return the keep-everything plan; None if the graph has none.

        A limit such as `50%` is a share of its RAM, and `1.2x` is a multiple of its time.
        """
        from .keepall import keep_everything  # imported here, since keepall imports this module

        try:
            return keep_everything(self)
        except BadInput:
            return None


def without_energy(graph: CostGraph) -> CostGraph:
    """Return the graph with all energies 0."""
    nodes = tuple(
        replace(
            node,
            energy_uj=0.0,
            page_in_uj=0.0,
            page_out_uj=0.0,
            modes=tuple(replace(mode, energy_uj=0.0) for mode in node.modes),
        )
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes)


def without_modes(graph: CostGraph) -> CostGraph:
    """Return the graph with mode 0 of each node as its only mode."""
    if not graph.has_modes:
        return graph
    return replace(graph, nodes=tuple(replace(node, modes=()) for node in graph.nodes))


@dataclass(frozen=True)
class Streaming:
    """How the operators of a graph stream."""

    cuts: Mapping[str, Cut]  # of tensors, by node
    nests: Mapping[tuple[str, int], Nest]  # by node and number of a mode


@dataclass(frozen=True)
class Problem:
    """A graph, the limits within which a planner makes a plan, and what the plan minimises."""

    graph: CostGraph
    ram_bytes: int
    deadline_us: float | None = None  # longest time of a step; None: no deadline
    # The profile from which the costs were made; None if the costs come from a cost graph file.
    profile: Profile | None = field(default=None, compare=False)
    objective: Objective = DEFAULT_OBJECTIVE
    # How operators stream, if modes of `graph` are nests; None: no mode is a nest.
    streaming: Streaming | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        deadline = "no deadline" if self.deadline_us is None else f"{self.deadline_us:,.0f} us"
        limits = f"{self.ram_bytes:,} bytes, {deadline}"
        return f"<Problem {self.graph.name}: least {self.objective} within {limits}>"

    @property
    def value_per_us(self) -> float:
        """Return the part of the objective that grows with the time of a step, by microsecond."""
        if self.objective == "time":
            return 1.0
        return self.graph.base_power_uw / 1e6 if self.objective == "energy" else 0.0

    @property
    def is_timed(self) -> bool:
        """Return whether the time of a step matters."""
        return self.deadline_us is not None or self.value_per_us > 0

    @property
    def counted(self) -> CostGraph:
        """Return the graph with the energies that the objective counts."""
        return without_energy(self.graph) if self.objective == "time" else self.graph

    @property
    def keep_everything(self) -> "Plan | None":
        """Return the keep-everything plan of the graph; None if the graph has no such plan."""
        keep = self.graph.keep_everything
        return keep and replace(keep, problem=self)
