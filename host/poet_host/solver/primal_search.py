"""Primal search: find better and better plans.

It solves stage models (stage_model.py) with more and more recompute candidates, and makes plans
from their solutions. Then neighbourhood search optimises parts of the incumbent again, while the
rest stays fixed.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..packing.blocks import aligned
from ..plan.placed_plan import Excess
from ..plan.plan import Plan
from ..plan.problem import TOLERANCE
from ..plan.verify import verify
from ..work import now_s
from .bound_search import first_bound
from .candidate import Candidate
from .events import Event, events_of, normal_order, tidy
from .exhaustive import search_exhaustively
from .greedy import everything_paged, greedy_plans
from .models import solution
from .models.stage_columns import StageModel
from .program import INFINITY, Result, minimise
from .recompute_candidates import DepthLimit, RecomputeCandidates
from .repair import NEIGHBOURHOOD_LIMIT_S, PLAN_TIME_SHARE, RepairSearch
from .search import Task
from .settings import Settings
from .workers import Channel

SHORT_TIME_S = 2.0  # if less time is left, greedy plans are tried first
EXHAUSTIVE_LABELS_FIRST, EXHAUSTIVE_LABELS_LAST = 40_000, 2_000_000
EXHAUSTIVE_TIME_SHARE = 0.2  # share of the time left that the first exhaustive search may take

FIRST_LIMITS = (DepthLimit(1), DepthLimit(2))  # solved quickly
MEDIUM_LIMITS = (DepthLimit(4, 0.5), DepthLimit(3), DepthLimit(6))
LAST_LIMITS = (DepthLimit(None, 1.0), DepthLimit(None))
# Shares of the time left that the search with one depth limit may take:
FIRST_TIME_SHARE, FIRST_TIME_SHARE_DEADLINE = 0.12, 0.05
MEDIUM_TIME_SHARE, LAST_TIME_SHARE = 0.1, 0.5
MAX_TIGHTENINGS = 4  # attempts with less RAM or time for a model, until its plan fits
MAX_CUT_ROUNDS = 2

BASELINE_GAP = 0.01  # if the gap to the first bound is larger, seed plans precede the bound search
BASELINE_TIME_SHARE = 0.5  # share of the time left that all seed plans together may take
BASELINE_TIME_SHARE_DEADLINE = 0.15  # the same, if seed plans must meet a deadline

NEIGHBOURHOOD_SHARE = 0.1  # share of the stages in the first neighbourhood
# The share of stages grows after a neighbourhood that was solved, and shrinks after others.
NEIGHBOURHOOD_GROWTH, NEIGHBOURHOOD_DECAY = 1.1, 0.8
MAX_FAILED_NEIGHBOURHOODS = 50  # in a row
SEED = 1


def search_plans(task: Task, channel: Channel) -> None:
    """Emit better and better plans, and "ready for bounds" after the first plans."""
    search = PrimalSearch(task, channel, task.known)
    if task.known is not None:
        search.incumbent_value = task.value(task.known)
    greedy_first = task.is_large or task.left_s < SHORT_TIME_S
    if greedy_first:
        search.try_greedy_plans()
        search.try_seed_plans()
    if search.exhaust(EXHAUSTIVE_LABELS_FIRST, EXHAUSTIVE_TIME_SHARE):
        return
    if not greedy_first:
        search.try_greedy_plans()
    if search.incumbent is None:
        search.try_seed_plans()
    bound, is_relaxed = first_bound(search)
    is_new_deadline = task.deadline_us is not None and task.known is None
    share = FIRST_TIME_SHARE_DEADLINE if is_new_deadline else FIRST_TIME_SHARE
    # The bound search begins at once where the first bound can still rise in this way. It also does
    # for a large graph, whose first stage models take long.
    at_once = task.is_large or (task.graph.has_modes and not is_relaxed)
    if at_once:
        search.allow_bound_search(bound, is_relaxed)
    search.deepen(FIRST_LIMITS, share)
    if not at_once:
        search.allow_bound_search(bound, is_relaxed)
    search.try_seed_plans()
    search.deepen(MEDIUM_LIMITS, MEDIUM_TIME_SHARE)
    search.search_neighbourhoods()
    search.deepen(LAST_LIMITS, LAST_TIME_SHARE)
    search.exhaust(EXHAUSTIVE_LABELS_LAST)


def search_again(task: Task, offered: Sequence[Event] | None, channel: Channel) -> None:
    """Emit better plans than `task.known`. `offered`: a solution of the bound search."""
    search = PrimalSearch(task, channel, task.known)
    if task.known is not None:
        search.incumbent_value = task.value(task.known)
    channel.latest = offered
    search.receive()
    search.search_neighbourhoods(SEED + 1)
    search.deepen(LAST_LIMITS, LAST_TIME_SHARE)


def adopt_seed_plans(task: Task, channel: Channel) -> None:
    """Emit greedy plans and seed plans that meet the limits of the task, better and better ones."""
    search = PrimalSearch(task, channel)
    search.try_greedy_plans()
    for seed_plan in task.seed_plans:
        settings = Settings(task.left_s, placed=task.placed, below=search.incumbent_value)
        plan = None if search.is_over else seed_plan(task.problem, settings)
        if plan is not None:
            search.adopt(plan)


@dataclass
class PrimalSearch(RepairSearch):
    asked_seed_plans: bool = False

    def exhaust(self, max_labels: int, share: float = 1.0) -> bool:
        """Search exhaustively. Return whether the result is proved.

        `share`: the largest part of the time left that this search may take.
        """
        task = self.task
        ends_at = now_s() + task.left_s * share
        if self.is_over:
            return False
        found = search_exhaustively(task, max_labels, lambda: self.is_over or now_s() > ends_at)
        if found is None:
            return False
        if found.events is None:
            self.channel.emit("bound", INFINITY)
            return True
        events = found.events if task.is_timed else tidy(task.graph, found.events)
        self.try_plan(events)
        self.channel.emit("bound", found.value)
        return self.incumbent_value <= found.value * (1 + TOLERANCE)

    def try_greedy_plans(self) -> None:
        """Try plans that page out the tensors needed latest. If none fits, page every tensor.

        For a large graph, the plan that pages every tensor comes first.
        """
        task = self.task
        if not task.graph.storage or not task.page:
            return
        if task.is_large:
            self.try_plan(everything_paged(task.modes))
        for events in greedy_plans(task.modes, task.ram_bytes):
            if self.try_plan(events):
                return
        if self.incumbent is None:
            self.try_plan(everything_paged(task.modes))

    def allow_bound_search(self, bound: float, is_relaxed: bool) -> None:
        """Emit "ready for bounds"; if the incumbent is far from the bound, try seed plans first."""
        if self.incumbent_value * (1 - BASELINE_GAP) > bound:
            self.try_seed_plans()
        self.channel.emit("ready for bounds", is_relaxed)

    def try_seed_plans(self) -> None:
        """Try the plans of other methods (seed plans), if this was not done before.

        If one of them is the best plan so far, optimise its paging, with the same recomputations
        or fewer.
        """
        task, before = self.task, self.incumbent_value
        seed_plans = () if self.asked_seed_plans else task.seed_plans
        self.asked_seed_plans = True
        timed = task.deadline_us is not None
        share = BASELINE_TIME_SHARE_DEADLINE if timed else BASELINE_TIME_SHARE
        ends_at = now_s() + task.left_s * share
        for seed_plan in seed_plans:
            left_s = ends_at - now_s()
            if left_s <= 0:
                break
            settings = Settings(left_s, placed=task.placed, below=self.incumbent_value)
            plan = seed_plan(task.problem, settings)
            if plan is not None:
                self.adopt(plan)
        if self.incumbent is not None and self.incumbent_value < before:
            stages = solution.recomputed_by_stage(task.graph, self.incumbent.events).values()
            limit_s = task.left_s * PLAN_TIME_SHARE
            self.try_recomputations([sorted(stage) for stage in stages], limit_s)

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
        events = events_of(task.graph, plan.statements)
        if not task.allows(events):
            return
        self.try_plan(normal_order(task.graph, events))
        if task.least_value_of(events) >= self.incumbent_value * (1 - TOLERANCE):
            return
        free = replace(task.problem, deadline_us=None)
        totals = verify(free, replace(plan, deadline_us=None), task.placed)
        found = Candidate(plan.statements, plan.initial_offsets, totals, tuple(events))
        if task.value(found) < self.incumbent_value * (1 - TOLERANCE):
            self.incumbent, self.incumbent_value = found, task.value(found)
            self.channel.emit("plan", found)

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
        ram_bytes, deadline_us = self.task.ram_bytes, self.task.deadline_us
        for _ in range(MAX_TIGHTENINGS):
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
    ) -> None:
        """Solve a stage model, and try the plans of its solutions."""
        self.excess = Excess()
        model = self.model_with_conflicts(candidates, ram_bytes, deadline_us)
        for _ in range(MAX_CUT_ROUNDS):
            if model is None or self.is_over:
                return
            found = self.minimise(model, limit_s)
            if found.values is None:
                return
            plan_limit_s = self.task.left_s * PLAN_TIME_SHARE
            enough = found.objective + 2 * self.overhead_gap
            plan_value = self.try_solution(model, found.values, plan_limit_s, deadline_us, enough)
            if plan_value <= enough:
                return
            if not self.add_conflicts(model, found.values):
                return

    def minimise(self, model: StageModel, limit_s: float) -> Result:
        best = self.incumbent
        return minimise(
            model.program,
            limit_s,
            gap=self.task.gap / 2,
            absolute_gap=self.overhead_gap,
            initial=solution.values_of(model, best.events) if best else None,
            presolve=self.task.presolve,
            on_progress=self.on_progress,
        )

    def search_neighbourhoods(self, seed: int = SEED) -> None:
        """Solve parts of the incumbent again, with the rest fixed, until too many attempts fail."""
        rng = random.Random(seed)
        share, failed = NEIGHBOURHOOD_SHARE, 0
        model: StageModel | None = None
        centre: Candidate | None = None
        while not self.is_over and failed < MAX_FAILED_NEIGHBOURHOODS:
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
            found = self.solve_neighbourhood(model, values, window, initial=True)
            failed += 1
            least = self.incumbent_value - self.least_improvement
            if found.values is not None and found.objective < least:
                enough = found.objective + 2 * self.overhead_gap
                self.try_solution(model, found.values, NEIGHBOURHOOD_LIMIT_S, enough=enough)
                missed = self.incumbent_value > found.objective + self.least_improvement
                if missed and self.add_conflicts(model, found.values):
                    values = solution.values_of(model, centre.events)
            solved = found.outcome == "optimal"
            share = (
                min(1.0, share * NEIGHBOURHOOD_GROWTH) if solved else share * NEIGHBOURHOOD_DECAY
            )


def _count(candidates: RecomputeCandidates) -> int:
    """Return how many recomputations the candidates offer for the inputs of all operators."""
    return sum(len(candidates.demanded(wanted)) for wanted in candidates.modes.wanted)
