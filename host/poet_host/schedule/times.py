"""Times of statements, from the rules of a plan and the costs that it was solved with."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import BadInput
from ..plan.costgraph import parse_cost_graph
from ..plan.plan import Statement
from ..plan.problem import CostGraph
from ..plan.timeline import Clock
from .decode import Wait
from .schedule import Schedule


@dataclass(frozen=True)
class Timed:
    """Times of one statement, in microseconds from the begin of the step."""

    reached_us: float  # when the processor reaches the statement
    begin_us: float  # when its lane begins it, after waits; of a free: when its wait begins
    end_us: float  # when its lane has finished it


def costs_of_schedule(schedule: Schedule) -> CostGraph:
    """Return the costs that a schedule was solved with. Raises BadInput if it has none."""
    if not schedule.meta.get("costs"):
        raise BadInput("the schedule has no costs of its statements: solve it again")
    return parse_cost_graph(schedule.meta["costs"], "the schedule's costs")


def planned_times(
    graph: CostGraph, statements: Sequence[Statement | Wait]
) -> tuple[Timed | None, ...]:
    """Return the times of each statement. A wait has None: other statements include their waits."""
    number = {node.name: i for i, node in enumerate(graph.nodes)}
    clock = Clock(graph)
    times: list[Timed | None] = []
    for statement in statements:
        if isinstance(statement, Wait):
            times.append(None)
            continue
        reached_us = clock.p
        span = clock.run(statement.op, number[statement.node])
        times.append(Timed(reached_us, span.begin_us, span.end_us))
    return tuple(times)
