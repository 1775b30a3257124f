"""Search: better and better plans, and a bound that holds for all plans.

Two searches run beside each other (solve.py), each in a process of its own. `climb` solves
stage models (milp.py) of growing reach, small ones first, and makes plans of their
solutions. `prove` solves the stage model of all recomputations that a better plan than the
best one could afford. When its minimum reaches the energy of a plan, that plan is proved
optimal; so is, for a small graph, the plan that exhaustive search (exact.py) ends with.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from . import exact, milp, sequence
from .fit import Candidate, Misfit, fit
from .problem import CostGraph, CostNode, Problem
from .program import INFINITY, TOLERANCE, Result, minimise
from .reach import Reach, recomputable
from .statements import Event, energy_uj, everything_paged, tidy

LADDER = (1, 2)  # recomputations in a row; soon solved
HIGHER = (3, 4, 6, 9, 14, 20, 1 << 30)
ROUNDS = 4  # of tightening what a plan may use, until it fits
CUTS = 100  # constraints added at once to the linear relaxation
CUT_ROUNDS = 10
WORTH = 1e-5  # relative rise of a bound that is worth another round
PASSES = (1, 2)

Emit = Callable[[str, Any], object]


@dataclass(frozen=True)
class Task:
    """What to search. The graph's bytes are rounded up to what offsets allow."""

    problem: Problem
    graph: CostGraph
    ram_bytes: int
    recompute: bool
    page: bool
    placed: bool
    gap: float
    ends_at: float  # time.monotonic()
    exhaustive: bool = True  # search small graphs exhaustively

    @property
    def again(self) -> list[bool]:
        return recomputable(
            self.graph,
            recompute=self.recompute,
            page=self.page and self.graph.storage,
            deadline=self.problem.deadline_us is not None,
        )

    @property
    def left_s(self) -> float:
        return max(0.0, self.ends_at - time.monotonic())

    def hasty(self) -> "Task":
        """The same with time for energy: its plans are the fastest."""
        nodes = tuple(_time_as_energy(node) for node in self.graph.nodes)
        graph = replace(self.graph, nodes=nodes)
        problem = replace(self.problem, deadline_us=None)
        return replace(self, graph=graph, problem=problem)


def unavoidable_uj(graph: CostGraph) -> float:
    """What every plan spends: each node computed once, each stored tensor that is used paged in
    once, and what is kept paged out once.
    """
    used = {i for node in graph.nodes for i in node.inputs}
    total = 0.0
    for i, node in enumerate(graph.nodes):
        if not node.stored:
            total += node.energy_uj + (node.page_out_uj if node.keep and graph.storage else 0.0)
        elif graph.storage and i in used:
            total += node.page_in_uj
    return total * (1 - TOLERANCE)


def _time_as_energy(node: CostNode) -> CostNode:
    return replace(
        node,
        energy_uj=node.time_us,
        page_in_uj=node.page_in_us + node.page_in_cpu_us,
        page_out_uj=node.page_out_us + node.page_out_cpu_us,
    )


@dataclass
class Searcher:
    """What both searches share: the best plan, and how solutions become plans."""

    task: Task
    emit: Emit
    stopped: Callable[[], bool]
    best: Candidate | None = None
    best_uj: float = INFINITY
    misfit: Misfit = field(default_factory=Misfit)

    def watch(self, bound_uj: float, values: Any) -> bool:
        return self.stopped() or self.task.left_s == 0.0

    def offer(self, events: list[Event]) -> None:
        """Take a plan if it is better and fits; otherwise `misfit` says what it lacks."""
        task = self.task
        found_uj = energy_uj(task.graph, events)
        self.misfit = Misfit()
        if self.best is not None and found_uj >= self.best_uj * (1 - TOLERANCE):
            return
        fitted = fit(task.problem, events, placed=task.placed, time_limit_s=task.left_s)
        if isinstance(fitted, Misfit):
            self.misfit = fitted
            return
        self.best, self.best_uj = fitted, found_uj
        self.emit("plan", fitted)

    def sequenced(
        self,
        again: Sequence[Sequence[int]],
        passes: int,
        ram_bytes: int,
        deadline_us: float | None,
        limit_s: float,
    ) -> float:
        """Make the best plan of some recomputations and offer it; returns its energy."""
        task = self.task
        slots = sequence.offer(task.graph, again, passes)
        model = sequence.build(
            task.graph, slots, ram_bytes, page=task.page, deadline_us=deadline_us
        )
        found = minimise(model.program, limit_s, watch=self.watch)
        if found.values is None:
            return INFINITY
        self.offer(tidy(task.graph, sequence.events(model, found.values)))
        return found.objective


def climb(task: Task, emit: Emit, stopped: Callable[[], bool]) -> None:
    """Emit better and better plans, and "climbed" when the first few are out."""
    climber = _Climber(task, emit, stopped)
    if climber.exhaust():
        return
    if task.graph.storage and task.page:
        climber.offer(everything_paged(task.graph))
    climber.climb(LADDER)
    if task.problem.deadline_us is not None and climber.best is None:
        climber.hurry()
    emit("climbed", None)
    climber.climb(HIGHER)


