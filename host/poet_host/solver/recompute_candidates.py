"""Recompute candidates: the recomputations that a plan of least energy may need, by stage.

Stage t of a step ends with the first computation of operator t. A recomputation in stage t is
*demanded* if operator t, or a demanded recomputation of the stage, uses its result. Otherwise it
is *early*: only a later stage uses its result. The stage model (stage_model.py) limits RAM only
while operator t runs.

In that model, early recomputations can move to another stage in groups. The members of a group are
connected: they use one another or the same input. The *inputs* of a group are the tensors that its
members use and that are not members. The *results* are the tensors that later stages use. No move
costs energy, but a move changes what RAM must hold:

- One stage later: while operator t runs, the inputs must stay in RAM, but the results need not be
  there. The group moves later if this takes no more RAM, and operator t overwrites no input.
- One stage earlier: while operator t - 1 runs, the results must be in RAM, but the inputs that
  leave RAM before operator t runs need not. The group moves earlier if a move later would take more
  RAM: then the results are smaller than these inputs.

An *anchor* prevents the move to an earlier stage. There are three anchors: operator t - 1 uses an
input; operator t - 1 overwrote a tensor of the group; or the group uses a tensor that operator t or
a demanded recomputation of stage t uses, which may not be in RAM earlier.

Moves to a later stage never raise the sum of the bytes in RAM over all stages, and moves to an
earlier stage lower it, so the moves end. If each node of a group is at least as large as its inputs
together, the group can move later, unless operator t overwrites an input. Hence stage t offers a
group only if two things are true: the group has an anchor; and it has a node that is smaller than
its inputs together, or an input that operator t overwrites.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence, Set

from ..plan.problem import TOLERANCE, CostGraph, CostNode
from .modes import Modes
from .policy import DepthLimit
from .program import INFINITY


def recomputable(
    graph: CostGraph,
    *,
    recompute: bool,
    page: bool,
    deadline: bool,
    value_per_us: float = 0.0,
    modes: Modes | None = None,
) -> list[bool]:
    """Return for each node whether a plan of least value may recompute it.

    Without a deadline, a node is never recomputed if its result costs no more to write and read
    than to compute. Instead, a plan pages the result out at its first computation (at no cost if
    the result is kept on storage anyway), and pages it in instead of recomputing it. A page-in
    needs no inputs in RAM and no workspace, so it never needs more RAM. A result that is streamed
    is on storage too.
    """
    modes = Modes(graph) if modes is None else modes
    flags = []
    for i, (node, way) in enumerate(zip(graph.nodes, modes.least_way, strict=True)):
        page_in, page_out = paging_values(node, value_per_us)
        may = recompute and not node.once and way is not None
        kept = node.keep and i not in graph.may_commit
        is_free = kept or modes.certainly_stored(i)
        is_cheap = way is not None and way.energy_uj < page_in + (0.0 if is_free else page_out)
        flags.append(may and (not page or deadline or is_cheap))
    return flags


def paging_values(node: CostNode, value_per_us: float) -> tuple[float, float]:
    """Return the most that a page-in and a page-out of the tensor add to the objective.

    A transfer delays the step by at most its times in both lanes.
    """
    page_in_us = node.page_in_us + node.page_in_cpu_us
    page_out_us = node.page_out_us + node.page_out_cpu_us
    return (
        node.page_in_uj + value_per_us * page_in_us,
        node.page_out_uj + value_per_us * page_out_us,
    )


def last_needs(
    graph: CostGraph, may_recompute: Sequence[bool], modes: Modes | None = None
) -> list[int]:
    """Return the last stage in which each tensor may be used, directly or for recomputation.

    The result is -1 if there is no such stage. What stays is needed at the end, in stage
    `len(graph.nodes)`, and so are kept tensors without storage.
    """
    modes = Modes(graph) if modes is None else modes
    end = len(graph.nodes)
    last = [end if node.keep and not graph.storage else -1 for node in graph.nodes]
    for i in graph.heirs.values():
        last[i] = end
    for j in reversed(range(end)):
        for i in modes.wanted[j]:
            last[i] = max(last[i], j)
        for i in modes.again[j] if may_recompute[j] else ():
            last[i] = max(last[i], last[j])
    return last


class RecomputeCandidates:
    """The recomputations that the stage model offers in each stage."""

    def __init__(
        self,
        graph: CostGraph,
        may_recompute: Sequence[bool],
        *,
        overhead: float = INFINITY,
        value_per_us: float = 0.0,
        depth_limit: DepthLimit | None = None,
        also: Mapping[int, Set[int]] | None = None,
        conflict_stages: Set[int] = frozenset(),
        modes: Modes | None = None,
    ) -> None:
        """Prepare the candidates of a graph.

        `overhead`: offer only recomputations of plans that spend at most this on recomputation:
        energy, and the processor's time multiplied by `value_per_us`. `depth_limit`: offer only
        recomputations within this limit, and for each stage those in `also` that have a way.
        `conflict_stages`: indices of stages in which conflicts (conflicts.py) limit RAM at all
        times. Moves of groups from or to them may break these limits. So they and their neighbours
        offer also all recomputations whose results only later stages use. `modes`: None means all
        modes of the graph. If they are relaxed, a recomputation without inputs is best right before
        its use.
        """
        self.modes = modes = Modes(graph) if modes is None else modes
        self.max_value = overhead * (1 + TOLERANCE)
        self.graph, self.depth_limit = modes.graph, depth_limit
        self.also, self.conflict_stages = also or {}, conflict_stages
        nodes = graph.nodes
        stages = [*(j for j, node in enumerate(nodes) if not node.stored), len(nodes)]
        self.near_conflicts = {
            stage for k in conflict_stages for stage in stages[max(0, k - 1) : k + 2]
        }
        self.value_per_us = value_per_us
        self.values = [
            INFINITY if way is None else way.energy_uj + value_per_us * way.processor_us
            for way in modes.least_way
        ]
        self.may_recompute = [
            may and self.values[i] <= self.max_value for i, may in enumerate(may_recompute)
        ]
        self.last = last_needs(graph, self.may_recompute, modes)
        self.users: list[list[int]] = [[] for _ in nodes]
        for j in range(len(nodes)):
            if self.may_recompute[j]:
                for i in set(modes.again[j]):
                    self.users[i].append(j)

    def demanded(self, needed: Iterable[int]) -> set[int]:
        """Return the nodes that a stage may recompute to bring the tensors `needed` into RAM.

        A chain that ends in one of these is recomputed as a whole, at the cost of all its nodes.
        """
        limit = self.depth_limit
        if limit is None:
            return self._chains(needed, self.max_value, None)
        nodes: set[int] = set()
        for i in set(needed):
            paging = sum(paging_values(self.graph.nodes[i], self.value_per_us))
            most = min(self.max_value, limit.max_paging_ratio * paging * (1 + TOLERANCE))
            nodes |= self._chains((i,), most, limit.depth)
        return nodes

    def _chains(self, heads: Iterable[int], most: float, depth: int | None) -> set[int]:
        """Return the nodes of all chains that end in `heads` and cost at most `most`."""
        again, values = self.modes.again, self.values
        lengths: dict[int, int] = {}  # for each node, the length of its shortest chain
        heap = [(values[i], 1, i) for i in set(heads) if self.may_recompute[i]]
        heapq.heapify(heap)
        while heap:
            chain, length, j = heapq.heappop(heap)
            if chain > most:
                break
            if lengths.get(j, length + 1) <= length:
                continue
            lengths[j] = length
            if length != depth:
                for i in set(again[j]):
                    if self.may_recompute[i] and lengths.get(i, length + 2) > length + 1:
                        heapq.heappush(heap, (chain + values[i], length + 1, i))
        return set(lengths)

    def early(self, t: int, before: int | None, needed: Set[int], demanded: Set[int]) -> set[int]:
        """Return the nodes that stage t may recompute although only later stages use the results.

        `before`: operator of the previous stage.
        """
        modes = self.modes
        alive = {i for i in range(t) if self.may_recompute[i] and self.last[i] >= t}
        if t in self.near_conflicts:
            return {i for i in alive if modes.again[i] or self.users[i]}
        if self.depth_limit is not None:
            return {i for i in self.also.get(t, ()) if modes.least_way[i] is not None}
        if before is None:
            return set()
        alive.discard(before)
        overwritten = modes.overwritten[t] if t < len(modes.overwritten) else frozenset()
        touched = needed | set(modes.wanted[before])
        anchored = {
            i
            for i in alive
            if i in modes.overwritten[before] or self._anchored(i, touched, demanded)
        }
        offered: set[int] = set()
        while anchored:
            group = self._group(anchored.pop(), alive)
            anchored -= group
            if any(self._shrinks(i) or not overwritten.isdisjoint(modes.again[i]) for i in group):
                offered |= group
        return offered

    def _group(self, i: int, alive: Set[int]) -> set[int]:
        """Return the nodes in `alive` that are connected with i."""
        group, border = {i}, [i]
        while border:
            for k in self._neighbours(border.pop()):
                if k in alive and k not in group:
                    group.add(k)
                    border.append(k)
        return group

    def _anchored(self, i: int, touched: Set[int], demanded: Set[int]) -> bool:
        return any(
            a in touched or any(j != i and j in demanded for j in self.users[a])
            for a in self.modes.again[i]
        )

    def _neighbours(self, i: int) -> list[int]:
        inputs = self.modes.again[i]
        return [*self.users[i], *inputs, *(j for a in inputs for j in self.users[a])]

    def _shrinks(self, i: int) -> bool:
        nodes = self.graph.nodes
        return sum(nodes[a].bytes for a in set(self.modes.again[i])) > nodes[i].bytes
