"""Times of statements, computed from the rules of plans and the costs of a schedule."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, prod

from ..device.board import load_board, names
from ..errors import BadInput
from ..graph.operands import operator_of
from ..plan.costgraph import parse_cost_graph
from ..plan.effects import effects_of
from ..plan.plan import Plan, Statement, written_by_commits
from ..plan.problem import CostGraph
from ..plan.timeline import Clock
from .decode import Wait, decode, initial_offsets
from .nests import Streamed
from .schedule import Schedule

TOLERANCE = 1.01  # times the limit: the parts of an operator are not exactly proportional


@dataclass(frozen=True)
class Timed:
    """Times of one statement, in microseconds since the beginning of the step."""

    reached_us: float  # time when the processor reaches the statement
    # Time at which the statement begins, after it has waited for transfers.
    # A `free` is an exception: it begins when its wait begins.
    begin_us: float
    end_us: float  # time when the computation, the transfer or the free is finished


def costs_of_schedule(schedule: Schedule) -> CostGraph:
    """Return the costs that a schedule was solved with. Raises BadInput if it has none."""
    if not schedule.meta.get("costs"):
        raise BadInput("the schedule does not contain the costs of its statements: solve again")
    return parse_cost_graph(schedule.meta["costs"], "the schedule's costs")


def planned_times(
    graph: CostGraph, statements: Sequence[Statement | Wait]
) -> tuple[Timed | None, ...]:
    """Return the times of each statement, but None for each `Wait`.

    The times of the other statements include the waiting.
    """
    clock = Clock()
    times: list[Timed | None] = []
    for statement in statements:
        if isinstance(statement, Wait):
            times.append(None)
            continue
        reached_us = clock.p
        span = clock.run(*effects_of(graph, [statement]))
        times.append(Timed(reached_us, span.begin_us, span.end_us))
    return tuple(times)


def committing_us(schedule: Schedule) -> float:
    """Return by how much a step that commits is longer than the plan's `time_us`.

    That is the mean of all steps, without the commit's record and what it reads back.
    """
    every = schedule.header.commit_every
    record_us = every * (schedule.meta.get("commit") or {}).get("time_us", 0.0)
    if every == 1 or not schedule.meta.get("costs"):
        return float(record_us)
    costs, homes = costs_of_schedule(schedule), tuple(initial_offsets(schedule).items())
    statements = tuple(it for it in decode(schedule) if not isinstance(it, Wait))
    plan = Plan("feasible", 0, statements=statements, initial_offsets=homes)
    written_us = sum(costs.nodes[k].page_out_us for k in written_by_commits(costs, plan))
    return float(record_us + written_us * (1 - 1 / every))


@dataclass(frozen=True)
class Slice:
    """A computation that a board does not interrupt: a kernel in RAM, or a cell of a nest."""

    node: str
    op: str
    time_us: float  # planned: the most that it takes, by what is known of the board


def longest_slices(schedule: Schedule) -> list[Slice]:
    """Return the longest slice of the computations, and all others over the limit of `--slice`.

    The longest ones come first, one for each node. Empty if costs or kernels are not known.
    """
    if not schedule.meta.get("costs") or not all(op.kernel for op in schedule.model.operators):
        return []
    limit_us = TOLERANCE * (schedule.meta.get("slice_us") or inf)
    longest: dict[str, Slice] = {}
    for found in sorted(_slices(schedule), key=lambda it: -it.time_us):
        if not longest or found.time_us > limit_us:
            longest.setdefault(found.node, found)
    return [*longest.values()]


def _slices(schedule: Schedule) -> Iterator[Slice]:
    costs, known = costs_of_schedule(schedule), schedule.meta.get("slices") or {}
    board = schedule.meta.get("board")
    most = load_board(board).estimate.slices if board in names() else {}
    for statement in decode(schedule):
        if isinstance(statement, Wait) or statement.op != "compute":
            continue
        name, share = statement.node, 1.0
        mode = costs.nodes[costs.index[name]].mode(statement.mode)
        if isinstance(statement, Streamed):
            name = statement.own
            operator = operator_of(schedule.graph[name])
            steps = {loop.axis: loop.step for loop in statement.nest.loops}  # the innermost ones
            share = prod(step / operator.size(axis) for axis, step in steps.items())
        bound_us = None if mode.streams else known.get(name)
        op = str(schedule.graph[name].op)
        yield Slice(name, op, bound_us or most.get(op, 1.0) * mode.time_us * share)
