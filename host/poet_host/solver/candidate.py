"""Candidates: the plans that a search compares."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..plan.placed_plan import Effort, Excess, PlacedPlan, realise
from ..plan.problem import Problem
from .events import Event, statements


@dataclass(frozen=True)
class Candidate(PlacedPlan):
    """A verified plan that meets the RAM budget and the deadline."""

    events: tuple[Event, ...]  # the events from which the statements were made


def candidate_of(
    problem: Problem,
    events: Sequence[Event],
    *,
    placed: bool,
    time_limit_s: float,
    effort: Effort = "full",
) -> Candidate | Excess:
    """Make a verified plan from legal events; see `realise`."""
    found = realise(
        problem,
        statements(problem.graph, events),
        placed=placed,
        time_limit_s=time_limit_s,
        effort=effort,
    )
    if isinstance(found, Excess):
        return found
    return Candidate(found.statements, found.initial_offsets, found.totals, tuple(events))
