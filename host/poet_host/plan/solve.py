"""solve: from a problem to a verified plan."""

import time
from dataclasses import dataclass, replace
from math import gcd
from typing import Literal

from .placement import Placement, arrange
from .plan import Plan, Statement, Status
from .problem import CostGraph, CostNode, Problem
from .program import INFINITY, TOLERANCE
from .search import Progress, Search, Task, search
from .statements import everything_paged
from .transfers import overlap
from .verify import Totals, verify

Method = Literal["poet", "poet-paging", "poet-remat"]
METHODS: tuple[Method, ...] = ("poet", "poet-paging", "poet-remat")
ALIGNMENT = 4  # bytes; offsets are multiples of it
PLACING_ROUNDS = 8
PLACING_S = 2.0


def solve(
    problem: Problem,
    *,
    method: Method = "poet",
    time_limit_s: float = 60.0,
    gap: float = 0.0,
    placed: bool = True,
    progress: Progress | None = None,
) -> Plan:
    """The plan of least energy within the RAM budget and the deadline.

    `method`: "poet" mixes recomputation and paging; "poet-paging" computes everything once;
    "poet-remat" pages nothing that was computed. `gap`: relative distance from the bound at
    which to stop. `placed`: every tensor gets a fixed offset; otherwise the sum of bytes is
    bounded only. `progress(energy_uj, bound_uj, gap, elapsed_s)` is called on every change.

    Never raises for a problem without solution: the plan's status says "infeasible"
    (proved) or "unknown" (out of time). "optimal" is proved against all plans of the
    method; "feasible" comes with a bound on all of them. Every plan has been verified.
    """
    return _Solver(problem, method, time_limit_s, gap, placed, progress).solve()


@dataclass(frozen=True)
class _Candidate:
    """A verified plan."""

    statements: tuple[Statement, ...]
    initial_offsets: tuple[tuple[str, int], ...]
    totals: Totals


