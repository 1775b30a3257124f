"""Search: what is searched, and how solutions of a program become plans.

Two searches run beside each other (solve.py), each in a process of its own: `climb`
(climb.py) finds better and better plans, `prove` (prove.py) higher and higher bounds.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..plan.plan import Plan
from ..plan.problem import CostGraph, CostNode, Problem
from . import slot_model as sequence
from . import solution
from . import stage_model as milp
from .candidate import Candidate, Effort, Misfit, fit
from .events import Event, energy_uj, fits, tidy
from .program import INFINITY, TOLERANCE, minimise
from .recompute_candidates import Reach, recomputable
from .workers import Line

PASSES = (1, 2)
NEARLY = 0.02  # of the deadline: a plan so late may become faster with more effort

Start = Callable[[Problem, bool, float, float], Plan | None]
"""(problem, placed, energy that it has to be below, time limit) -> a plan made without search."""


@dataclass(frozen=True)
class Task:
    """What to search. The graph's bytes are rounded up to what offsets allow."""

    problem: Problem
    graph: CostGraph
    ram_bytes: int
    recompute: bool
    page: bool
    unit: int  # bytes, of which placed offsets are multiples; 1 if the plan is not placed
    gap: float
    ends_at: float  # time.monotonic()
    starts: tuple[Start, ...] = ()  # what other methods plan, to begin from
    known: Candidate | None = None  # a plan that was found before

    @property
    def again(self) -> list[bool]:
        return recomputable(
            self.graph,
            recompute=self.recompute,
            page=self.page and self.graph.storage,
            deadline=self.deadline_us is not None,
        )

    @property
    def placed(self) -> bool:
        return self.unit > 1

    @property
    def unpadded(self) -> CostGraph:
        """The graph with the problem's bytes."""
        both = zip(self.graph.nodes, self.problem.graph.nodes, strict=True)
        nodes = tuple(
            replace(node, bytes=own.bytes, workspace_bytes=own.workspace_bytes)
            for node, own in both
        )
        return replace(self.graph, nodes=nodes)

    @property
    def deadline_us(self) -> float | None:
        return self.problem.deadline_us

    @property
    def left_s(self) -> float:
        return max(0.0, self.ends_at - time.monotonic())

    def hasty(self, weight: float = INFINITY) -> "Task":
        """The same without deadline, with time beside energy: `weight` is in uJ per us."""
        nodes = tuple(_weighted(node, weight) for node in self.graph.nodes)
        graph = replace(self.graph, nodes=nodes)
        return replace(self, graph=graph, problem=replace(self.problem, deadline_us=None))


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
    return total * (1 - TOLERANCE / 4)  # however its terms are added up


def _weighted(node: CostNode, weight: float) -> CostNode:
    """Its times added to its energies; only its times if the weight is infinite."""
    energy, time = (0.0, 1.0) if weight == INFINITY else (1.0, weight)
    return replace(
        node,
        energy_uj=energy * node.energy_uj + time * node.time_us,
        page_in_uj=energy * node.page_in_uj + time * (node.page_in_us + node.page_in_cpu_us),
        page_out_uj=energy * node.page_out_uj + time * (node.page_out_us + node.page_out_cpu_us),
    )


@dataclass
class Searcher:
    """What both searches share: the best plan, and how solutions become plans."""

    task: Task
    line: Line
    best: Candidate | None = None
    best_uj: float = INFINITY
    misfit: Misfit = field(default_factory=Misfit)

    @property
    def over(self) -> bool:
        return self.line.stopped() or self.task.left_s == 0.0

    @property
    def spare_uj(self) -> float:
        """What a better plan than the best can spend on more than the unavoidable."""
        return self.best_uj - unavoidable_uj(self.task.graph)

    def watch(self, bound_uj: float, values: Any) -> bool:
        return self.over

    def build(
        self, reach: Reach, ram_bytes: int, deadline_us: float | None
    ) -> milp.StageModel | None:
        """The stage model of a reach; None if it is too large."""
        try:
            return milp.build(
                reach,
                ram_bytes,
                page=self.task.page,
                deadline_us=deadline_us,
                out_of_time=lambda: self.over,
            )
        except milp.TooLarge:
            return None

    def offer(self, events: Sequence[Event]) -> bool:
        """Take a plan if it is better and fits; otherwise `misfit` says what it lacks."""
        task = self.task
        found_uj = energy_uj(task.graph, events)
        self.misfit = Misfit()
        if self.best is not None and found_uj >= self.best_uj * (1 - TOLERANCE):
            return False
        deadline_us = task.deadline_us
        efforts: tuple[Effort, ...] = ("none",) if deadline_us is None else ("little", "full")
        for effort in efforts:
            fitted = fit(
                task.problem, events, placed=task.placed, time_limit_s=task.left_s, effort=effort
            )
            if isinstance(fitted, Candidate):
                break
            self.misfit = fitted
            if fitted.excess_us > NEARLY * (deadline_us or 0.0) or fitted.excess_bytes:
                return False
        else:
            return False
        self.misfit = Misfit()
        self.best, self.best_uj = fitted, found_uj
        self.line.emit("plan", fitted)
        return True

    def planned(
        self,
        model: milp.StageModel,
        values: milp.Values,
        limit_s: float,
        deadline_us: float | None = None,
    ) -> float:
        """Make a plan of a solution and offer it; returns its energy.

        If the simplest order takes too much RAM, the best of other orders.
        """
        events = tidy(model.graph, solution.events(model, values))
        if fits(model.graph, events, model.ram_bytes):
            self.offer(events)
            return energy_uj(model.graph, events)
        return self.sequenced(
            solution.chosen(model, values),
            limit_s,
            ram_bytes=model.ram_bytes,
            deadline_us=deadline_us,
        )

    def sequenced(
        self,
        again: Sequence[Sequence[int]],
        limit_s: float,
        *,
        ram_bytes: int | None = None,
        deadline_us: float | None = None,
    ) -> float:
        """Make the best plan of some recomputations and offer it; returns its energy.

        `ram_bytes` and `deadline_us`: if less than the task's.
        """
        task = self.task
        ram_bytes = task.ram_bytes if ram_bytes is None else ram_bytes
        deadline_us = task.deadline_us if deadline_us is None else deadline_us
        for passes in PASSES:
            slots = sequence.offer(task.graph, again, passes)
            model = sequence.build(
                task.graph, slots, ram_bytes, page=task.page, deadline_us=deadline_us
            )
            found = minimise(model.program, limit_s, watch=self.watch)
            if found.values is not None:
                self.offer(tidy(task.graph, sequence.events(model, found.values)))
                return found.objective
        return INFINITY
