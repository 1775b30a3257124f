"""Planning: from a graph and a profile to a plan, and from a plan to a schedule."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from ..baselines.registry import METHODS, plan_by
from ..device.board import Board, load_board
from ..errors import (
    BadInput,
    Infeasible,
    OutOfTime,
)
from ..graph.graph import Graph
from ..plan.costgraph import dump_cost_graph
from ..plan.infeasible import why_infeasible
from ..plan.keepall import METHOD as KEEP_EVERYTHING
from ..plan.keepall import keep_everything
from ..plan.limits import deadline_us, ram_budget
from ..plan.plan import Plan
from ..plan.pricing import cost_graph
from ..plan.problem import CostGraph, Problem
from ..profile.profile import Profile
from ..profile.profile import estimate_profile as estimated
from ..schedule.encode import QUEUE_CAPACITY, encode_costs
from ..schedule.encode import encode as encode_plan
from ..schedule.schedule import Schedule
from ..solver.settings import Settings
from ..solver.solve import DEFAULT_GAP
from .inputs import as_profile

ALL_METHODS: tuple[str, ...] = (*METHODS, KEEP_EVERYTHING)
Costs = Profile | Board | str | Path
"""What inputs.as_profile takes."""


def estimate_profile(
    board: Board | str, kind: Literal["estimate", "paper"] = "estimate"
) -> Profile:
    """Costs from a board's facts, without measuring: see profile.profile.estimate_profile."""
    return estimated(load_board(board) if isinstance(board, str) else board, kind)


def costs_of(graph: Graph | CostGraph, profile: Costs | None) -> CostGraph:
    """What a planner sees of a graph. `profile` is not needed for a graph of costs."""
    if isinstance(graph, CostGraph):
        return graph
    if profile is None:
        raise BadInput(f"{graph.name}: its costs need a profile")
    return cost_graph(graph, as_profile(profile))


def solve(
    graph: Graph | CostGraph,
    profile: Costs | None = None,
    *,
    ram: str | float | None = None,
    deadline: str | float | None = None,
    method: str = "poet",
    time_limit_s: float = 60.0,
    gap: float | None = None,
    placed: bool = True,
    progress: Callable[..., object] | None = None,
) -> Plan:
    """The plan of least energy that fits `ram` and `deadline`, or what another method plans.

    `profile`: what was measured, a file of it, or a board's name for its estimate.
    `ram`: bytes, or as "24KiB" or "50%" of what keep-everything needs; None: the arena of the
    profile's board. It may exceed that arena, for studies. `deadline`: "1.2x" of keep-everything's
    time, milliseconds, or None. `gap`: relative distance from the bound at which to stop; None:
    DEFAULT_GAP. The status of the plan says whether there is one; `encode` raises if there is none.
    """
    if not (isfinite(time_limit_s) and time_limit_s > 0):
        raise BadInput(f"a time limit of {time_limit_s} s: give a positive number")
    gap = DEFAULT_GAP if gap is None else gap
    if not 0 <= gap <= 1:
        raise BadInput(f"a gap of {gap}: give a number from 0 to 1")
    known = None if profile is None else as_profile(profile)
    costs = costs_of(graph, known)
    keep = keeping(costs)
    problem = Problem(
        costs,
        ram_budget(ram, graph, known, keep.peak_bytes if keep else None),
        deadline_us(deadline, keep.time_us if keep else None),
    )
    if method == KEEP_EVERYTHING:
        return _within(keep_everything(costs), problem)
    return plan_by(method, problem, Settings(time_limit_s, gap, placed, progress))


def keeping(costs: CostGraph) -> Plan | None:
    """Keep-everything's plan, what `%` and `x` refer to; None for a graph that has none."""
    try:
        return keep_everything(costs)
    except BadInput:
        return None


def _within(keep: Plan, problem: Problem) -> Plan:
    """Keep-everything as a method: the one plan that it has, or none."""
    assert keep.peak_bytes is not None
    assert keep.time_us is not None
    plan = replace(keep, ram_bytes=problem.ram_bytes, deadline_us=problem.deadline_us)
    late = problem.deadline_us is not None and keep.time_us > problem.deadline_us * (1 + 1e-9)
    if keep.peak_bytes <= problem.ram_bytes and not late:
        return plan
    return replace(
        plan,
        status="infeasible",
        statements=(),
        energy_uj=None,
        time_us=None,
        total_energy_uj=None,
        peak_bytes=None,
        smallest_ram_bytes=keep.peak_bytes if keep.peak_bytes > problem.ram_bytes else None,
        smallest_deadline_us=keep.time_us if late else None,
    )


def why_no_plan(graph: Graph | CostGraph, profile: Profile | None, plan: Plan) -> str:
    """The limit that no plan keeps, the smallest one that works, and the operator that sets it."""
    kernels = {node.name: node.op for node in graph} if isinstance(graph, Graph) else {}
    return why_infeasible(plan, costs_of(graph, profile), lambda name: kernels.get(name, ""))


def encode(
    graph: Graph | CostGraph,
    profile: Costs | None,
    plan: Plan,
    about: Mapping[str, Any] | None = None,
) -> Schedule:
    """The schedule of a plan, with the costs that it was solved for in its meta part.

    Raises Infeasible or OutOfTime if the plan has no statements.
    """
    known = None if profile is None else as_profile(profile)
    if plan.status == "infeasible":
        raise Infeasible(why_no_plan(graph, known, plan), plan.smallest_ram_bytes)
    if plan.status == "unknown":
        raise OutOfTime("no plan was found in time, and none was proved impossible")
    costs = costs_of(graph, known)
    keep = keeping(costs)
    meta = {
        "board": known.board if known else None,
        "keep_everything": keep
        and {
            "peak_bytes": keep.peak_bytes,
            "time_us": keep.time_us,
            "energy_uj": keep.energy_uj,
        },
        "commit": known and {"time_us": known.commit_us, "energy_uj": known.commit_uj},
        "costs": dump_cost_graph(costs),
        **(about or {}),
    }
    if isinstance(graph, CostGraph):
        return encode_costs(graph, plan, meta)
    queue_capacity = known.transfer_queue if known else QUEUE_CAPACITY
    return encode_plan(graph, plan, meta, queue_capacity)
