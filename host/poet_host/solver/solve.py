"""solve: find a plan of least value for a problem, and verify it. See Problem for the value."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from multiprocessing.connection import wait
from typing import Any, Literal

from ..packing.blocks import ALIGNMENT
from ..plan.placed_plan import Effort
from ..plan.placement import aligned_graph
from ..plan.plan import Plan, StoppedBy, plan_of
from ..plan.problem import TOLERANCE, CostGraph, Problem, without_energy
from ..work import counted_s, counting, now_s
from .bound_search import Learnt
from .candidate import Candidate, candidate_of
from .events import Event, energy_uj, fits
from .feasibility import (
    aligned_budget,
    fastest_plan,
    least_ram_bytes,
    loses_kept_tensor,
    smallest_ram_bytes,
)
from .overlapped import with_processor_time
from .portfolio import Found, run_searches
from .primal_search import adopt_seed_plans
from .program import INFINITY
from .search import LARGE_GRAPH_NODES, SeedPlan, Task
from .settings import DEFAULT_SETTINGS, Settings, Stopwatch
from .unavoidable import least_time_us
from .workers import POOL, Channel, WorkerKilled

Method = Literal["poet", "poet-paging", "poet-remat"]
DEFAULT_GAP = 0.01  # default of the API and the command line; a gap of 0 may take hours
# Shares of the time left that searches may take if the time of a step matters: the first search,
# which counts the processor's time alone, and searches for plans whose transfers run while the
# processor computes: without and with an additional weight of time.
FIRST_TIME_SHARE, OVERLAPPED_TIME_SHARE, WEIGHTED_TIME_SHARE = 0.1, 0.3, 0.1
MORE_TIME_SHARE = 0.8  # the same, for the first search if its plans are good enough
CHEAP_WAITS_TIME_SHARE = 0.9  # the same, if waits for transfers are cheap
# Waits for transfers are cheap if they cost at most this share of what the transfers cost.
MAX_WAIT_SHARE = 0.02
MAX_TIME_WEIGHTS = 5  # tried for a deadline
# If a plan misses the deadline, the next weight of time is the last one times a factor; otherwise
# it is the last one divided by the factor. Then factor ** TIME_WEIGHT_DECAY replaces the factor.
TIME_WEIGHT_FACTOR, TIME_WEIGHT_DECAY = 16.0, 0.6
# Time reserved to reorder transfers after the search, in seconds (more for large graphs), and the
# largest share of the time limit that may be reserved:
RESERVE_S, MAX_RESERVE_TIME_SHARE = 1.0, 0.4
# The same for the order of transfers of one plan during the search, as a share of the time left:
TRANSFER_ORDER_TIME_SHARE, MAX_TRANSFER_ORDER_S = 0.15, 8.0
EFFORT_TIME_SHARE = 0.7  # share of the time left for that order that each effort may take
# Beyond the time limit, to make greedy plans and seed plans if no search has found a plan. The
# second number is for each node: the first plan of a large graph needs seconds on a busy computer.
LAST_RESORT_S, LAST_RESORT_S_PER_NODE = 1.0, 0.01


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
    with counting(settings.counted):
        clock = Stopwatch(settings.time_limit_s)
        plan = _Solver(problem, settings, method, tuple(seed_plans), clock).run()
    return replace(plan, method=method, solve_s=clock.elapsed_s)


@dataclass
class _Solver:
    """The searches of one call of `solve`, one after another."""

    problem: Problem
    settings: Settings
    method: Method
    seed_plans: tuple[SeedPlan, ...]
    clock: Stopwatch
    is_interrupted: bool = False  # by Ctrl-C
    began_from: str = ""  # see Plan
    # Plans by the events of the plan before its transfers were started early:
    early: dict[tuple[Event, ...], Candidate] = field(default_factory=dict)

    def run(self) -> Plan:
        task, problem, gap = self.task, self.problem, self.settings.gap
        if loses_kept_tensor(problem.graph):
            return plan_of(problem, "infeasible")
        if least_ram_bytes(problem.graph, task.unit) > problem.ram_bytes:
            return _too_little_ram(problem, task)
        are_cheap = self.waits_are_cheap
        share = CHEAP_WAITS_TIME_SHARE if are_cheap else FIRST_TIME_SHARE
        found = self.search_processor_time(share) if problem.is_timed else self.search(task)
        if found.is_infeasible:
            return _too_little_ram(problem, task)
        best = self.with_early_transfers(found.best) if found.best else None
        if not are_cheap and self.may_ignore_waits(found, best):
            found = self.search_processor_time(MORE_TIME_SHARE, found)
            assert found.best is not None
            best = self.best_in_time([best, self.with_early_transfers(found.best)])
        found = replace(found, task=task, early_plan=best, bound_plan=None, late_plan=None)
        deadline_us = problem.deadline_us
        if problem.is_timed and not (
            self.is_in_time(best)
            and (found.is_proved(gap) or (found.is_exhausted and not task.value_per_us))
        ):
            if deadline_us is not None and least_time_us(task.graph) > _latest_us(deadline_us):
                return _too_late(problem, None if self.is_interrupted else fastest_plan(task))
            found, fastest = self.search_in_time(found)
            if found.is_infeasible:
                return _too_late(problem, fastest or fastest_plan(task))
        if found.best is None or not self.is_in_time(found.best):
            found = replace(found, early_plan=self.last_resort(), bound_plan=None, late_plan=None)
        if found.best is None:
            known = found.bound if found.bound != INFINITY else None
            plan = plan_of(problem, "unknown", bound=known)
        else:
            plan = found.best.as_plan(problem).with_bound(found.bound)
        return replace(
            plan, stopped_by=_stopped_by(found, plan.gap, gap), began_from=self.began_from
        )

    @cached_property
    def reserve_s(self) -> float:
        """Return the time that is reserved to reorder transfers after the search."""
        reserve_s = RESERVE_S * (1 + len(self.problem.graph.nodes) / 1000)
        return min(reserve_s, MAX_RESERVE_TIME_SHARE * self.settings.time_limit_s)

    @cached_property
    def task(self) -> Task:
        """Return the task without the deadline."""
        problem, unit = self.problem, ALIGNMENT if self.settings.placed else 1
        return Task(
            problem=replace(problem, deadline_us=None),
            graph=aligned_graph(problem.counted, unit),
            value_per_us=problem.value_per_us,
            ram_bytes=aligned_budget(problem.graph, problem.ram_bytes, unit),
            recompute=self.method != "poet-paging",
            page=self.method != "poet-remat",
            unit=unit,
            gap=self.settings.gap,
            ends_at=now_s() + self.clock.left_s - self.reserve_s,
            # The presolve of HiGHS 1.16 does not end for some programs of large graphs.
            presolve=len(problem.graph.nodes) <= LARGE_GRAPH_NODES,
        )

    @cached_property
    def processor_graph(self) -> CostGraph:
        """Return the graph as if a step took as long as its processor is busy."""
        return with_processor_time(self.task.graph, self.task.value_per_us)

    def search(self, task: Task, bound: float | None = None, learnt: Learnt | None = None) -> Found:
        """Search until the task's gap is proved, its time is up, or Ctrl-C was pressed."""
        bound = task.least_value if bound is None else bound
        task = replace(task, seed_plans=self.seed_plans)
        found = Found(task, early_plan=task.known, bound=bound, learnt=learnt or Learnt())
        if not self.is_interrupted:
            run_searches(found, self.report)
        found.is_interrupted |= self.is_interrupted
        self.is_interrupted = found.is_interrupted
        self.began_from = found.began_from or self.began_from
        return found

    def report(self, found: Found) -> None:
        """Report the value of the best plan in time, and the bound, if it is one of this task."""
        bounding = (self.task.graph, self.processor_graph)
        if self.settings.progress is not None and any(found.task.graph is it for it in bounding):
            best = self.best_in_time([found.best])
            known = self.task.value(best) if best else None
            gap = max(0.0, (known - found.bound) / known) if known else None
            self.settings.progress(known, found.bound, gap, self.clock.elapsed_s)

    def search_processor_time(self, share: float, before: Found | None = None) -> Found:
        """Search without the deadline, as if a step took as long as its processor is busy.

        The bound is also one of the values of all plans, and easier to find. `share`: of the time
        left. `before`: the results of such a search, from which this one continues.
        """
        task = replace(self.task.within(share), graph=self.processor_graph, value_per_us=0.0)
        if before is None:
            return self.search(task)
        return self.search(replace(task, known=before.best), before.bound, before.learnt)

    @property
    def waits_are_cheap(self) -> bool:
        """Return whether waits for transfers cost little, even if nothing runs meanwhile."""
        per_us, most = self.task.value_per_us, MAX_WAIT_SHARE
        return self.problem.deadline_us is None and all(
            per_us * node.page_in_us <= most * node.page_in_uj
            and per_us * node.page_out_us <= most * node.page_out_uj
            for node in self.task.graph.nodes
        )

    def may_ignore_waits(self, found: Found, early: Candidate | None) -> bool:
        """Return whether the search without a deadline, and without waits, should go on.

        `early`: its best plan, with early transfers. As long as such plans meet the deadline, and
        their waits for transfers cost less than what is not proved, this search is the faster one.
        """
        is_over = found.is_proved(self.settings.gap) or found.is_exhausted
        if early is None or is_over or not self.problem.is_timed or not self.is_in_time(early):
            return False
        unproved = energy_uj(self.processor_graph, early.events) - found.bound
        return self.waits(early) < unproved

    def search_in_time(self, found: Found) -> tuple[Found, Candidate | None]:
        """Search for plans that meet the deadline. Return the results, and the fastest plan.

        `found` has a plan that may miss the deadline, and a bound.
        """
        first, known = found.best, self.best_in_time([found.best])
        task = replace(self.task, problem=self.problem, known=known)
        found = replace(found, task=task, early_plan=known)
        found.bound = max(found.bound, task.least_value)
        self.report(found)
        overlapped = self.overlapped_plans(first) if self.overlap_matters(known) else []
        fastest = min(overlapped, key=lambda plan: plan.totals.time_us, default=None)
        task = replace(task.within(1.0), known=self.best_in_time([known, *overlapped]))
        return self.search(task, found.bound, found.learnt), fastest

    def overlap_matters(self, known: Candidate | None) -> bool:
        """Return whether a search for plans with overlapped transfers may pay.

        If the deadline is met, it may only save the time in which the processor waits.
        """
        return known is None or self.waits(known) > self.settings.gap * self.task.value(known)

    def waits(self, plan: Candidate) -> float:
        """Return what the time costs in which the processor waits for transfers."""
        return self.task.value(plan) - energy_uj(self.processor_graph, plan.events)

    def overlapped_plans(self, first: Candidate | None) -> list[Candidate]:
        """Return plans whose transfers run while the processor computes.

        `first`: a plan found before. Each search starts from the best of the plans found before it.
        For a deadline that no plan has met yet, weighted time is added to the objective. Several
        weights are tried, to find the least weight whose plan meets the deadline. Weight 0 is left
        out if the objective is energy alone, which was the objective of the first search. It is
        also left out if the processor alone makes the first plan late.
        """
        plans: list[Candidate] = []
        known: list[Candidate] = []

        def meets_deadline(weight_per_us: float, share: float) -> bool:
            task = self.task.within(share).overlapped(weight_per_us)
            if first is not None and not known and fits(task.graph, first.events, task.ram_bytes):
                known.append(first)
            task = replace(task, known=min(known, key=task.value, default=None))
            best = self.search(task).best
            if best is not None:
                known.append(best)
                plans.append(self.with_early_transfers(best))
            return best is not None and self.is_in_time(plans[-1])

        deadline_us = self.problem.deadline_us
        is_new = bool(self.task.value_per_us) or deadline_us is None
        busy = with_processor_time(without_energy(self.task.graph), 1.0)
        busy_us = energy_uj(busy, first.events) if first is not None else 0.0
        is_late = deadline_us is not None and busy_us > _latest_us(deadline_us)
        if is_new and not is_late and meets_deadline(0.0, OVERLAPPED_TIME_SHARE):
            return plans
        if deadline_us is None:
            return plans
        if meets_deadline(INFINITY, OVERLAPPED_TIME_SHARE):
            nodes = self.task.graph.nodes
            total = sum(node.energy_uj for node in nodes)
            weight = total / max(sum(node.time_us for node in nodes), 1.0) or 1.0
            factor = TIME_WEIGHT_FACTOR
            for _ in range(MAX_TIME_WEIGHTS):
                weight *= 1 / factor if meets_deadline(weight, WEIGHTED_TIME_SHARE) else factor
                factor **= TIME_WEIGHT_DECAY
        return plans

    def last_resort(self) -> Candidate | None:
        """Return the best greedy or seed plan. The searches may end before they try any of them."""
        if self.is_interrupted:
            return None
        limit_s = LAST_RESORT_S + LAST_RESORT_S_PER_NODE * len(self.problem.graph.nodes)
        ends_at = now_s() + self.clock.left_s + limit_s
        task = replace(self.task, problem=self.problem, ends_at=ends_at, seed_plans=self.seed_plans)
        found = _last_results(task.left_s, adopt_seed_plans, task)
        self.began_from = found.get("began from", self.began_from)
        return found.get("plan")

    def with_early_transfers(self, plan: Candidate) -> Candidate:
        """Start the transfers of a plan early. A search without a deadline does not do this."""
        if plan.events in self.early:
            return self.early[plan.events]
        share_s = min(self.clock.left_s * TRANSFER_ORDER_TIME_SHARE, MAX_TRANSFER_ORDER_S)
        limit_s = max(self.reserve_s / 2, share_s)
        found = _last_results(
            limit_s, _start_transfers_early, self.task.problem, plan.events, self.settings.placed,
            limit_s,
        )  # fmt: skip
        if "plan" not in found:
            return plan
        early: Candidate = found["plan"]
        self.early[plan.events] = early
        return early

    def is_in_time(self, plan: Candidate | None) -> bool:
        deadline_us = self.problem.deadline_us
        if plan is None or deadline_us is None:
            return plan is not None
        return plan.totals.time_us <= _latest_us(deadline_us)

    def best_in_time(self, plans: Iterable[Candidate | None]) -> Candidate | None:
        in_time = [plan for plan in plans if plan is not None and self.is_in_time(plan)]
        return min(in_time, key=self.task.value, default=None)


