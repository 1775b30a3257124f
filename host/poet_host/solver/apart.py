"""The graph that the models see: in it, each statement computes one node.

A *fused* mode computes several nodes, its members. The models have a stage, or a slot, for the
first computation of each node. So each member has a mode of its own: the last one a *closing* mode,
with the inputs and the costs of the fused mode, the others a *waiting* mode, without costs. A
waiting mode creates its output before the fused mode runs. The output stays until then, since it is
an input of the closing mode. So RAM holds all outputs when the fused mode runs, as on the board.

A fused mode may also compute its first members again, and only the others first. A plan needs this
only if an earlier fused mode can compute the first member. Then there are more closing modes, for
the other members. Each has the share of the costs that these members bear in `Modes.ways`.

A node that a plan may leave out has a mode that makes nothing.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace

from ..plan.problem import CostGraph, Mode, Output

Member = tuple[int, int]  # a node, and the number of a mode that it has apart


@dataclass(frozen=True)
class Group:
    """Fused modes of the same members, which have the same waiting modes."""

    waiting: tuple[Member, ...]
    last: int  # the last member
    closing: dict[int, Member] = field(default_factory=dict)  # the fused mode of each closing mode


@dataclass(frozen=True)
class Apart:
    """A graph without fused modes, and what its modes stand for.

    Modes that are not fused have the same numbers in both graphs.
    """

    graph: CostGraph
    groups: tuple[Group, ...]
    left_out: dict[int, int]  # by node, the mode that makes nothing

    def members_of(self, fused: Member, done: Container[int]) -> tuple[Member, ...]:
        """Return the waiting modes and the closing mode of a fused mode; none if it is unusable.

        `done`: the nodes that were computed before.
        """
        for group in self.groups:
            for number, one in group.closing.items():
                members = (*group.waiting, (group.last, number))
                if one == fused and not any(i in done for i, _ in members):
                    return members
        return ()


def taken_apart(graph: CostGraph, usable: Sequence[Sequence[int]]) -> Apart:
    """Return the graph without fused modes. `usable`: the modes to use, by node."""
    if not (graph.has_fused_modes or graph.may_leave_out):
        return Apart(graph, (), {})
    modes = [
        [replace(mode, also=()) if mode.also else mode for mode in node.modes]
        for node in graph.nodes
    ]

    def add(i: int, mode: Mode) -> int:
        modes[i].append(mode)
        return len(modes[i])

    groups: dict[tuple[Output, ...], Group] = {}
    inner: set[int] = set()  # members of fused modes, except their first ones
    for i, node in enumerate(graph.nodes):
        for number in usable[i]:
            mode = node.mode(number)
            if not mode.also:
                continue
            made = graph.outputs(i, number)
            for again in range(len(made) if i in inner else 1):
                if any(graph.nodes[out.node].once for out in made[:again]):
                    break
                first = _without(made[:again], made[again:])
                *early, last = first
                key = (*early, Output(last.node, False, None))
                if key not in groups:
                    waiting = tuple((out.node, add(out.node, _waiting(out))) for out in early)
                    groups[key] = Group(waiting, last.node)
                part = _part(mode, len(first) / len(made))
                closing = _closing(part, node.inputs_of(number), early, last)
                groups[key].closing[add(last.node, closing)] = (i, number)
            inner.update(out.node for out in made[1:])
    left_out = {}
    if graph.may_leave_out:
        nothing = Mode((), True, 0, 0.0, 0.0, 0.0, 0.0, inputs=())
        left_out = {
            i: add(i, nothing)
            for i, node in enumerate(graph.nodes)
            if not node.stored and i not in graph.unavoidable
        }
    nodes = (replace(node, modes=tuple(own)) for node, own in zip(graph.nodes, modes, strict=True))
    return Apart(replace(graph, nodes=tuple(nodes)), tuple(groups.values()), left_out)


def _without(again: Sequence[Output], first: Sequence[Output]) -> list[Output]:
    """Return the outputs `first`, as if those of `again` were not there to be overwritten."""
    gone = {out.node for out in again}
    return [out._replace(overwrites=None) if out.overwrites in gone else out for out in first]


def _part(mode: Mode, share: float) -> Mode:
    """Return the mode with this share of its costs."""
    if share == 1.0:
        return mode
    return replace(
        mode,
        time_us=mode.time_us * share,
        transfer_us=mode.transfer_us * share,
        wall_us=mode.wall_us * share,
        energy_uj=mode.energy_uj * share,
    )


def _waiting(made: Output) -> Mode:
    over = () if made.overwrites is None else (made.overwrites,)
    streamed = over if made.streamed else ()
    return Mode(
        streamed, made.streamed, 0, 0.0, 0.0, 0.0, 0.0, overwrites=made.overwrites, inputs=over
    )


def _closing(mode: Mode, inputs: tuple[int, ...], early: list[Output], last: Output) -> Mode:
    gone = {out.taken for out in early}
    read = {*inputs, *(out.node for out in early if not out.streamed)} - gone
    streamed = set(mode.streamed_inputs)
    if last.streamed and last.overwrites is not None:
        read.add(last.overwrites)
        streamed.add(last.overwrites)
    return replace(
        mode,
        streamed_inputs=tuple(sorted(streamed)),
        streamed_output=last.streamed,
        overwrites=last.overwrites,
        inputs=tuple(sorted(read)),
        also=(),
    )
