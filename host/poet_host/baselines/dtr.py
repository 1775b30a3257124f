"""dtr: Dynamic Tensor Rematerialization, an online rule that knows only the past.

M. Kirisame et al., *Dynamic Tensor Rematerialization*, ICLR 2021, arXiv 2006.09616. Operators run
in the program's order. A missing input is recomputed, recursively. If RAM is full, DTR evicts the
tensor with the lowest score, among the tensors that no running computation needs:

    h_DTR(t) = (c(t) + sum of c(u) over u in e*(t)) / (m(t) s(t))

c(t) is the time to compute tensor t, m(t) its size, s(t) the time since its last access, and e*(t)
its evicted neighbourhood: all evicted tensors that a path through evicted tensors alone, up or down
the graph, connects with t. A tensor that the program does not use any more is freed at once (eager
eviction). DTR treats parameters as constants, and never evicts them. In a second run, this module
evicts parameters like results, with their page-in time as c(t). The second run is used
if parameters leave too little RAM for the first run, or if the plan of the second run is cheaper.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..plan.problem import CostGraph
from ..solver.events import Event
from .completion import EXTENSION
from .method import Draft, GaveUp

MAX_COMPUTES = 40  # computations per operator, on average; a run with more is thrashing


def drafts(graph: CostGraph, ram_bytes: int) -> Sequence[Draft]:
    """Return up to two draft schedules: of DTR as published, and of a variant.

    In the variant, parameters may leave RAM. A draft that does not fit into RAM is left out.
    Raises GaveUp if there is no draft, because DTR thrashes.
    """
    found = []
    thrashing = None
    for pinned, note in ((True, ""), (False, EXTENSION)):
        if pinned or graph.storage:
            try:
                events = run(graph, ram_bytes, pinned=pinned)
            except GaveUp as error:
                thrashing = error
                continue
            if events is not None:
                found.append(Draft(events, note))
    if not found and thrashing is not None:
        raise thrashing
    return found


def run(graph: CostGraph, ram_bytes: int, *, pinned: bool) -> list[Event] | None:
    """Return the computations in order; None if RAM is too small. Raises GaveUp if DTR thrashes.

    `pinned`: stored tensors stay in RAM from their first use to their last use.
    """
    return _Runtime(graph, ram_bytes, pinned).run()


class _OutOfMemory(Exception):
    pass


@dataclass
class _Runtime:
    graph: CostGraph
    ram_bytes: int
    pinned: bool
    ram: set[int] = field(default_factory=set)
    used_bytes: int = 0
    clock_us: float = 0.0
    accessed_us: dict[int, float] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    events: list[Event] = field(default_factory=list)
    around_us: dict[int, float] = field(default_factory=dict)  # cost of e*, if known

    def __post_init__(self) -> None:
        nodes = self.graph.nodes
        self.parents = [tuple(j for j in n.inputs if not nodes[j].stored) for n in nodes]
        self.children: list[list[int]] = [[] for _ in nodes]
        self.uses = [0] * len(nodes)
        for i, node in enumerate(nodes):
            for j in node.inputs:
                self.uses[j] += 1
                self.children[j].append(i)
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
        stack = [operator]
        while stack:
            i = stack[-1]
            missing = [j for j in nodes[i].inputs if j not in self.ram]
            if missing and not nodes[missing[0]].stored:
                if nodes[missing[0]].once:
                    raise _OutOfMemory  # the input was overwritten, and must not be computed again
                stack.append(missing[0])
                continue
            locked = {j for k in stack for j in nodes[k].inputs if j in self.ram}
            if missing:
                self._enter(missing[0], 0, locked)
                self.clock_us += nodes[missing[0]].page_in_us
                continue
            self._compute(i, locked)
            stack.pop()

    def _compute(self, i: int, locked: set[int]) -> None:
        node = self.graph.nodes[i]
        if len(self.events) > MAX_COMPUTES * len(self.graph.nodes):
            raise GaveUp(
                "the method recomputes the same tensors again and again: it was stopped after "
                f"{len(self.events)} computations. Try a larger RAM budget"
            )
        if node.overwrites is None:
            self._enter(i, node.workspace_bytes, locked)
        else:
            self._make_room(node.workspace_bytes, locked)
            self._change(node.overwrites, there=False)
            self._change(i, there=True)
        self.events.append(Event("compute", i))
        self.clock_us += node.time_us
        for j in (i, *node.inputs):
            self.accessed_us[j] = self.clock_us
        self.done.add(i)

    def _release(self, i: int) -> None:
        """Free the tensors that the program does not use after operator i."""
        for j in self.graph.nodes[i].inputs:
            self.uses[j] -= 1
        for j in (i, *self.graph.nodes[i].inputs):
            if self.uses[j] == 0 and j in self.ram:
                self._leave(j)

    def _enter(self, i: int, extra_bytes: int, locked: set[int]) -> None:
        size = self.graph.nodes[i].bytes
        self._make_room(size + extra_bytes, locked)
        self.used_bytes += size
        self.accessed_us[i] = self.clock_us
        self._change(i, there=True)

    def _leave(self, i: int) -> None:
        self.used_bytes -= self.graph.nodes[i].bytes
        self._change(i, there=False)

    def _make_room(self, size_bytes: int, locked: set[int]) -> None:
        while self.used_bytes + size_bytes > self.ram_bytes:
            candidates = [i for i in self.ram if i not in locked and self._evictable(i)]
            if not candidates:
                raise _OutOfMemory
            self._leave(min(candidates, key=lambda i: (self.score(i), i)))

    def _evictable(self, i: int) -> bool:
        node = self.graph.nodes[i]
        if node.stored:
            return not self.pinned
        return node.bytes > 0 and not node.once

    def score(self, i: int) -> float:
        """Return h_DTR of tensor i. A last access less than 1e-6 us ago counts as 1e-6 us ago."""
        node = self.graph.nodes[i]
        stale_us = max(self.clock_us - self.accessed_us[i], 1e-6)
        own_us = node.page_in_us if node.stored else node.time_us
        return (own_us + self._around_us(i)) / (max(node.bytes, 1) * stale_us)

    def _around_us(self, i: int) -> float:
        """Return the time to compute the evicted neighbourhood of i: the sum of c over e*(i)."""
        if self.graph.nodes[i].stored:
            return 0.0
        if i not in self.around_us:
            above = self._reach(i, self.parents)[0]
            below = self._reach(i, self.children)[0]
            self.around_us[i] = sum(self.graph.nodes[u].time_us for u in above | below)
        return self.around_us[i]

    def _evicted(self, i: int) -> bool:
        return i in self.done and i not in self.ram and not self.graph.nodes[i].once

    def _reach(self, i: int, edges: Sequence[Iterable[int]]) -> tuple[set[int], set[int]]:
        """Follow all paths of `edges` from i. Return their evicted tensors and the paths' ends.

        A path ends at the first tensor that is not evicted.
        """
        found: set[int] = set()
        border: set[int] = set()
        todo = list(edges[i])
        while todo:
            j = todo.pop()
            if j in found or j in border:
                continue
            if self._evicted(j):
                found.add(j)
                todo += edges[j]
            else:
                border.add(j)
        return found, border

    def _change(self, i: int, there: bool) -> None:
        """Add tensor i to RAM or remove it. Forget the costs of changed neighbourhoods."""
        (self.ram.add if there else self.ram.discard)(i)
        if self.graph.nodes[i].stored:
            return
        self.around_us.pop(i, None)
        for edges in (self.parents, self.children):
            for j in self._reach(i, edges)[1]:
                self.around_us.pop(j, None)
