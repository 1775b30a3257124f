"""When each statement happens, by the plan's rules and the costs that it was solved for."""

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
    """The processor reaches a statement, which then keeps its lane busy; microseconds of the step.

    In between it waits, or the transfer waits for others. Of a free, what is busy is the wait.
    """

    reached_us: float
    begin_us: float
    end_us: float


def costs_of_schedule(schedule: Schedule) -> CostGraph:
    """The costs that a schedule was solved for; raises BadInput if it does not have them."""
    if not schedule.meta.get("costs"):
        raise BadInput("the schedule does not say what its statements cost: solve it again")
    return parse_cost_graph(schedule.meta["costs"], "the schedule's costs")


def planned_times(
    graph: CostGraph, statements: Sequence[Statement | Wait]
) -> tuple[Timed | None, ...]:
    """One for each statement; None for a wait, as a plan's computes and frees wait themselves."""
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
