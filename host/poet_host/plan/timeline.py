"""Timeline: when each statement of a plan begins and ends in the two lanes of a step.

p is the time in the processor's lane, x the time in the lane of the transfers:

compute k    p = max(p, arrival of its inputs, written(what it overwrites)) + time_us
page_in i    x = max(x, p) + page_in_us;  arrival(i) = x;  then p += page_in_cpu_us
page_out i   x = max(x, p, arrival(i)) + page_out_us;  written(i) = x;  then
             p += page_out_cpu_us
free i       p = max(p, arrival(i), written(i))

A compute in a mode other than 0 begins when both lanes are idle, and occupies both:

compute k    p = x = max(p, x) + wall_us
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from .effects import Effect, Event, effects_of, events_of
from .plan import Statement
from .problem import CostGraph, Problem

Lane = Literal["processor", "transfers"]


@dataclass(frozen=True)
class Span:
    """The time in which a statement occupies its lane. For a `free`: the time of waiting."""

    lane: Lane
    begin_us: float
    end_us: float


@dataclass
class Clock:
    """The current time in each lane, in microseconds."""

    p: float = 0.0  # of the processor
    x: float = 0.0  # of the transfers
    arrival: dict[int, float] = field(default_factory=dict)  # end of the last page_in, by node
    written: dict[int, float] = field(default_factory=dict)  # end of the last page_out, by node
    commit_us: float = 0.0  # of a commit that writes what stays

    def ready(self, effect: Effect) -> float:
        """Return the earliest time at which a statement with this effect can begin."""
        begin = self.p if effect.lane == "processor" else self.time_us
        for i in effect.needs:
            if self.arrival.get(i, begin) > begin:
                begin = self.arrival[i]
        for i in effect.drops:
            if self.written.get(i, begin) > begin:
                begin = self.written[i]
        return begin

    def idle(self, i: int) -> float:
        """Return the time at which the last transfer of tensor i ends."""
        return max(self.arrival.get(i, 0.0), self.written.get(i, 0.0))

    def run(self, effect: Effect) -> Span:
        reached = self.p
        begin = self.ready(effect)
        if effect.lane == "transfers":
            self.x = begin + effect.transfers_us
            self.p += effect.processor_us
            for i in effect.makes:
                self.arrival[i] = self.x
            for i in effect.stores:
                self.written[i] = self.x
            return Span("transfers", begin, self.x)
        self.p = begin + effect.processor_us
        self.commit_us += effect.commit_us
        if effect.lane == "both":
            self.x = self.p
        return Span("processor", reached if effect.op == "free" else begin, self.p)

    @property
    def time_us(self) -> float:
        return max(self.p, self.x)


def timeline(problem: Problem, statements: Sequence[Statement]) -> tuple[Span, ...]:
    """Return the span of each statement of a legal plan, in order."""
    clock = Clock()
    return tuple(clock.run(effect) for effect in effects_of(problem.graph, statements))


def time_us(graph: CostGraph, statements: Sequence[Statement]) -> float:
    """Return the time until both lanes have finished a step, plus its share of a commit."""
    clock = Clock()
    for effect in effects_of(graph, statements):
        clock.run(effect)
    return clock.time_us + clock.commit_us / graph.commit_every


@dataclass(frozen=True)
class Lanes:
    """The busy time of each lane, and the time until both lanes are done."""

    time_us: float  # time until both lanes are done
    processor_us: float  # busy time of the processor
    transfers_us: float  # busy time of the transfers

    @property
    def bound_us(self) -> float:
        """Return the busy time of the busier lane, a lower bound for all orders of statements."""
        return max(self.processor_us, self.transfers_us)

    @property
    def hidden(self) -> float:
        """Return the share (0 to 1) of the transfer time during which the processor works."""
        if self.transfers_us == 0.0:
            return 1.0
        return (self.processor_us + self.transfers_us - self.time_us) / self.transfers_us


def lanes(problem: Problem, statements: Sequence[Statement]) -> Lanes:
    """Sum up the busy time of each lane. A transfer takes time in both lanes."""
    graph = problem.graph
    return Lanes(time_us(graph, statements), *busy_us(graph, events_of(graph, statements)))


def busy_us(graph: CostGraph, events: Iterable[Event]) -> tuple[float, float]:
    """Return the busy times of processor and transfers.

    A mode other than 0 occupies both lanes, and so does a step's share of a commit.
    """
    processor_us = transfers_us = commit_us = 0.0
    for event in events:
        effect = graph.effects[event]
        processor_us += effect.processor_us
        transfers_us += effect.transfers_us
        commit_us += effect.commit_us
    share_us = commit_us / graph.commit_every
    return processor_us + share_us, transfers_us + share_us
