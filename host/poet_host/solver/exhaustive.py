"""Exhaustive search over the states of a step, for graphs of few nodes.

A state consists of the tensors in RAM, the tensors on storage, and the nodes computed at least
once. If time matters, the clocks of both lanes are compared too. States are visited in the order of
the value so far (energy, time, or both) plus what every plan must still spend (A*). So the first
complete state has the least value of all plans. The search leaves out three kinds of events, since
they make no plan cheaper: creating a tensor that is in RAM already, paging out a tensor that is on
storage already, and freeing memory that is not needed yet. Frees come right before the event that
needs the memory.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from ..packing.blocks import aligned
from ..plan.effects import Effect
from ..plan.problem import TOLERANCE
from ..plan.timeline import Clock
from ..work import add
from .events import Event, energy_uj
from .program import INFINITY
from .search import Task

LABEL_S = 50e-6  # of each label, for counted work


@dataclass(frozen=True)
class Exhausted:
    """The result of an exhaustive search that ran to its end."""

    events: list[Event] | None  # events of the plan of least value; None: no plan exists
    value: float = 0.0


class _State(NamedTuple):
    ram: int  # bit set of tensors
    storage: int  # bit set of tensors
    done: int  # bit set of nodes computed at least once


@dataclass(frozen=True)
class _Label:
    """One way to reach a state, with its energy and clocks."""

    state: _State
    energy_uj: float
    clock: Clock
    before: "_Label | None" = None
    events: tuple[Event, ...] = ()  # since `before`


def search_exhaustively(
    task: Task, max_labels: int, out_of_time: Callable[[], bool]
) -> Exhausted | None:
    """Find the plan of least value. Return None if a limit (nodes, labels, time) is exceeded.

    RAM must hold the tensors one after another at multiples of `task.unit` bytes; the last tensor
    needs no padding. The limit counts labels, so that equal input gives equal plans.
    """
    nodes = task.padded.nodes
    if len(nodes) > task.policy.max_exhaustive_nodes or task.padded.starting:
        return None
    return _Search(task).run(max_labels, out_of_time)


class _Search:
    def __init__(self, task: Task) -> None:
        exact = task.exact
        self.graph, self.ram_bytes, self.unit = exact.graph, exact.ram_bytes, task.unit
        self.costs = task.padded  # with the energies that the task counts
        self.nodes, self.is_timed = self.graph.nodes, task.is_timed
        self.value_per_us = task.value_per_us
        self.may_recompute, self.recompute = task.may_recompute, task.recompute
        deadline_us = INFINITY if task.deadline_us is None else task.deadline_us
        self.latest_us = deadline_us * (1 + TOLERANCE)
        everyone = range(len(self.nodes))
        self.kept = sum(1 << i for i in everyone if self.nodes[i].keep)
        self.padded = [aligned(node.bytes, self.unit) for node in self.nodes]
        self.padding = [self.padded[i] - node.bytes for i, node in enumerate(self.nodes)]
        self.modes = task.modes
        self.usable = [list(plain) for plain in task.modes.plain]
        for i, m in task.modes.fused:
            self.usable[i].append(m)
        self.sets = {
            (i, m): _sets(self.graph.effects["compute", i, m])
            for i in everyone
            for m in self.usable[i]
        }
        self.unavoidable = _set(self.graph.unavoidable)
        self.may_page_out = [
            self.graph.storage and not node.stored and (task.page or node.keep)
            for node in self.nodes
        ]
        # What the nodes from each one on cost at least, when they are computed first:
        self.rest_uj = [0.0] * (len(self.nodes) + 1)
        self.rest_us = [0.0] * (len(self.nodes) + 1)
        for i in reversed(everyone):
            usable, node = self.modes.usable[i], self.modes.graph.nodes[i]
            least_uj = min((self.modes.cost_uj(i, m) for m in usable), default=0.0)
            least_us = min((node.mode(m).wall_us for m in usable), default=0.0)
            self.rest_uj[i] = self.rest_uj[i + 1] + least_uj
            self.rest_us[i] = self.rest_us[i + 1] + least_us

    def run(self, max_labels: int, out_of_time: Callable[[], bool]) -> Exhausted | None:
        stored = sum(1 << i for i, node in enumerate(self.nodes) if node.stored)
        first = _State(0, stored, 0) if self.graph.storage else _State(stored, 0, 0)
        if self.bytes_of(first.ram, 0) > self.ram_bytes:
            return Exhausted(None)
        heap = [(0.0, 0, 0, _Label(first, 0.0, Clock()))]
        seen: dict[_State, list[tuple[float, ...]]] = {}
        labels = 0
        while heap:
            label = heapq.heappop(heap)[-1]
            if self.is_dominated(seen, label):
                continue
            if self.is_complete(label.state):
                return Exhausted(self.history(label), self.least_value(label))
            for events, state in self.moves(label.state):
                labels += 1
                add(LABEL_S)
                if labels > max_labels or (labels % 1000 == 0 and out_of_time()):
                    return None
                after = self.label_after(label, events, state)
                if after is not None:
                    rank = -state.done.bit_length()
                    heapq.heappush(heap, (self.least_value(after), rank, labels, after))
        return Exhausted(None)

    def moves(self, state: _State) -> Iterator[tuple[tuple[Event, ...], _State]]:
        """Yield each event that creates or pages out a tensor, with the frees before it.

        The second element of each pair is the state after the event.
        """
        for i, node in enumerate(self.nodes):
            bit = 1 << i
            if state.ram & bit:
                if self.may_page_out[i] and not state.storage & bit:
                    yield (Event("page_out", i),), state._replace(storage=state.storage | bit)
            elif state.storage & bit:
                for frees, ram in self.freed(state.ram, 0, node.bytes):
                    yield (*frees, Event("page_in", i)), state._replace(ram=ram | bit)
            for m in self.usable[i]:
                done = self.done_after(state.done, i, m)
                if done is not None:
                    yield from self.computations(state, i, m, done)

    def done_after(self, done: int, i: int, m: int) -> int | None:
        """Return the nodes computed at least once after node i is computed in mode m; None if it
        must not be computed now.
        """
        for made in self.graph.outputs(i, m):
            bit = 1 << made.node
            if done & bit and self.nodes[made.node].once:
                return None
            if not done & bit and (done > bit or self.unavoidable & ~done & (bit - 1)):
                return None
            done |= bit
        return done

    def computations(
        self, state: _State, i: int, m: int, done: int
    ) -> Iterator[tuple[tuple[Event, ...], _State]]:
        """Yield the computations of node i in mode m, with the frees before them.

        `done`: the nodes computed at least once after them. Nodes are computed again only where
        that may be useful: to create a tensor that is not in RAM, or to put one on storage.
        """
        effect = self.graph.effects["compute", i, m]
        needs, reads, absent, makes, stores, drops = self.sets[i, m]
        useful = stores & ~state.storage or any(self.may_recompute[j] for j in effect.makes)
        if done == state.done and not (useful and self.recompute):
            return
        if needs & ~state.ram or reads & ~state.storage:
            return
        if state.ram & makes and not self.nodes[i].mode(m).also:
            return
        before = tuple(Event("free", j) for j in _members(state.ram & absent))
        for frees, ram in self.freed(state.ram & ~absent, needs, effect.own_bytes):
            after = _State((ram | makes) & ~drops, state.storage | stores, done)
            yield (*before, *frees, Event("compute", i, m)), after

    def freed(self, ram: int, needed: int, size: int) -> Iterator[tuple[tuple[Event, ...], int]]:
        """Yield each minimal set of frees that makes room for `size`, with the tensors left."""
        if self.bytes_of(ram, size) <= self.ram_bytes:
            yield (), ram
            return
        idle = [i for i in _members(ram & ~needed) if self.nodes[i].bytes]
        for count in range(1, len(idle) + 1):
            for freed in combinations(idle, count):
                left = ram & ~sum(1 << i for i in freed)
                if self.bytes_of(left, size) <= self.ram_bytes and all(
                    self.bytes_of(left | 1 << i, size) > self.ram_bytes for i in freed
                ):
                    yield tuple(Event("free", i) for i in freed), left

    def label_after(self, label: _Label, events: tuple[Event, ...], state: _State) -> _Label | None:
        """Return the label after a move; None if every plan with this label misses the deadline."""
        clock = label.clock
        if self.is_timed:
            clock = Clock(clock.p, clock.x, clock.arrival.copy(), clock.written.copy())
            for event in events:
                clock.run(self.graph.effects[event])
            if self.least_time_us(clock, state) > self.latest_us:
                return None
        spent_uj = label.energy_uj + energy_uj(self.costs, events[-1:])
        return _Label(state, spent_uj, clock, label, events)

    def is_dominated(self, seen: dict[_State, list[tuple[float, ...]]], label: _Label) -> bool:
        """Return whether an earlier label reaches the same state with no more energy, and none of
        its clocks is later.
        """
        # A tensor leaves RAM only after its transfers: p is then no earlier than their ends.
        clock, tensors = label.clock, range(len(self.nodes)) if self.is_timed else ()
        waits = (
            max(clock.p, ends.get(i, 0.0))
            for ends in (clock.arrival, clock.written)
            for i in tensors
        )
        times = (label.energy_uj, clock.p, clock.x, *waits)
        others = seen.setdefault(label.state, [])
        if any(all(a <= b for a, b in zip(other, times, strict=True)) for other in others):
            return True
        others.append(times)
        return False

    def is_complete(self, state: _State) -> bool:
        there = state.storage if self.graph.storage else state.ram
        return not self.unavoidable & ~state.done and not self.kept & ~there

    def least_value(self, label: _Label) -> float:
        """Return a lower bound of the value of all plans with this label."""
        done = label.state.done
        missing = self.kept & done & ~label.state.storage if self.graph.storage else 0
        rest_uj = self.rest_uj[done.bit_length()]
        rest_uj += sum(self.modes.storing_uj[i] for i in _members(missing))
        time_us = self.least_time_us(label.clock, label.state) if self.value_per_us else 0.0
        return label.energy_uj + rest_uj + self.value_per_us * time_us

    def least_time_us(self, clock: Clock, state: _State) -> float:
        return max(clock.p + self.rest_us[state.done.bit_length()], clock.x)

    def history(self, label: _Label) -> list[Event]:
        events: list[Event] = []
        while label.before is not None:
            events[:0] = label.events
            label = label.before
        return events

    def bytes_of(self, tensors: int, size: int) -> int:
        """Return the bytes of the tensors and a block of `size` bytes, placed one after another."""
        last = aligned(size, self.unit)
        members = list(_members(tensors))
        padding = max([last - size, *(self.padding[i] for i in members)])
        return last + sum(self.padded[i] for i in members) - padding


def _sets(effect: Effect) -> tuple[int, ...]:
    """Return what an effect needs, reads, must not find, makes, stores and drops, as bit sets."""
    e = effect
    return tuple(map(_set, (e.needs, e.reads, e.absent, e.makes, e.stores, e.drops)))


def _set(tensors: Iterable[int]) -> int:
    return sum(1 << i for i in set(tensors))


def _members(tensors: int) -> Iterator[int]:
    while tensors:
        low = tensors & -tensors
        yield low.bit_length() - 1
        tensors ^= low
