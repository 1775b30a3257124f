"""What a step does over time: bars in two lanes, tensors as boxes in the arena, bytes in use.

Of a plan, by its rules and costs, and of a run, by the board's trace: the same view of both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from ..errors import BadInput, named
from ..plan.plan import Statement
from ..plan.problem import CostGraph
from ..run.run import Run
from ..schedule.decode import Wait
from ..schedule.times import Timed, planned_times

Kind = Literal["forward", "again", "page_in", "page_out", "wait", "commit"]
TRANSFERS: tuple[Kind, ...] = ("page_in", "page_out")
WORDS: dict[Kind, str] = {
    "forward": "computed",
    "again": "computed again",
    "page_in": "paged in",
    "page_out": "paged out",
    "wait": "waits for transfers",
    "commit": "commits the step",
}


@dataclass(frozen=True)
class Bar:
    """Statement number `statement`, about `node`, keeps its lane busy."""

    statement: int
    node: str
    kind: Kind
    begin_us: float
    end_us: float


@dataclass(frozen=True)
class Box:
    """A tensor in the arena: bytes [offset, offset + size) from `begin_us` to `end_us`.

    It holds what it should from `ready_us` on. Statement number `statement` makes it, number
    `until` frees or overwrites it (the number of statements: it stays to the end).
    """

    statement: int
    until: int
    node: str
    kind: Kind
    offset: int
    size_bytes: int
    begin_us: float
    ready_us: float
    end_us: float
    workspace: bool = False


@dataclass(frozen=True)
class View:
    """One step. `used`: (microseconds, bytes in RAM from then on); `in_use`: the most bytes in
    RAM during each statement; `times`: of each statement."""

    name: str
    bars: tuple[Bar, ...]
    boxes: tuple[Box, ...]
    used: tuple[tuple[float, int], ...]
    in_use: tuple[int, ...]
    times: tuple[Timed | None, ...]
    end_us: float

    @property
    def peak(self) -> Box | None:
        """The first box that reaches the greatest height."""
        return max(self.boxes, key=lambda b: (b.offset + b.size_bytes, -b.begin_us), default=None)


def planned(
    graph: CostGraph,
    statements: Sequence[Statement | Wait],
    start: Mapping[str, int | None] = MappingProxyType({}),
) -> View:
    """A placed plan that the verifier accepts, as its costs promise it.

    `start`: where tensors sit that are in RAM at the start (`plan.start_offsets`).
    """
    walk = _Walk(graph, statements, planned_times(graph, statements))
    for name, offset in start.items():
        walk.enter(-1, name, "page_in", offset, 0.0, 0.0)
    return walk.view("planned")


def recorded(
    graph: CostGraph, statements: Sequence[Statement | Wait], run: Run, where: str = "the run"
) -> View:
    """One step as the board traced it: each statement in the latest step that traced it.

    A board that traces few statements in a step shows each window of them in another step; behind
    a window from a slower step, statements begin later, so that nothing overlaps in a lane. Raises
    BadInput that begins with `where` if the trace is not that of these statements, or not whole.
    """
    _check_trace(statements, run, where)
    times: list[Timed | None] = []
    p = x = 0.0  # when processor and transfers are done so far; what is queued comes after both
    for one in sorted(run.trace, key=lambda one: one.statement):
        transfer = one.op in TRANSFERS
        begin_us = max(one.begin_us, p, x if transfer else 0.0)
        end_us = begin_us + max(0.0, one.end_us - one.begin_us)
        times.append(Timed(p, begin_us, end_us))
        p, x = (p, end_us) if transfer else (end_us, x)
    view = _Walk(graph, statements, times).view("measured")
    if not run.steps:
        return view
    begin_us = max(p, x)
    commit = Bar(len(statements), "", "commit", begin_us, begin_us + run.steps[-1].commit_us)
    return replace(view, bars=(*view.bars, commit), end_us=commit.end_us)


def _check_trace(statements: Sequence[Statement | Wait], run: Run, where: str) -> None:
    if not run.trace:
        raise BadInput(
            f"{where} has no trace, as its board keeps none or nothing was left to train: give a "
            "run that has trained steps"
        )
    traced = {one.statement: one for one in run.trace}
    for number, one in traced.items():
        known = statements[number] if 0 <= number < len(statements) else None
        about = ("wait", "") if isinstance(known, Wait) else known and (known.op, known.node)
        if about != (one.op, one.node):
            raise BadInput(
                f"{where}: its trace has {named(f'{one.op} {one.node}')} as statement {number}, "
                "the schedule has not: give the schedule that it was trained with"
            )
    if len(traced) < len(run.trace):
        raise BadInput(f"{where}: its trace has a statement twice: train again")
    if missing := len(statements) - len(traced):
        steps = len(run.steps) * -(-len(statements) // len(traced))
        raise BadInput(
            f"{where}: {missing} of {len(statements)} statements were never traced, as its board "
            f"traces few in a step: train {steps} steps or more"
        )


@dataclass
class _Walk:
    """The machine's RAM while statements pass by."""

    graph: CostGraph
    statements: Sequence[Statement | Wait]
    times: Sequence[Timed | None]
    bars: list[Bar] = field(default_factory=list)
    boxes: list[Box] = field(default_factory=list)
    here: dict[str, Box] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    used: list[tuple[float, int]] = field(default_factory=lambda: [(0.0, 0)])
    in_use: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.nodes = {node.name: node for node in self.graph.nodes}

    def view(self, name: str) -> View:
        for index, (statement, timed) in enumerate(zip(self.statements, self.times, strict=True)):
            self.in_use.append(self.used[-1][1])
            if isinstance(statement, Wait):
                if timed:
                    self._bar(index, "", "wait", timed.begin_us, timed.end_us)
            else:
                assert timed
                getattr(self, f"_{statement.op}")(index, statement, timed)
        end_us = max((bar.end_us for bar in self.bars), default=0.0)
        for node in tuple(self.here):
            self._leave(node, len(self.statements), end_us)
        ends = (tuple(self.used), tuple(self.in_use), tuple(self.times), end_us)
        return View(name, tuple(self.bars), tuple(self.boxes), *ends)

    def _compute(self, index: int, statement: Statement, timed: Timed) -> None:
        name, node = statement.node, self.nodes[statement.node]
        kind: Kind = "again" if name in self.done else "forward"
        self.done.add(name)
        self._bar(index, name, "wait", timed.reached_us, timed.begin_us, always=False)
        self._bar(index, name, kind, timed.begin_us, timed.end_us)
        offset = statement.offset
        if node.overwrites is not None:
            gone = self.graph.nodes[node.overwrites].name
            offset = self.here[gone].offset
            self._leave(gone, index, timed.begin_us)
        self.enter(index, name, kind, offset, timed.begin_us, timed.end_us)
        if statement.workspace_offset is not None:
            self._use(timed.begin_us, node.workspace_bytes)
            self.in_use[index] = max(self.in_use[index], self.used[-1][1])
            at, size = statement.workspace_offset, node.workspace_bytes
            times = (timed.begin_us, timed.begin_us, timed.end_us)
            self.boxes.append(Box(index, index, name, kind, at, size, *times, workspace=True))
            self._use(timed.end_us, -node.workspace_bytes)

    def _page_in(self, index: int, statement: Statement, timed: Timed) -> None:
        """Its memory is taken from the moment at which the transfer is queued."""
        self._bar(index, statement.node, "page_in", timed.begin_us, timed.end_us)
        times = (timed.reached_us, timed.end_us)
        self.enter(index, statement.node, "page_in", statement.offset, *times)

    def _page_out(self, index: int, statement: Statement, timed: Timed) -> None:
        self._bar(index, statement.node, "page_out", timed.begin_us, timed.end_us)

    def _free(self, index: int, statement: Statement, timed: Timed) -> None:
        self._bar(index, statement.node, "wait", timed.begin_us, timed.end_us, always=False)
        self._leave(statement.node, index, timed.end_us)

    def _bar(
        self, index: int, node: str, kind: Kind, begin_us: float, end_us: float, always: bool = True
    ) -> None:
        if always or end_us > begin_us:
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
        size = self.nodes[name].bytes
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