class _Solver:
    def __init__(
        self,
        problem: Problem,
        method: Method,
        time_limit_s: float,
        gap: float,
        placed: bool,
        progress: Progress | None,
    ) -> None:
        self.problem, self.method, self.placed = problem, method, placed
        self.gap, self.progress = gap, progress
        self.started_at = time.monotonic()
        self.ends_at = self.started_at + time_limit_s
        self.unit = ALIGNMENT if placed else 1
        nodes = tuple(_padded(node, self.unit) for node in problem.graph.nodes)
        self.graph = replace(problem.graph, nodes=nodes)

    @property
    def left_s(self) -> float:
        return max(0.0, self.ends_at - time.monotonic())

    def solve(self) -> Plan:
        graph, deadline_us = self.graph, self.problem.deadline_us
        if self._is_lost():
            return self._without_plan("infeasible", bound_uj=None, ram=False)
        if self._least_ram() > self.problem.ram_bytes:
            return self._without_plan("infeasible", bound_uj=None)
        found = self._search(graph, None, self.left_s * (0.9 if deadline_us is None else 0.5))
        if found.infeasible:
            return self._without_plan("infeasible", bound_uj=None)
        best = self._fitted(found, None)
        bound_uj = found.bound_uj
        if deadline_us is not None and not self._in_time(best):
            fastest = self._fastest(self.left_s * 0.3)
            if least_time_us(graph) > deadline_us * (1 + TOLERANCE):
                return self._too_late(fastest)
            found = self._search(graph, deadline_us, self.left_s * 0.9)
            if found.infeasible:
                return self._too_late(fastest)
            bound_uj = max(bound_uj, found.bound_uj)
            candidates = [self._fitted(found, deadline_us), fastest]
            in_time = [one for one in candidates if one is not None and self._in_time(one)]
            best = min(in_time, key=lambda one: one.totals.energy_uj, default=None)
        if best is None:
            return self._without_plan("unknown", bound_uj)
        return self._plan(best, bound_uj)

    def _search(
        self,
        graph: CostGraph,
        deadline_us: float | None,
        time_limit_s: float,
        ram_bytes: int | None = None,
    ) -> Search:
        ram = _aligned(self.problem.ram_bytes if ram_bytes is None else ram_bytes, self.unit)
        task = Task(
            graph=graph,
            ram_bytes=ram,
            deadline_us=deadline_us,
            recompute=self.method != "poet-paging",
            page=self.method != "poet-remat",
            gap=self.gap,
        )
        return search(task, time_limit_s, self.progress)

    def _fitted(self, found: Search, deadline_us: float | None) -> _Candidate | None:
        """The plan with offsets; while they do not fit, plans for less RAM by the excess."""
        ram_bytes = self.problem.ram_bytes
        for _ in range(PLACING_ROUNDS):
            if found.statements is None:
                break
            if not self.placed:
                return self._verified(found.statements, ())
            placement = self._arranged(found.statements)
            if placement.height_bytes <= self.problem.ram_bytes:
                return self._verified(placement.statements, placement.initial_offsets)
            ram_bytes -= _aligned(placement.height_bytes - self.problem.ram_bytes, ALIGNMENT)
            found = self._search(self.graph, deadline_us, self.left_s / 3, ram_bytes)
        if self.method == "poet-remat" or not self.graph.storage:
            return None
        placement = self._arranged(everything_paged(self.graph))
        return self._verified(placement.statements, placement.initial_offsets)

    def _arranged(
        self, statements: tuple[Statement, ...], ram_bytes: int | None = None
    ) -> Placement:
        limit = self.problem.ram_bytes if ram_bytes is None else ram_bytes
        return arrange(self.problem.graph, statements, limit, min(PLACING_S, self.left_s))

    def _verified(
        self, statements: tuple[Statement, ...], initial_offsets: tuple[tuple[str, int], ...]
    ) -> _Candidate:
        """Start transfers early, then check everything but the deadline."""
        early = overlap(self.problem, statements)
        plan = replace(
            self._plan_of("feasible", early, None),
            deadline_us=None,
            initial_offsets=initial_offsets,
        )
        totals = verify(replace(self.problem, deadline_us=None), plan, placed=self.placed)
        return _Candidate(early, initial_offsets, totals)

    def _in_time(self, candidate: _Candidate | None) -> bool:
        deadline_us = self.problem.deadline_us
        if candidate is None or deadline_us is None:
            return candidate is not None
        return candidate.totals.time_us <= deadline_us * (1 + TOLERANCE)

    def _is_lost(self) -> bool:
        """Without storage, what is overwritten and cannot be computed again is gone."""
        nodes = self.problem.graph.nodes
        overwritten = (nodes[n.overwrites] for n in nodes if n.overwrites is not None)
        return not self.problem.graph.storage and any(
            n.keep and (n.stored or n.once) for n in overwritten
        )

    def _least_ram(self) -> int:
        """What the largest operator needs with nothing else in RAM; a bound for all plans."""
        graph = self.problem.graph
        least = max((self._need(node, i) for i, node in enumerate(graph.nodes)), default=0)
        if not graph.storage:
            least = max(least, self._need_of([i for i, n in enumerate(graph.nodes) if n.stored]))
            least = max(least, self._need_of([i for i, n in enumerate(graph.nodes) if n.keep]))
        return least

    def _need(self, node: CostNode, index: int) -> int:
        if node.stored:
            return 0
        tensors = set(node.inputs) | ({index} if node.overwrites is None else set())
        return self._need_of(tensors, node.workspace_bytes)

    def _need_of(self, tensors: "set[int] | list[int]", workspace_bytes: int = 0) -> int:
        """Bytes of tensors side by side: each aligned, except the last."""
        sizes = [self.problem.graph.nodes[i].bytes for i in tensors]
        sizes += [workspace_bytes] if workspace_bytes else []
        slack = max((_aligned(size, self.unit) - size for size in sizes), default=0)
        return sum(_aligned(size, self.unit) for size in sizes) - slack

    def _smallest_ram(self) -> int | None:
        """The smallest budget for which a plan is known to exist; None if none is known."""
        least, graph = self._least_ram(), self.graph
        if graph.storage and self.method != "poet-remat":
            return least  # page everything out and in again around every operator
        free = replace(graph, nodes=tuple(_without_energy(node) for node in graph.nodes))
        sizes = [node.bytes for node in graph.nodes]
        workspaces = [node.workspace_bytes for node in graph.nodes]
        unit = gcd(*sizes, *workspaces) or 1
        low, high = _aligned(least, unit), sum(sizes) + max(workspaces, default=0)
        known: int | None = None
        while low <= high and self.left_s > 0:
            middle = low + (high - low) // unit // 2 * unit
            found = self._search(free, None, self.left_s / 2, middle)
            if self._fits_within(found, middle):
                known, high = middle, middle - unit
            else:
                low = middle + unit
        return known

    def _fits_within(self, found: Search, ram_bytes: int) -> bool:
        if found.statements is None or not self.placed:
            return found.statements is not None
        return self._arranged(found.statements, ram_bytes).height_bytes <= ram_bytes

    def _too_late(self, fastest: _Candidate | None) -> Plan:
        """No plan meets the deadline; say which deadline a plan is known for."""
        return replace(
            self._without_plan("infeasible", None, ram=False),
            smallest_deadline_us=fastest.totals.time_us if fastest else None,
        )

    def _fastest(self, time_limit_s: float) -> _Candidate | None:
        """A plan made for speed alone; what it finishes by is a deadline that can be met."""
        nodes = tuple(_time_as_energy(node) for node in self.graph.nodes)
        graph = replace(self.graph, nodes=nodes)
        return self._fitted(self._search(graph, None, time_limit_s), None)

    def _without_plan(self, status: Status, bound_uj: float | None, ram: bool = True) -> Plan:
        smallest = self._smallest_ram() if status == "infeasible" and ram else None
        return replace(self._plan_of(status, (), bound_uj), smallest_ram_bytes=smallest)

    def _plan(self, best: _Candidate, bound_uj: float) -> Plan:
        energy = best.totals.energy_uj
        bound_uj = min(bound_uj, energy)
        gap = (energy - bound_uj) / energy if energy > 0 else 0.0
        gap = 0.0 if gap <= TOLERANCE else gap
        return replace(
            self._plan_of("optimal" if gap == 0.0 else "feasible", best.statements, bound_uj),
            energy_uj=energy,
            initial_offsets=best.initial_offsets,
            gap=gap,
            time_us=best.totals.time_us,
            total_energy_uj=best.totals.total_energy_uj,
            peak_bytes=best.totals.peak_bytes,
        )

    def _plan_of(
        self, status: Status, statements: tuple[Statement, ...], bound_uj: float | None
    ) -> Plan:
        return Plan(
            status=status,
            ram_bytes=self.problem.ram_bytes,
            deadline_us=self.problem.deadline_us,
            energy_uj=None,
            bound_uj=bound_uj if bound_uj != INFINITY else None,
            gap=None,
            time_us=None,
            total_energy_uj=None,
            peak_bytes=None,
            solve_s=time.monotonic() - self.started_at,
            statements=statements,
            method=self.method,
        )


