"""solve: from a problem to a verified plan."""

import time
from collections.abc import Sequence
from dataclasses import replace
from math import gcd
from multiprocessing.connection import wait
from typing import Literal

from ..plan.infeasible import aligned, bytes_of, largest_need
from ..plan.packing import ALIGNMENT
from ..plan.plan import Plan, Statement, Status, StoppedBy
from ..plan.problem import CostGraph, CostNode, Problem
from .candidate import Candidate, fit
from .events import Event
from .portfolio import Found, Race
from .program import INFINITY, TOLERANCE
from .search import Start, Task, unavoidable_uj
from .settings import DEFAULT_SETTINGS, Settings, Stopwatch
from .workers import POOL, Line

Method = Literal["poet", "poet-paging", "poet-remat"]
METHODS: tuple[Method, ...] = ("poet", "poet-paging", "poet-remat")
DEFAULT_GAP = 0.01  # where nobody asks for another: a proof may take hours
POLISHING_S, MOST_POLISHING_S = 1.0, 5.0  # at the end, for the order of transfers


def solve(
    problem: Problem,
    settings: Settings = DEFAULT_SETTINGS,
    *,
    method: Method = "poet",
    seed_plans: Sequence[Start] = (),
) -> Plan:
    """Find the plan of least energy within the RAM budget and the deadline.

    `method`: "poet" mixes recomputation and paging; "poet-paging" computes everything once;
    "poet-remat" pages no computed tensor. `seed_plans`: importable functions that make plans. The
    search asks them for plans to start from, unless it proves its own first plan soon.

    Never raises for a problem without a solution: the status of the plan is "infeasible" (proved)
    or "unknown" (out of time). "optimal" is proved against all plans of the method. "feasible"
    comes with a bound on all of them. Every plan has been verified. Ctrl-C ends the search with
    the best plan so far. Equal input gives equal plans, unless the time limit or `gap` ends the
    search early.
    """
    return _Solver(problem, settings, method, seed_plans).solve()


