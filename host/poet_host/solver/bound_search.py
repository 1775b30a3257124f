"""Prove: higher and higher bounds on all plans.

The stage model (milp.py) with every recomputation that a better plan than the best one
could afford. When its minimum reaches the energy of a plan, that plan is proved optimal.
"""

from typing import Any

from . import conflicts, solution
from . import stage_model as milp
from .candidate import Candidate
from .events import energy_uj
from .program import INFINITY, TOLERANCE, minimise
from .recompute_candidates import Reach, Rung
from .search import Searcher, Task
from .workers import Line

RELAXED = Rung(1, needs_inputs=False)
CUTS = 100  # constraints added at once to the linear relaxation
CUT_ROUNDS = 10
RELAXING = 0.1  # of the time, for the first bound
WORTH = 1e-5  # relative rise of a bound that is worth another round


def relax(task: Task, line: Line) -> float:
    """Emit a bound on all plans that is soon found: recomputing needs no inputs; return it."""
    prover = _Prover(task, line)
    model = prover.build(
        Reach(task.graph, task.again, rung=RELAXED), task.ram_bytes, task.deadline_us
    )
    if model is None:
        return -INFINITY

    def watch(bound_uj: float, values: Any) -> bool:
        prover.raise_bound(bound_uj)
        return prover.over

    for integer in (False, True):
        limit_s = task.left_s * RELAXING
        found = minimise(model.program, limit_s, integer=integer, watch=watch)
        prover.raise_bound(found.bound)
    return prover.bound_uj


def prove(task: Task, best: Candidate | None, line: Line) -> None:
    """Emit higher and higher bounds on all plans, given the best plan that is known."""
    prover = _Prover(task, line)
    if best is not None:
        prover.best, prover.best_uj = best, energy_uj(task.graph, best.events)
    prover.prove()


class _Prover(Searcher):
    bound_uj: float = -INFINITY
    model: milp.StageModel

    def prove(self) -> None:
        """First without conflicts, then with: that takes a larger model."""
        for for_conflicts in (False, True):
            reach = Reach(
                self.task.graph,
                self.task.again,
                spare_uj=self.spare_uj,
                for_conflicts=for_conflicts,
            )
            model = self.build(reach, self.task.ram_bytes, self.task.deadline_us)
            if model is None:
                return
            self.model = model
            self.relax()
            while not self.proved and not self.over and self.search():
                pass
            if self.proved or self.over:
                return

    @property
    def proved(self) -> bool:
        return self.bound_uj >= self.best_uj * (1 - TOLERANCE)

    def raise_bound(self, bound_uj: float) -> None:
        """Plans that cost more than the best one were left out."""
        bound_uj = min(bound_uj, self.best_uj)
        if bound_uj > self.bound_uj:
            self.bound_uj = bound_uj
            self.line.emit("bound", bound_uj)

    def relax(self) -> None:
        """The linear relaxation, with the constraints that its solutions break."""
        task = self.task
        before = -INFINITY
        for _ in range(CUT_ROUNDS):
            found = minimise(self.model.program, task.left_s, integer=False, watch=self.watch)
            self.raise_bound(found.bound)
            if found.values is None or self.proved or found.bound <= before * (1 + WORTH):
                break
            before = found.bound
            broken = conflicts.lone(self.model, found.values, CUTS) if self.model.made_again else []
            if not broken:
                break
            for conflict in broken:
                conflicts.forbid(self.model, conflict)

    def search(self) -> bool:
        """The integer minimum; False if it is found, or time is out."""
        task, model = self.task, self.model

        def watch(bound_uj: float, values: Any) -> bool:
            self.raise_bound(bound_uj)
            if values is not None:
                self.line.emit("solution", solution.chosen(model, values))
            return self.watch(bound_uj, None) or self.proved

        def news() -> milp.Values | None:
            plan = self.line.news()
            if plan is None or plan.totals.energy_uj >= self.best_uj:
                return None
            self.best, self.best_uj = plan, energy_uj(task.graph, plan.events)
            return solution.start(model, plan.events)

        start = solution.start(model, self.best.events) if self.best else None
        found = minimise(model.program, task.left_s, start=start, watch=watch, news=news)
        self.raise_bound(found.bound)
        if found.outcome != "optimal" or found.values is None or self.proved:
            return False
        self.planned(model, found.values, task.left_s)
        if self.proved or not model.made_again:
            return False
        broken = conflicts.sets(model, found.values)
        for conflict in broken:
            conflicts.forbid(model, conflict)
        return bool(broken)