def least_time_us(graph: CostGraph) -> float:
    """A time that no plan beats: every node is computed once, in order, after all stored tensors
    that are needed by then have come one by one; what is kept goes out after its computation.
    """
    arrived_us = processor_us = end_us = least_us = 0.0
    needed: set[int] = set()
    kept_us = sum(n.page_out_us for n in graph.nodes if n.keep and not n.stored)
    for node in graph.nodes:
        if node.stored:
            continue
        if graph.storage:
            new = {i for i in node.inputs if graph.nodes[i].stored} - needed
            needed |= new
            arrived_us += sum(graph.nodes[i].page_in_us for i in new)
            processor_us += sum(graph.nodes[i].page_in_cpu_us for i in new)
        processor_us += node.time_us
        end_us = max(processor_us, max(end_us, arrived_us) + node.time_us)
        least_us = max(least_us, end_us + (kept_us if graph.storage else 0.0))
        kept_us -= node.page_out_us if node.keep else 0.0
    return least_us


def _aligned(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _padded(node: CostNode, unit: int) -> CostNode:
    return replace(
        node,
        bytes=_aligned(node.bytes, unit),
        workspace_bytes=_aligned(node.workspace_bytes, unit),
    )


def _without_energy(node: CostNode) -> CostNode:
    return replace(node, energy_uj=0.0, page_in_uj=0.0, page_out_uj=0.0)


def _time_as_energy(node: CostNode) -> CostNode:
    return replace(
        node,
        energy_uj=node.time_us,
        page_in_uj=node.page_in_us + node.page_in_cpu_us,
        page_out_uj=node.page_out_us + node.page_out_cpu_us,
    )
