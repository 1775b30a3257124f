"""Times of statements, computed from the rules of plans and the costs of a schedule."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import BadInput
from ..plan.costgraph import parse_cost_graph
from ..plan.effects import effects_of
from ..plan.plan import Statement
from ..plan.problem import CostGraph
from ..plan.timeline import Clock
from .decode import Wait
from .schedule import Schedule


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
