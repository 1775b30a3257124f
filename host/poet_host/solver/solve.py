"""solve: find a plan of least value for a problem, and verify it. See Problem for the value."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from typing import Literal

from ..plan.blocks import ALIGNMENT
from ..plan.placement import aligned_graph
from ..plan.plan import Plan, StoppedBy, plan_of
from ..plan.problem import TOLERANCE, Problem
from .candidate import Candidate, candidate_of
from .events import Event
from .feasibility import (
    aligned_budget,
    fastest_plan,
    least_ram_bytes,
    loses_kept_tensor,
    smallest_ram_bytes,
)
from .portfolio import Found, Portfolio
from .program import INFINITY
from .search import SeedPlan, Task
from .settings import DEFAULT_SETTINGS, Settings, Stopwatch
from .unavoidable import least_time_us
from .workers import POOL, Channel

Method = Literal["poet", "poet-paging", "poet-remat"]
DEFAULT_GAP = 0.01  # default of the API and the command line; a gap of 0 may take hours
# If the time of a step matters, a first search ignores it: it minimises the added energy alone.
# It may take this share of the time left.
FIRST_SEARCH_TIME_SHARE = 0.3
# Time reserved to reorder transfers after the search, in seconds (more for large graphs), and the
# largest share of the time limit that may be reserved:
RESERVE_S, MAX_RESERVE_TIME_SHARE = 1.0, 0.4
MAX_TRANSFER_ORDER_S = 5.0

Report = Callable[[Found], None]


def solve(
    problem: Problem,
    settings: Settings = DEFAULT_SETTINGS,
    *,
    method: Method = "poet",
    seed_plans: Sequence[SeedPlan] = (),
) -> Plan:
    """Find the plan that the objective wants, within the RAM budget and the deadline.

    `method`: "poet" mixes recomputation and paging; "poet-paging" computes everything once;
    "poet-remat" pages no computed tensor. `seed_plans`: importable functions that make plans. The
    search starts from these plans too, unless its own first plan is soon proved good enough.

    If no plan is found, no error is raised: the status is "infeasible" (proved) or "unknown" (out
    of time). An "optimal" plan is proved to be the best of all plans of the method. A "feasible"
    plan comes with a lower bound of the objective. Every plan has been verified. Ctrl-C
    ends the search with the best plan so far. Equal input gives equal plans, unless the time limit
    or `gap` ends the search early.
    """
    clock = Stopwatch(settings.time_limit_s)
    plan = _solve(problem, settings, method, tuple(seed_plans), clock)
    return replace(plan, method=method, solve_s=clock.elapsed_s)


def _solve(
    problem: Problem,
    settings: Settings,
    method: Method,
    seed_plans: tuple[SeedPlan, ...],
    clock: Stopwatch,
) -> Plan:
    deadline_us, free = problem.deadline_us, replace(problem, deadline_us=None)
    reserve_s = RESERVE_S * (1 + len(problem.graph.nodes) / 1000)
    reserve_s = min(reserve_s, MAX_RESERVE_TIME_SHARE * settings.time_limit_s)
    unit = ALIGNMENT if settings.placed else 1
    task = Task(
        problem=free,
        graph=aligned_graph(problem.counted, unit),
        value_per_us=problem.value_per_us,
        ram_bytes=aligned_budget(problem.graph, problem.ram_bytes, unit),
        recompute=method != "poet-paging",
        page=method != "poet-remat",
        unit=unit,
        gap=settings.gap,
        ends_at=time.monotonic() + clock.left_s - reserve_s,
    )
    if loses_kept_tensor(problem.graph):
        return plan_of(problem, "infeasible")
    if least_ram_bytes(problem.graph, unit) > problem.ram_bytes:
        return _too_little_ram(problem, task)

    def search(task: Task, bound: float) -> Found:
        found = Found(replace(task, seed_plans=seed_plans), early_plan=task.known, bound=bound)
        Portfolio(found, report).run()
        return found

    def report(found: Found) -> None:
        if settings.progress is not None and found.task.value_per_us == problem.value_per_us:
            known = found.value if found.best else None
            gap = max(0.0, (known - found.bound) / known) if known else None
            settings.progress(known, found.bound, gap, clock.elapsed_s)

    first = task
    if problem.is_timed:
        graph = aligned_graph(problem.graph, unit)
        first = replace(task.within(FIRST_SEARCH_TIME_SHARE), graph=graph, value_per_us=0.0)
    found = search(first, first.least_value)
    if found.is_infeasible:
        return _too_little_ram(problem, task)
    if found.best is not None:
        limit_s = max(reserve_s / 2, min(clock.left_s, MAX_TRANSFER_ORDER_S))
        best = _with_early_transfers(found.best, free, settings.placed, limit_s)
        found = replace(found, early_plan=best, bound_plan=None, late_plan=None)
    in_time = _is_in_time(found.best, deadline_us)
    is_final = not task.value_per_us and (found.is_exhausted or found.is_proved(settings.gap))
    if first is not task and not (in_time and is_final):
        least_us, bound = least_time_us(task.graph), task.least_value
        if deadline_us is not None and least_us > deadline_us * (1 + TOLERANCE):
            return _too_late(problem, None if found.is_interrupted else fastest_plan(task))
        if problem.objective != "time":
            bound = max(bound, found.bound + task.value_per_us * least_us)
        second = replace(task.within(1.0), problem=problem, known=found.best if in_time else None)
        if found.is_interrupted:
            found = Found(second, early_plan=second.known, bound=bound, is_interrupted=True)
        else:
            found = search(second, bound)
        if found.is_infeasible:
            return _too_late(problem, found.fastest or fastest_plan(task))
        in_time = _is_in_time(found.best, deadline_us)
    if found.best is None or not in_time:
        known = found.bound if found.bound != INFINITY else None
        plan = plan_of(problem, "unknown", bound=known)
    else:
        plan = found.best.as_plan(problem).with_bound(found.bound)
    return replace(plan, stopped_by=_stopped_by(found, plan.gap, settings.gap))


def _is_in_time(candidate: Candidate | None, deadline_us: float | None) -> bool:
    if candidate is None or deadline_us is None:
        return candidate is not None
    return candidate.totals.time_us <= deadline_us * (1 + TOLERANCE)


def _stopped_by(found: Found, gap: float | None, wanted_gap: float) -> StoppedBy:
    if gap == 0.0:
        return "proof"
    if gap is not None and gap <= wanted_gap:
        return "gap"
    if found.is_interrupted:
        return "interrupt"
    return "exhausted" if found.is_exhausted else "time-limit"


def _with_early_transfers(
    best: Candidate, problem: Problem, placed: bool, limit_s: float
) -> Candidate:
    """Start the transfers of the best plan early. Return the plan.

    The search has not done this if it ran without a deadline.
    """
    worker = POOL.take()
    try:
        worker.search(_start_transfers_early, problem, best.events, placed, limit_s)
        if wait([worker.results], limit_s):
            kind, found = worker.receive()
            best = found if kind == "plan" else best
    except KeyboardInterrupt:
        pass
    finally:
        POOL.give_back(worker)
    return best


def _start_transfers_early(
    problem: Problem, events: Sequence[Event], placed: bool, limit_s: float, channel: Channel
) -> None:
    """Start the transfers of a plan early, and emit the plan. This function runs in a worker."""
    found = candidate_of(problem, events, placed=placed, time_limit_s=limit_s)
    if isinstance(found, Candidate):
        channel.emit("plan", found)


def _too_little_ram(problem: Problem, task: Task) -> Plan:
    """Return an infeasible plan that states the smallest RAM budget for which a plan is known."""
    smallest = smallest_ram_bytes(task)
    return plan_of(problem, "infeasible", smallest_ram_bytes=smallest)


def _too_late(problem: Problem, fastest: Candidate | None) -> Plan:
    """Return an infeasible plan that states a deadline for which a plan is known."""
    smallest_us = fastest.totals.time_us if fastest else None
    return plan_of(problem, "infeasible", smallest_deadline_us=smallest_us)
