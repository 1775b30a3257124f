"""The searches for one problem, as a list of phases.

If the time of a step matters, the first search counts the processor's time alone. Where waits for
transfers matter too, later searches begin from its plans.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ..packing.blocks import ALIGNMENT
from ..plan.events import Candidate, Event, candidate_of, energy_uj, fits
from ..plan.infeasible import lost_tensor
from ..plan.placed_plan import Effort
from ..plan.placement import aligned_graph
from ..plan.plan import Plan, StoppedBy, plan_of
from ..plan.problem import TOLERANCE, Problem, without_energy
from ..work import counted_s, now_s
from . import feasibility
from .bound_search import Learnt
from .overlapped import with_processor_time
from .policy import Phase, SearchPolicy, always, run_phases
from .portfolio import Results, run_searches
from .primal_search import adopt_seed_plans
from .program import INFINITY
from .search import SeedPlan, Task
from .settings import Method, Settings, Stopwatch
from .unavoidable import least_time_us
from .workers import Channel, last_results


@dataclass
class Searches:
    """The searches for one problem, one after another, and their results so far."""

    problem: Problem
    settings: Settings
    method: Method
    seed_plans: tuple[SeedPlan, ...]
    clock: Stopwatch
    known: Candidate | None = None  # a plan found before
    offered: Sequence[Event] = ()  # see Task
    is_interrupted: bool = False  # by Ctrl-C
    began_from: str = ""  # see Plan
    # Plans by the events of the plan before its transfers were started early:
    early: dict[tuple[Event, ...], Candidate] = field(default_factory=dict)
    # Plans in the results may miss the deadline until a search has counted waits:
    results: Results = field(init=False)
    without_waits: Results = field(init=False)  # of the search that does not count them
    first: Candidate | None = None  # the plan of that search, with early transfers
    overlapped: list[Candidate] = field(default_factory=list)  # with transfers that overlap
    infeasible: Plan | None = None  # set if it is proved that no plan exists

    def run(self) -> Plan:
        self.results = self.without_waits = Results(self.task)
        run_phases(PHASES, self, self.policy.skipped)
        if self.infeasible is not None:
            return self.infeasible
        results = self.results
        if results.best is None:
            known = results.bound if results.bound != INFINITY else None
            plan = plan_of(self.problem, "unknown", bound=known)
        else:
            plan = results.best.as_plan(self.problem).with_bound(results.bound)
        stopped_by = _stopped_by(results, plan, self.settings.gap)
        return replace(plan, stopped_by=stopped_by, began_from=self.began_from)

    @property
    def policy(self) -> SearchPolicy:
        return self.settings.policy

    @cached_property
    def reserve_s(self) -> float:
        """Return the time that is reserved to reorder transfers after the search."""
        reserve_s = self.policy.reserve_s * (1 + len(self.problem.graph.nodes) / 1000)
        return min(reserve_s, self.policy.max_reserve_time_share * self.settings.time_limit_s)

    @cached_property
    def task(self) -> Task:
        """Return the task without the deadline."""
        problem, unit = self.problem, ALIGNMENT if self.settings.placed else 1
        return Task(
            exact=replace(problem, deadline_us=None),
            padded=aligned_graph(problem.counted, unit),
            value_per_us=problem.value_per_us,
            padded_ram_bytes=feasibility.aligned_budget(problem.graph, problem.ram_bytes, unit),
            recompute=self.method != "poet-paging",
            page=self.method != "poet-remat",
            unit=unit,
            gap=self.settings.gap,
            known=self.known,
            offered=self.offered,
            ends_at=now_s() + self.clock.left_s - self.reserve_s,
            # The presolve of HiGHS 1.16 does not end for some programs of large graphs.
            presolve=len(problem.graph.nodes) <= self.policy.large_graph_nodes,
            policy=self.policy,
        )

    def search(
        self, task: Task, bound: float | None = None, learnt: Learnt | None = None
    ) -> Results:
        """Search until the task's gap is proved, its time is up, or Ctrl-C was pressed."""
        bound = task.least_value if bound is None else bound
        task = replace(task, seed_plans=self.seed_plans)
        results = Results(task, early_plan=task.known, bound=bound, learnt=learnt or Learnt())
        if not self.is_interrupted:
            run_searches(results, self.report)
        results.is_interrupted |= self.is_interrupted
        self.is_interrupted = results.is_interrupted
        self.began_from = results.began_from or self.began_from
        return results

    def report(self, results: Results) -> None:
        """Report the value of the best plan in time, and the bound, if it is one of this task."""
        bounded = (self.task.padded, self.task_without_waits.padded)
        is_bounded = any(results.task.padded is graph for graph in bounded)
        if self.settings.progress is not None and is_bounded:
            best = self.best_in_time([results.best])
            known = self.task.value(best) if best else None
            gap = max(0.0, (known - results.bound) / known) if known else None
            self.settings.progress(known, results.bound, gap, self.clock.elapsed_s)

    def loses_kept_tensor(self) -> bool:
        return lost_tensor(self.problem.graph) is not None

    def exceeds_ram(self) -> bool:
        least_bytes = feasibility.least_ram_bytes(self.problem.graph, self.task.unit)
        return least_bytes > self.problem.ram_bytes

    def is_infeasible(self) -> bool:
        return self.results.is_infeasible

    def refuse(self, **smallest: Any) -> bool:
        self.infeasible = plan_of(self.problem, "infeasible", **smallest)
        return True

    def refuse_ram(self) -> bool:
        return self.refuse(smallest_ram_bytes=feasibility.smallest_ram_bytes(self.task))

    def refuse_deadline(self) -> bool:
        fastest = min(self.overlapped, key=lambda plan: plan.totals.longest_us, default=None)
        if fastest is None and not self.is_interrupted:
            fastest = feasibility.fastest_plan(self.task)
        return self.refuse(smallest_deadline_us=fastest and fastest.totals.longest_us)

    @cached_property
    def task_without_waits(self) -> Task:
        """Return the task without the deadline, as if a step took as long as its processor is busy.

        A bound of this task is also one of the values of all plans, and easier to find.
        """
        graph = with_processor_time(self.task.padded, self.task.value_per_us)
        return replace(self.task, padded=graph, value_per_us=0.0)

    def search_without_waits(self) -> None:
        policy, task = self.policy, self.task_without_waits
        cheap_share, share = policy.cheap_waits_time_share, policy.first_time_share
        if self.problem.is_timed:
            task = task.within(cheap_share if self.waits_are_cheap else share)
        self.take(self.search(task))

    def search_longer_without_waits(self) -> None:
        before = self.without_waits
        task = self.task_without_waits.within(self.policy.more_time_share)
        self.take(self.search(replace(task, known=before.best), before.bound, before.learnt))

    def take(self, results: Results) -> None:
        """Take the results of a search without waits. Start the transfers of its plan early."""
        early = results.best and self.with_early_transfers(results.best)
        self.first = self.best_in_time([self.results.best, early]) or early
        self.without_waits = results
        self.results = replace(
            results, task=self.task, early_plan=self.first, bound_plan=None, late_plan=None
        )

    @property
    def waits_are_cheap(self) -> bool:
        """Return whether waits for transfers cost little, even if nothing runs meanwhile."""
        per_us, most = self.task.value_per_us, self.policy.max_wait_share
        return self.problem.deadline_us is None and all(
            per_us * node.page_in_us <= most * node.page_in_uj
            and per_us * node.page_out_us <= most * node.page_out_uj
            for node in self.task.padded.nodes
        )

    def may_ignore_waits(self) -> bool:
        """Return whether the search without a deadline, and without waits, should go on.

        As long as its plans, with early transfers, meet the deadline, and their waits for transfers
        cost less than what is not proved, this search is the faster one.
        """
        results, plan = self.without_waits, self.results.best
        is_over = results.is_proved(self.settings.gap) or results.is_exhausted
        if plan is None or is_over or not self.problem.is_timed or not self.is_in_time(plan):
            return False
        unproved = energy_uj(self.task_without_waits.padded, plan.events) - results.bound
        return not self.waits_are_cheap and self.waits(plan) < unproved

    def waits_matter(self) -> bool:
        """Return whether the best plan so far may be late, or worse than one with fewer waits."""
        results = self.results
        is_enough = self.is_in_time(results.best) and (
            results.is_proved(self.settings.gap)
            or (results.is_exhausted and not self.task.value_per_us)
        )
        return self.problem.is_timed and not is_enough

    def search_with_waits(self) -> bool:
        return run_phases(PHASES_WITH_WAITS, self, self.policy.skipped)

    def exceeds_deadline(self) -> bool:
        deadline_us = self.problem.deadline_us
        return deadline_us is not None and least_time_us(self.task.padded) > _latest_us(deadline_us)

    def count_waits(self) -> None:
        """Count waits from now on, and drop a plan that misses the deadline."""
        known = self.best_in_time([self.results.best])
        task = replace(self.task, exact=self.problem, known=known)
        self.results = replace(self.results, task=task, early_plan=known)
        self.results.bound = max(self.results.bound, task.least_value)
        self.report(self.results)

    def overlap_matters(self) -> bool:
        """Return whether a search for plans with overlapped transfers may pay.

        If the deadline is met, it may only save the time in which the processor waits.
        """
        known, gap = self.results.best, self.settings.gap
        return known is None or self.waits(known) > gap * self.task.value(known)

    def search_in_time(self) -> None:
        """Search for plans that meet the deadline, from the best plan found before."""
        known = self.best_in_time([self.results.best, *self.overlapped])
        task = replace(self.results.task.within(1.0), known=known)
        self.results = self.search(task, self.results.bound, self.results.learnt)

    def has_no_plan_in_time(self) -> bool:
        return not self.is_in_time(self.results.best)

    def waits(self, plan: Candidate) -> float:
        """Return what the time costs in which the processor waits for transfers."""
        return self.task.value(plan) - energy_uj(self.task_without_waits.padded, plan.events)

    def search_overlapped(self) -> None:
        """Search for plans whose transfers run while the processor computes.

        Each search starts from the best of the plans found before it. For a deadline that no plan
        has met yet, weighted time is added to the objective. Several weights are tried, to find the
        least weight whose plan meets the deadline. Weight 0 is left out if the objective is energy
        alone, which was the objective of the first search. It is also left out if the processor
        alone makes the first plan late.
        """
        first, policy = self.first, self.policy
        known: list[Candidate] = []

        def meets_deadline(weight_per_us: float, share: float) -> bool:
            task = self.task.within(share).overlapped(weight_per_us)
            if (
                first is not None
                and not known
                and fits(task.padded, first.events, task.padded_ram_bytes)
            ):
                known.append(first)
            task = replace(task, known=min(known, key=task.value, default=None))
            best = self.search(task).best
            if best is not None:
                known.append(best)
                self.overlapped.append(self.with_early_transfers(best))
            return best is not None and self.is_in_time(self.overlapped[-1])

        deadline_us = self.problem.deadline_us
        is_new = bool(self.task.value_per_us) or deadline_us is None
        busy = with_processor_time(without_energy(self.task.padded), 1.0)
        busy_us = energy_uj(busy, first.events) if first is not None else 0.0
        is_late = deadline_us is not None and busy_us > _latest_us(deadline_us)
        if is_new and not is_late and meets_deadline(0.0, policy.overlapped_time_share):
            return
        if deadline_us is None or not meets_deadline(INFINITY, policy.overlapped_time_share):
            return
        nodes = self.task.padded.nodes
        total = sum(node.energy_uj for node in nodes)
        weight = total / max(sum(node.time_us for node in nodes), 1.0) or 1.0
        factor = policy.time_weight_factor
        for _ in range(policy.max_time_weights):
            is_enough = meets_deadline(weight, policy.weighted_time_share)
            weight *= 1 / factor if is_enough else factor
            factor **= policy.time_weight_decay

    def try_last_resort(self) -> None:
        """Take the best greedy or seed plan. The searches may end before they try any of them."""
        plan, policy, nodes = None, self.policy, self.problem.graph.nodes
        if not self.is_interrupted:
            limit_s = policy.last_resort_s + policy.last_resort_s_per_node * len(nodes)
            task = replace(
                self.task, exact=self.problem, ends_at=now_s() + self.clock.left_s + limit_s,
                seed_plans=self.seed_plans,
            )  # fmt: skip
            last = last_results(task.left_s, adopt_seed_plans, task)
            self.began_from = last.get("began from", self.began_from)
            plan = last.get("plan")
        self.results = replace(self.results, early_plan=plan, bound_plan=None, late_plan=None)

    def with_early_transfers(self, plan: Candidate) -> Candidate:
        """Start the transfers of a plan early. A search without a deadline does not do this."""
        if plan.events in self.early:
            return self.early[plan.events]
        policy = self.policy
        share_s = self.clock.left_s * policy.transfer_order_time_share
        limit_s = max(self.reserve_s / 2, min(share_s, policy.max_transfer_order_s))
        last = last_results(
            limit_s, _start_transfers_early, self.task.exact, plan.events, self.settings.placed,
            limit_s, policy.effort_time_share,
        )  # fmt: skip
        return self.early.setdefault(plan.events, last["plan"]) if "plan" in last else plan

    def is_in_time(self, plan: Candidate | None) -> bool:
        deadline_us = self.problem.deadline_us
        if plan is None or deadline_us is None:
            return plan is not None
        return plan.totals.longest_us <= _latest_us(deadline_us)

    def best_in_time(self, plans: Iterable[Candidate | None]) -> Candidate | None:
        in_time = [plan for plan in plans if plan is not None and self.is_in_time(plan)]
        return min(in_time, key=self.task.value, default=None)


