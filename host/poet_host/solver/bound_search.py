"""Bound search: find higher and higher lower bounds of the value of all plans.

It solves the stage model (stage_model.py), an integer program. The incumbent is the best plan so
far. The model offers every recomputation that a better plan may contain. The incumbent is proved
optimal when the bound reaches its value.

The whole model is large, so the search begins with a relaxation, in which recomputations need no
inputs. Few recomputations are part of its solution. Those whose inputs are not in RAM become
*strict*: in the next model, they need their inputs. So the models grow only where a solution was
too good to be true. A solution with no such recomputation is one of the whole model too.
"""

from dataclasses import dataclass, field

from ..plan.problem import TOLERANCE
from . import conflicts, solution
from .candidate import Candidate
from .program import INFINITY, Outcome, Values, minimise
from .search import Search, Task
from .stage_columns import ALWAYS_IN_RAM, Columns, Stage, StageModel
from .workers import Channel

RELAXATION_TIME_SHARE = 0.1  # share of the time left that each program of `first_bound` may take
# The same, if the bound search of a graph with modes continues after `first_bound` ran out of time.
LONG_RELAXATION_TIME_SHARE = 0.6
PLAN_TIME_SHARE = 0.1  # share of the time left that making a plan from the relaxation may take
GAP_SHARE = 0.2  # share of the wanted gap that each model may leave


def first_bound(task: Task, channel: Channel) -> tuple[float, bool]:
    """Find a lower bound quickly, as if recomputations needed no inputs. Emit it.

    Return it, and whether no better bound can be found in this way.
    """
    search = BoundSearch(task, channel)
    outcome = search.relax(RELAXATION_TIME_SHARE)
    return search.bound, outcome != "stopped"


def search_bounds(
    task: Task, incumbent: Candidate | None, is_relaxed: bool, channel: Channel
) -> None:
    """Emit higher and higher bounds on all plans. `incumbent` is the best plan known so far.

    `is_relaxed`: whether `first_bound` found the best bound that it can find.
    """
    search = BoundSearch(task, channel)
    if incumbent is not None:
        search.incumbent = incumbent
        search.incumbent_value = task.value(incumbent)
    if not is_relaxed and task.graph.has_modes:
        search.relax(LONG_RELAXATION_TIME_SHARE)
    search.run()


@dataclass
class BoundSearch(Search):
    bound: float = -INFINITY
    strict: set[int] = field(default_factory=set)  # nodes whose recomputations need their inputs
    known_conflicts: list[conflicts.Conflict] = field(default_factory=list)

    def run(self) -> None:
        """Solve larger and larger models, until a solution is a plan, or time is up."""
        goes_on = True
        while goes_on and not self.is_proved and not self.is_over:
            model = self.next_model()
            values = None if model is None else self.solve(model)
            if model is None or values is None:
                return
            goes_on = self.tighten(model, values)

    def next_model(self) -> StageModel | None:
        """Return the model with all that was learnt from the solutions before it."""
        candidates = self.candidates(
            self.strict,
            overhead=self.overhead,
            conflict_stages={conflict.stage for conflict in self.known_conflicts},
        )
        model = self.stage_model(candidates, self.task.ram_bytes, self.task.deadline_us)
        if model is not None:
            for conflict in self.known_conflicts:
                conflicts.forbid(model, conflict)
        return model

    def tighten(self, model: StageModel, values: Values) -> bool:
        """Make recomputations strict, or add conflicts, that forbid a solution.

        Return whether there are any. A solution without them may be a plan, which is tried.
        """
        weak = _weak(model, values)
        self.strict |= weak
        if weak:
            return True
        self.try_solution(model, values, self.task.left_s)
        self.strict.update(*solution.recomputed(model, values))
        found = [
            it for it in conflicts.violated_sets(model, values) if it not in self.known_conflicts
        ]
        self.known_conflicts += found
        return bool(found)

    def relax(self, share: float) -> Outcome:
        """Solve a stage model in which recomputations need no inputs, and try its solution.

        `share`: the share of the time left that each program may take.
        """
        model = self.stage_model(
            self.candidates(self.strict), self.task.ram_bytes, self.task.deadline_us
        )
        if model is None:
            return "stopped"
        for integer in (False, True):
            found = minimise(
                model.program,
                self.task.left_s * share,
                integer=integer,
                presolve=self.task.presolve,
                on_progress=self.on_relaxed_progress,
            )
            self.raise_bound(found.bound)
        if found.values is not None and self.task.graph.has_modes:
            recomputed = solution.recomputed(model, found.values)
            limit_s = self.task.left_s * PLAN_TIME_SHARE
            if any(recomputed):
                self.try_recomputations(recomputed, limit_s)
            else:
                self.try_solution(model, found.values, limit_s)
        return found.outcome

    def on_relaxed_progress(self, bound: float, values: Values | None) -> bool:
        self.raise_bound(bound)
        return self.is_over or self.is_proved

    @property
    def is_proved(self) -> bool:
        return self.bound >= self.incumbent_value * (1 - TOLERANCE)

    def raise_bound(self, bound: float) -> None:
        """Emit the bound if it is higher than the last one.

        The model leaves out plans that are worse than the incumbent, the best plan so far. So its
        bounds are valid only up to the incumbent's value, and higher ones are cut to it.
        """
        bound = min(bound, self.incumbent_value)
        if bound > self.bound:
            self.bound = bound
            self.channel.emit("bound", bound)

    def solve(self, model: StageModel) -> Values | None:
        """Solve the integer program. Return its optimum, unless the incumbent is proved optimal."""
        task = self.task

        def on_progress(bound: float, values: Values | None) -> bool:
            self.raise_bound(bound)
            if values is not None and not _weak(model, values):
                self.channel.emit("solution", solution.recomputed(model, values))
            return self.is_over or self.is_proved

        def receive() -> Values | None:
            plan = self.channel.receive()
            if plan is None or task.value(plan) >= self.incumbent_value:
                return None
            self.incumbent, self.incumbent_value = plan, task.value(plan)
            return solution.values_of(model, plan.events)

        found = minimise(
            model.program,
            task.left_s,
            gap=task.gap * GAP_SHARE,
            initial=solution.values_of(model, self.incumbent.events) if self.incumbent else None,
            presolve=task.presolve,
            on_progress=on_progress,
            receive=receive,
        )
        self.raise_bound(found.bound)
        return found.values if found.outcome == "optimal" and not self.is_proved else None


def _weak(model: StageModel, values: Values) -> set[int]:
    """Return the nodes whose recomputations in a solution need inputs that are not in RAM.

    A node with modes counts too, since its modes may need different inputs.
    """
    modes = model.modes
    return {
        i
        for stage in model.stages
        for i, column in stage.computed.items()
        if values[column] > 0.5
        and i not in modes.strict
        and (
            model.graph.nodes[i].modes
            or not all(_is_in_ram(stage, values, a) for a in model.graph.nodes[i].inputs)
        )
    }


def _is_in_ram(stage: Stage, values: Values, i: int) -> bool:
    """Return whether tensor i is in RAM at some moment of a stage."""

    def has(columns: Columns) -> bool:
        return i in columns and (columns[i] == ALWAYS_IN_RAM or values[columns[i]] > 0.5)

    return any(map(has, (stage.before, stage.computed, stage.paged)))
