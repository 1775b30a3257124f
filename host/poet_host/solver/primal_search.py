"""Primal search: find better and better plans.

It solves stage models (stage_model.py) with more and more recompute candidates, and makes plans
from their solutions. Then neighbourhood search optimises parts of the incumbent again, while the
rest stays fixed.
"""

import random
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from typing import Self

from ..packing.blocks import aligned
from ..plan.events import Candidate, Event, events_of, normal_order, tidy
from ..plan.placed_plan import Excess
from ..plan.plan import Plan
from ..plan.problem import TOLERANCE
from ..plan.verify import verify
from ..work import now_s
from .bound_search import first_bound
from .greedy import everything_paged, greedy_plans
from .models import solution
from .models.stage_columns import StageModel
from .policy import DepthLimit, Phase, always, run_phases, unless
from .program import INFINITY, Result, minimise
from .recompute_candidates import RecomputeCandidates
from .repair import RepairSearch
from .search import Task
from .settings import Settings
from .states.bound import holds_few
from .states.exact import search_states
from .workers import Channel


def search_plans(task: Task, channel: Channel) -> None:
    """Emit better and better plans, and "ready for bounds" after the first plans."""
    run_phases(PHASES, PrimalSearch.of(task, channel), task.policy.skipped)


def search_again(task: Task, offered: Sequence[Event] | None, channel: Channel) -> None:
    """Emit better plans than `task.known`. `offered`: a solution of the bound search."""
    search = PrimalSearch.of(task, channel)
    search.neighbourhood_seed += 1
    channel.latest = offered
    search.receive()
    run_phases(PHASES_AGAIN, search, task.policy.skipped)


def adopt_seed_plans(task: Task, channel: Channel) -> None:
    """Emit greedy plans and seed plans that meet the limits of the task, better and better ones."""
    search = PrimalSearch(task, channel)
    search.try_greedy_plans()
    search.ask_for_seed_plans(task.ends_at)


