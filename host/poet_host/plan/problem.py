"""Problem: a cost graph, a RAM budget, a deadline and an objective. A planner sees nothing else.

Nodes are listed in execution order. `inputs` and `overwrites` are indices into that list.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, get_args

from msgspec import Meta

from ..errors import BadInput
from ..graph.cuts import Cut
from ..graph.graph import Graph
from ..profile.profile import Profile
from ..schema import Count, Name
from .effects import Effects
from .nests import Nest

if TYPE_CHECKING:
    from .plan import Plan

TOLERANCE = 1e-9  # relative, when times or energies are compared
Objective = Literal["energy", "added-energy", "time"]
"""What a plan minimises, in microjoules or microseconds. "energy": all that the battery loses in a
step. "added-energy": the energy above the sleeping board, as in the POET paper."""
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
DEFAULT_OBJECTIVE: Objective = "energy"
LARGEST_COST = 1e100  # largest one accepted in a file, so that power x time is finite
Cost = Annotated[float, Meta(ge=0, le=LARGEST_COST)]  # microseconds, microjoules or microwatts


@dataclass(frozen=True)
class Also:
    """A node that a mode of an earlier node computes, too."""

    node: int  # index of the node
    streamed: bool  # whether its output goes to storage, and never into RAM


@dataclass(frozen=True)
class Mode:
    """One way to compute a node, and perhaps the nodes after it.

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
    # Indices of the earlier nodes that the mode reads; None: the inputs of the node.
    inputs: tuple[int, ...] | None = None
    also: tuple[Also, ...] = ()  # the next computed nodes in order, if the mode computes them, too

    @property
    def streams(self) -> bool:
        """Return whether an operand is streamed, which needs storage."""
        outputs = self.streamed_output or any(it.streamed for it in self.also)
        return outputs or bool(self.streamed_inputs)


class Output(NamedTuple):
    """A tensor that a computation makes."""

    node: int
    streamed: bool  # whether it goes to storage, and never into RAM
    overwrites: int | None  # see CostNode

    @property
    def taken(self) -> int | None:
        """Return the tensor whose memory this one takes over, if there is one."""
        return None if self.streamed else self.overwrites


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
    stays: bool = False  # whether a stored tensor may stay in RAM from step to step
    given: bool = False  # whether a stored tensor may be put into RAM before each step (a batch)
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

    def inputs_of(self, mode: int) -> tuple[int, ...]:
        """Return the inputs that the node has in this mode."""
        inputs = self.all_modes[mode].inputs
        return self.inputs if inputs is None else inputs

    def whole_inputs(self, mode: int = 0) -> tuple[int, ...]:
        """Return the inputs that must be in RAM when the node is computed in this mode."""
        streamed = self.all_modes[mode].streamed_inputs
        inputs = self.inputs_of(mode)
        return tuple(i for i in inputs if i not in streamed) if streamed else inputs

    @cached_property
    def all_inputs(self) -> tuple[int, ...]:
        """Return the inputs that the node has in at least one mode."""
        every = (self.inputs_of(mode) for mode in range(len(self.all_modes)))
        return tuple(dict.fromkeys(i for inputs in every for i in inputs))

    def taken(self, mode: int = 0) -> int | None:
        """Return the input whose memory the output takes over in this mode, if there is one."""
        way = self.all_modes[mode]
        return None if way.streamed_output else way.overwrites


