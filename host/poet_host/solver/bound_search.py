"""Bound search: find higher and higher lower bounds of the value of all plans.

It solves the stage model (stage_model.py), an integer program. The incumbent is the best plan so
far. The model offers every recomputation that a better plan may contain. The incumbent is proved
optimal when the bound reaches its value.
"""

from ..plan.problem import TOLERANCE
from . import conflicts, solution
from .candidate import Candidate
from .program import INFINITY, Outcome, Values, minimise
from .recompute_candidates import DepthLimit
from .search import Search, Task
from .stage_columns import StageModel
from .workers import Channel

RELAXED = DepthLimit(1, needs_inputs=False)
RELAXATION_TIME_SHARE = 0.1  # share of the time left that each program of `first_bound` may take
# The same, if the bound search of a graph with modes continues after `first_bound` ran out of time.
LONG_RELAXATION_TIME_SHARE = 0.6
PLAN_TIME_SHARE = 0.1  # share of the time left that making a plan from the relaxation may take
MAX_CUTS_PER_ROUND = 100  # constraints added at once to the linear relaxation
MAX_CUT_ROUNDS = 10
MIN_BOUND_RISE = 1e-5  # relative; stop after a round that raises the bound by less


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


class BoundSearch(Search):
    bound: float = -INFINITY
    model: StageModel

    def run(self) -> None:
        """Search with a small model first, then with a larger model, to which conflicts are added.

        A conflict (conflicts.py) forbids recomputations that do not fit into RAM together.
        """
        for for_conflicts in (False, True):
            candidates = self.candidates(overhead=self.overhead, for_conflicts=for_conflicts)
            model = self.stage_model(candidates, self.task.ram_bytes, self.task.deadline_us)
            if model is None:
                return
            self.model = model
            self.solve_relaxation()
            while not self.is_proved and not self.is_over and self.solve_integer():
                pass
            if self.is_proved or self.is_over:
                return

    def relax(self, share: float) -> Outcome:
        """Solve a stage model in which recomputations need no inputs, and try its solution.

        `share`: the share of the time left that each program may take.
        """
        candidates = self.candidates(depth_limit=RELAXED)
        model = self.stage_model(candidates, self.task.ram_bytes, self.task.deadline_us)
        if model is None:
            return "stopped"
        self.model = model
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

    def solve_relaxation(self) -> None:
        """Solve the linear relaxation, and add constraints against conflicts in its solutions.

        A conflict (conflicts.py) is a set of recomputations that do not fit into RAM together.
        """
        before = -INFINITY
        for _ in range(MAX_CUT_ROUNDS):
            found = minimise(
                self.model.program,
                self.task.left_s,
                integer=False,
                presolve=self.task.presolve,
                on_progress=self.on_progress,
            )
            self.raise_bound(found.bound)
            rise = 1 + MIN_BOUND_RISE
            if found.values is None or self.is_proved or found.bound <= before * rise:
                break
            before = found.bound
            if not self.model.allows_repeats:
                break
            cuts = conflicts.violated_single(self.model, found.values, MAX_CUTS_PER_ROUND)
            for conflict in cuts:
                conflicts.forbid(self.model, conflict)
            if not cuts:
                break

    def solve_integer(self) -> bool:
        """Solve the integer program, and add constraints against conflicts in its solution.

        A conflict (conflicts.py) is a set of recomputations that do not fit into RAM together.
        Return whether any constraint was added.
        """
        task, model = self.task, self.model

        def on_progress(bound: float, values: Values | None) -> bool:
            self.raise_bound(bound)
            if values is not None:
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
            initial=solution.values_of(model, self.incumbent.events) if self.incumbent else None,
            presolve=task.presolve,
            on_progress=on_progress,
            receive=receive,
        )
        self.raise_bound(found.bound)
        if found.outcome != "optimal" or found.values is None or self.is_proved:
            return False
        self.try_solution(model, found.values, task.left_s)
        if self.is_proved or not model.allows_repeats:
            return False
        violated = conflicts.violated_sets(model, found.values)
        for conflict in violated:
            conflicts.forbid(model, conflict)
        return bool(violated)
