"""The code that the primal search and the bound search share.

Both run at the same time (portfolio.py), each in a process of its own. The primal search
(primal_search.py) finds better and better plans. The bound search (bound_search.py) finds higher
and higher lower bounds of the value of all plans. The value of a plan is what the objective
minimises: energy, time, or both with weights (see Problem).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from .. import work
from ..plan.events import Candidate, Event, candidate_of, energy_uj, fits, least_value, tidy
from ..plan.infeasible import need_of
from ..plan.placed_plan import Effort, Excess
from ..plan.plan import Plan
from ..plan.problem import TOLERANCE, CostGraph, Problem, without_energy
from ..work import now_s
from .models import slot_model, solution, stage_model
from .models.stage_columns import StageModel
from .modes import Modes, Strict
from .overlapped import with_processor_time, with_transfer_room
from .policy import DEFAULT_POLICY, SearchPolicy
from .program import INFINITY, NO_LIMITS, TimeLimits, Values, minimise
from .recompute_candidates import RecomputeCandidates, recomputable
from .settings import Settings
from .unavoidable import (
    least_processor_us,
    least_time_us,
    transfers_alone_us,
    unavoidable_uj,
)
from .workers import Channel

NONZERO_S = 3e-6  # to add one to a model, for counted work

SeedPlan = Callable[[Problem, Settings], Plan | None]
"""Returns a plan made without search, from which a search can start; None if it cannot."""


@dataclass(frozen=True)
class Task:
    """One problem that a search solves, with the limits of the search."""

    exact: Problem
    # The problem's graph, with sizes rounded up to multiples of `unit`, and with the energies that
    # the objective counts:
    padded: CostGraph
    value_per_us: float  # part of the objective; see Problem
    padded_ram_bytes: int  # RAM budget for the rounded sizes; see `aligned_budget`
    recompute: bool  # whether nodes may be computed more than once
    page: bool  # whether computed tensors may be paged
    unit: int  # offsets are multiples of this many bytes; 1 if the plan is not placed
    gap: float  # see Settings
    ends_at: float  # now_s()
    seed_plans: tuple[SeedPlan, ...] = ()
    known: Candidate | None = None  # a plan found before
    offered: Sequence[Event] = ()  # of a plan for similar costs; it may break limits
    presolve: bool = True  # False: HiGHS does not simplify programs first
    policy: SearchPolicy = DEFAULT_POLICY

    @cached_property
    def modes(self) -> Modes:
        """Return the modes that plans of this task need."""

        def fits(j: int, m: int) -> bool:
            need = need_of(self.exact.graph, j, m, self.unit)
            return need.bytes <= self.exact.ram_bytes

        return Modes(self.padded, fits, page=self.page, timed=self.is_timed)

    @property
    def is_large(self) -> bool:
        return len(self.padded.nodes) > self.policy.large_graph_nodes

    @property
    def may_recompute(self) -> list[bool]:
        return recomputable(
            self.padded,
            modes=self.modes,
            recompute=self.recompute,
            page=self.page and self.padded.storage,
            deadline=self.deadline_us is not None,
            value_per_us=self.value_per_us,
        )

    def allows(self, events: Sequence[Event]) -> bool:
        """Return whether the events recompute and page no more than the task allows."""
        runs = (self.padded.outputs(i, mode) for op, i, mode in events if op == "compute")
        computed = [made.node for run in runs for made in run]
        paged = any(op == "page_in" and not self.padded.nodes[i].stored for op, i, _ in events)
        return (self.page or not paged) and (self.recompute or len(set(computed)) == len(computed))

    @property
    def is_timed(self) -> bool:
        """Return whether the time of a step matters."""
        return self.deadline_us is not None or self.value_per_us > 0

    def time_limits(self, deadline_us: float | None) -> TimeLimits:
        """Return what a program must know about time."""
        if deadline_us is None and not self.value_per_us:
            return NO_LIMITS
        least_us, alone_us = least_time_us(self.padded), transfers_alone_us(self.padded)
        return TimeLimits(deadline_us, self.value_per_us, least_us, alone_us)

    @property
    def least_value(self) -> float:
        """Return a lower bound of the value of all plans."""
        return unavoidable_uj(self.padded) + self.value_per_us * least_time_us(self.padded)

    def value(self, candidate: Candidate) -> float:
        """Return what the objective minimises."""
        time_us = candidate.totals.time_us
        return energy_uj(self.padded, candidate.events) + self.value_per_us * time_us

    def least_value_of(self, events: Sequence[Event]) -> float:
        return least_value(self.padded, self.value_per_us, events)

    @property
    def placed(self) -> bool:
        return self.unit > 1

    @property
    def deadline_us(self) -> float | None:
        return self.exact.deadline_us

    @property
    def left_s(self) -> float:
        return max(0.0, self.ends_at - now_s())

    def within(self, share: float) -> "Task":
        """Return the same task, limited to a share of the time left."""
        return replace(self, ends_at=now_s() + self.left_s * share)

    def time_weighted(self, weight_per_us: float = INFINITY) -> "Task":
        """Return the same task without a deadline. Time x weight is added to the objective.

        If the weight is infinite, the time alone is the objective.
        """
        free = replace(self, exact=replace(self.exact, deadline_us=None))
        if weight_per_us == INFINITY:
            return replace(free, padded=without_energy(self.padded), value_per_us=1.0)
        return replace(free, value_per_us=self.value_per_us + weight_per_us)

    def overlapped(self, weight_per_us: float = 0.0) -> "Task":
        """Return `time_weighted`, as if all transfers ran while the processor computes."""
        task = self.time_weighted(weight_per_us)
        graph = with_processor_time(task.padded, task.value_per_us)
        graph = with_transfer_room(graph, self.padded_ram_bytes, self.unit)
        return replace(task, padded=graph, value_per_us=0.0)


@dataclass
class Search:
    """The base of both searches: the incumbent, and how to make plans from solutions."""

    task: Task
    channel: Channel
    incumbent: Candidate | None = None
    incumbent_value: float = INFINITY
    excess: Excess = field(default_factory=Excess)  # of the plan tried last
    tried: set[tuple[Event, ...]] = field(default_factory=set)  # if time matters

    @property
    def policy(self) -> SearchPolicy:
        return self.task.policy

    @property
    def is_over(self) -> bool:
        return self.channel.is_stopped() or self.task.left_s == 0.0

    @property
    def overhead(self) -> float:
        """Return the most that a better plan can spend on energy, and on the processor's time
        multiplied by `value_per_us`, beyond what every plan must spend.
        """
        graph, value_per_us = self.task.padded, self.task.value_per_us
        least = unavoidable_uj(graph) + value_per_us * least_processor_us(graph)
        return self.incumbent_value - least

    def candidates(self, strict: Strict | None = None, **options: Any) -> RecomputeCandidates:
        """Return candidates. `strict`: see `Modes.relaxed`; None: all inputs are needed."""
        task = self.task
        return RecomputeCandidates(
            task.padded,
            task.may_recompute,
            value_per_us=task.value_per_us,
            modes=task.modes if strict is None else task.modes.relaxed(strict),
            **options,
        )

    def on_progress(self, bound: float, values: Values | None) -> bool:
        return self.is_over

    def stage_model(
        self, candidates: RecomputeCandidates, ram_bytes: int, deadline_us: float | None
    ) -> StageModel | None:
        """Return the stage model with these candidates; None if the model is too large."""
        try:
            model = stage_model.build(
                candidates,
                ram_bytes,
                page=self.task.page,
                limits=self.task.time_limits(deadline_us),
                out_of_time=lambda: self.is_over,
                policy=self.policy,
            )
        except stage_model.TooLarge:
            return None
        work.add(len(model.program.columns) * NONZERO_S)
        return model

    def try_plan(self, events: Sequence[Event]) -> bool:
        """Make the plan the incumbent if it fits and is better. Set `excess` if it does not fit."""
        task = self.task
        least = task.least_value_of(events)
        self.excess = Excess()
        if not fits(task.padded, events, task.padded_ram_bytes):
            return False
        if self.incumbent is not None and least >= self.incumbent_value * (1 - TOLERANCE):
            return False
        if task.value_per_us:
            if tuple(events) in self.tried:
                return False
            self.tried.add(tuple(events))
            if self.is_surely_worse(events):
                return False
        deadline_us = task.deadline_us
        efforts: tuple[Effort, ...] = ("little", "full") if task.is_timed else ("none",)
        for effort in efforts:
            made = candidate_of(
                task.exact, events, placed=task.placed, time_limit_s=task.left_s, effort=effort
            )
            if isinstance(made, Candidate):
                self.excess = Excess()
                value = task.value(made)
                if self.take(made, value):
                    return True
                if value > self.incumbent_value * (1 + self.policy.max_gain):
                    return False
                continue
            self.excess = made
            if made.time_us > self.policy.max_lateness * (deadline_us or 0.0) or made.ram_bytes:
                return False
        return False

    def take(self, plan: Candidate, value: float) -> bool:
        """Make the plan the incumbent, and emit it, if it is better. Return whether it is."""
        if value >= self.incumbent_value * (1 - TOLERANCE):
            return False
        self.incumbent, self.incumbent_value = plan, value
        self.channel.emit("plan", plan)
        return True

    def is_surely_worse(self, events: Sequence[Event]) -> bool:
        """Return whether the plan is worse than the incumbent even without offsets in RAM.

        This is found much faster than offsets are.
        """
        task = self.task
        if self.incumbent is None or not task.placed:
            return False
        # The events fit the budget for rounded sizes, which may be above the problem's.
        problem = replace(task.exact, ram_bytes=task.padded_ram_bytes)
        made = candidate_of(
            problem, events, placed=False, time_limit_s=task.left_s, effort="little"
        )
        worst = self.incumbent_value * (1 + self.policy.max_gain)
        return isinstance(made, Candidate) and task.value(made) > worst

    def try_solution(
        self,
        model: StageModel,
        values: Values,
        limit_s: float,
        deadline_us: float | None = None,
    ) -> float:
        """Try the plan of a solution. Return the energy of the plan.

        If the simplest order of its events needs too much RAM, the slot model finds a better order.
        """
        graph = model.modes.given
        events = tidy(graph, solution.events(model, values))
        if fits(graph, events, model.ram_bytes):
            self.try_plan(events)
            return self.task.least_value_of(events)
        return self.try_recomputations(
            solution.recomputed(model, values),
            limit_s,
            ram_bytes=model.ram_bytes,
            deadline_us=deadline_us,
        )

    def try_recomputations(
        self,
        recomputed: Sequence[Sequence[int]],
        limit_s: float,
        *,
        ram_bytes: int | None = None,
        deadline_us: float | None = None,
    ) -> float:
        """Try the best plan that recomputes only nodes in `recomputed`. Return its value.

        `recomputed`: the nodes that may be recomputed, by stage. `ram_bytes`, `deadline_us`: limits
        that replace those of the task.
        """
        task = self.task
        ram_bytes = task.padded_ram_bytes if ram_bytes is None else ram_bytes
        deadline_us = task.deadline_us if deadline_us is None else deadline_us
        model = slot_model.build(
            task.padded,
            slot_model.slots_of(task.padded, recomputed),
            ram_bytes,
            page=task.page,
            limits=task.time_limits(deadline_us),
            modes=task.modes,
        )
        # The presolve of HiGHS 1.16 does not end for some slot models of 800 nodes.
        result = minimise(
            model.program, limit_s, worst=self.incumbent_value, presolve=False,
            on_progress=self.on_progress,
        )  # fmt: skip
        if result.values is None:
            return INFINITY
        self.try_plan(tidy(task.padded, slot_model.events(model, result.values)))
        return result.objective
