"""`make bench-solver`: measure the planner, and the paper's formulation in the same solver.

Prints each result at once, and writes RESULTS-solver.md and energy-budget.png.
"""

import argparse
import hashlib
import json
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from poet_host.baselines.registry import plan_by
from poet_host.files import write_whole
from poet_host.plan.plan import Plan
from poet_host.plan.problem import Problem
from poet_host.plan.timeline import Lanes, lanes
from poet_host.plan.verify import verify
from poet_host.schedule.encode import encode_costs
from poet_host.schedule.schedule import PlanHeader
from poet_host.solver.models import stage_model
from poet_host.solver.program import INFINITY
from poet_host.solver.recompute_candidates import RecomputeCandidates, recomputable
from poet_host.solver.settings import Settings
from poet_host.solver.unavoidable import unavoidable_uj
from poet_host.solver.workers import POOL
from poet_host.work import UNITS_PER_S

from .paper import milp as paper_milp
from .points import Point, points
from .report import about, filled, number, percent, table

RESULTS = Path(__file__).with_name("RESULTS-solver.md")
GAP = 0.001  # at which a search stops
LIMIT_S = 60.0
PAPER_LIMIT_S = 30.0
MAX_PLAN_BYTES = 700


@dataclass(frozen=True)
class Memory:
    """How well a placement uses RAM."""

    height_bytes: int
    live_bytes: int  # the largest sum of live bytes

    @property
    def fragmentation(self) -> float:
        return self.height_bytes / self.live_bytes - 1 if self.live_bytes else 0.0


@dataclass(frozen=True)
class Ours:
    """A plan of the planner, with its measurements."""

    point: Point
    plan: Plan
    time_s: float
    cpu_s: float
    one_percent_s: float | None  # until a gap of 1 % was proved
    once_uj: float  # the energy of computing everything once
    memory: Memory | None = None
    lanes: Lanes | None = None
    plan_bytes: int | None = None
    header: PlanHeader | None = None
    shape: tuple[int, int] | None = None  # columns and rows of the program that bounds it

    @property
    def overhead_gap(self) -> float | None:
        """(UB - LB) / (UB - E0): the gap of the energy beyond computing everything once."""
        return overhead_gap(self.plan.energy_uj, self.plan.bound, self.once_uj)

    @property
    def bits_per_statement(self) -> float | None:
        header = self.header
        return None if header is None else 8 * header.bit_bytes / header.statement_count

    def aims(self, limit_s: float) -> dict[str, bool]:
        """Each aim for this point, and whether it was reached."""
        plan, point, found = self.plan, self.point, {}
        infinite = float("inf")
        gap = infinite if plan.gap is None else plan.gap
        gap = 0.0 if plan.status == "infeasible" else gap  # that is proved
        if point.one_percent_s is not None:
            within_s = min(point.one_percent_s, limit_s)
            proved_s = infinite if self.one_percent_s is None else self.one_percent_s
            found[f"1 % in {within_s:g} s"] = gap <= 0.01 and proved_s <= within_s
        within_s = min(LIMIT_S, limit_s)
        found[f"0.1 % in {within_s:g} s"] = gap <= GAP * (1 + 1e-6) and self.time_s <= within_s
        if point.aims_at_700_bytes:
            found[f"{MAX_PLAN_BYTES} B"] = (self.plan_bytes or MAX_PLAN_BYTES + 1) <= MAX_PLAN_BYTES
        found["limit + 2 s"] = self.time_s <= limit_s + 2.0
        return found


def overhead_gap(energy_uj: float | None, bound_uj: float | None, once_uj: float) -> float | None:
    if energy_uj is None or bound_uj is None:
        return None
    if energy_uj - bound_uj <= 1e-9 * energy_uj:
        return 0.0
    overhead = energy_uj - once_uj
    return (energy_uj - bound_uj) / overhead if overhead > 0 else 0.0


def run_ours(point: Point, limit_s: float, counted: bool = False) -> Ours:
    problem = point.problem()
    began, cpu_began_s = time.monotonic(), _cpu_s()
    proved: list[float] = []

    def progress(_energy: float | None, _bound: float, gap: float | None, _elapsed: float) -> None:
        if gap is not None and gap <= 0.01 and not proved:
            proved.append(time.monotonic() - began)

    plan = plan_by("poet", problem, Settings(limit_s, GAP, progress=progress, counted=counted))
    POOL.close()  # ended processes are counted
    time_s, cpu_s = time.monotonic() - began, _cpu_s() - cpu_began_s
    one_percent_s = proved[0] if proved else None
    if one_percent_s is None and plan.gap is not None and plan.gap <= 0.01:
        one_percent_s = time_s
    once_uj = sum(node.energy_uj for node in problem.graph.nodes if not node.stored)
    shape = _shape(problem, plan) if point.paper else None
    ours = Ours(point, plan, time_s, cpu_s, one_percent_s, once_uj, shape=shape)
    return _examined(ours, problem) if plan.statements else ours