class _Solver:
    def __init__(
        self, problem: Problem, settings: Settings, method: Method, seed_plans: Sequence[Start]
    ) -> None:
        self.problem, self.settings, self.method = problem, settings, method
        self.starts, self.gap = tuple(seed_plans), settings.gap
        self.clock = Stopwatch(settings.time_limit_s)
        self.interrupted = False
        reserve_s = POLISHING_S * (1 + len(problem.graph.nodes) / 1000)
        self.reserve_s = min(reserve_s, 0.4 * settings.time_limit_s)
        self.unit = ALIGNMENT if settings.placed else 1
        nodes = tuple(_padded(node, self.unit) for node in problem.graph.nodes)
        self.graph = replace(problem.graph, nodes=nodes)

    def solve(self) -> Plan:
        if self._is_lost():
            return self._without_plan("infeasible", bound_uj=None)
        if self._least_ram() > self.problem.ram_bytes:
            return self._too_small()
        deadline_us = self.problem.deadline_us
        found = self._search(
            replace(self.problem, deadline_us=None), 1.0 if deadline_us is None else 0.3
        )
        if found.infeasible:
            return self._too_small()
        if found.best is not None:
            found = replace(found, first=self._polished(found.best), proved=None, later=None)
        in_time = self._in_time(found.best)
        if deadline_us is not None and not (in_time and found.settled(self.gap)):
            if least_time_us(self.graph) > deadline_us * (1 + TOLERANCE):
                return self._too_late(None if found.interrupted else self._fastest())
            free_uj, known = found.bound_uj, found.best if in_time else None
            if not found.interrupted:
                found = self._search(self.problem, 1.0, known)
            if found.infeasible:
                return self._too_late(found.fastest or self._fastest())
            found.bound_uj = max(free_uj, found.bound_uj)
            if not self._in_time(found.best):
                return self._not_found(found)
        if found.best is None:
            return self._not_found(found)
        plan = self._plan(found.best, found.bound_uj)
        return replace(plan, stopped_by=self._stopped_by(found, plan.gap))

    def _not_found(self, found: Found) -> Plan:
        plan = self._without_plan("unknown", found.bound_uj)
        return replace(plan, stopped_by=self._stopped_by(found, None))

    def _stopped_by(self, found: Found, gap: float | None) -> StoppedBy:
        if gap == 0.0:
            return "proof"
        if gap is not None and gap <= self.gap:
            return "gap"
        if found.interrupted:
            return "interrupt"
        return "exhausted" if found.ended else "time-limit"

    def _polished(self, best: Candidate) -> Candidate:
        """With early transfers, which only a deadline asks for during the search."""
        limit_s = max(self.reserve_s / 2, min(self.clock.left_s, MOST_POLISHING_S))
        free = replace(self.problem, deadline_us=None)
        worker = POOL.take()
        try:
            worker.search(_polish, free, best.events, self.settings.placed, limit_s)
            if wait([worker.results], limit_s):
                kind, polished = worker.receive()
                best = polished if kind == "plan" else best
        except KeyboardInterrupt:
            pass
        finally:
            POOL.give_back(worker)
        return best

    def _search(self, problem: Problem, share: float, known: Candidate | None = None) -> Found:
        """Both searches beside each other, for a share of the time that is left."""
        found = Found(first=known, bound_uj=unavoidable_uj(self.graph))
        task = replace(self._task(problem, share), starts=self.starts, known=known)
        Race(task, found, self._report).run()
        return found

    def _task(self, problem: Problem, share: float) -> Task:
        return Task(
            problem=problem,
            graph=self.graph,
            ram_bytes=self._room(problem.ram_bytes),
            recompute=self.method != "poet-paging",
            page=self.method != "poet-remat",
            unit=self.unit,
            gap=self.gap,
            ends_at=time.monotonic() + max(0.0, self.clock.left_s - self.reserve_s) * share,
        )

    def _room(self, ram_bytes: int) -> int:
        """What the rounded bytes may sum up to: the last tensor needs no padding."""
        sizes = [size for n in self.problem.graph.nodes for size in (n.bytes, n.workspace_bytes)]
        padding = max((aligned(size, self.unit) - size for size in sizes), default=0)
        return (ram_bytes + padding) // self.unit * self.unit

    def _report(self, found: Found) -> None:
        if self.settings.progress is None:
            return
        known = found.energy_uj if found.best else None
        gap = max(0.0, (known - found.bound_uj) / known) if known else None
        self.settings.progress(known, found.bound_uj, gap, self.clock.elapsed_s)

    def _in_time(self, candidate: Candidate | None) -> bool:
        deadline_us = self.problem.deadline_us
        if candidate is None or deadline_us is None:
            return candidate is not None
        return candidate.totals.time_us <= deadline_us * (1 + TOLERANCE)

    def _fastest(self) -> Candidate | None:
        """A plan made for speed alone; what it finishes by is a deadline that can be met."""
        found = Found()
        task = self._task(replace(self.problem, deadline_us=None), 1.0)
        Race(task.hasty(), found, lambda found: None).run()
        return found.best

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
        need = largest_need(graph, self.unit)
        least = need.bytes if need else 0
        if not graph.storage:
            for held in ("stored", "keep"):
                tensors = [i for i, node in enumerate(graph.nodes) if getattr(node, held)]
                least = max(least, bytes_of(graph, tensors, self.unit))
        return least

    def _too_small(self) -> Plan:
        smallest = self._smallest_ram()
        return replace(self._without_plan("infeasible", None), smallest_ram_bytes=smallest)

    def _smallest_ram(self) -> int | None:
        """The smallest budget for which a plan is known to exist; None if none is known."""
        least, graph = self._least_ram(), self.graph
        if graph.storage and self.method != "poet-remat":
            return least  # page everything out and in again around every operator
        sizes = [node.bytes for node in graph.nodes]
        workspaces = [node.workspace_bytes for node in graph.nodes]
        unit = gcd(*sizes, *workspaces) or 1
        low, high = aligned(least, unit), sum(sizes) + max(workspaces, default=0)
        known: int | None = None
        while low <= high and self.clock.left_s > 0 and not self.interrupted:
            middle = low + (high - low) // unit // 2 * unit
            if self._has_plan(middle):
                known, high = middle, middle - unit
            else:
                low = middle + unit
        go_on = known is not None and not self.interrupted
        less = range(self.unit - 1, 0, -1) if go_on else ()
        return next((known - it for it in less if known and self._has_plan(known - it)), known)

    def _has_plan(self, ram_bytes: int) -> bool:
        """A plan was found for another budget, whatever it costs."""
        free = tuple(_without_energy(node) for node in self.graph.nodes)
        task = self._task(Problem(self.problem.graph, ram_bytes), 0.5)
        found = Found()
        Race(replace(task, graph=replace(self.graph, nodes=free)), found, lambda it: None).run()
        self.interrupted = found.interrupted
        return found.best is not None

    def _too_late(self, fastest: Candidate | None) -> Plan:
        """No plan meets the deadline; say which deadline a plan is known for."""
        return replace(
            self._without_plan("infeasible", None),
            smallest_deadline_us=fastest.totals.time_us if fastest else None,
        )

    def _without_plan(self, status: Status, bound_uj: float | None) -> Plan:
        return self._plan_of(status, (), bound_uj)

    def _plan(self, best: Candidate, bound_uj: float) -> Plan:
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
            bound_uj=bound_uj if bound_uj != INFINITY else None,
            solve_s=self.clock.elapsed_s,
            statements=statements,
            method=self.method,
        )


def _polish(
    problem: Problem, events: Sequence[Event], placed: bool, limit_s: float, line: Line
) -> None:
    """A search for the order of transfers: emits a plan."""
    found = fit(problem, events, placed=placed, time_limit_s=limit_s)
    if isinstance(found, Candidate):
        line.emit("plan", found)


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


def _padded(node: CostNode, unit: int) -> CostNode:
    return replace(
        node,
        bytes=aligned(node.bytes, unit),
        workspace_bytes=aligned(node.workspace_bytes, unit),
    )


def _without_energy(node: CostNode) -> CostNode:
    return replace(node, energy_uj=0.0, page_in_uj=0.0, page_out_uj=0.0)
