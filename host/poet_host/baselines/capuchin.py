"""capuchin: first page what costs no time, then choose by memory saved per second of overhead.

X. Peng et al., *Capuchin: Tensor-based GPU Memory Management for Deep Learning*, ASPLOS 2020,
891-905 (hybrid policy). The policy runs one step in which every tensor stays in RAM, and measures
when each tensor is accessed. The free time between two accesses of a tensor is

    FT = (time of the second access - swap-in time) - (time of the first access + swap-out time).

Tensors are chosen until enough memory is saved. As long as some tensors have FT >= 0, the tensor
with the longest FT is paged, since its transfers can overlap with computation. Then every remaining
tensor is rated by the memory that it saves per second of overhead (MSPS). The overhead is the
smaller of two times: the exposed transfer time -FT, and the time to recompute the tensor from
tensors in RAM or on storage. The best tensor is paged or recomputed, whichever takes less time.
Then the remaining tensors are rated again, since tensors that their recomputation needs may have
left RAM. Only time counts, not energy.

Tensors are chosen until the whole step fits RAM, not until a given number of bytes is saved.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ..plan.completion import complete
from ..plan.events import Event
from ..plan.keepall import last_uses
from ..plan.problem import CostGraph
from .method import Draft, check_storage
from .replay import Replay


def drafts(graph: CostGraph, ram_bytes: int) -> Sequence[Draft]:
    """Choose tensors that leave RAM, one by one, until the step fits. Return the schedules."""
    check_storage(graph)
    policy = _Policy(graph)
    extended: list[Draft] = []  # the first drafts that fit; parameters may leave RAM in them
    while True:
        proposed = [Draft(policy.events(collective)) for collective in (True, False)]
        completed = [(draft, complete(graph, draft.events, ram_bytes)) for draft in proposed]
        fitting = [(draft, done) for draft, done in completed if done.statements is not None]
        extended = extended or [draft for draft, _ in fitting]
        if any(not done.exits for _, done in fitting):
            return [*extended, *(draft for draft, done in fitting if not done.exits)]
        if not policy.choose():
            return extended or proposed


@dataclass(frozen=True)
class Candidate:
    """A computed tensor that can leave RAM between two consecutive accesses."""

    node: int
    first: int  # index of the operator that makes the first access
    second: int
    free_time_us: float  # FT


@dataclass
class _Policy:
    graph: CostGraph
    swapped: dict[int, Candidate] = field(default_factory=dict)
    recomputed: dict[int, Candidate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.left = candidates(self.graph)  # not chosen yet
        self.last_use = last_uses(self.graph)

    def choose(self) -> bool:
        """Choose one more tensor that leaves RAM. Return False if no candidate is left."""
        hidden = [candidate for candidate in self.left if candidate.free_time_us >= 0]
        if hidden:
            best = max(hidden, key=lambda candidate: (candidate.free_time_us, -candidate.node))
            self.swapped[best.node] = best
        elif self.left:
            best, swap = max(
                ((candidate, swap) for candidate in self.left for swap in (True, False)),
                key=lambda pair: (self.saving_per_us(*pair), -pair[0].node, pair[1]),
            )
            (self.swapped if swap else self.recomputed)[best.node] = best
        else:
            return False
        self.left = [candidate for candidate in self.left if candidate.node != best.node]
        return True

    def saving_per_us(self, candidate: Candidate, swap: bool) -> float:
        """Return the bytes that leave RAM per microsecond of overhead (MSPS in the paper)."""
        size = self.graph.nodes[candidate.node].bytes
        overhead_us = -candidate.free_time_us if swap else self._recompute_us(candidate)
        return size / max(overhead_us, 1e-9)

    def _recompute_us(self, candidate: Candidate) -> float:
        """Return the time to recompute a candidate and the tensors that it needs and RAM lacks."""
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
                if j in self.recomputed or self.last_use[j] < candidate.second:
                    if nodes[j].once:
                        return float("inf")
                    todo.append(j)
        return sum(nodes[i].time_us for i in needed)

    def events(self, collective: bool) -> list[Event]:
        """Return the events of a step in which all chosen tensors leave RAM.

        `collective` concerns a tensor that is recomputed only to recompute another tensor. True:
        the tensor stays in RAM if a later operator needs it. False: it leaves RAM at once.
        """
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
            replay.run("compute", t)
            for i in leaving.get(t, []):
                if i in self.swapped:
                    replay.run("page_out", i)
                    replay.written.add(i)
                replay.have.discard(i)
        return replay.events


def candidates(graph: CostGraph) -> list[Candidate]:
    """Return for each computed tensor the longest free time between two successive accesses."""
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
            best.append(max(pairs, key=lambda pair: pair.free_time_us))
    return best
