"""Absences of tensors from RAM: what a schedule recomputes and pages, and at what cost.

An absence begins when a tensor that is needed again leaves RAM. It ends when the tensor comes back.
An absence costs a recomputation, or a page-out and a page-in. If several absences use the same
page-out, its cost counts only for the first of them. The cost of a schedule is that of computing
and loading all tensors once, plus the costs of all absences.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..plan.plan import Statement
from ..plan.problem import CostGraph, CostNode
from ..schedule.decode import Wait
from .lanes import Box, Kind, View


@dataclass(frozen=True)
class Cost:
    """The cost of recomputing or paging a tensor: processor or transfer time, and energy."""

    time_us: float
    energy_uj: float


@dataclass(frozen=True)
class Absence:
    """A time in which a tensor is not in RAM although it is needed again."""

    node: str
    size_bytes: int
    left: int  # index of the statement that removes the tensor from RAM
    back: int  # index of the statement that brings the tensor back
    left_us: float
    back_us: float
    how: Kind  # way in which the tensor comes back: "again" (recomputed) or "page_in"
    spent: Cost
    hidden_us: float  # part of the transfer time during which the processor computes
    # Cost of recomputing this tensor if it is paged, or of paging it if it is recomputed. None: the
    # other way is impossible.
    instead: Cost | None
    missing: tuple[str, ...]  # inputs for a recomputation that are not in RAM at `back`
    # Largest total size of the tensors in RAM during the absence, if this tensor had stayed. The
    # total ignores gaps between tensors.
    without_bytes: int
    place_taken: bool  # True: other tensors use some of the tensor's bytes during the absence


def absences(
    graph: CostGraph, statements: Sequence[Statement | Wait], view: View
) -> tuple[Absence, ...]:
    """Return all absences of a plan, in the order in which they begin. `view`: the plan's view."""
    stays: dict[str, list[Box]] = defaultdict(list)
    for box in sorted(view.boxes, key=lambda box: box.statement):
        if not box.workspace:
            stays[box.node].append(box)
    nodes = {node.name: node for node in graph.nodes}
    find = _Find(graph, statements, view, stays)
    found = [
        find.absence(nodes[name], before, after)
        for name, boxes in stays.items()
        for before, after in pairwise(boxes)
    ]
    return tuple(sorted(found, key=lambda absence: (absence.left, absence.back)))


def _paging(node: CostNode, outs: int) -> Cost:
    return Cost(
        node.page_in_us + outs * node.page_out_us, node.page_in_uj + outs * node.page_out_uj
    )


def _in_place(other: Box, before: Box, back: int) -> bool:
    """Return True if `other` uses bytes of the tensor in `before` while this tensor is absent.

    The absence begins at the end of `before`, and ends at the statement with index `back`.
    """
    meanwhile = before.until <= other.until and other.statement < back
    low, high = other.offset, other.offset + other.size_bytes
    apart = high <= before.offset or before.offset + before.size_bytes <= low
    return meanwhile and not apart and other.statement != before.statement


class _Find:
    def __init__(
        self,
        graph: CostGraph,
        statements: Sequence[Statement | Wait],
        view: View,
        stays: dict[str, list[Box]],
    ) -> None:
        self.graph, self.view, self.stays = graph, view, stays
        computes = [bar for bar in view.bars if bar.kind in ("forward", "again")]
        self.busy = [(bar.begin_us, bar.end_us) for bar in computes]  # in order
        self.begins = [begin for begin, _ in self.busy]
        self.returned: dict[str, int] = {}  # statement index of each tensor's latest page-in
        self.outs: dict[str, list[int]] = defaultdict(list)
        self.streamed: dict[str, int] = {}  # first statement that streams each tensor out
        self.statements = statements
        for index, it in enumerate(statements):
            if isinstance(it, Statement) and it.op == "page_out":
                self.outs[it.node].append(index)
            elif isinstance(it, Statement) and it.op == "compute":
                for made in graph.outputs(graph.index[it.node], it.mode):
                    if made.streamed:
                        self.streamed.setdefault(graph.nodes[made.node].name, index)

    def absence(self, node: CostNode, before: Box, after: Box) -> Absence:
        outs = [i for i in self.outs[node.name] if i < after.statement]
        again = Cost(node.time_us, node.energy_uj)
        hidden_us = 0.0
        instead: Cost | None
        if after.kind == "page_in":
            # The cost of a page-out counts for the first page-in after the page-out.
            # A tensor with `keep` must be on storage at the end of the step, so it is paged out
            # even without absences. Its page-outs do not count.
            own = [] if node.keep else [i for i in outs if i > self.returned.get(node.name, -1)]
            self.returned[node.name] = after.statement
            spent = _paging(node, len(own))
            instead = None if node.stored or node.once else again
            hidden_us = sum(self._hidden(i) for i in (*own, after.statement))
        else:
            computing, number = self._run(node, after.statement)
            mode = computing.mode(number)
            spent = Cost(mode.wall_us, mode.energy_uj)
            streamed = self.streamed.get(node.name, after.statement) < after.statement
            on_storage = bool(outs) or node.keep or streamed
            instead = _paging(node, 0 if on_storage else 1) if self.graph.storage else None
        meanwhile = self.view.in_use[before.until + 1 : after.statement]
        return Absence(
            node.name,
            node.bytes,
            before.until,
            after.statement,
            before.end_us,
            after.begin_us,
            after.kind,
            spent,
            hidden_us,
            instead,
            self._missing(node, after.statement),
            max(meanwhile, default=self.view.in_use[before.until] - node.bytes) + node.bytes,
            any(_in_place(other, before, after.statement) for other in self.view.boxes),
        )

    def _missing(self, node: CostNode, index: int) -> tuple[str, ...]:
        node, mode = self._run(node, index)
        names = [self.graph.nodes[i].name for i in node.whole_inputs(mode)]
        return tuple(
            name
            for name in names
            if not any(box.statement < index <= box.until for box in self.stays.get(name, ()))
        )

    def _run(self, node: CostNode, index: int) -> tuple[CostNode, int]:
        """Return the node and the mode that statement `index` computes; `node` if it computes none.

        The statement may compute several nodes, with a mode of the first one.
        """
        it = self.statements[index]
        if isinstance(it, Statement) and it.op == "compute":
            return self.graph.nodes[self.graph.index[it.node]], it.mode
        return node, 0

    def _hidden(self, index: int) -> float:
        """Return how long the processor computes during the transfer at statement `index`."""
        timed = self.view.times[index]
        assert timed
        hidden_us = 0.0
        for begin, end in self.busy[max(0, bisect_left(self.begins, timed.begin_us) - 1) :]:
            if begin >= timed.end_us:
                break
            hidden_us += max(0.0, min(end, timed.end_us) - max(begin, timed.begin_us))
        return hidden_us
