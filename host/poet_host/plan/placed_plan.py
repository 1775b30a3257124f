"""Make a verified plan from statements: assign offsets, start transfers early, sum up costs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..packing.packing_search import library
from ..work import now_s
from .placement import Placement, arrange
from .plan import Plan, Statement, plan_of
from .problem import TOLERANCE, Problem
from .transfers import overlap
from .verify import CLAIMS, Totals, verify

PLACEMENT_LIMIT_S = 2.0
PLACEMENT_TIME_SHARE = 0.2  # the largest share of the time limit that placement may take

Effort = Literal["none", "little", "full"]
"""Effort for starting transfers early."""


@dataclass(frozen=True)
class PlacedPlan:
    """Statements that obey all laws within the RAM budget and the deadline."""

    statements: tuple[Statement, ...]
    initial_offsets: tuple[tuple[str, int | None], ...]  # see Plan
    totals: Totals

    def as_plan(self, problem: Problem) -> Plan:
        """Return the feasible plan of `problem`, with its costs."""
        graph = problem.graph
        knows_commits = graph.commit_every > 1 or (graph.storage and self.initial_offsets)
        return plan_of(
            problem,
            "feasible",
            commit_every=graph.commit_every if knows_commits else None,
            statements=self.statements,
            initial_offsets=self.initial_offsets,
            **{name: getattr(self.totals, name) for name in CLAIMS},
        )


@dataclass(frozen=True)
class Excess:
    """By how much statements exceed the RAM budget or, if they fit RAM, the deadline."""

    ram_bytes: int = 0
    time_us: float = 0.0
    # Whether to solve again with less RAM. If the search for a placement ended at a limit, such a
    # plan costs energy that a placement of these statements may not need.
    needs_less_ram: bool = False


def realise(
    problem: Problem,
    statements: Sequence[Statement],
    *,
    placed: bool,
    time_limit_s: float,
    effort: Effort = "full",
) -> PlacedPlan | Excess:
    """Assign offsets to legal statements, start their transfers early, and verify the plan.

    The tensors in RAM must never exceed the RAM budget in total. `placed` False: assign no offsets.
    `time_limit_s` bounds the search for offsets and for the order of transfers. When it ends, the
    best result so far is used.
    """
    ends_at = now_s() + time_limit_s
    placement = Placement(tuple(statements), (), 0)
    if placed:
        limit_s = min(PLACEMENT_LIMIT_S, time_limit_s * PLACEMENT_TIME_SHARE)
        placement = arrange(problem.graph, statements, problem.ram_bytes, limit_s)
        if placement.height_bytes > problem.ram_bytes:
            excess = placement.height_bytes - problem.ram_bytes
            # Without the exact search, nothing is ever proved.
            is_provable = placement.is_provable and library() is not None
            return Excess(excess, needs_less_ram=placement.nothing_fits or not is_provable)
    left_s = max(0.0, ends_at - now_s())
    return finish(problem, placement, placed=placed, time_limit_s=left_s, effort=effort)


def finish(
    problem: Problem,
    placement: Placement,
    *,
    placed: bool = True,
    time_limit_s: float,
    effort: Effort = "full",
) -> PlacedPlan | Excess:
    """Start the transfers early, and verify the plan. `placement` must fit the RAM budget."""
    statements = placement.statements
    if effort != "none":
        statements = overlap(problem, statements, time_limit_s, thorough=effort == "full")
    starts = tuple((it.node, it.offset) for it in statements if it.op == "start")
    statements = tuple(it for it in statements if it.op != "start")
    initial = placement.initial_offsets or starts
    if not (placed or problem.graph.storage):
        initial = tuple((node.name, None) for node in problem.graph.nodes if node.stored)
    plan = Plan("feasible", problem.ram_bytes, statements=statements, initial_offsets=initial)
    totals = verify(replace(problem, deadline_us=None), plan, placed)
    deadline_us = problem.deadline_us
    if deadline_us is not None and totals.longest_us > deadline_us * (1 + TOLERANCE):
        return Excess(time_us=totals.longest_us - deadline_us)
    return PlacedPlan(statements, initial, totals)
