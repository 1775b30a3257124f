"""The measured times of each statement, collected from the traces of many steps."""

from collections import deque
from collections.abc import Iterable
from statistics import fmean
from typing import Any

from ..device.device import Device
from ..graph.graph import Graph
from ..plan.plan import Statement
from ..schedule.decode import Wait, decode
from ..schedule.nests import Streamed
from ..schedule.schedule import Schedule
from .run import Traced

WRAP = 1 << 32  # a board's ticks wrap around here
KEPT = 256  # the mean time of a statement is over this number of latest measurements


class Trace:
    """The measured ticks of each statement.

    A board that can trace only few statements traces a window of them in each step. The window
    moves over the plan from step to step.
    """

    def __init__(self, schedule: Schedule, graph: Graph, capacity: int) -> None:
        self.statements = decode(schedule)
        self.graph = graph
        self.capacity = capacity
        self.records: tuple[Any, ...] = ()  # of the latest step
        self.ticks = [deque[int](maxlen=KEPT) for _ in self.statements]
        self.spans = [(0, 0) for _ in self.statements]  # (begin, end) ticks in the latest trace

    @property
    def windows(self) -> int:
        """Return the number of steps needed to trace all statements; 0 without tracing."""
        return -(-len(self.statements) // self.capacity) if self.capacity else 0

    def window(self, step: int) -> tuple[int, int]:
        """Return the index of the first statement to trace in a step, and how many to trace."""
        if self.capacity == 0:
            return 0, 0
        first = step % self.windows * self.capacity
        return first, min(self.capacity, len(self.statements) - first)

    def add(self, records: Iterable[Any]) -> None:
        self.records = tuple(records)
        for record in self.records:
            s, took = record.statement, (record.end - record.begin) % WRAP
            self.ticks[s].append(took)
            # The board's ticks wrap around, but a statement begins near the one before it.
            near = self.spans[s - 1][0] if s else 0
            begin = near + (record.begin - near + WRAP // 2) % WRAP - WRAP // 2
            self.spans[s] = (begin, begin + took)

    def traced(self, device: Device) -> tuple[Traced, ...]:
        """Return every statement that at least one step has traced."""
        computed: set[str] = set()
        found = []
        for index, (statement, ticks) in enumerate(zip(self.statements, self.ticks, strict=True)):
            again = False
            if not isinstance(statement, Wait) and statement.op == "compute":
                again = statement.node in computed
                computed.add(statement.node)
                if isinstance(statement, Streamed) and statement.also:
                    computed.add(statement.also)
            if ticks:
                begin_us, end_us = map(device.us, self.spans[index])
                times = (device.us(fmean(ticks)), index, begin_us, end_us)
                found.append(self._traced(statement, again, *times))
        return tuple(found)

    def _traced(self, statement: Statement | Wait, again: bool, *times: Any) -> Traced:
        if isinstance(statement, Wait):
            return Traced("wait", "", False, False, *times)
        node = self.graph[statement.node]
        return Traced(statement.op, node.name, again, node.phase == "forward", *times)
