"""Repair: make plans from the solutions of the bound search.

The bound search solves relaxations, so its solutions may lack inputs, or need too much RAM within
stages. Often only a few stages are at fault. The primal search solves these stages again, with all
inputs and with the conflicts (conflicts.py) of the solution, and leaves the rest as it is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..work import now_s
from .events import Event, fits, tidy
from .models import conflicts, solution
from .models.stage_columns import StageModel
from .program import Result, Values, minimise
from .recompute_candidates import DepthLimit, RecomputeCandidates
from .search import Search

PLAN_TIME_SHARE = 0.1  # share of the time left that making a plan from a solution may take
# Stop a minimisation when value - bound is at most this share of the overhead. The overhead is what
# the best plan spends in addition to what every plan must spend.
OVERHEAD_GAP = 0.02

NEIGHBOURHOOD_DEPTHS, MAX_NEIGHBOURHOOD_COLUMNS = (16, 6, 4, 3, 2), 40_000
NEIGHBOURHOOD_LIMIT_S = 3.0
IMPROVEMENTS_PER_GAP = 20  # ignore improvements of less than `overhead_gap` divided by this

REPAIR_TIME_SHARE = 0.2  # share of the time left that the repair of one solution may take
# Stages that are solved again, before and after each faulty stage. If that gives no solution, the
# number is multiplied by REPAIR_MARGIN_GROWTH.
REPAIR_MARGIN, REPAIR_MARGIN_GROWTH = 2, 4
MAX_REPAIRED_SHARE = 0.3  # largest share of the stages that are solved again


@dataclass
class RepairSearch(Search):
    known_conflicts: dict[conflicts.Conflict, None] = field(default_factory=dict)

    def receive(self) -> None:
        """Try a solution that the bound search has found."""
        offered = self.channel.receive()
        events = None if offered is None else self.repaired(offered)
        if events is None:
            return
        graph = self.task.graph
        if fits(graph, events, self.task.ram_bytes):
            self.try_plan(events)
            return
        recomputed = [sorted(it) for it in solution.recomputed_by_stage(graph, events).values()]
        enough = self.task.least_value_of(events) + 2 * self.overhead_gap
        self.try_recomputations(recomputed, self.task.left_s * PLAN_TIME_SHARE, enough=enough)

    def repaired(self, events: Sequence[Event]) -> Sequence[Event] | None:
        """Repair a solution of a relaxation as far as possible.

        Return None unless the result is better than the incumbent.
        """
        ends_at = now_s() + self.task.left_s * REPAIR_TIME_SHARE
        faulty: set[int] = set()
        margin = REPAIR_MARGIN
        repeats: set[tuple[int, int]] = set()
        model = self.neighbourhood_model(events)
        while model is not None and now_s() < ends_at and not self.is_over:
            values = solution.values_of(model, events, repeats)
            violated = solution.violated_stages(model, values)
            if not violated:
                found = conflicts.violated_sets(model, values)
                if not found:
                    break
                violated = {conflict.stage for conflict in found}
                self.known_conflicts.update(dict.fromkeys(found))
                model = self.neighbourhood_model(events)
                if model is None:
                    break
                values = solution.values_of(model, events, repeats)
            faulty |= violated
            last = len(model.stages) - 1
            around = (range(max(0, k - margin), min(k + margin, last) + 1) for k in faulty)
            window = set().union(*around)
            if len(window) > MAX_REPAIRED_SHARE * len(model.stages):
                break
            result = self.solve_neighbourhood(model, values, window)
            if result.values is None:
                margin *= REPAIR_MARGIN_GROWTH
            elif result.objective >= self.incumbent_value - self.least_improvement:
                return None
            else:
                events = tidy(self.task.graph, solution.events(model, result.values))
                repeats = solution.repeated(model, result.values)
        return events

    @property
    def overhead_gap(self) -> float:
        least = self.task.least_value
        return OVERHEAD_GAP * (self.incumbent_value - least) if self.incumbent else 0.0

    @property
    def least_improvement(self) -> float:
        """Return by how much a solution must be better than the incumbent to be tried."""
        return self.overhead_gap / IMPROVEMENTS_PER_GAP

    def limited(
        self, limit: DepthLimit, events: Sequence[Event] | None = None
    ) -> RecomputeCandidates:
        """Return the candidates within a depth limit, and the recomputations of `events`.

        `events`: None means those of the incumbent. Stages with known conflicts, and their
        neighbours, offer all recomputations.
        """
        if events is None and self.incumbent is not None:
            events = self.incumbent.events
        also = None if events is None else solution.recomputed_by_stage(self.task.graph, events)
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
        found = [
            it for it in conflicts.violated_sets(model, values) if it not in self.known_conflicts
        ]
        self.known_conflicts.update(dict.fromkeys(found))
        for conflict in found:
            conflicts.forbid(model, conflict)
        return bool(found)

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

        It is small enough if it has at most MAX_NEIGHBOURHOOD_COLUMNS columns. If no model is,
        return the one with the shortest chains.
        """
        for depth in NEIGHBOURHOOD_DEPTHS:
            candidates = self.limited(DepthLimit(depth, 1.0), events)
            model = self.model_with_conflicts(
                candidates, self.task.ram_bytes, self.task.deadline_us
            )
            if model is None or len(model.program.cost) <= MAX_NEIGHBOURHOOD_COLUMNS:
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
            min(NEIGHBOURHOOD_LIMIT_S, self.task.left_s),
            absolute_gap=self.least_improvement,
            initial=values if initial else None,
            presolve=self.task.presolve,
            on_progress=self.on_progress,
        )
