"""Reach: which recomputations a plan of least energy may need, and where.

Stage t of a step ends with the first computation of operator t. What is computed again in
stage t is *demanded* if operator t, or a demanded recomputation of the stage, uses it;
otherwise it is *early*: made for a later stage. The stage model (milp.py) does not charge
memory for what comes and goes within a stage, and in it early recomputations can be moved
by whole groups, connected by using one another or the same input:

- a stage later, if the inputs from outside the group that would have to stay in RAM are no
  larger than those results of it that stay; never if operator t overwrites such an input;
- otherwise a stage earlier, since the results are smaller than the inputs that go; unless
  operator t - 1 uses such an input or overwrote one of the group, or the group uses what
  operator t or a demanded recomputation of stage t uses, which may not be there earlier.

No move costs energy; the first kind never raises the bytes in RAM summed over all stages,
the second lowers them, so moving ends. Where no node of a group is smaller than its inputs
together, the first kind is always possible. Hence a group is needed only if it has an
*anchor*, one of the exceptions above, and such a node, or an input that is overwritten.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from ..plan.problem import CostGraph
from .program import INFINITY, TOLERANCE


def recomputable(graph: CostGraph, *, recompute: bool, page: bool, deadline: bool) -> list[bool]:
    """Which nodes a plan of least energy may compute again.

    Without a deadline, a node whose result costs no more to write and read than to compute
    is never worth computing again: page it out at its first computation (nothing if it is
    kept on storage anyway) and in where it was recomputed. That needs no input in RAM and
    no workspace, hence never more memory.
    """
    return [
        recompute
        and not node.stored
        and not node.once
        and not (
            page
            and not deadline
            and node.energy_uj >= node.page_in_uj + (0.0 if node.keep else node.page_out_uj)
        )
        for node in graph.nodes
    ]


def last_needs(graph: CostGraph, again: Sequence[bool]) -> list[int]:
    """The last stage in which a tensor may serve something, directly or by recomputation.

    -1: none. Without storage, kept tensors are needed at the end, stage `len(graph.nodes)`.
    """
    end = len(graph.nodes)
    last = [end if node.keep and not graph.storage else -1 for node in graph.nodes]
    for j in reversed(range(end)):
        for i in graph.nodes[j].inputs:
            last[i] = max(last[i], j, last[j] if again[j] else -1)
    return last


@dataclass(frozen=True)
class Rung:
    """Demanded recomputations only: `depth` in a row, for at most what paging would cost.

    Without need of inputs, recomputing just before a mandatory use is as good as at any other
    time, so that one in a row stands for all plans.

    `of_paging`: the energy of a chain, as a multiple of writing and reading its result once.
    """

    depth: int | None = None
    of_paging: float = INFINITY
    needs_inputs: bool = True  # otherwise, with depth 1, a relaxation of all plans


class Reach:
    """The recomputations of each stage that the stage model needs."""

    def __init__(
        self,
        graph: CostGraph,
        again: Sequence[bool],
        *,
        spare_uj: float = INFINITY,
        rung: Rung | None = None,
        also: Mapping[int, Set[int]] | None = None,
        for_conflicts: bool = False,
    ) -> None:
        """`spare_uj`: what a plan of interest can spend on recomputation; the reach is exact
        for these. `rung`: a heuristic that offers less, but what some plan computes again in
        each stage `also`. `for_conflicts`: all early recomputations, since conflicts
        (conflicts.py) charge memory within a stage.
        """
        most_uj = spare_uj * (1 + TOLERANCE)
        self.graph, self.rung, self.most_uj = graph, rung, most_uj
        self.also, self.for_conflicts = also or {}, for_conflicts
        nodes = graph.nodes
        self.again = [may and nodes[i].energy_uj <= most_uj for i, may in enumerate(again)]
        self.last = last_needs(graph, self.again)
        self.users: list[list[int]] = [[] for _ in nodes]
        for j, node in enumerate(nodes):
            if self.again[j]:
                for i in set(node.inputs):
                    self.users[i].append(j)

    def demanded(self, needed: Iterable[int]) -> set[int]:
        """What may be recomputed because the stage needs `needed`.

        All operators of a chain down to `needed` are computed again, and paid for.
        """
        if self.rung is None:
            return self._chains(needed, self.most_uj, None)
        found: set[int] = set()
        for i in set(needed):
            node = self.graph.nodes[i]
            paging_uj = node.page_in_uj + node.page_out_uj
            most_uj = min(self.most_uj, self.rung.of_paging * paging_uj * (1 + TOLERANCE))
            found |= self._chains((i,), most_uj, self.rung.depth)
        return found

    def _chains(self, heads: Iterable[int], most_uj: float, depth: int | None) -> set[int]:
        """The operators of chains down to `heads` that cost at most `most_uj`."""
        nodes = self.graph.nodes
        lengths: dict[int, int] = {}  # of the shortest chain found that leads to a node
        heap = [(nodes[i].energy_uj, 1, i) for i in set(heads) if self.again[i]]
        heapq.heapify(heap)
        while heap:
            chain_uj, length, j = heapq.heappop(heap)
            if chain_uj > most_uj:
                break
            if lengths.get(j, length + 1) <= length:
                continue
            lengths[j] = length
            if length != depth:
                for i in set(nodes[j].inputs):
                    if self.again[i] and lengths.get(i, length + 2) > length + 1:
                        heapq.heappush(heap, (chain_uj + nodes[i].energy_uj, length + 1, i))
        return set(lengths)

    def early(self, t: int, before: int | None, needed: Set[int], demanded: Set[int]) -> set[int]:
        """What may be recomputed in stage t for later stages. `before`: operator t - 1."""
        if self.rung is not None:
            return set(self.also.get(t, ()))
        if before is None:
            return set()
        nodes = self.graph.nodes
        alive = {i for i in range(t) if self.again[i] and self.last[i] >= t}
        if self.for_conflicts:
            return alive
        alive.discard(before)
        overwritten = nodes[t].overwrites if t < len(nodes) else None
        touched = needed | set(nodes[before].inputs)
        group = {
            i
            for i in alive
            if i == nodes[before].overwrites or self._anchored(i, touched, demanded)
        }
        border = list(group)
        while border:
            for k in self._neighbours(border.pop()):
                if k in alive and k not in group:
                    group.add(k)
                    border.append(k)
        if any(self._shrinks(i) or overwritten in nodes[i].inputs for i in group):
            return group
        return set()

    def _anchored(self, i: int, touched: Set[int], demanded: Set[int]) -> bool:
        return any(
            a in touched or any(j != i and j in demanded for j in self.users[a])
            for a in self.graph.nodes[i].inputs
        )

    def _neighbours(self, i: int) -> list[int]:
        """Nodes that use i, that i uses, and that use what i uses."""
        inputs = self.graph.nodes[i].inputs
        return [*self.users[i], *inputs, *(j for a in inputs for j in self.users[a])]

    def _shrinks(self, i: int) -> bool:
        """The result is smaller than the inputs together."""
        nodes = self.graph.nodes
        return sum(nodes[a].bytes for a in set(nodes[i].inputs)) > nodes[i].bytes
