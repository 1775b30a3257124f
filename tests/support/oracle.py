"""The best plan for an objective, by exhaustive search over states of the machine.

It knows no planner. RAM is bounded by the sum of bytes (unplaced plans), so that no placed plan is
better than what it finds. Good for about 9 nodes, with a deadline too.

Why it misses nothing. A state says which tensors are in RAM and on storage, which nodes have
been computed, and both clocks with the running transfers. Every statement is tried from
every state, except useless ones. Costs and times are never negative, and each clock is a chain of
maxima and sums of earlier ones. So a plan with everything earlier, or with a statement less, ends
no later and costs no more:

- Paging out a tensor that is on storage already adds nothing; written(i) is only later.
- Creating a tensor that was in RAM and was freed without need: keep it instead. If it overwrites
  its input, free the input instead, which waits for the same transfers.
- A free can wait until the statement that needs its memory, or for ever: the processor waits for
  the same transfers later anyway. Hence frees come right before a creation, and only minimal sets
  of them, without idle ones.
- Two ways lead to the same state. If one costs no more, is not later in either lane, and waits no
  longer for any tensor in RAM, it replaces the other. A time before p is as good as p: no statement
  begins before p, and neither lane ends before it.

- Streaming out a tensor that is on storage already adds nothing, unless it is the first
  computation. What must not be in RAM then is freed right before: a mode waits for both lanes. So
  is a tensor that a mode of several nodes creates again.

Labels are expanded in the order of a bound on all plans from there, which never shrinks along a
plan. So the first complete label is the best.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, combinations, count

from poet_host.plan.plan import Op, Statement
from poet_host.plan.problem import CostGraph, Mode, Problem

Event = tuple[Op, int, int]  # the operation, its node, and the mode of a compute
State = tuple[int, int, int]  # bit sets: in RAM, on storage, computed at least once
Made = tuple[int, bool, int | None]  # a node, whether it is streamed, what it overwrites
SLACK = 1 + 1e-9


@dataclass(frozen=True)
class Best:
    """A best plan."""

    energy_uj: float
    time_us: float | None  # None: time is not computed where it does not matter
    statements: tuple[Statement, ...]  # without offsets
    start: tuple[str, ...] = ()  # with storage, the tensors that are in RAM when the step begins

    def value(self, problem: Problem) -> float:
        """What the objective of the problem minimises."""
        if problem.objective == "time":
            assert self.time_us is not None
            return self.time_us
        base_uj_per_us = problem.graph.base_power_uw / 1e6
        if problem.objective == "added-energy" or not base_uj_per_us:
            return self.energy_uj
        assert self.time_us is not None
        return self.energy_uj + base_uj_per_us * self.time_us


def smallest_energy(problem: Problem, *, recompute: bool = True, page: bool = True) -> float | None:
    """The least energy of all plans; None if there is none. See `cheapest`."""
    best = cheapest(problem, recompute=recompute, page=page)
    return None if best is None else best.energy_uj


def smallest_value(problem: Problem) -> float | None:
    """The least value of the objective of all plans; None if there is no plan."""
    best = cheapest(problem)
    return None if best is None else best.value(problem)


def cheapest(problem: Problem, *, recompute: bool = True, page: bool = True) -> Best | None:
    """The plan that the objective wants within RAM and deadline, or None.

    `recompute` False: every node is computed once. `page` False: of the computed tensors,
    only kept ones are paged out or streamed out.
    """
    found = [
        best for start in _starts(problem.graph)
        if (best := _Search(problem, recompute, page, start).run()) is not None
    ]  # fmt: skip
    return min(found, key=lambda best: best.value(problem), default=None)


def fastest(problem: Problem) -> Best | None:
    """The plan that finishes first within RAM, at any cost, or None; no deadline."""
    return cheapest(replace(problem, objective="time", deadline_us=None))


def smallest_ram_bytes(graph: CostGraph) -> int | None:
    """The smallest budget with an unplaced plan; None if there is none."""
    nodes = graph.nodes
    high = sum(node.bytes + node.workspace_bytes for node in nodes)
    if cheapest(Problem(graph, high)) is None:
        return None
    operators = (
        min(needs(graph, i, k) for k in range(len(node.modes) + 1))
        for i, node in enumerate(nodes)
        if not node.stored
    )
    low = 0 if _is_fused(graph) else max(operators, default=0)
    if cheapest(Problem(graph, low)) is not None:
        return low  # no less holds the largest operator
    while low < high:
        middle = (low + high) // 2
        if cheapest(Problem(graph, middle)) is None:
            low = middle + 1
        else:
            high = middle
    return high


def needs(graph: CostGraph, i: int, number: int) -> int:
    """The bytes that node i needs in RAM in this mode, by itself."""
    node, mode = graph.nodes[i], _mode(graph, i, number)
    takes_place = mode.streamed_output or mode.overwrites is not None
    whole = set(_inputs(graph, i, number)) - set(mode.streamed_inputs)
    inputs = sum(graph.nodes[j].bytes for j in whole)
    return inputs + mode.workspace_bytes + (0 if takes_place else node.bytes)


def _starts(graph: CostGraph) -> Iterator[tuple[int, ...]]:
    """Every set of tensors that may be in RAM when a step begins. Without storage, the stored ones
    are."""
    nodes = list(enumerate(graph.nodes))
    may = [i for i, node in nodes if graph.storage and (node.stays or node.given)]
    return chain.from_iterable(combinations(may, count) for count in range(len(may) + 1))


def _heir(graph: CostGraph, i: int) -> int:
    """The last kept node of those that overwrite tensor i one after the other; else the tensor."""
    last, heir = {i}, i
    for k, node in enumerate(graph.nodes):
        if node.overwrites in last:
            last.add(k)
            heir = k if node.keep else heir
    return heir


def _mode(graph: CostGraph, i: int, number: int) -> Mode:
    """A mode from the file's fields. Mode 0 has the node's, and takes no time of the transfers."""
    node = graph.nodes[i]
    if number:
        return node.modes[number - 1]
    return Mode(
        (), False, node.workspace_bytes, node.time_us, 0.0, node.time_us, node.energy_uj,
        overwrites=node.overwrites,
    )  # fmt: skip


def _inputs(graph: CostGraph, i: int, number: int) -> tuple[int, ...]:
    own = _mode(graph, i, number).inputs
    return graph.nodes[i].inputs if own is None else own


def _made(graph: CostGraph, i: int, number: int) -> list[Made]:
    """What computing node i in this mode makes, in order."""
    mode = _mode(graph, i, number)
    also = [(it.node, it.streamed, graph.nodes[it.node].overwrites) for it in mode.also]
    return [(i, mode.streamed_output, mode.overwrites), *also]


def _is_fused(graph: CostGraph) -> bool:
    modes = [mode for node in graph.nodes for mode in node.modes]
    return graph.may_leave_out or any(mode.also or mode.inputs is not None for mode in modes)


@dataclass(frozen=True)
class _Clock:
    """Both lanes, and when the memory of each tensor in RAM is read in and written out."""

    p: float
    x: float
    arrival: dict[int, float]
    written: dict[int, float]

    def vector(self, ram: int) -> tuple[float, ...]:
        """All that decides the future; a time before p is as good as p."""
        tensors = list(_members(ram))
        waits = [self.arrival.get(i, 0.0) for i in tensors]
        waits += [self.written.get(i, 0.0) for i in tensors]
        return (self.p, *(max(self.p, wait) for wait in (self.x, *waits)))


@dataclass(frozen=True)
class _Label:
    state: State
    energy_uj: float
    clock: _Clock
    before: "_Label | None" = None
    events: tuple[Event, ...] = ()
    ended: bool = False  # the step has ended, and what stays is charged with its share of a write


class _Search:
    def __init__(
        self, problem: Problem, recompute: bool, page: bool, start: tuple[int, ...] = ()
    ) -> None:
        self.problem, self.graph = problem, problem.graph
        self.start, commit_every = start, problem.graph.commit_every
        heirs = {i: _heir(problem.graph, i) for i in start if problem.graph.nodes[i].stays}
        self.heirs = _set(iter(heirs.values()))  # in RAM at the end
        renewed = {i: k for i, k in heirs.items() if k != i}
        self.old = _set(iter(renewed if commit_every > 1 else ()))  # never read from storage
        self.ends = _set(k for k in renewed.values() if problem.graph.nodes[k].keep)
        base = problem.graph.base_power_uw if problem.objective == "energy" else 0.0
        self.energy_weight = 0.0 if problem.objective == "time" else 1.0
        self.time_weight = 1.0 if problem.objective == "time" else base / 1e6
        self.timed = bool(self.time_weight) or problem.deadline_us is not None
        self.nodes = problem.graph.nodes
        self.recompute, self.page = recompute, page
        self.order = [i for i, node in enumerate(self.nodes) if not node.stored]
        self.stored = _set(i for i, node in enumerate(self.nodes) if node.stored)
        self.keep = _set(i for i, node in enumerate(self.nodes) if node.keep)
        self.is_fused = _is_fused(problem.graph)
        self.modes: list[dict[int, Mode]] = [{} for _ in self.nodes]
        for i in self.order:
            for number in range(len(self.nodes[i].modes) + 1):
                mode = _mode(self.graph, i, number)
                out = [j for j, streamed, _ in _made(self.graph, i, number) if streamed]
                streams = out or mode.streamed_inputs
                banned = not page and not all(self.nodes[j].keep for j in out)
                if not banned and (self.graph.storage or not streams):
                    self.modes[i][number] = mode
        self.paged_out = _set(
            i
            for i, modes in enumerate(self.modes)
            if self.nodes[i].keep and not any(mode.streamed_output for mode in modes.values())
        )
        self.bytes = [0]  # of every set of tensors
        for node in self.nodes:
            self.bytes += [size + node.bytes for size in self.bytes]

    def run(self) -> Best | None:
        start = (_set(self.start), self.stored, 0) if self.graph.storage else (self.stored, 0, 0)
        if self.bytes[start[0]] > self.problem.ram_bytes:
            return None
        tie = count()
        first = _Label(start, 0.0, _Clock(0.0, 0.0, {}, {}))
        heap = [(0.0, 0, next(tie), first)] if self._in_time(first) else []
        seen: dict[State, list[tuple[float, ...]]] = {}
        while heap:
            label = heapq.heappop(heap)[-1]
            if not label.ended and self._beaten(seen, label):
                continue
            if label.ended:
                time_us = self._end_us(label) if self.timed else None
                start = tuple(self.nodes[i].name for i in self.start)
                return Best(label.energy_uj, time_us, self._statements(label), start)
            if self._complete(label.state):
                written_uj = sum(self.nodes[k].page_out_uj for k in self._charged(label.state))
                energy_uj = label.energy_uj + written_uj / self.graph.commit_every
                found = replace(label, energy_uj=energy_uj, before=label, events=(), ended=True)
                if self._in_time(found):
                    heapq.heappush(heap, (self._least(found), -1000, next(tie), found))
            for events, state in self._moves(label.state):
                found = self._apply(label, events, state)
                if self._in_time(found):
                    entry = (self._least(found), -state[2].bit_length(), next(tie), found)
                    heapq.heappush(heap, entry)
        return None

    def _least(self, label: _Label) -> float:
        """What every continuation ends with at least."""
        energy = self.energy_weight * (label.energy_uj + self._rest_uj(label.state))
        return energy + (self.time_weight * self._end_us(label) if self.time_weight else 0.0)

    def _charged(self, state: State) -> Iterator[int]:
        """What a commit writes from RAM: no statement has put it on storage."""
        return _members(self.ends & ~state[1])

    def _moves(self, state: State) -> Iterator[tuple[tuple[Event, ...], State]]:
        """Every event that changes the state, after the frees that it needs."""
        ram, storage, done = state
        for i, node in enumerate(self.nodes):
            bit = 1 << i
            if ram & bit:
                wanted = not node.stored and (self.page or node.keep)
                if self.graph.storage and wanted and not storage & bit:
                    yield (("page_out", i, 0),), (ram, storage | bit, done)
            elif storage & bit & ~self.old:
                for gone in self._room(ram, 0, node.bytes):
                    yield (*_frees(gone), ("page_in", i, 0)), (ram & ~gone | bit, storage, done)
            for number in self.modes[i]:
                yield from self._computations(state, i, number)

    def _computations(
        self, state: State, i: int, number: int
    ) -> Iterator[tuple[tuple[Event, ...], State]]:
        ram, storage, done = state
        mode, made = self.modes[i][number], _made(self.graph, i, number)
        after_done = self._done(done, [j for j, _, _ in made])
        streamed = _set(mode.streamed_inputs)
        whole = _set(_inputs(self.graph, i, number)) & ~streamed
        if after_done is None or whole & ~ram or streamed & (~storage | self.old):
            return
        out = _set(tuple(j for j, streams, _ in made if streams))
        banned = out | _set(tuple(o for _, streams, o in made if streams and o is not None))
        here = _set(tuple(j for j, streams, _ in made if not streams))
        taken = _set(tuple(o for _, streams, o in made if not streams and o is not None))
        if after_done == done and not (here & ~ram or out & ~storage):
            return  # nothing new
        if len(made) == 1 and here & ram:
            return
        left = ram & ~(banned | here)
        need = mode.workspace_bytes
        need += sum(self.nodes[j].bytes for j, streams, o in made if not streams and o is None)
        for gone in self._room(left, whole, need):
            after = left & ~gone & ~taken | here & ~taken
            event: Event = ("compute", i, number)
            yield (*_frees(gone | ram & ~left), event), (after, storage | out, after_done)

    def _done(self, done: int, nodes: list[int]) -> int | None:
        """The nodes computed after these; None if that breaks the order, or computes one twice
        that must not be.
        """
        for j in nodes:
            if done >> j & 1:
                if not self.recompute or self.nodes[j].once:
                    return None
                continue
            earlier = [k for k in self.order if k < j and not done >> k & 1]
            if done >> j or (earlier and not self.graph.may_leave_out):
                return None
            done |= 1 << j
        return done

    def _room(self, ram: int, pinned: int, need: int) -> Iterator[int]:
        """The smallest sets of tensors (none part of another) that make room by leaving."""
        excess = self.bytes[ram] + need - self.problem.ram_bytes
        if excess <= 0:
            yield 0
            return
        free = list(_members(ram & ~pinned))
        found: list[int] = []
        for size in range(len(free) + 1):
            for chosen in combinations(free, size):
                gone = _set(chosen)
                if self.bytes[gone] >= excess and all(gone & old != old for old in found):
                    found.append(gone)
                    yield gone

    def _apply(self, label: _Label, events: tuple[Event, ...], state: State) -> _Label:
        op, last, number = events[-1]
        node = self.nodes[last]
        energy_uj = label.energy_uj + (
            self.modes[last][number].energy_uj if op == "compute"
            else node.page_in_uj if op == "page_in" else node.page_out_uj
        )  # fmt: skip
        clock = self._tick(label.clock, events) if self.timed else label.clock
        return _Label(state, energy_uj, clock, label, events)

    def _tick(self, clock: _Clock, events: tuple[Event, ...]) -> _Clock:
        p, x = clock.p, clock.x
        arrival, written = dict(clock.arrival), dict(clock.written)
        for op, i, number in events:
            node = self.nodes[i]
            if op == "compute" and number:
                p = x = max(p, x) + self.modes[i][number].wall_us
            elif op == "compute":
                waits = [arrival.get(j, 0.0) for j in node.inputs]
                if node.overwrites is not None:
                    waits.append(written.get(node.overwrites, 0.0))
                p = max([p, *waits]) + node.time_us
            elif op == "page_in":
                x = arrival[i] = max(x, p) + node.page_in_us
                p += node.page_in_cpu_us
            elif op == "page_out":
                x = written[i] = max(x, p, arrival.get(i, 0.0)) + node.page_out_us
                p += node.page_out_cpu_us
            else:
                p = max(p, arrival.get(i, 0.0), written.get(i, 0.0))
        return _Clock(p, x, arrival, written)

    def _beaten(self, seen: dict[State, list[tuple[float, ...]]], label: _Label) -> bool:
        """Was this state reached for no more energy, and no later? If not, note it."""
        vector = label.clock.vector(label.state[0]) if self.timed else ()
        vector = (self.energy_weight * label.energy_uj, *vector)
        others = seen.setdefault(label.state, [])
        if any(all(a <= b for a, b in zip(old, vector, strict=True)) for old in others):
            return True
        others.append(vector)
        return False

    def _in_time(self, label: _Label) -> bool:
        limit_us = self.problem.deadline_us
        return limit_us is None or self._end_us(label, 1) <= limit_us * SLACK

    def _end_us(self, label: _Label, commit_every: int | None = None) -> float:
        """When every continuation ends at the earliest, on average or with this commit_every."""
        _, storage, done = label.state
        if label.ended:
            commit_us = sum(self.nodes[k].page_out_us for k in self._charged(label.state))
            commit_us /= commit_every or self.graph.commit_every
            return max(label.clock.p, label.clock.x) + commit_us
        computing = sum(
            min(mode.wall_us for mode in self.modes[i].values()) for i in self._coming(done)
        )
        writing = sum(self.nodes[i].page_out_us for i in self._unwritten(storage))
        return max(label.clock.p + computing, label.clock.x + writing)

    def _rest_uj(self, state: State) -> float:
        """What every continuation costs at least."""
        _, storage, done = state
        computing = sum(
            min(mode.energy_uj for mode in self.modes[i].values()) for i in self._coming(done)
        )
        return computing + sum(self.nodes[i].page_out_uj for i in self._unwritten(storage))

    def _coming(self, done: int) -> list[int]:
        """The nodes that must still be computed, each at a cost of its own."""
        return [] if self.is_fused else [i for i in self.order if not done >> i & 1]

    def _unwritten(self, storage: int) -> Iterator[int]:
        """The tensors that must still be paged out."""
        known = self.graph.storage and not self.is_fused
        return _members(self.paged_out & ~storage & ~self.ends) if known else iter(())

    def _complete(self, state: State) -> bool:
        ram, storage, done = state
        there = storage if self.graph.storage else ram
        left_out = any(not done >> i & 1 for i in self.order)
        kept = not self.keep & ~(there | self.heirs) and not self.heirs & ~ram
        return not (left_out and not self.graph.may_leave_out) and kept

    def _statements(self, label: _Label) -> tuple[Statement, ...]:
        steps: list[tuple[Event, ...]] = []
        step: _Label | None = label
        while step is not None:
            steps.append(step.events)
            step = step.before
        return tuple(
            Statement(op, self.nodes[i].name, mode=mode)
            for events in reversed(steps)
            for op, i, mode in events
        )


def _set(members: "Iterator[int] | tuple[int, ...]") -> int:
    bits = 0
    for i in members:
        bits |= 1 << i
    return bits


def _members(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def _frees(tensors: int) -> tuple[Event, ...]:
    return tuple(("free", i, 0) for i in _members(tensors))
