"""The code that the primal search and the bound search share.

Both run at the same time (portfolio.py), each in a process of its own. The primal search
(primal_search.py) finds better and better plans. The bound search (bound_search.py) finds higher
and higher lower bounds of the energy of all plans.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ..plan.placed_plan import Effort, Excess
from ..plan.plan import Plan
from ..plan.problem import TOLERANCE, CostGraph, CostNode, Problem
from . import slot_model, solution, stage_model
from .candidate import Candidate, candidate_of
from .events import Event, energy_uj, fits, tidy
from .program import INFINITY, Values, minimise
from .recompute_candidates import RecomputeCandidates, recomputable
from .settings import Settings
from .stage_model import StageModel
from .workers import Channel

SLOT_PASSES = (1, 2)  # times that a stage may recompute a node; 2 is tried if 1 gives no plan
MAX_LATENESS = 0.02  # share of the deadline; a plan that is later by more is dropped

SeedPlan = Callable[[Problem, Settings], Plan | None]
"""Returns a plan made without search, from which a search can start; None if it cannot."""


@dataclass(frozen=True)
class Task:
    """One problem that a search solves, with the limits of the search."""

    problem: Problem
    graph: CostGraph  # the problem's graph, with sizes rounded up to multiples of `unit`
    ram_bytes: int  # RAM budget for the rounded sizes
    recompute: bool  # whether nodes may be computed more than once
    page: bool  # whether computed tensors may be paged
    unit: int  # offsets are multiples of this many bytes; 1 if the plan is not placed
    gap: float  # see Settings
    ends_at: float  # time.monotonic()
    seed_plans: tuple[SeedPlan, ...] = ()
    known: Candidate | None = None  # a plan found before

    @property
    def may_recompute(self) -> list[bool]:
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
        """Return the graph with the sizes before rounding."""
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

    def within(self, share: float) -> "Task":
        """Return the same task, limited to a share of the time left."""
        return replace(self, ends_at=time.monotonic() + self.left_s * share)

    def time_weighted(self, weight_uj_per_us: float = INFINITY) -> "Task":
        """Return the same task without a deadline. Each energy has time x weight added to it.

        If the weight is infinite, times replace the energies.
        """
        nodes = tuple(_time_weighted(node, weight_uj_per_us) for node in self.graph.nodes)
        graph = replace(self.graph, nodes=nodes)
        return replace(self, graph=graph, problem=replace(self.problem, deadline_us=None))


def unavoidable_uj(graph: CostGraph) -> float:
    """Return the energy that every plan must spend.

    Every plan must compute each node, page in each stored tensor that has a use, and page out
    each kept tensor.
    """
    used = {i for node in graph.nodes for i in node.inputs}
    total = 0.0
    for i, node in enumerate(graph.nodes):
        if not node.stored:
            total += node.energy_uj + (node.page_out_uj if node.keep and graph.storage else 0.0)
        elif graph.storage and i in used:
            total += node.page_in_uj
    return total * (1 - TOLERANCE / 4)  # another order of the sum may round to less


def _time_weighted(node: CostNode, weight: float) -> CostNode:
    """Return the node with time x `weight` added to each energy. Infinite: only times."""
    energy, time = (0.0, 1.0) if weight == INFINITY else (1.0, weight)
    return replace(
        node,
        energy_uj=energy * node.energy_uj + time * node.time_us,
        page_in_uj=energy * node.page_in_uj + time * (node.page_in_us + node.page_in_cpu_us),
        page_out_uj=energy * node.page_out_uj + time * (node.page_out_us + node.page_out_cpu_us),
    )


@dataclass
class Search:
    """The base of both searches: the incumbent, and how to make plans from solutions."""

    task: Task
    channel: Channel
    incumbent: Candidate | None = None
    incumbent_uj: float = INFINITY
    excess: Excess = field(default_factory=Excess)  # of the plan tried last

    @property
    def is_over(self) -> bool:
        return self.channel.is_stopped() or self.task.left_s == 0.0

    @property
    def overhead_uj(self) -> float:
        """Return the most energy that a better plan can spend beyond the unavoidable energy."""
        return self.incumbent_uj - unavoidable_uj(self.task.graph)

    def on_progress(self, bound_uj: float, values: Values | None) -> bool:
        return self.is_over

    def stage_model(
        self, candidates: RecomputeCandidates, ram_bytes: int, deadline_us: float | None
    ) -> StageModel | None:
        """Return the stage model with these candidates; None if the model is too large."""
        try:
            return stage_model.build(
                candidates,
                ram_bytes,
                page=self.task.page,
                deadline_us=deadline_us,
                out_of_time=lambda: self.is_over,
            )
        except stage_model.TooLarge:
            return None

    def try_plan(self, events: Sequence[Event]) -> bool:
        """Make the plan the incumbent if it fits and is better. Set `excess` if it does not fit."""
        task = self.task
        found_uj = energy_uj(task.graph, events)
        self.excess = Excess()
        if self.incumbent is not None and found_uj >= self.incumbent_uj * (1 - TOLERANCE):
            return False
        deadline_us = task.deadline_us
        efforts: tuple[Effort, ...] = ("none",) if deadline_us is None else ("little", "full")
        for effort in efforts:
            found = candidate_of(
                task.problem, events, placed=task.placed, time_limit_s=task.left_s, effort=effort
            )
            if isinstance(found, Candidate):
                self.excess = Excess()
                self.incumbent, self.incumbent_uj = found, found_uj
                self.channel.emit("plan", found)
                return True
            self.excess = found
            if found.time_us > MAX_LATENESS * (deadline_us or 0.0) or found.ram_bytes:
                return False
        return False

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
        events = tidy(model.graph, solution.events(model, values))
        if fits(model.graph, events, model.ram_bytes):
            self.try_plan(events)
            return energy_uj(model.graph, events)
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
        """Try the best plan that recomputes only nodes in `recomputed`. Return its energy.

        `recomputed`: the nodes that may be recomputed, by stage.
        `ram_bytes`, `deadline_us`: limits that replace those of the task.
        """
        task = self.task
        ram_bytes = task.ram_bytes if ram_bytes is None else ram_bytes
        deadline_us = task.deadline_us if deadline_us is None else deadline_us
        for passes in SLOT_PASSES:
            slots = slot_model.slots_of(task.graph, recomputed, passes)
            model = slot_model.build(
                task.graph, slots, ram_bytes, page=task.page, deadline_us=deadline_us
            )
            found = minimise(model.program, limit_s, on_progress=self.on_progress)
            if found.values is not None:
                self.try_plan(tidy(task.graph, slot_model.events(model, found.values)))
                return found.objective
        return INFINITY
