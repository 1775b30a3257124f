"""Exhaustive search over the states of the machine, for graphs of few nodes.

A state says which tensors are in RAM, which are on storage, and how many first computations
are done; with a deadline also the clocks of both lanes. States are visited in the order of
the energy spent and certainly still to be spent (A*), so that the first complete one has
the least energy of all plans. Nothing is lost by what is left out: creating or paging out a
tensor that is there already, and freeing before memory is needed, or more than is needed.
Frees come just before what needs the memory.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from ..plan.problem import CostGraph
from .events import Event
from .program import TOLERANCE

MOST_NODES = 16


@dataclass(frozen=True)
class Exhausted:
    """The search is complete. `events` None: there is no plan."""

    events: list[Event] | None


class _Clock(NamedTuple):
    """Both lanes; of each tensor in RAM, when it arrived and when it was written."""

    p: float
    x: float
    arrival: tuple[float, ...]
    written: tuple[float, ...]


class _State(NamedTuple):
    ram: int  # bit sets
    storage: int
    done: int  # first computations


@dataclass(frozen=True)
class _Label:
    state: _State
    energy_uj: float
    clock: _Clock
    before: "_Label | None" = None
    events: tuple[Event, ...] = ()


def exhaust(
    graph: CostGraph,
    ram_bytes: int,
    again: Sequence[bool],
    *,
    page: bool = True,
    deadline_us: float | None = None,
    unit: int = 1,
    most_labels: int = 40_000,
    out_of_time: Callable[[], bool] = lambda: False,
) -> Exhausted | None:
    """The plan of least energy; None if that takes more labels, or time, than given.

    Side by side, tensors begin at multiples of `unit` bytes; the last one needs no padding.

    `again`: which nodes may be computed again; `page` False: computed tensors are not paged
    out, except kept ones. The effort is counted, so that equal input gives equal plans.
    """
    if len(graph.nodes) > MOST_NODES:
        return None
    search = _Search(graph, ram_bytes, again, page, deadline_us, unit)
    return search.run(most_labels, out_of_time)


class _Search:
    def __init__(
        self,
        graph: CostGraph,
        ram_bytes: int,
        again: Sequence[bool],
        page: bool,
        deadline_us: float | None,
        unit: int,
    ) -> None:
        self.graph, self.nodes, self.ram_bytes, self.unit = graph, graph.nodes, ram_bytes, unit
        self.again, self.deadline_us = again, deadline_us
        self.latest_us = 0.0 if deadline_us is None else deadline_us * (1 + TOLERANCE)
        everyone = range(len(self.nodes))
        self.order = [i for i in everyone if not self.nodes[i].stored]
        self.kept = sum(1 << i for i in everyone if self.nodes[i].keep)
        self.inputs = [sum(1 << j for j in set(node.inputs)) for node in self.nodes]
        self.may_page_out = [
            graph.storage and not node.stored and (page or node.keep) for node in self.nodes
        ]
        self.rest_uj = [0.0] * (len(self.order) + 1)
        self.rest_us = [0.0] * (len(self.order) + 1)
        for step in reversed(range(len(self.order))):
            node = self.nodes[self.order[step]]
            self.rest_uj[step] = self.rest_uj[step + 1] + node.energy_uj
            self.rest_us[step] = self.rest_us[step + 1] + node.time_us

    def run(self, most_labels: int, out_of_time: Callable[[], bool]) -> Exhausted | None:
        stored = sum(1 << i for i, node in enumerate(self.nodes) if node.stored)
        first = _State(0, stored, 0) if self.graph.storage else _State(stored, 0, 0)
        if self.bytes_of(first.ram, 0) > self.ram_bytes:
            return Exhausted(None)
        zeros = (0.0,) * (len(self.nodes) if self.deadline_us is not None else 0)
        heap = [(0.0, 0, 0, _Label(first, 0.0, _Clock(0.0, 0.0, zeros, zeros)))]
        seen: dict[_State, list[tuple[float, ...]]] = {}
        labels = 0
        while heap:
            label = heapq.heappop(heap)[-1]
            if self.beaten(seen, label):
                continue
            if self.complete(label.state):
                return Exhausted(self.history(label))
            for events, state in self.moves(label.state):
                labels += 1
                if labels > most_labels or (labels % 1000 == 0 and out_of_time()):
                    return None
                found = self.after(label, events, state)
                if found is not None:
                    least_uj = found.energy_uj + self.least_rest_uj(state)
                    heapq.heappush(heap, (least_uj, -state.done, labels, found))
        return Exhausted(None)

    def moves(self, state: _State) -> Iterator[tuple[tuple[Event, ...], _State]]:
        """Every event that makes or writes a tensor, after the frees that it needs."""
        for i, node in enumerate(self.nodes):
            bit = 1 << i
            if state.ram & bit:
                if self.may_page_out[i] and not state.storage & bit:
                    yield (("page_out", i),), state._replace(storage=state.storage | bit)
                continue
            if state.storage & bit:
                for frees, ram in self.room(state.ram, 0, node.bytes):
                    yield (*frees, ("page_in", i)), state._replace(ram=ram | bit)
            first = state.done < len(self.order) and self.order[state.done] == i
            if node.stored or not (first or (self.again[i] and i in self.order[: state.done])):
                continue
            if self.inputs[i] & ~state.ram:
                continue
            taken = 0 if node.overwrites is None else 1 << node.overwrites
            size = node.workspace_bytes + (0 if taken else node.bytes)
            for frees, ram in self.room(state.ram, self.inputs[i], size):
                after = _State(ram & ~taken | bit, state.storage, state.done + first)
                yield (*frees, ("compute", i)), after

    def room(self, ram: int, needed: int, size: int) -> Iterator[tuple[tuple[Event, ...], int]]:
        """The smallest sets of tensors whose freeing makes room for `size`, and what stays."""
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
                    yield tuple(("free", i) for i in freed), left

    def after(self, label: _Label, events: tuple[Event, ...], state: _State) -> _Label | None:
        """The label of a move; None if it cannot finish in time."""
        op, i = events[-1]
        node = self.nodes[i]
        spent_uj = {
            "compute": node.energy_uj,
            "page_in": node.page_in_uj,
            "page_out": node.page_out_uj,
        }[op]
        clock = label.clock
        if self.deadline_us is not None:
            clock = self.tick(clock, events)
            late = max(clock.p + self.rest_us[state.done], clock.x) > self.latest_us
            if late:
                return None
        return _Label(state, label.energy_uj + spent_uj, clock, label, events)

    def tick(self, clock: _Clock, events: tuple[Event, ...]) -> _Clock:
        p, x = clock.p, clock.x
        arrival, written = list(clock.arrival), list(clock.written)
        for op, i in events:
            node = self.nodes[i]
            if op == "free":
                p = max(p, arrival[i], written[i])
            elif op == "compute":
                waits = [arrival[j] for j in node.inputs]
                if node.overwrites is not None:
                    waits.append(written[node.overwrites])
                p = max(p, *waits, 0.0) + node.time_us
            elif op == "page_in":
                x = max(x, p) + node.page_in_us
                arrival[i], written[i] = x, 0.0
                p += node.page_in_cpu_us
                continue
            else:
                x = max(x, p, arrival[i]) + node.page_out_us
                written[i] = x
                p += node.page_out_cpu_us
                continue
            arrival[i] = written[i] = 0.0
        return _Clock(p, x, tuple(arrival), tuple(written))

    def beaten(self, seen: dict[_State, list[tuple[float, ...]]], label: _Label) -> bool:
        """A label of the same state, which cost no more, is nowhere later."""
        clock = label.clock
        waits = (max(clock.p, wait) for wait in (*clock.arrival, *clock.written))
        times = (clock.p, clock.x, *waits)
        others = seen.setdefault(label.state, [])
        if any(all(a <= b for a, b in zip(other, times, strict=True)) for other in others):
            return True
        others.append(times)
        return False

    def complete(self, state: _State) -> bool:
        there = state.storage if self.graph.storage else state.ram
        return state.done == len(self.order) and not self.kept & ~there

    def least_rest_uj(self, state: _State) -> float:
        missing = self.kept & ~state.storage if self.graph.storage else 0
        return self.rest_uj[state.done] + sum(self.nodes[i].page_out_uj for i in _members(missing))

    def history(self, label: _Label) -> list[Event]:
        events: list[Event] = []
        while label.before is not None:
            events[:0] = label.events
            label = label.before
        return events

    def bytes_of(self, tensors: int, size: int) -> int:
        """Of tensors side by side, and of something else of a size."""
        sizes = [self.nodes[i].bytes for i in _members(tensors)] + [size]
        padded = [-(-size // self.unit) * self.unit for size in sizes]
        return sum(padded) - max(b - a for a, b in zip(sizes, padded, strict=True))


def _members(tensors: int) -> Iterator[int]:
    while tensors:
        low = tensors & -tensors
        yield low.bit_length() - 1
        tensors ^= low
