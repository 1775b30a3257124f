"""Repair: make plans from the solutions of the bound search.

The bound search solves relaxations, so its solutions may lack inputs, or need too much RAM within
stages. Often only a few stages are at fault. The primal search solves these stages again, with all
inputs and with the conflicts (conflicts.py) of the solution, and leaves the rest as it is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..plan.events import Event, fits, tidy
from ..work import now_s
from .models import conflicts, solution
from .models.stage_columns import StageModel
from .policy import DepthLimit
from .program import Result, Values, minimise
from .recompute_candidates import RecomputeCandidates
from .search import Search


@dataclass
class RepairSearch(Search):
    known_conflicts: dict[conflicts.Conflict, None] = field(default_factory=dict)

    def receive(self) -> None:
        """Try a solution that the bound search has found."""
        offered = self.channel.receive()
        events = None if offered is None else self.repaired(offered)
        if events is None:
            return
        graph = self.task.padded
        if fits(graph, events, self.task.padded_ram_bytes):
            self.try_plan(events)
            return
        recomputed = [
            sorted(nodes) for nodes in solution.recomputed_by_stage(graph, events).values()
        ]
        self.try_recomputations(recomputed, self.task.left_s * self.policy.plan_time_share)

    def repaired(self, events: Sequence[Event]) -> Sequence[Event] | None:
        """Repair a solution of a relaxation as far as possible.

        Return None unless the result is better than the incumbent.
        """
        ends_at = now_s() + self.task.left_s * self.policy.repair_time_share
        faulty: set[int] = set()
        margin = self.policy.repair_margin
        repeats: set[tuple[int, int]] = set()
        model = self.neighbourhood_model(events)
        while model is not None and now_s() < ends_at and not self.is_over:
            values = solution.values_of(model, events, repeats)
            violated = solution.violated_stages(model, values)
            if not violated:
                new = conflicts.violated_sets(model, values)
                if not new:
                    break
                violated = {conflict.stage for conflict in new}
                self.known_conflicts.update(dict.fromkeys(new))
                model = self.neighbourhood_model(events)
                if model is None:
                    break
                values = solution.values_of(model, events, repeats)
            faulty |= violated
            last = len(model.stages) - 1
            around = (range(max(0, k - margin), min(k + margin, last) + 1) for k in faulty)
            window = set().union(*around)
            if len(window) > self.policy.max_repaired_share * len(model.stages):
                break
            result = self.solve_neighbourhood(model, values, window)
            if result.values is None:
                margin *= self.policy.repair_margin_growth
            elif result.objective >= self.incumbent_value - self.least_improvement:
                return None
            else:
                events = tidy(self.task.padded, solution.events(model, result.values))
                repeats = solution.repeated(model, result.values)
        return events

    @property
    def overhead_gap(self) -> float:
        overhead = self.incumbent_value - self.task.least_value
        return self.policy.overhead_gap * overhead if self.incumbent else 0.0

    def enough(self, value: float) -> float:
        """Return the value of a plan that is good enough for a solution of this value."""
        return value + self.policy.enough_gaps * self.overhead_gap

    @property
    def least_improvement(self) -> float:
        """Return by how much a solution must be better than the incumbent to be tried."""
        return self.overhead_gap / self.policy.improvements_per_gap

    def limited(
        self, limit: DepthLimit, events: Sequence[Event] | None = None
    ) -> RecomputeCandidates:
        """Return the candidates within a depth limit, and the recomputations of `events`.

        `events`: None means those of the incumbent. Stages with known conflicts, and their
        neighbours, offer all recomputations.
        """
        if events is None and self.incumbent is not None:
            events = self.incumbent.events
        also = None if events is None else solution.recomputed_by_stage(self.task.padded, events)
        return self.candidates(
            overhead=self.overhead,
            depth_limit=limit,
            also=also,
            conflict_stages={conflict.stage for conflict in self.known_conflicts},
        )

    def add_conflicts(self, model: StageModel, values: Values) -> bool:
        """Add constraints against the new conflicts in a solution. Return whether there are any.

        A conflict (conflicts.py) is a set of recomputations that do not fit into RAM together.
        """
        new = [
            conflict
            for conflict in conflicts.violated_sets(model, values)
            if conflict not in self.known_conflicts
        ]
        self.known_conflicts.update(dict.fromkeys(new))
        for conflict in new:
            conflicts.forbid(model, conflict)
        return bool(new)

    def model_with_conflicts(
        self, candidates: RecomputeCandidates, ram_bytes: int, deadline_us: float | None
    ) -> StageModel | None:
        """Return the stage model with all conflicts found so far."""
        model = self.stage_model(candidates, ram_bytes, deadline_us)
        if model is not None:
            for conflict in self.known_conflicts:
                conflicts.forbid(model, conflict)
        return model

    def neighbourhood_model(self, events: Sequence[Event]) -> StageModel | None:
        """Return the stage model with the longest chains of recomputations that is small enough,
        and with the recomputations of `events`.

        It is small enough if it has at most `max_neighbourhood_columns` columns. If no model is,
        return the one with the shortest chains.
        """
        for depth in self.policy.neighbourhood_depths:
            candidates = self.limited(DepthLimit(depth, 1.0), events)
            model = self.model_with_conflicts(
                candidates, self.task.padded_ram_bytes, self.task.deadline_us
            )
            if model is None or len(model.program.cost) <= self.policy.max_neighbourhood_columns:
                break
        return model

    def solve_neighbourhood(
        self, model: StageModel, values: Values, window: Iterable[int], *, initial: bool = False
    ) -> Result:
        """Solve a model with all fixed to `values`, except the stages in `window`.

        `initial`: whether the values are a solution.
        """
        return minimise(
            solution.neighbourhood(model, values, window),
            min(self.policy.neighbourhood_limit_s, self.task.left_s),
            absolute_gap=self.least_improvement,
            worst=self.incumbent_value,
            initial=values if initial else None,
            presolve=self.task.presolve,
            on_progress=self.on_progress,
        )
