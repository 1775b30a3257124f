"""dtr: Dynamic Tensor Rematerialization, an online rule that knows only the past.

M. Kirisame et al., *Dynamic Tensor Rematerialization*, ICLR 2021, arXiv 2006.09616. Operators run
in the program's order. A missing input is recomputed, recursively. If RAM is full, DTR evicts the
tensor with the lowest score, among the tensors that no running computation needs:

    h_DTR(t) = (c(t) + sum of c(u) over u in e*(t)) / (m(t) s(t))

c(t) is the time to compute tensor t, m(t) its size, s(t) the time since its last access, and e*(t)
its evicted neighbourhood: all evicted tensors that a path through evicted tensors alone, up or down
the graph, connects with t. A tensor that the program does not use any more is freed at once (eager
eviction). h_DTR_eq approximates e*(t) by the classes of the evicted tensors next to t. It is the
score of the authors' PyTorch runtime. `dtr` uses h_DTR, `dtr-eq` uses h_DTR_eq.

The details are those of the authors' simulator (uwsampl/dtr-prototype, simrd): an operator accesses
its inputs when it asks for them, before any of them is recomputed. An input in RAM is locked then,
a missing input when its turn comes. Of tensors with equal scores, DTR evicts the one that became
evictable last. tests/baselines/test_dtr.py compares both.

DTR treats parameters as constants, and never evicts them. In a second run, this module evicts
parameters like results, with their page-in time as c(t), and locks them after all other inputs. The
second run is used if parameters leave too little RAM for the first run, or if its plan is cheaper.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf

from ..plan.events import Event
from ..plan.plan import Op
from ..plan.problem import CostGraph
from .method import EXTENSION, Draft, GaveUp

MAX_COMPUTES = 40  # computations per operator, on average; a run with more is thrashing


def _drafts(classes: bool, graph: CostGraph, ram_bytes: int) -> Sequence[Draft]:
    """Return up to two draft schedules: of DTR as published, and of a variant.

    In the variant, parameters may leave RAM. A draft that does not fit into RAM is left out.
    Raises GaveUp if there is no draft, because DTR thrashes.
    """
    drafts = []
    thrashing = None
    for pinned, note in ((True, ""), (False, EXTENSION)):
        if pinned or graph.storage:
            try:
                events = run(graph, ram_bytes, pinned=pinned, classes=classes)
            except GaveUp as error:
                thrashing = error
                continue
            if events is not None:
                drafts.append(Draft(events, note))
    if not drafts and thrashing is not None:
        raise thrashing
    return drafts


drafts = partial(_drafts, False)
drafts_eq = partial(_drafts, True)


def run(
    graph: CostGraph, ram_bytes: int, *, pinned: bool, classes: bool = False
) -> list[Event] | None:
    """Return the computations in order; None if RAM is too small. Raises GaveUp if DTR thrashes.

    `pinned`: stored tensors stay in RAM from their first use to their last use. `classes`: whether
    the score is h_DTR_eq.
    """
    return _Runtime(graph, ram_bytes, pinned, classes).run()


class _OutOfMemory(Exception):
    pass


@dataclass
class _Request:
    """A computation that waits for its inputs."""

    node: int
    missing: list[int]  # inputs that are not locked yet; the next one is the last
    locked: list[int]


@dataclass
class _Runtime:
    graph: CostGraph
    ram_bytes: int
    pinned: bool
    classes: bool
    ram: set[int] = field(default_factory=set)
    # Tensors that may be evicted now, in the order in which they became evictable.
    evictable: dict[int, None] = field(default_factory=dict)
    locks: Counter[int] = field(default_factory=Counter)
    used_bytes: int = 0
    clock_us: float = 0.0
    accessed_us: dict[int, float] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        nodes = self.graph.nodes
        edges = _Edges(
            [node.time_us for node in nodes],
            [tuple(j for j in dict.fromkeys(n.inputs) if not nodes[j].stored) for n in nodes],
            [[] for _ in nodes],
            self._evicted,
        )
        self.uses = [0] * len(nodes)
        for i, node in enumerate(nodes):
            for j in dict.fromkeys(node.inputs):
                self.uses[j] += 1
                edges.children[j].append(i)
        self.around = _Classes(edges) if self.classes else _Neighbourhoods(edges)
        if not self.graph.storage:
            self.pinned = True
            self.ram = {i for i, n in enumerate(nodes) if n.stored}
            self.used_bytes = sum(nodes[i].bytes for i in self.ram)
            self.uses = [u + nodes[i].keep for i, u in enumerate(self.uses)]

    def run(self) -> list[Event] | None:
        if self.used_bytes > self.ram_bytes:
            return None
        try:
            for i, node in enumerate(self.graph.nodes):
                if not node.stored:
                    self._perform(i)
                    self._release(i)
        except _OutOfMemory:
            return None
        return self.events

    def _perform(self, operator: int) -> None:
        """Bring the missing inputs of an operator into RAM, then compute the operator."""
        nodes = self.graph.nodes
        stack = [self._request(operator)]
        while stack:
            request = stack[-1]
            if not request.missing:
                self._compute(request.node)
                for j in request.locked:
                    self._unlock(j)
                stack.pop()
                continue
            j = request.missing[-1]
            if j not in self.ram and nodes[j].once:
                raise _OutOfMemory  # the input was overwritten, and must not be computed again
            if j not in self.ram and not nodes[j].stored:
                stack.append(self._request(j))
                continue
            if j not in self.ram:
                self._run("page_in", j)
                self.clock_us += nodes[j].page_in_us
            self._lock(request, request.missing.pop())
        self.accessed_us[operator] = self.clock_us

    def _request(self, i: int) -> _Request:
        """Access the inputs of node i, and lock those in RAM. Stored tensors come last."""
        nodes = self.graph.nodes
        inputs = list(dict.fromkeys(nodes[i].inputs))
        self.accessed_us.update(dict.fromkeys(inputs, self.clock_us))
        stored = [j for j in inputs if nodes[j].stored]
        computed = [j for j in inputs if not nodes[j].stored]
        missing = [*(j for j in computed if j not in self.ram), *stored]
        request = _Request(i, missing[::-1], [])
        for j in computed:
            if j in self.ram:
                self._lock(request, j)
        return request

    def _lock(self, request: _Request, j: int) -> None:
        request.locked.append(j)
        self.locks[j] += 1
        self.evictable.pop(j, None)

    def _unlock(self, j: int) -> None:
        self.locks[j] -= 1
        self._make_evictable(j)

    def _make_evictable(self, j: int) -> None:
        node = self.graph.nodes[j]
        may_leave = not self.pinned if node.stored else node.bytes > 0 and not node.once
        if may_leave and not self.locks[j] and j in self.ram:
            self.evictable[j] = None

    def _compute(self, i: int) -> None:
        node = self.graph.nodes[i]
        if len(self.events) > MAX_COMPUTES * len(self.graph.nodes):
            raise GaveUp(
                "the method recomputes the same tensors again and again: it was stopped after "
                f"{len(self.events)} computations. Try a larger RAM budget"
            )
        self._run("compute", i)
        self.events.append(Event("compute", i))
        self.clock_us += node.time_us
        self.done.add(i)

    def _release(self, i: int) -> None:
        """Free the tensors that the program does not use after operator i."""
        inputs = dict.fromkeys(self.graph.nodes[i].inputs)
        for j in inputs:
            self.uses[j] -= 1
        for j in (i, *inputs):
            if self.uses[j] == 0 and j in self.ram:
                self._run("free", j)

    def _run(self, op: Op, i: int) -> None:
        """Make room for an operation, then change what is in RAM."""
        effect = self.graph.effects[op, i, 0]
        self._make_room(effect.own_bytes)
        self.used_bytes += effect.more_bytes
        for j in effect.drops:
            self._change(j, there=False)
        for j in effect.makes:
            self._change(j, there=True)

    def _make_room(self, size_bytes: int) -> None:
        while self.used_bytes + size_bytes > self.ram_bytes:
            if not self.evictable:
                raise _OutOfMemory
            lowest, victim = inf, -1
            for i in self.evictable:
                score = self.score(i)
                if score <= lowest:
                    lowest, victim = score, i
                if score == 0.0:
                    break
            self._run("free", victim)

    def score(self, i: int) -> float:
        """Return the score of tensor i. It is infinite if the tensor was accessed just now."""
        node = self.graph.nodes[i]
        own_us = node.page_in_us if node.stored else node.time_us
        around_us = 0.0 if node.stored else self.around.time_us(i)
        weight = node.bytes * (self.clock_us - self.accessed_us[i])
        return (own_us + around_us) / weight if weight > 0 else inf

    def _evicted(self, i: int) -> bool:
        return i in self.done and i not in self.ram and not self.graph.nodes[i].once

    def _change(self, i: int, there: bool) -> None:
        """Add tensor i to RAM or remove it."""
        (self.ram.add if there else self.ram.discard)(i)
        if there:
            self._make_evictable(i)
        else:
            self.evictable.pop(i, None)
        if not self.graph.nodes[i].stored:
            (self.around.enter if there else self.around.leave)(i)


@dataclass
class _Edges:
    """The computed tensors of a graph."""

    time_us: Sequence[float]
    parents: Sequence[Sequence[int]]
    children: Sequence[list[int]]
    is_evicted: Callable[[int], bool]


class _Neighbourhoods:
    """The time to compute the evicted neighbourhood of a tensor, for h_DTR."""

    def __init__(self, edges: _Edges) -> None:
        self.edges = edges
        self.known_us: dict[int, float] = {}

    def time_us(self, i: int) -> float:
        """Return the sum of c over e*(i)."""
        if i not in self.known_us:
            above = self._reach(i, self.edges.parents)[0]
            below = self._reach(i, self.edges.children)[0]
            self.known_us[i] = sum(self.edges.time_us[u] for u in above | below)
        return self.known_us[i]

    def _reach(self, i: int, edges: Sequence[Iterable[int]]) -> tuple[set[int], set[int]]:
        """Follow all paths of `edges` from i. Return their evicted tensors and the paths' ends.

        A path ends at the first tensor that is not evicted.
        """
        evicted: set[int] = set()
        ends: set[int] = set()
        todo = list(edges[i])
        while todo:
            j = todo.pop()
            if j in evicted or j in ends:
                continue
            if self.edges.is_evicted(j):
                evicted.add(j)
                todo += edges[j]
            else:
                ends.add(j)
        return evicted, ends

    def enter(self, i: int) -> None:
        """Forget the times of all neighbourhoods that tensor i changes."""
        self.known_us.pop(i, None)
        for edges in (self.edges.parents, self.edges.children):
            for j in self._reach(i, edges)[1]:
                self.known_us.pop(j, None)

    leave = enter


class _Classes:
    """Disjoint classes of evicted tensors, for h_DTR_eq.

    An evicted tensor joins the classes of all evicted tensors next to it. If a tensor is computed
    again, its time is subtracted from the time of its class, which is not split.
    """

    def __init__(self, edges: _Edges) -> None:
        self.edges = edges
        self.member: dict[int, int] = {}  # element of the disjoint classes, by evicted tensor
        self.above: list[int] = []  # the next element on the way to the root, or the root itself
        self.class_us: list[float] = []  # of roots: time to compute the tensors of the class

    def time_us(self, i: int) -> float:
        """Return the sum of c over the classes of all evicted tensors next to tensor i."""
        return sum(self.class_us[root] for root in self._next_to(i))

    def _next_to(self, i: int) -> dict[int, None]:
        around = (*self.edges.parents[i], *self.edges.children[i])
        return dict.fromkeys(self._root(self.member[j]) for j in around if j in self.member)

    def _root(self, element: int) -> int:
        while self.above[element] != element:
            self.above[element] = element = self.above[self.above[element]]
        return element

    def leave(self, i: int) -> None:
        if not self.edges.is_evicted(i):
            return
        new = len(self.above)
        self.above.append(new)
        self.class_us.append(self.edges.time_us[i])
        for root in self._next_to(i):
            self.above[root] = new
            self.class_us[new] += self.class_us[root]
        self.member[i] = new

    def enter(self, i: int) -> None:
        if i in self.member:
            self.class_us[self._root(self.member.pop(i))] -= self.edges.time_us[i]
