"""capuchin: page what can be paged for nothing, then whatever saves most memory per second.

X. Peng et al., *Capuchin: Tensor-based GPU Memory Management for Deep Learning*, ASPLOS 2020,
891-905 (hybrid policy). One step that keeps everything is measured: when each tensor is
accessed. Between two accesses of a tensor there is the free time

    FT = (time of the second access - swap-in time) - (time of the first access + swap-out time).

Tensors are chosen until enough memory is saved: as long as some have FT >= 0, the one with
the longest FT is paged, since its transfers can hide behind computation. Then every candidate left
is rated by its memory saving per second of overhead (MSPS), where the overhead is the smaller
of the exposed transfer time, -FT, and the time of computing it again from what is in RAM or on
storage; the best is paged or recomputed accordingly, and the others are rated anew, since sources
may have gone. Only time counts: the method knows no energies.

"Enough" is judged by the memory profile of the whole step instead of a sum of bytes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ..plan.plan import Plan
from ..plan.problem import CostGraph, Problem
from ..solver.settings import Settings
from .completion import Event, settle
from .method import DoesNotApply, Draft, realise

NAME = "capuchin"


def capuchin(problem: Problem, settings: Settings) -> Plan:
    """The schedule of the policy for the budget."""
    return realise(problem, NAME, drafts, settings)


def drafts(graph: CostGraph, ram_bytes: int) -> Sequence[Draft]:
    """Choices grow until the step fits, with what was recomputed kept for later if it can be."""
    if not graph.storage:
        raise DoesNotApply(
            f"{NAME} does not apply to {graph.name}: it pages, and there is no storage"
        )
    policy = _Policy(graph)
    extended: list[Draft] = []  # the first that fit if stored tensors leave
    while True:
        proposed = [Draft(policy.events(collective)) for collective in (True, False)]
        settled = [(draft, settle(graph, draft.events, ram_bytes)) for draft in proposed]
        fitting = [(draft, one) for draft, one in settled if one.statements is not None]
        extended = extended or [draft for draft, _ in fitting]
        if any(not one.left for _, one in fitting):
            return [*extended, *(draft for draft, one in fitting if not one.left)]
        if not policy.choose():
            return extended or proposed


@dataclass(frozen=True)
class Candidate:
    """A computed tensor and two accesses in a row, as operators; it could be away between them."""

    node: int
    first: int
    second: int
    free_time_us: float


@dataclass
class _Policy:
    graph: CostGraph
    swapped: dict[int, Candidate] = field(default_factory=dict)
    recomputed: dict[int, Candidate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.left = candidates(self.graph)

    def choose(self) -> bool:
        """Take one more tensor; False: none is left."""
        hidden = [one for one in self.left if one.free_time_us >= 0]
        if hidden:
            best = max(hidden, key=lambda one: (one.free_time_us, -one.node))
            self.swapped[best.node] = best
        elif self.left:
            best, swap = max(
                ((one, swap) for one in self.left for swap in (True, False)),
                key=lambda pair: (self.saving_per_us(*pair), -pair[0].node, pair[1]),
            )
            (self.swapped if swap else self.recomputed)[best.node] = best
        else:
            return False
        self.left = [one for one in self.left if one.node != best.node]
        return True

    def saving_per_us(self, candidate: Candidate, swap: bool) -> float:
        """MSPS, in bytes per microsecond of overhead."""
        size = self.graph.nodes[candidate.node].bytes
        overhead_us = -candidate.free_time_us if swap else self._again_us(candidate)
        return size / max(overhead_us, 1e-9)

    def _again_us(self, candidate: Candidate) -> float:
        """Time of computing it again with all sources that were given up for recomputation."""
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
        """`collective`: what is recomputed on the way stays if it is accessed later."""
        return _Replay(self.graph, self.swapped, self.recomputed, collective).run()


def candidates(graph: CostGraph) -> list[Candidate]:
    """For each computed tensor its pair of accesses with the longest free time."""
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
            best.append(max(pairs, key=lambda one: one.free_time_us))
    return best


def _last_use(graph: CostGraph, i: int) -> int:
    return max((t for t, node in enumerate(graph.nodes) if i in node.inputs), default=-1)


@dataclass
class _Replay:
    """The step with the choices made."""

    graph: CostGraph
    swapped: dict[int, Candidate]
    recomputed: dict[int, Candidate]
    collective: bool
    out: list[Event] = field(default_factory=list)
    have: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)

    def run(self) -> list[Event]:
        nodes = self.graph.nodes
        leaving: dict[int, list[int]] = {}
        for one in (*self.swapped.values(), *self.recomputed.values()):
            leaving.setdefault(one.first, []).append(one.node)
        for t, node in enumerate(nodes):
            if node.stored:
                continue
            self._bring(node.inputs, t)
            self._compute(t)
            for i in leaving.get(t, []):
                if i in self.swapped:
                    self.out.append(("page_out", i))
                    self.written.add(i)
                self.have.discard(i)
        return self.out

    def _compute(self, i: int) -> None:
        self.out.append(("compute", i))
        self.have.add(i)
        over = self.graph.nodes[i].overwrites
        if over is not None:
            self.have.discard(over)

    def _bring(self, wanted: Iterable[int], t: int) -> None:
        """Page in or compute again what is missing."""
        nodes = self.graph.nodes
        missing: set[int] = set()
        todo = [i for i in wanted if not nodes[i].stored and i not in self.have]
        targets = set(todo)
        while todo:
            i = todo.pop()
            if i in missing:
                continue
            missing.add(i)
            if i not in self.written:
                todo += [j for j in nodes[i].inputs if not nodes[j].stored and j not in self.have]
        for i in sorted(missing):
            if i in self.written:
                self.out.append(("page_in", i))
                self.have.add(i)
            else:
                self._compute(i)
        for i in missing - targets:
            later = self.recomputed.get(i) or self.swapped.get(i)
            if not (self.collective and later and later.second >= t):
                self.have.discard(i)