class _Climber(Searcher):
    def exhaust(self) -> bool:
        """Whether exhaustive search has settled it."""
        task = self.task
        deadline_us = task.problem.deadline_us
        found = task.exhaustive and exact.exhaust(
            task.graph, task.ram_bytes, task.again, page=task.page, deadline_us=deadline_us
        )
        if not found:
            return False
        if found.events is None:
            self.emit("bound", INFINITY)
            return True
        if deadline_us is None:
            found = replace(found, events=tidy(task.graph, found.events))
        self.offer(found.events)
        self.emit("bound", energy_uj(task.graph, found.events))
        return self.best is not None

    def climb(self, depths: Iterable[int]) -> None:
        again = self.task.again
        graph, before = self.task.graph, 0
        for depth in depths:
            if self.stopped() or self.task.left_s == 0.0:
                break
            reach = Reach(graph, again, depth=depth)
            if depth > 1 and before == (before := _offered(reach)):
                continue
            self.step(reach)

    def step(self, reach: Reach) -> None:
        """Solve the model of a reach; with less RAM or time as long as its plan does not fit."""
        task = self.task
        ram_bytes, deadline_us = task.ram_bytes, task.problem.deadline_us
        for _ in range(ROUNDS):
            self.solve(reach, ram_bytes, deadline_us)
            if self.misfit.excess_bytes:
                ram_bytes -= -(-self.misfit.excess_bytes // 4) * 4
            elif self.misfit.excess_us and deadline_us is not None:
                deadline_us -= self.misfit.excess_us
            else:
                break

    def solve(self, reach: Reach, ram_bytes: int, deadline_us: float | None) -> None:
        task = self.task
        self.misfit = Misfit()
        model = self.build(reach, ram_bytes, deadline_us)
        if model is None:
            return
        for _ in range(ROUNDS):
            found = self.minimise(model)
            if found.values is None:
                return
            again = milp.chosen(model, found.values)
            for passes in PASSES:
                plan_uj = self.sequenced(
                    again, passes, ram_bytes, deadline_us, task.left_s * 0.1
                )
                if plan_uj < INFINITY:
                    break
            close = plan_uj <= found.objective * (1 + max(task.gap, 1e-4) / 4)
            if close or not milp.crowded(model, found.values):
                return

    def build(
        self, reach: Reach, ram_bytes: int, deadline_us: float | None
    ) -> milp.StageModel | None:
        try:
            return milp.build(
                reach,
                ram_bytes,
                page=self.task.page,
                deadline_us=deadline_us,
                out_of_time=lambda: self.watch(0.0, None),
            )
        except TimeoutError:
            return None

    def minimise(self, model: milp.StageModel) -> Result:
        start = milp.start(model, self.best.events) if self.best else None
        limit_s = self.task.left_s * 0.25
        gap = max(self.task.gap / 4, 1e-4)
        return minimise(model.program, limit_s, gap=gap, start=start, watch=self.watch)

    def hurry(self) -> None:
        """Without a plan in time yet: take the fastest."""
        fastest = _Climber(self.task.hasty(), lambda kind, found: None, self.stopped)
        fastest.climb(LADDER)
        if fastest.best is not None:
            self.emit("fastest", fastest.best)
            self.offer(list(fastest.best.events))


def _offered(reach: Reach) -> int:
    return sum(len(reach.demanded(node.inputs)) for node in reach.graph.nodes)


def prove(
    task: Task, best: Candidate | None, emit: Emit, stopped: Callable[[], bool]
) -> None:
    """Emit higher and higher bounds on all plans, given the best plan that is known."""
    prover = _Prover(task, emit, stopped)
    if best is not None:
        prover.best, prover.best_uj = best, energy_uj(task.graph, best.events)
    prover.prove()


class _Prover(Searcher):
    bound_uj: float = -INFINITY
    model: milp.StageModel

    def prove(self) -> None:
        task = self.task
        spare_uj = self.best_uj - unavoidable_uj(task.graph)
        reach = Reach(task.graph, task.again, spare_uj=spare_uj)
        try:
            self.model = milp.build(
                reach,
                task.ram_bytes,
                page=task.page,
                deadline_us=task.problem.deadline_us,
                out_of_time=lambda: self.watch(0.0, None),
            )
        except TimeoutError:
            return
        self.relax()
        while not self.proved and not self.stopped() and task.left_s > 0:
            if not self.search():
                break

    @property
    def proved(self) -> bool:
        return self.bound_uj >= self.best_uj * (1 - TOLERANCE)

    def raise_bound(self, bound_uj: float) -> None:
        """Plans that cost more than the best one were left out."""
        bound_uj = min(bound_uj, self.best_uj)
        if bound_uj > self.bound_uj:
            self.bound_uj = bound_uj
            self.emit("bound", bound_uj)

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
            if not milp.crowded(self.model, found.values, CUTS):
                break

    def search(self) -> bool:
        """The integer minimum; False if it is found, or time is out."""
        task, model = self.task, self.model

        def watch(bound_uj: float, values: Any) -> bool:
            self.raise_bound(bound_uj)
            if values is not None:
                self.emit("solution", milp.chosen(model, values))
            return self.watch(bound_uj, None) or self.proved

        start = milp.start(model, self.best.events) if self.best else None
        found = minimise(model.program, task.left_s, start=start, watch=watch)
        self.raise_bound(found.bound)
        if found.outcome != "optimal" or found.values is None or self.proved:
            return False
        again = milp.chosen(model, found.values)
        for passes in PASSES:
            self.sequenced(
                again, passes, task.ram_bytes, task.problem.deadline_us, task.left_s
            )
            if self.proved:
                return False
        return milp.crowded(model, found.values) > 0