@dataclass
class PrimalSearch(RepairSearch):
    asked_seed_plans: bool = False
    first_bound: float = -INFINITY  # found as if recomputations needed no inputs
    is_relaxed: bool = False  # whether no better bound can be found in this way
    is_short_of_time: bool = False  # at the start
    neighbourhood_seed: int = 1

    @classmethod
    def of(cls, task: Task, channel: Channel) -> Self:
        """Return a search that begins with the task's known plan, if there is one."""
        value = INFINITY if task.known is None else task.value(task.known)
        is_short_of_time = task.left_s < task.policy.short_time_s
        return cls(task, channel, task.known, value, is_short_of_time=is_short_of_time)

    def is_hurried(self) -> bool:
        return self.task.is_large or self.is_short_of_time

    def has_no_plan(self) -> bool:
        return self.incumbent is None

    def bounds_at_once(self) -> bool:
        """Return whether the bound search begins before the first stage models.

        It does where the first bound can still rise in this way, and for a large graph, whose first
        stage models take long.
        """
        task = self.task
        return task.is_large or (task.padded.has_streaming_modes and not self.is_relaxed)

    def search_all_states(self, max_labels: int, share: float = 1.0) -> bool:
        """Search all states of a small graph. Return whether the result is proved.

        `share`: the largest part of the time left that this search may take.
        """
        task = self.task
        ends_at = now_s() + task.left_s * share
        if self.is_over:
            return False
        result = search_states(task, max_labels, lambda: self.is_over or now_s() > ends_at)
        if result is None:
            return False
        if result.events is None:
            self.channel.emit("bound", INFINITY)
            return True
        events = result.events if task.is_timed else tidy(task.padded, result.events)
        self.try_plan(events)
        self.channel.emit("bound", result.value)
        return self.incumbent_value <= result.value * (1 + TOLERANCE)

    def try_greedy_plans(self) -> None:
        """Try plans that page out the tensors needed latest. If none fits, page every tensor.

        For a large graph, the plan that pages every tensor comes first.
        """
        task = self.task
        if not task.padded.storage or not task.page:
            return
        if task.is_large:
            self.try_plan(everything_paged(task.modes))
        for events in greedy_plans(task.modes, task.padded_ram_bytes, self.policy):
            if self.try_plan(events):
                return
        if self.incumbent is None:
            self.try_plan(everything_paged(task.modes))

    def search_all_states_quickly(self) -> bool:
        return self.search_all_states(self.policy.exact_labels_first, self.policy.exact_time_share)

    def find_first_bound(self) -> None:
        self.first_bound, self.is_relaxed = first_bound(self)

    def try_offered(self) -> None:
        """Try the plan for similar costs, if there is one."""
        self.channel.latest = self.task.offered or None
        self.receive()

    def allow_bound_search(self) -> None:
        """Emit "ready for bounds"; if the incumbent is far from the bound, try seed plans first."""
        if self.is_far_from_bound():
            self.try_seed_plans()
        self.begin_bound_search()

    def bounds_by_states(self) -> bool:
        """Return whether the bound search begins with a search over states.

        That needs no first bound, and no good plan.
        """
        return holds_few(self.task)

    def begin_bound_search(self) -> None:
        self.channel.emit("ready for bounds", self.is_relaxed)

    def is_far_from_bound(self) -> bool:
        return self.incumbent_value * (1 - self.policy.seed_plan_gap) > self.first_bound

    def try_seed_plans(self) -> None:
        """Try the plans of other methods (seed plans), if this was not done before.

        If one of them is the best plan so far, optimise its paging, with the same recomputations
        or fewer.
        """
        task, before = self.task, self.incumbent_value
        share = self.policy.seed_plans_time_share
        if task.deadline_us is not None:
            share = self.policy.seed_plans_time_share_deadline
        if not self.asked_seed_plans:
            self.ask_for_seed_plans(now_s() + task.left_s * share)
        if self.incumbent is not None and self.incumbent_value < before:
            stages = solution.recomputed_by_stage(task.padded, self.incumbent.events).values()
            limit_s = task.left_s * self.policy.plan_time_share
            self.try_recomputations([sorted(stage) for stage in stages], limit_s)

    def ask_for_seed_plans(self, ends_at: float) -> None:
        task = self.task
        self.asked_seed_plans = True
        for seed_plan in task.seed_plans:
            left_s = ends_at - now_s()
            if left_s <= 0 or self.channel.is_stopped():
                break
            settings = Settings(left_s, placed=task.placed, below=self.incumbent_value)
            plan = seed_plan(task.exact, settings)
            if plan is not None:
                self.adopt(plan)

    def adopt(self, plan: Plan) -> None:
        """Try a seed plan, and emit its method's name if it is better than all plans so far."""
        before = self.incumbent_value
        self._adopt(plan)
        if self.incumbent_value < before:
            self.channel.emit("began from", plan.method)

    def _adopt(self, plan: Plan) -> None:
        """Try a plan in `normal_order`. If this order does not fit, adopt the plan unchanged.

        Do nothing if the task does not allow the plan's recomputations or pages.
        """
        task = self.task
        events = events_of(task.padded, plan.statements)
        if not task.allows(events):
            return
        self.try_plan(normal_order(task.padded, events))
        if task.least_value_of(events) >= self.incumbent_value * (1 - TOLERANCE):
            return
        free = replace(task.exact, deadline_us=None)
        totals = verify(free, replace(plan, deadline_us=None), task.placed)
        candidate = Candidate(plan.statements, plan.initial_offsets, totals, tuple(events))
        self.take(candidate, task.value(candidate))

    def deepen_shallow(self) -> None:
        share = self.policy.shallow_time_share
        if self.task.deadline_us is not None and self.task.known is None:
            share = self.policy.shallow_time_share_deadline
        self.deepen(self.policy.shallow_limits, share)

    def deepen(self, limits: Iterable[DepthLimit], share: float) -> None:
        """Solve a stage model for each depth limit, each time within a share of the time left."""
        offered = -1
        for limit in limits:
            if self.is_over:
                break
            candidates = self.limited(limit)
            before, offered = offered, _count(candidates)
            if offered != before:
                self.solve_to_fit(candidates, share)
            self.receive()

    def solve_to_fit(self, candidates: RecomputeCandidates, share: float) -> None:
        """Solve a stage model. While its plan cannot fit, solve again with less RAM or time."""
        ram_bytes, deadline_us = self.task.padded_ram_bytes, self.task.deadline_us
        for _ in range(self.policy.max_tightenings):
            self.solve(candidates, ram_bytes, deadline_us, self.task.left_s * share)
            if self.excess.needs_less_ram:
                ram_bytes -= aligned(self.excess.ram_bytes)
            elif self.excess.time_us and deadline_us is not None:
                deadline_us -= self.excess.time_us
            else:
                break

    def solve(
        self,
        candidates: RecomputeCandidates,
        ram_bytes: int,
        deadline_us: float | None,
        limit_s: float,
        staying: Set[int] | None = None,
    ) -> None:
        """Solve a stage model, and try the plans of its solutions.

        `staying`: these tensors stay in RAM, and no others; None: the model decides.
        """
        self.excess = Excess()
        model = self.model_with_conflicts(candidates, ram_bytes, deadline_us)
        if model is not None and staying is not None:
            for i, column in model.starts.items():
                model.program.fix(column, float(i in staying))
        for _ in range(self.policy.max_cut_rounds):
            if model is None or self.is_over:
                return
            result = self.minimise(model, limit_s)
            if result.values is None:
                return
            plan_limit_s = self.task.left_s * self.policy.plan_time_share
            enough = self.enough(result.objective)
            plan_value = self.try_solution(model, result.values, plan_limit_s, deadline_us)
            if plan_value <= enough:
                return
            if not self.add_conflicts(model, result.values):
                return

    def minimise(self, model: StageModel, limit_s: float) -> Result:
        best = self.incumbent
        return minimise(
            model.program,
            limit_s,
            gap=self.task.gap * self.policy.model_gap_share,
            absolute_gap=self.overhead_gap,
            worst=self.incumbent_value,
            initial=solution.values_of(model, best.events) if best else None,
            presolve=self.task.presolve,
            on_progress=self.on_progress,
        )

    def search_neighbourhoods(self) -> None:
        """Solve parts of the incumbent again, with the rest fixed, until too many attempts fail."""
        policy, rng = self.policy, random.Random(self.neighbourhood_seed)
        share, failed = policy.neighbourhood_share, 0
        model: StageModel | None = None
        centre: Candidate | None = None
        while not self.is_over and failed < policy.max_failed_neighbourhoods:
            self.receive()
            if self.incumbent is None:
                return
            if model is None or centre is not self.incumbent:
                centre, failed = self.incumbent, 0
                model = self.neighbourhood_model(centre.events)
                if model is None:
                    return
                values = solution.values_of(model, centre.events)
                overhead = solution.overhead_by_stage(model, values)
            stages = len(model.stages)
            length = max(2, round(stages * share))
            begin = rng.choices(range(stages), overhead)[0] - length // 2
            window = range(max(0, begin), min(begin + length, stages))
            result = self.solve_neighbourhood(model, values, window, initial=True)
            failed += 1
            least = self.incumbent_value - self.least_improvement
            if result.values is not None and result.objective < least:
                self.try_solution(model, result.values, policy.neighbourhood_limit_s)
                missed = self.incumbent_value > result.objective + self.least_improvement
                if missed and self.add_conflicts(model, result.values):
                    values = solution.values_of(model, centre.events)
            is_solved = result.outcome == "optimal"
            share *= policy.neighbourhood_growth if is_solved else policy.neighbourhood_decay
            share = min(1.0, share)


