"""Fit: from events to a verified plan with offsets, early transfers and a finishing time."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..plan.placement import arrange
from ..plan.plan import Plan, Statement
from ..plan.problem import Problem
from ..plan.transfers import overlap
from ..plan.verify import Totals, verify
from .events import Event, statements
from .program import TOLERANCE

PLACING_S, PLACING = 2.0, 0.2  # at most so long, and such a share of the time
Effort = Literal["none", "little", "full"]


@dataclass(frozen=True)
class Candidate:
    """A verified plan within RAM and deadline, and the events that it was made from."""

    statements: tuple[Statement, ...]
    initial_offsets: tuple[tuple[str, int], ...]
    totals: Totals
    events: tuple[Event, ...]


@dataclass(frozen=True)
class Misfit:
    """By how much a plan misses the budget or, placed, the deadline."""

    excess_bytes: int = 0
    excess_us: float = 0.0


def fit(
    problem: Problem,
    events: Sequence[Event],
    *,
    placed: bool,
    time_limit_s: float,
    effort: Effort = "full",
) -> Candidate | Misfit:
    """The plan of legal events; its live bytes are within the budget.

    `effort`: for starting transfers early. `time_limit_s` bounds the search for offsets and for the
    order of transfers; the best found by then serves.
    """
    ends_at = time.monotonic() + time_limit_s
    plan: tuple[Statement, ...] = statements(problem.graph, events)
    initial: tuple[tuple[str, int], ...] = ()
    if placed:
        limit_s = min(PLACING_S, time_limit_s * PLACING)
        placement = arrange(problem.graph, plan, problem.ram_bytes, limit_s)
        if placement.height_bytes > problem.ram_bytes:
            return Misfit(excess_bytes=placement.height_bytes - problem.ram_bytes)
        plan, initial = placement.statements, placement.initial_offsets
    if effort != "none":
        left_s = max(0.0, ends_at - time.monotonic())
        plan = overlap(problem, plan, left_s, thorough=effort == "full")
    draft = Plan("feasible", problem.ram_bytes, statements=plan, initial_offsets=initial)
    totals = verify(replace(problem, deadline_us=None), draft, placed)
    deadline_us = problem.deadline_us
    if deadline_us is not None and totals.time_us > deadline_us * (1 + TOLERANCE):
        return Misfit(excess_us=totals.time_us - deadline_us)
    return Candidate(plan, initial, totals, tuple(events))
