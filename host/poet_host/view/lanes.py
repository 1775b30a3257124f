"""Views of a training step: bars in two lanes, tensors as boxes in the arena, bytes in use.

The lanes are the processor and the transfers. The view of a plan has times that are computed from
costs. The view of a recorded run has the times of the board's trace.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from ..errors import BadInput, named
from ..plan.effects import effects_of
from ..plan.plan import Statement
from ..plan.problem import CostGraph
from ..run.run import Run
from ..schedule.decode import Wait, decode, initial_offsets
from ..schedule.schedule import Schedule
from ..schedule.times import Timed, costs_of_schedule, planned_times

Kind = Literal["forward", "again", "page_in", "page_out", "wait", "commit", "streamed"]
TRANSFERS: tuple[Kind, ...] = ("page_in", "page_out", "streamed")
WORDS: dict[Kind, str] = {
    "forward": "computed",
    "again": "computed again",
    "page_in": "paged in",
    "page_out": "paged out",
    "wait": "waits for transfers",
    "commit": "commits the step",
    "streamed": "operands streamed",
}


@dataclass(frozen=True)
class Bar:
    """The time in which a statement keeps the processor or the transfers busy."""

    statement: int  # index of the statement
    node: str  # name of the tensor; "" if the bar is a commit, or a wait for all transfers
    kind: Kind
    begin_us: float
    end_us: float


@dataclass(frozen=True)
class Box:
    """A tensor in the arena: bytes [offset, offset + size_bytes) from `begin_us` to `end_us`."""

    statement: int  # index of the statement that creates the tensor; -1: in RAM at the start
    until: int  # index of the statement that removes the tensor; if none, number of statements
    node: str
    kind: Kind
    offset: int
    size_bytes: int
    begin_us: float
    ready_us: float  # the time from which the content is complete
    end_us: float
    workspace: bool = False  # True: the workspace of operator `node`, not its output


@dataclass(frozen=True)
class View:
    """One training step over time, planned or measured."""

    name: str
    bars: tuple[Bar, ...]
    boxes: tuple[Box, ...]
    used: tuple[tuple[float, int], ...]  # pairs (time in us, bytes in RAM from then on)
    in_use: tuple[int, ...]  # largest number of bytes in RAM during each statement
    times: tuple[Timed | None, ...]  # times of each statement; None for a wait in a plan
    end_us: float

    @property
    def height_bytes(self) -> int:
        """Return the highest end of any box in the arena. There may be gaps below it."""
        return max((box.offset + box.size_bytes for box in self.boxes), default=0)

    @property
    def fullest(self) -> tuple[float, int]:
        """Return the earliest time in us at which most bytes are in RAM, and their number."""
        return max(self.used, key=lambda row: row[1])


def planned(
    graph: CostGraph,
    statements: Sequence[Statement | Wait],
    start: Mapping[str, int | None] = MappingProxyType({}),
) -> View:
    """Return the view of a plan, with times that are computed from the costs in `graph`.

    The plan must have offsets and be accepted by the verifier. `start`: offsets of the tensors that
    are in RAM at the start (`plan.start_offsets`).
    """
    return _Walk(graph, statements, planned_times(graph, statements), start).view("planned")


def recorded(
    graph: CostGraph,
    statements: Sequence[Statement | Wait],
    run: Run,
    where: str = "the run",
    start: Mapping[str, int | None] = MappingProxyType({}),
) -> View:
    """Return the view of a step as the board traced it. `start` is that of `planned`.

    Some boards trace only some of the statements in each step. Each statement has the times of the
    latest step that traced it. Times from different steps may overlap in a lane: then the view
    shows the second statement later. Raises BadInput if statements are missing from the trace or
    differ from those of the schedule. The argument `where` names the run in the message.
    """
    _check_trace(statements, run, where)
    times: list[Timed | None] = []
    processor_us = transfers_us = 0.0  # end of the latest statement in each lane
    for traced in sorted(run.trace, key=lambda traced: traced.statement):
        is_transfer = traced.op in TRANSFERS
        begin_us = max(traced.begin_us, processor_us, transfers_us if is_transfer else 0.0)
        end_us = begin_us + max(0.0, traced.end_us - traced.begin_us)
        times.append(Timed(processor_us, begin_us, end_us))
        if is_transfer:
            transfers_us = end_us
        else:
            processor_us = end_us
    view = _Walk(graph, statements, times, start).view("measured")
    if not run.steps:
        return view
    begin_us = max(processor_us, transfers_us)
    commit = Bar(len(statements), "", "commit", begin_us, begin_us + run.steps[-1].commit_us)
    return replace(view, bars=(*view.bars, commit), end_us=commit.end_us)


def views_of(schedule: Schedule, run: Run | None = None, where: str = "the run") -> list[View]:
    """Return the view of a schedule, and the view of a run of it if there is one.

    Raises BadInput if the run has another schedule; `where` names the run in the message.
    """
    if run and run.plan_crc != schedule.solved_crc:
        raise BadInput(
            f"{where} is a run of another schedule ({run.model} on {run.board}, plan CRC "
            f"{run.plan_crc:08x} instead of {schedule.solved_crc:08x}). Name the .poet file that "
            "this run used"
        )
    costs, statements = costs_of_schedule(schedule), decode(schedule)
    start = initial_offsets(schedule)
    views = [planned(costs, statements, start)]
    return [*views, recorded(costs, statements, run, where, start)] if run else views


def _check_trace(statements: Sequence[Statement | Wait], run: Run, where: str) -> None:
    if not run.trace:
        raise BadInput(
            f"{where} has no trace: the board cannot record traces, or the run trained no step. "
            "Choose a run with a trace"
        )
    by_number = {traced.statement: traced for traced in run.trace}
    for number, traced in by_number.items():
        known = statements[number] if 0 <= number < len(statements) else None
        about = ("wait", "") if isinstance(known, Wait) else known and (known.op, known.node)
        if about != (traced.op, traced.node):
            raise BadInput(
                f"{where}: statement {number} of the trace is "
                f"{named(f'{traced.op} {traced.node}')}, but the schedule has another statement "
                "there: use the schedule with which this run was trained"
            )
    if len(by_number) < len(run.trace):
        raise BadInput(
            f"{where}: the trace contains a statement of the schedule twice: train again to record "
            "a new trace"
        )
    if missing := len(statements) - len(by_number):
        steps = len(run.steps) * -(-len(statements) // len(by_number))
        raise BadInput(
            f"{where}: the trace lacks {missing} of {len(statements)} statements of the "
            "schedule, because the board records only some of them in each step: train "
            f"{steps} steps or more"
        )


@dataclass
class _Walk:
    """Makes a view by following the tensors in RAM from statement to statement."""

    graph: CostGraph
    statements: Sequence[Statement | Wait]
    times: Sequence[Timed | None]
    start: Mapping[str, int | None]
    bars: list[Bar] = field(default_factory=list)
    boxes: list[Box] = field(default_factory=list)
    here: dict[str, Box] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    used: list[tuple[float, int]] = field(default_factory=lambda: [(0.0, 0)])
    in_use: list[int] = field(default_factory=list)

    def view(self, name: str) -> View:
        for tensor, offset in self.start.items():
            self.enter(-1, tensor, "page_in", offset, 0.0, 0.0)
        for index, (statement, timed) in enumerate(zip(self.statements, self.times, strict=True)):
            self.in_use.append(self.used[-1][1])
            if isinstance(statement, Wait):
                if timed:
                    self._bar(index, "", "wait", timed.begin_us, timed.end_us)
            else:
                assert timed
                self._add(index, statement, timed)
        end_us = max((bar.end_us for bar in self.bars), default=0.0)
        for node in tuple(self.here):
            self._leave(node, len(self.statements), end_us)
        ends = (tuple(self.used), tuple(self.in_use), tuple(self.times), end_us)
        return View(name, tuple(self.bars), tuple(self.boxes), *ends)

    def _compute(self, index: int, statement: Statement, timed: Timed) -> None:
        name, nodes = statement.node, self.graph.nodes
        [effect] = effects_of(self.graph, [statement])
        kind: Kind = "again" if name in self.done else "forward"
        self._bar(index, name, "wait", timed.reached_us, timed.begin_us)
        self._bar(index, name, kind, timed.begin_us, timed.end_us)
        if effect.reads or effect.stores:
            # A measured compute also waits for the transfers that are queued before it
            moved = (bar.end_us for bar in reversed(self.bars) if bar.kind in TRANSFERS)
            begin_us = min(max(timed.begin_us, next(moved, 0.0)), timed.end_us)
            self._bar(index, name, "streamed", begin_us, timed.end_us)
        self.done.update(nodes[i].name for i in (*effect.makes, *effect.stores))
        for i, over, number in effect.places:
            offset = statement.offset_of(number)
            if over is not None:
                offset = self.here[nodes[over].name].offset
                self._leave(nodes[over].name, index, timed.begin_us)
            self.enter(index, nodes[i].name, kind, offset, timed.begin_us, timed.end_us)
        if statement.workspace_offset is not None:
            at, size = statement.workspace_offset, effect.workspace_bytes
            self._use(timed.begin_us, size)
            self.in_use[index] = max(self.in_use[index], self.used[-1][1])
            times = (timed.begin_us, timed.begin_us, timed.end_us)
            self.boxes.append(Box(index, index, name, kind, at, size, *times, workspace=True))
            self._use(timed.end_us, -size)

    def _add(self, index: int, statement: Statement, timed: Timed) -> None:
        op, node = statement.op, statement.node
        if op == "compute":
            self._compute(index, statement, timed)
            return
        assert op != "start"
        self._bar(index, node, "wait" if op == "free" else op, timed.begin_us, timed.end_us)
        if op == "page_in":  # the tensor occupies RAM as soon as the page-in is queued
            self.enter(index, node, op, statement.offset, timed.reached_us, timed.end_us)
        elif op == "free":
            self._leave(node, index, timed.end_us)

    def _bar(self, index: int, node: str, kind: Kind, begin_us: float, end_us: float) -> None:
        """Show a bar, unless it is a wait of no time for a tensor."""
        if end_us > begin_us or kind != "wait" or not node:
            self.bars.append(Bar(index, node, kind, begin_us, end_us))

    def enter(
        self,
        index: int,
        name: str,
        kind: Kind,
        offset: int | None,
        begin_us: float,
        ready_us: float,
    ) -> None:
        size = self.graph.nodes[self.graph.index[name]].bytes
        box = Box(index, index, name, kind, offset or 0, size, begin_us, ready_us, ready_us)
        self.here[name] = box
        self._use(begin_us, size)
        if index >= 0:
            self.in_use[index] = max(self.in_use[index], self.used[-1][1])

    def _leave(self, name: str, index: int, end_us: float) -> None:
        box = self.here.pop(name)
        self.boxes.append(replace(box, until=index, end_us=max(end_us, box.begin_us)))
        self._use(end_us, -box.size_bytes)

    def _use(self, time_us: float, more_bytes: int) -> None:
        self.used.append((time_us, self.used[-1][1] + more_bytes))