def _latest_us(deadline_us: float) -> float:
    return deadline_us * (1 + TOLERANCE)


def _stopped_by(found: Found, gap: float | None, wanted_gap: float) -> StoppedBy:
    if gap == 0.0:
        return "proof"
    if gap is not None and gap <= wanted_gap:
        return "gap"
    if found.is_interrupted:
        return "interrupt"
    if found.is_exhausted:
        return "exhausted"
    return "time-limit" if counted_s() is None else "work-limit"


def _last_results(
    limit_s: float, search: Callable[..., None], *arguments: object
) -> dict[str, Any]:
    """Run a search in a worker. Return the last result of each kind within the time limit."""
    last: dict[str, Any] = {}
    ends_at = now_s() + limit_s
    worker = POOL.take()
    try:
        worker.search(search, *arguments)
        while worker.busy and wait([worker.results], _longest_wait_s(ends_at)):
            kind, found = worker.receive()
            last[kind] = found
    except (KeyboardInterrupt, WorkerKilled):
        pass
    finally:
        POOL.give_back(worker)
    return last


def _longest_wait_s(ends_at: float) -> float | None:
    """Return how long a search may take; None if it counts its work, and so ends by itself."""
    return None if counted_s() is not None else max(0.0, ends_at - now_s())


def _start_transfers_early(
    problem: Problem, events: Sequence[Event], placed: bool, limit_s: float, channel: Channel
) -> None:
    """Start the transfers of a plan early, and emit the plan. This function runs in a worker.

    The result of little effort comes first: more effort may take longer than the caller waits.
    """
    efforts: tuple[Effort, ...] = ("little", "full")
    least_us, ends_at = INFINITY, now_s() + limit_s
    for effort in efforts:
        left_s = (ends_at - now_s()) * EFFORT_TIME_SHARE
        found = candidate_of(problem, events, placed=placed, time_limit_s=left_s, effort=effort)
        if isinstance(found, Candidate) and found.totals.time_us < least_us:
            least_us = found.totals.time_us
            channel.emit("plan", found)


def _too_little_ram(problem: Problem, task: Task) -> Plan:
    smallest = smallest_ram_bytes(task)
    return plan_of(problem, "infeasible", smallest_ram_bytes=smallest)


def _too_late(problem: Problem, fastest: Candidate | None) -> Plan:
    smallest_us = fastest.totals.time_us if fastest else None
    return plan_of(problem, "infeasible", smallest_deadline_us=smallest_us)