def _shape(problem: Problem, plan: Plan) -> tuple[int, int]:
    """Columns and rows of the stage model that bounds all plans better than this one."""
    graph = problem.graph
    may_recompute = recomputable(graph, recompute=True, page=True, deadline=False)
    overhead_uj = (plan.energy_uj or INFINITY) - unavoidable_uj(graph)
    candidates = RecomputeCandidates(graph, may_recompute, overhead=overhead_uj)
    model = stage_model.build(candidates, problem.ram_bytes)
    columns, rows, _ = model.program.shape
    return columns, rows


def _examined(ours: Ours, problem: Problem) -> Ours:
    plan = ours.plan
    assert plan.peak_bytes is not None
    live = verify(problem, replace(plan, peak_bytes=None), placed=False).peak_bytes
    schedule = encode_costs(problem.graph, plan)
    return replace(
        ours,
        memory=Memory(plan.peak_bytes, live),
        lanes=lanes(problem, plan.statements),
        plan_bytes=len(schedule.plan_part),
        header=schedule.header,
    )


def one_line(ours: Ours, limit_s: float) -> str:
    point, plan = ours.point, ours.plan
    aims = ", ".join(
        f"{aim} {'met' if met else 'NOT MET'}" for aim, met in ours.aims(limit_s).items()
    )
    return (
        f"{point.name} {point.board} {point.limits}: {plan.status}, {ours.time_s:.1f} s, "
        f"gap {percent(plan.gap, 3)} %; {aims}"
    )


def _digest(ours: Ours) -> str:
    """Return a line that differs for plans that differ in anything but the time of the search."""
    text = json.dumps(replace(ours.plan, solve_s=0.0).to_json(), sort_keys=True)
    point = ours.point
    return (
        f"{hashlib.sha256(text.encode()).hexdigest()} {point.name} {point.board} {point.limits}\n"
    )


def _plans(results: Sequence[Ours], limit_s: float) -> str:
    head = ["graph", "board", "nodes", "RAM", "status", "s", "cpu s", "1 % after s", "energy mJ",
            "bound mJ", "gap %", "gap of overhead %", "aims", "missed"]  # fmt: skip
    return table(head, [_plan_row(ours, limit_s) for ours in results])


def _plan_row(ours: Ours, limit_s: float) -> list[str]:
    plan, point, aims = ours.plan, ours.point, ours.aims(limit_s)
    return [
        point.name,
        point.board,
        str(len(point.graph().nodes)),
        point.limits,
        plan.status,
        number(ours.time_s, 1),
        number(ours.cpu_s, 1),
        number(ours.one_percent_s, 1),
        number(None if plan.energy_uj is None else plan.energy_uj / 1e3, 3),
        number(None if plan.bound is None else plan.bound / 1e3, 3),
        percent(plan.gap, 3),
        percent(ours.overhead_gap),
        "met" if all(aims.values()) else "**not met**",
        "; ".join(aim for aim, met in aims.items() if not met) or "-",
    ]


def _schedules(results: Sequence[Ours]) -> str:
    head = ["graph", "board", "RAM", "RAM bytes", "height", "live", "fragmentation %", "time s",
            "busier lane s", "time / busier lane", "hidden %", "statements", "plan bytes",
            "bits a statement"]  # fmt: skip
    return table(head, [_schedule_row(ours) for ours in results if ours.plan.statements])


def _schedule_row(ours: Ours) -> list[str]:
    memory, busy, header = ours.memory, ours.lanes, ours.header
    assert memory is not None
    assert busy is not None
    assert header is not None
    return [
        ours.point.name,
        ours.point.board,
        ours.point.limits,
        f"{ours.plan.ram_bytes:,}",
        f"{memory.height_bytes:,}",
        f"{memory.live_bytes:,}",
        percent(memory.fragmentation),
        number(busy.time_us / 1e6, 3),
        number(busy.bound_us / 1e6, 3),
        number(busy.time_us / busy.bound_us if busy.bound_us else None, 3),
        percent(busy.hidden, 1) if busy.transfers_us else "no transfers",
        str(header.statement_count),
        str(ours.plan_bytes),
        number(ours.bits_per_statement, 1),
    ]


