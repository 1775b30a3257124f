"""capuchin: page what overlaps with computation, then save most memory per second of overhead.

X. Peng et al., *Capuchin: Tensor-based GPU Memory Management for Deep Learning*, ASPLOS 2020,
891-905 (hybrid policy). The policy measures in one step that keeps everything when each tensor is
accessed. Between two accesses of a tensor there is the free time

    FT = (time of the second access - swap-in time) - (time of the first access + swap-out time).

Tensors are chosen until enough memory is saved. As long as some have FT >= 0, the one with the
longest FT is paged, since its transfers can overlap with computation. Then every other candidate is
rated by its memory saving per second of overhead (MSPS). The overhead is the exposed transfer time,
-FT, or the time of recomputing it from tensors in RAM or on storage, whichever is smaller. The
best candidate is paged or recomputed accordingly. Then the others are rated again, since the
tensors from which they are recomputed may have left RAM. Only time counts, not energy.

Whether memory is "enough" follows from the profile of the whole step, not from a sum of bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ..plan.problem import CostGraph
from ..solver.events import Event
from .completion import complete
from .method import DoesNotApply, Draft
from .replay import Replay


def drafts(graph: CostGraph, ram_bytes: int) -> Sequence[Draft]:
    """Choose more and more tensors until the step fits; keep recomputed tensors if possible."""
    if not graph.storage:
        raise DoesNotApply("the method pages, but there is no storage")
    policy = _Policy(graph)
    extended: list[Draft] = []  # the first drafts that fit if stored tensors leave RAM
    while True:
        proposed = [Draft(policy.events(collective)) for collective in (True, False)]
        completed = [(draft, complete(graph, draft.events, ram_bytes)) for draft in proposed]
        fitting = [(draft, found) for draft, found in completed if found.statements is not None]
        extended = extended or [draft for draft, _ in fitting]
        if any(not found.exits for _, found in fitting):
            return [*extended, *(draft for draft, found in fitting if not found.exits)]
        if not policy.choose():
            return extended or proposed


@dataclass(frozen=True)
class Candidate:
    """A computed tensor that can leave RAM between two accesses in a row."""

    node: int
    first: int  # operator of the first access
    second: int
    free_time_us: float  # FT


@dataclass
class _Policy:
    graph: CostGraph
    swapped: dict[int, Candidate] = field(default_factory=dict)
    recomputed: dict[int, Candidate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.left = candidates(self.graph)  # not chosen yet

    def choose(self) -> bool:
        """Choose one more tensor. False: none is left."""
        hidden = [it for it in self.left if it.free_time_us >= 0]
        if hidden:
            best = max(hidden, key=lambda it: (it.free_time_us, -it.node))
            self.swapped[best.node] = best
        elif self.left:
            best, swap = max(
                ((it, swap) for it in self.left for swap in (True, False)),
                key=lambda pair: (self.saving_per_us(*pair), -pair[0].node, pair[1]),
            )
            (self.swapped if swap else self.recomputed)[best.node] = best
        else:
            return False
        self.left = [it for it in self.left if it.node != best.node]
        return True

    def saving_per_us(self, candidate: Candidate, swap: bool) -> float:
        """MSPS, in bytes per microsecond of overhead."""
        size = self.graph.nodes[candidate.node].bytes
        overhead_us = -candidate.free_time_us if swap else self._recompute_us(candidate)
        return size / max(overhead_us, 1e-9)

    def _recompute_us(self, candidate: Candidate) -> float:
        """The time to recompute the candidate and all tensors that must be recomputed for it."""
        nodes = self.graph.nodes
        if nodes[candidate.node].once:
            return float("inf")
        needed: set[int] = set()
        todo = [candidate.node]
        while todo:
            i = todo.pop()
            if i in needed:
                continue
            needed.add(i)
            for j in nodes[i].inputs:
                if nodes[j].stored or j in self.swapped:
                    continue
                if j in self.recomputed or _last_use(self.graph, j) < candidate.second:
                    if nodes[j].once:
                        return float("inf")
                    todo.append(j)
        return sum(nodes[i].time_us for i in needed)

    def events(self, collective: bool) -> list[Event]:
        """The step with all choices. `collective`: recomputed inputs stay if accessed later."""
        nodes, replay = self.graph.nodes, Replay(self.graph)
        leaving: dict[int, list[int]] = {}
        for chosen in (*self.swapped.values(), *self.recomputed.values()):
            leaving.setdefault(chosen.first, []).append(chosen.node)
        for t, node in enumerate(nodes):
            if node.stored:
                continue
            for i in replay.ensure(node.inputs) - set(node.inputs):
                later = self.recomputed.get(i) or self.swapped.get(i)
                if not (collective and later and later.second >= t):
                    replay.have.discard(i)
            replay.compute(t)
            for i in leaving.get(t, []):
                if i in self.swapped:
                    replay.events.append(("page_out", i))
                    replay.written.add(i)
                replay.have.discard(i)
        return replay.events


def candidates(graph: CostGraph) -> list[Candidate]:
    """Return for each computed tensor the pair of accesses with the longest free time."""
    at: dict[int, list[int]] = {}
    begin: dict[int, float] = {}
    now_us = 0.0
    for t, node in enumerate(graph.nodes):
        if node.stored:
            continue
        begin[t] = now_us
        now_us += node.time_us
        at[t] = [t]
        for i in node.inputs:
            if i in at:
                at[i].append(t)
    best: list[Candidate] = []
    for i, accesses in at.items():
        node = graph.nodes[i]
        pairs = []
        for first, second in pairwise(accesses):
            if second - first > 1 and graph.nodes[first].overwrites != i and node.bytes:
                gone_us = begin[first] + graph.nodes[first].time_us + node.page_out_us
                free_us = begin[second] - node.page_in_us - gone_us
                pairs.append(Candidate(i, first, second, free_us))
        if pairs:
            best.append(max(pairs, key=lambda it: it.free_time_us))
    return best


def _last_use(graph: CostGraph, i: int) -> int:
    return max((t for t, node in enumerate(graph.nodes) if i in node.inputs), default=-1)