def _latest_us(deadline_us: float) -> float:
    return deadline_us * (1 + TOLERANCE)


def _stopped_by(results: Results, plan: Plan, wanted_gap: float) -> StoppedBy:
    if plan.is_within(wanted_gap):
        return "gap" if plan.gap else "proof"
    if results.is_interrupted:
        return "interrupt"
    if results.is_exhausted:
        return "exhausted"
    return "time-limit" if counted_s() is None else "work-limit"


def _start_transfers_early(
    problem: Problem,
    events: Sequence[Event],
    placed: bool,
    limit_s: float,
    effort_time_share: float,
    channel: Channel,
) -> None:
    """Start the transfers of a plan early, and emit the plan. This function runs in a worker.

    The result of little effort comes first: more effort may take longer than the caller waits.
    """
    efforts: tuple[Effort, ...] = ("little", "full")
    least_us, ends_at = INFINITY, now_s() + limit_s
    for effort in efforts:
        left_s = (ends_at - now_s()) * effort_time_share
        results = candidate_of(problem, events, placed=placed, time_limit_s=left_s, effort=effort)
        if isinstance(results, Candidate) and results.totals.time_us < least_us:
            least_us = results.totals.time_us
            channel.emit("plan", results)


_Phases = tuple[Phase[Searches], ...]
PHASES: _Phases = (
    ("kept tensors", Searches.loses_kept_tensor, Searches.refuse),
    ("least RAM", Searches.exceeds_ram, Searches.refuse_ram),
    ("without waits", always, Searches.search_without_waits),
    ("smallest RAM", Searches.is_infeasible, Searches.refuse_ram),
    ("longer without waits", Searches.may_ignore_waits, Searches.search_longer_without_waits),
    ("with waits", Searches.waits_matter, Searches.search_with_waits),
    ("last resort", Searches.has_no_plan_in_time, Searches.try_last_resort),
)
PHASES_WITH_WAITS: _Phases = (
    ("least time", Searches.exceeds_deadline, Searches.refuse_deadline),
    ("counted waits", always, Searches.count_waits),
    ("overlapped", Searches.overlap_matters, Searches.search_overlapped),
    ("in time", always, Searches.search_in_time),
    ("smallest deadline", Searches.is_infeasible, Searches.refuse_deadline),
)