def _compared(results: Sequence[Ours], paper: dict[Point, paper_milp.Outcome]) -> str:
    head = ["graph", "RAM", "ours: s", "mJ", "gap %", "of overhead %", "columns", "rows",
            "paper's: s", "mJ", "gap %", "of overhead %", "columns", "rows"]  # fmt: skip
    rows = []
    for ours in results:
        other = paper.get(ours.point)
        if other is None:
            continue
        plan, energy = ours.plan, other.energy_uj
        rows.append(
            [
                ours.point.name,
                ours.point.limits,
                number(ours.time_s, 1),
                number(None if plan.energy_uj is None else plan.energy_uj / 1e3, 3),
                percent(plan.gap, 3),
                percent(ours.overhead_gap),
                *(f"{count:,}" for count in ours.shape or ()),
                number(other.time_s, 1),
                "none found" if energy is None else number(energy / 1e3, 3),
                percent(other.gap, 3),
                percent(overhead_gap(energy, other.bound_uj, ours.once_uj)),
                f"{other.columns:,}",
                f"{other.rows:,}",
            ]
        )
    return table(head, rows)


def _report(
    results: Sequence[Ours],
    paper: dict[Point, paper_milp.Outcome],
    limits: tuple[float, float],
    memory_mib: float,
) -> str:
    limit_s, paper_limit_s = limits
    missed = [ours for ours in results if not all(ours.aims(limit_s).values())]
    text = filled(
        "solver",
        about=about("highspy", "numpy"),
        limit_s=limit_s,
        gap=GAP,
        memory_mib=memory_mib,
        met=len(results) - len(missed),
        points=len(results),
        most_bytes=MAX_PLAN_BYTES,
        plans=_plans(results, limit_s),
        schedules=_schedules(results),
    )
    if not paper:
        return text
    compared = _compared(results, paper)
    return text + "\n" + filled("solver_paper", limit_s=paper_limit_s, compared=compared)


def _usage() -> list[resource.struct_rusage]:
    return [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]


def _cpu_s() -> float:
    """Processor time so far, of ended child processes too."""
    return sum(usage.ru_utime + usage.ru_stime for usage in _usage())


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.solver", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few points, 5 s each; no files")
    parser.add_argument("--limit", type=float, metavar="S", help="time limit for each plan")
    parser.add_argument(
        "--work-limit", type=int, metavar="N",
        help="limit each plan by counted work, and print its digest; no other files",
    )  # fmt: skip
    parser.add_argument("--paper-limit", type=float, metavar="S", help="the paper's (0: leave out)")
    parser.add_argument("--only", metavar="NAME", help="only graphs whose name contains NAME")
    options = parser.parse_args()
    limit_s = options.limit or (5.0 if options.quick else LIMIT_S)
    paper_limit_s = options.paper_limit
    if paper_limit_s is None:
        paper_limit_s = 5.0 if options.quick else PAPER_LIMIT_S
    chosen = [p for p in points(options.quick) if options.only is None or options.only in p.name]
    if not chosen:
        parser.error(f"no graph has a name with {options.only!r} in it")

    if options.work_limit:
        for point in chosen:
            found = run_ours(point, options.work_limit / UNITS_PER_S, counted=True)
            print(_digest(found), end="", flush=True)
        return
    results = []
    for point in chosen:
        results.append(run_ours(point, limit_s))
        print(one_line(results[-1], limit_s), flush=True)
    # Before the paper's model takes its share.
    memory_mib = max(usage.ru_maxrss for usage in _usage()) / 1024
    paper = {}
    for point in chosen:
        if point.paper and paper_limit_s > 0:
            paper[point] = outcome = paper_milp.solve(point.problem(), paper_limit_s)
            print(f"{point.name} {point.limits}, paper's: {outcome}", flush=True)
    report = _report(results, paper, (limit_s, paper_limit_s), memory_mib)
    if options.quick or options.only:
        print(report)
        return
    from .picture import draw  # needs matplotlib, and the rest does not

    draw(results, RESULTS.with_name("energy-budget.png"))
    write_whole(RESULTS, report)
    print(f"written: {RESULTS.name} and energy-budget.png")


if __name__ == "__main__":
    main()