@dataclass(frozen=True)
class CostGraph:
    """The nodes of one training step."""

    name: Name
    nodes: tuple[CostNode, ...]
    storage: bool = True  # False: stored tensors start in RAM, and nothing can be paged
    base_power_uw: Cost = 0.0  # power of the sleeping board, and of its idle card
    # Whether a plan may leave out nodes that no statement reads, unless they are kept.
    may_leave_out: bool = False
    # What stays in RAM is written to storage once in so many steps. Without storage: how often
    # flash is written.
    commit_every: Annotated[int, Meta(ge=1)] = 1

    def __repr__(self) -> str:
        return f"<CostGraph {self.name}: {len(self.nodes)} nodes>"

    @cached_property
    def index(self) -> dict[str, int]:
        """Return the index of each node, by name."""
        return {node.name: i for i, node in enumerate(self.nodes)}

    def with_modes(self, nodes: Iterable[CostNode]) -> "CostGraph":
        """Return the graph with `nodes`, which differ from its own in their modes from 1 on."""
        graph = replace(self, nodes=tuple(nodes))
        graph.__dict__["keep_everything"] = self.keep_everything  # it uses mode 0
        return graph

    @cached_property
    def has_modes(self) -> bool:
        """Return whether a node has a mode other than mode 0."""
        return any(node.modes for node in self.nodes)

    @cached_property
    def has_streaming_modes(self) -> bool:
        """Return whether a mode streams an operand."""
        return any(mode.streams for node in self.nodes for mode in node.modes)

    @cached_property
    def has_fused_modes(self) -> bool:
        """Return whether a mode has inputs of its own, or computes several nodes."""
        modes = (mode for node in self.nodes for mode in node.modes)
        return any(mode.also or mode.inputs is not None for mode in modes)

    @property
    def version(self) -> int:
        """Return the version of the file format that the graph needs."""
        if self.commit_every > 1 or any(node.stays or node.given for node in self.nodes):
            return 3
        return 2 if self.may_leave_out or self.has_fused_modes else 1

    @cached_property
    def heirs(self) -> dict[int, int]:
        """Return for each tensor that may stay the node that must be in its place at the end.

        It is the last kept node of those that overwrite the tensor, one after the other, in mode 0.
        If there is none, it is the tensor itself. Without storage, nothing stays in this sense.
        """
        heirs = {i: i for i, node in enumerate(self.nodes) if node.stays and self.storage}
        origins = {i: i for i in heirs}
        for k, node in enumerate(self.nodes):
            if node.overwrites in origins:
                origin = origins[k] = origins[node.overwrites]
                if node.keep:
                    heirs[origin] = k
        return heirs

    @cached_property
    def starting(self) -> tuple[int, ...]:
        """Return the tensors that may be in RAM when a step begins, of a graph with storage."""
        nodes = enumerate(self.nodes)
        return tuple(i for i, node in nodes if self.storage and (node.stays or node.given))

    @cached_property
    def may_commit(self) -> dict[int, int]:
        """Return the kept nodes that a commit may write from RAM, each with what stays."""
        return {k: i for i, k in self.heirs.items() if k != i and self.nodes[k].keep}

    @cached_property
    def always_written(self) -> frozenset[int]:
        """Return the kept nodes that a statement of every plan puts on storage."""
        nodes = enumerate(self.nodes if self.storage else ())
        kept = (i for i, node in nodes if node.keep and not node.stored)
        return frozenset(kept) - self.may_commit.keys()

    @cached_property
    def may_be_old(self) -> frozenset[int]:
        """Return the tensors whose copy on storage is old if they stay."""
        return frozenset(self.may_commit.values() if self.commit_every > 1 else ())

    def outputs(self, i: int, mode: int = 0) -> tuple[Output, ...]:
        """Return what computing node i in this mode makes, in order."""
        return self._outputs[i][mode]

    @cached_property
    def _outputs(self) -> tuple[tuple[tuple[Output, ...], ...], ...]:
        nodes = self.nodes
        return tuple(
            tuple(
                (
                    Output(i, mode.streamed_output, mode.overwrites),
                    *(Output(it.node, it.streamed, nodes[it.node].overwrites) for it in mode.also),
                )
                for mode in node.all_modes
            )
            for i, node in enumerate(nodes)
        )

    def own_bytes(self, i: int, mode: int = 0) -> int:
        """Return the bytes of RAM that computing node i needs for its outputs and workspace."""
        return self.effects["compute", i, mode].own_bytes

    @cached_property
    def effects(self) -> Effects:
        """Return what statements do, by operation, index of the node, and mode."""
        return Effects(self)

    @cached_property
    def unavoidable(self) -> frozenset[int]:
        """Return the computed nodes that every plan computes.

        They are the kept nodes, and what all ways to compute an unavoidable node read.
        """
        nodes = self.nodes
        computed = [i for i, node in enumerate(nodes) if not node.stored]
        if not self.may_leave_out:
            return frozenset(computed)
        found = {i for i in computed if nodes[i].keep}
        for i in reversed(computed):
            if i in found and self.runs[i]:
                reads = (set(nodes[j].inputs_of(number)) for j, number, _ in self.runs[i])
                found |= {j for j in set.intersection(*reads) if not nodes[j].stored}
        return frozenset(found)

    @cached_property
    def runs(self) -> tuple[tuple[tuple[int, int, Output], ...], ...]:
        """Return for each node the runnable modes that compute it: the node with the mode, the
        mode's number, and the node as its output.
        """
        found: list[list[tuple[int, int, Output]]] = [[] for _ in self.nodes]
        for i, node in enumerate(self.nodes):
            for number in () if node.stored else self.runnable(i):
                for made in self.outputs(i, number):
                    found[made.node].append((i, number, made))
        return tuple(map(tuple, found))

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

    def free(node: CostNode) -> CostNode:
        modes = tuple(replace(mode, energy_uj=0.0) for mode in node.modes)
        return replace(node, energy_uj=0.0, page_in_uj=0.0, page_out_uj=0.0, modes=modes)

    return replace(graph, nodes=tuple(map(free, graph.nodes)))


def without_modes(graph: CostGraph) -> CostGraph:
    """Return the graph with mode 0 of each node as its only mode."""
    if not graph.has_modes:
        return graph
    return replace(graph, nodes=tuple(replace(node, modes=()) for node in graph.nodes))


def without_staying(graph: CostGraph) -> CostGraph:
    """Return the graph with all tensors out of RAM when a step begins."""
    nodes = tuple(replace(node, stays=False, given=False) for node in graph.nodes)
    return replace(graph, nodes=nodes, commit_every=1)


def with_staying_of(graph: CostGraph, other: CostGraph) -> CostGraph:
    """Return the graph in which those tensors may stay that may stay in `other`."""
    nodes, known = graph.nodes, {node.name: node for node in other.nodes}
    marks = ((known[node.name].stays, known[node.name].given) for node in nodes)
    marked = tuple(
        replace(node, stays=stays, given=given)
        for node, (stays, given) in zip(nodes, marks, strict=True)
    )
    return replace(graph, nodes=marked, commit_every=other.commit_every)


@dataclass(frozen=True)
class Streaming:
    """How the operators of a graph stream."""

    cuts: Mapping[str, Cut]  # of tensors, by node
    nests: Mapping[tuple[str, int], Nest]  # by node and number of a mode
    slice_us: float | None = None  # limit of `solve --slice`
    # The longest slice of operators that are in RAM: an upper bound, by node.
    slices: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Problem:
    """A graph, the limits within which a planner makes a plan, and what the plan minimises."""

    graph: CostGraph
    ram_bytes: int
    deadline_us: float | None = None  # longest time of a step; None: no deadline
    # The profile from which the costs were made; None if the costs come from a cost graph file.
    profile: Profile | None = field(default=None, compare=False)
    objective: Objective = DEFAULT_OBJECTIVE
    streaming: Streaming | None = field(default=None, compare=False)  # if modes are nests
    # The graph, if its operators fit the RAM, and a second search may let them stream.
    streamable: Graph | None = field(default=None, compare=False)

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
