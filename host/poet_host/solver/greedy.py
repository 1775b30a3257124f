"""A plan made without search, to estimate costs quickly; `solve` finds better ones."""

from collections.abc import Iterator
from itertools import chain

from ..plan.problem import CostGraph, Problem
from ..plan.verify import Totals
from .candidate import Candidate, fit
from .events import Event, everything_paged, fits, latest_paged

SHARES = (1.0, 0.9, 0.7, 0.5)  # of the RAM, until the placement fits
PLACING_S = 2.0


def unsearched(problem: Problem) -> Totals | None:
    """Costs of the first plan that fits the budget and is made without search; None if none does.

    For a graph with storage. Transfers overlap computations where such an order is soon found.
    """
    graph = problem.graph
    last = everything_paged(graph)
    some = drafts(graph, problem.ram_bytes)
    for events in chain(some, [last] if fits(graph, last, problem.ram_bytes) else []):
        found = fit(problem, events, placed=True, time_limit_s=PLACING_S, effort="little")
        if isinstance(found, Candidate):
            return found.totals
    return None


def drafts(graph: CostGraph, ram_bytes: int) -> Iterator[list[Event]]:
    """Everything computed once, and paged as late as a share of the RAM allows."""
    for share in SHARES:
        events = latest_paged(graph, int(ram_bytes * share))
        if events is not None:
            yield events