def _count(candidates: RecomputeCandidates) -> int:
    """Return how many recomputations the candidates offer for the inputs of all operators."""
    return sum(len(candidates.demanded(wanted)) for wanted in candidates.modes.wanted)


_Phases = tuple[Phase[PrimalSearch], ...]
PHASES_AGAIN: _Phases = (  # of a search that goes on after the bound search
    ("neighbourhoods", always, PrimalSearch.search_neighbourhoods),
    (
        "deep",
        always,
        lambda search: search.deepen(search.policy.deep_limits, search.policy.deep_time_share),
    ),
)
FIRST_PHASES: _Phases = (
    ("greedy plans", PrimalSearch.is_hurried, PrimalSearch.try_greedy_plans),
    ("seed plans", PrimalSearch.is_hurried, PrimalSearch.try_seed_plans),
    ("exact", always, PrimalSearch.search_all_states_quickly),
    ("greedy plans", unless(PrimalSearch.is_hurried), PrimalSearch.try_greedy_plans),
    ("seed plans", PrimalSearch.has_no_plan, PrimalSearch.try_seed_plans),
    ("bounds", PrimalSearch.bounds_by_states, PrimalSearch.begin_bound_search),
    ("first bound", always, PrimalSearch.find_first_bound),
    ("offered", always, PrimalSearch.try_offered),
)
LATER_PHASES: _Phases = (
    ("bounds", PrimalSearch.bounds_at_once, PrimalSearch.allow_bound_search),
    ("shallow", always, PrimalSearch.deepen_shallow),
    ("bounds", unless(PrimalSearch.bounds_at_once), PrimalSearch.allow_bound_search),
    ("seed plans", always, PrimalSearch.try_seed_plans),
    (
        "medium",
        always,
        lambda search: search.deepen(search.policy.medium_limits, search.policy.medium_time_share),
    ),
    *PHASES_AGAIN,
    ("exact", always, lambda search: search.search_all_states(search.policy.exact_labels_last)),
)
PHASES: _Phases = (*FIRST_PHASES, *LATER_PHASES)
