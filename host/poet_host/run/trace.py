"""What the board measured of each statement, put together from the traces of many steps."""

from collections import deque
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from ..device.board import Board
from ..device.device import Device
from ..graph.graph import Graph
from ..profile.profile import board_power
from ..schedule.decode import Wait, decode
from ..schedule.schedule import Schedule
from .run import Step, Traced

KEPT = 256  # measurements of a statement that its median is taken of: the latest


class Trace:
    """Ticks by statement. A board that can trace few statements shows a window of them in
    each step; the windows move over the plan from step to step."""

    def __init__(self, schedule: Schedule, graph: Graph, capacity: int) -> None:
        self.statements = decode(schedule)
        self.graph = graph
        self.capacity = capacity
        self.ticks = [deque[int](maxlen=KEPT) for _ in self.statements]

    def window(self, step: int) -> tuple[int, int]:
        """First statement and number of statements to trace in a step."""
        if self.capacity == 0:
            return 0, 0
        windows = -(-len(self.statements) // self.capacity)
        first = step % windows * self.capacity
        return first, min(self.capacity, len(self.statements) - first)

    def add(self, records: Iterable[Any]) -> None:
        """The poet_trace records of one step."""
        for record in records:
            self.ticks[record.statement].append((record.end - record.begin) % 2**32)

    def traced(self, device: Device) -> tuple[Traced, ...]:
        """Every statement that some step has traced."""
        computed: set[str] = set()
        found = []
        for statement, ticks in zip(self.statements, self.ticks, strict=True):
            again = False
            if not isinstance(statement, Wait) and statement.op == "compute":
                again = statement.node in computed
                computed.add(statement.node)
            if ticks:
                found.append(self._traced(statement, again, device.us(median(ticks))))
        return tuple(found)

    @property
    def is_complete(self) -> bool:
        return all(self.ticks)

    def _traced(self, statement: Any, again: bool, time_us: float) -> Traced:
        if isinstance(statement, Wait):
            return Traced("wait", "", False, False, time_us)
        node = self.graph[statement.node]
        return Traced(statement.op, node.name, again, node.phase == "forward", time_us)


def energy_uj(trace: Sequence[Traced], steps: Sequence[Step], board: Board) -> tuple[float, float]:
    """Energy of one step, above the sleeping board's and with it.

    Measured times x the powers of the board's board.toml: estimated, not metered.
    """
    power = board_power(board)
    microwatts = {
        "compute": power.compute_uw,
        "page_in": power.page_in_uw,
        "page_out": power.page_out_uw,
    }
    commit_uj = median(step.commit_us for step in steps) * power.page_out_uw / 1e6
    above = commit_uj + sum(one.time_us * microwatts.get(one.op, 0.0) / 1e6 for one in trace)
    return above, above + power.base_uw * median(step.time_us for step in steps) / 1e6
