"""Search: the plan of least energy, and a bound that holds for all plans.

Plans come from slot models of growing reach (slots.py), the bound from the stage
relaxation (certificate.py). When the two meet, the plan is proved optimal. Where no node
is worth recomputing, one slot model expresses every plan and proves itself.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from . import certificate, milp
from .plan import Statement
from .problem import CostGraph
from .program import INFINITY, TOLERANCE, minimise
from .slots import Reach, offer, recomputable
from .statements import statements

Progress = Callable[[float | None, float, float | None, float], object]
WIDER = (Reach(None), Reach(None, 2), Reach(None, 3))


@dataclass(frozen=True)
class Task:
    """What to search, and how far."""

    graph: CostGraph
    ram_bytes: int
    deadline_us: float | None
    recompute: bool
    page: bool
    gap: float

    @property
    def again(self) -> list[bool]:
        return recomputable(
            self.graph,
            recompute=self.recompute,
            page=self.page and self.graph.storage,
            deadline=self.deadline_us is not None,
        )


@dataclass
class Search:
    """The best plan so far and the best bound so far."""

    task: Task
    ends_at: float
    progress: Progress | None = None
    started_at: float = 0.0
    statements: tuple[Statement, ...] | None = None
    energy_uj: float = INFINITY
    bound_uj: float = 0.0

    @property
    def left_s(self) -> float:
        return max(0.0, self.ends_at - time.monotonic())

    @property
    def proved(self) -> bool:
        """Nothing better than the plan exists (within the wanted gap), or no plan at all."""
        return self.bound_uj >= self.energy_uj * (1 - self.task.gap) * (1 - TOLERANCE)

    @property
    def infeasible(self) -> bool:
        return self.bound_uj == INFINITY

    def raise_bound(self, bound_uj: float) -> None:
        if bound_uj > self.bound_uj:
            self.bound_uj = bound_uj
            self.report()

    def report(self) -> None:
        if self.progress is None:
            return
        known = self.energy_uj if self.energy_uj < INFINITY else None
        gap = (known - self.bound_uj) / known if known else None
        self.progress(known, self.bound_uj, gap, time.monotonic() - self.started_at)


def energy_uj(graph: CostGraph, plan: Sequence[Statement]) -> float:
    """The sum over the statements."""
    by_name = {node.name: node for node in graph.nodes}
    total = 0.0
    for statement in plan:
        node = by_name[statement.node]
        if statement.op == "compute":
            total += node.energy_uj
        elif statement.op == "page_in":
            total += node.page_in_uj
        elif statement.op == "page_out":
            total += node.page_out_uj
    return total


def _unavoidable_uj(graph: CostGraph) -> float:
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


def search(task: Task, time_limit_s: float, progress: Progress | None = None) -> Search:
    """Search until proved or out of time. Deterministic if it ends before the limit."""
    now = time.monotonic()
    state = Search(task, now + time_limit_s, progress, now, bound_uj=_unavoidable_uj(task.graph))
    again = task.again
    if not any(again):
        _slots(state, again, Reach(0), 1.0, exact=True)
        return state
    if task.page and task.graph.storage:
        _slots(state, again, Reach(0), 0.2)
    _slots(state, again, Reach(2), 0.2)
    _slots(state, again, Reach(), 0.4)
    _certify(state, again)
    for reach in WIDER:
        if state.proved or state.left_s == 0.0:
            break
        _slots(state, again, reach, 1.0)
    return state


def _slots(
    state: Search, again: Sequence[bool], reach: Reach, share: float, exact: bool = False
) -> None:
    """Look for a better plan among those that the slots of `reach` express."""
    task = state.task
    if state.left_s == 0.0 or state.proved:
        return
    model = milp.build(
        task.graph,
        offer(task.graph, again, reach),
        task.ram_bytes,
        page=task.page,
        blocking_us=task.deadline_us,
    )

    def watch(bound_uj: float, values: Any) -> bool:
        if values is not None:
            _accept(state, model, values)
        if exact:
            state.raise_bound(bound_uj)
        return state.proved

    result = minimise(
        model.program, state.left_s * share, gap=task.gap, cutoff=state.energy_uj, watch=watch
    )
    if result.values is not None:
        _accept(state, model, result.values)
    if exact:
        state.raise_bound(result.bound)


def _accept(state: Search, model: milp.SlotModel, values: Any) -> None:
    found = statements(model, values)
    energy = energy_uj(state.task.graph, found)
    if energy < state.energy_uj * (1 - TOLERANCE) or state.statements is None:
        state.statements, state.energy_uj = found, energy
        state.report()


def _certify(state: Search, again: Sequence[bool]) -> None:
    """Raise the bound with the stage relaxation."""
    task = state.task
    if state.left_s == 0.0 or state.proved:
        return
    model = certificate.build(
        task.graph,
        task.ram_bytes,
        again,
        page=task.page,
        deadline_us=task.deadline_us,
    )
    state.raise_bound(minimise(model.program, state.left_s, integer=False).bound)
    if state.proved:
        return

    def watch(bound_uj: float, values: Any) -> bool:
        state.raise_bound(bound_uj)
        return state.proved

    result = minimise(
        model.program, state.left_s, gap=task.gap, cutoff=state.energy_uj, watch=watch
    )
    state.raise_bound(result.bound)
