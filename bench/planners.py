"""`make bench-planners`: rematerialisation by other planners, next to the optimum of ours.

Compares `poet-remat` with the programs of Checkmate and Moccasin, and with PyTorch's own planner.
Nothing is paged: all results must fit the RAM. Prints each result at once, and writes
RESULTS-planners.md.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from poet_host.baselines.registry import plan_by
from poet_host.errors import PoetError
from poet_host.files import write_whole
from poet_host.plan.keepall import keep_everything
from poet_host.plan.plan import Plan
from poet_host.plan.problem import CostGraph, Problem
from poet_host.plan.verify import verify
from poet_host.solver.program import INFINITY
from poet_host.solver.settings import Settings
from poet_host.solver.workers import POOL

from . import graphs, moccasin, torch_saved
from .paper import milp as paper_milp
from .report import about, filled, percent, table

RESULTS = Path(__file__).with_name("RESULTS-planners.md")
LIMIT_S = 20.0
GAP = 0.00001  # at which poet-remat stops
REFERENCE = (
    ("linear", 50), ("vgg16-cifar", 70), ("vgg16-cifar", 50), ("resnet18-cifar", 70),
    ("resnet18-cifar", 50), ("bert", 70),
)  # fmt: skip
TORCH_MODELS = ("resnet8-cifar", "resnet18-cifar", "bert-micro")
BUDGETS = (1.0, 0.75, 0.5, 0.25, 0.0)
INTERVALS = (2, 3)  # Moccasin's C

PLANNERS_HEAD = (
    "graph", "nodes", "RAM", "planner", "overhead %", "bound %", "s", "status",
)  # fmt: skip
SAVED_HEAD = (
    "model", "budget", "weighs", "saved", "other", "again", "RAM bytes", "% of keep-everything",
    "PyTorch: overhead %", "poet-remat: overhead %", "bound %", "s",
    "Moccasin, C = 2: overhead %", "bound %", "s",
)  # fmt: skip

Row = list[str]


@dataclass(frozen=True)
class Outcome:
    """What a planner found, as shares of the energy of computing everything once."""

    planner: str
    status: str
    overhead: float | None  # None: no plan
    bound: float | None  # None: no bound
    time_s: float

    @classmethod
    def of(cls, planner: str, problem: Problem, plan: Plan, time_s: float) -> "Outcome":
        if plan.statements:
            verify(problem, plan)
        overhead, bound = (over(problem.graph, it) for it in (plan.energy_uj, plan.bound))
        return cls(planner, plan.status, overhead, bound, time_s)

    @property
    def row(self) -> Row:
        energies = (percent(it, 3) for it in (self.overhead, self.bound))
        return [self.planner, *energies, f"{self.time_s:.1f}", self.status]


def over(graph: CostGraph, energy_uj: float | None) -> float | None:
    """The energy beyond computing everything once, as a share of it.

    A bound below that is raised to it, since every plan computes everything.
    """
    once_uj = sum(node.energy_uj for node in graph.nodes)
    return None if energy_uj is None else max(0.0, energy_uj / once_uj - 1)


def ours(problem: Problem, limit_s: float) -> Outcome:
    plan = plan_by("poet-remat", problem, Settings(limit_s, GAP))
    return Outcome.of("poet-remat", problem, plan, plan.solve_s)


def checkmate(problem: Problem, limit_s: float) -> Outcome:
    """Checkmate's program as it was published, in HiGHS. Its plans have no offsets."""
    found = paper_milp.solve(problem, limit_s, page=False)
    overhead, bound = (over(problem.graph, it) for it in (found.energy_uj, found.bound_uj))
    is_known = found.bound_uj != INFINITY  # otherwise no plan exists
    name = "Checkmate's program"
    return Outcome(name, found.status, overhead, bound if is_known else None, found.time_s)


def by_moccasin(problem: Problem, limit_s: float, intervals: int) -> Outcome:
    plan = moccasin.moccasin(problem, Settings(limit_s), intervals).plan
    return Outcome.of(f"Moccasin, C = {intervals}", problem, plan, plan.solve_s)


def references(only: str, limit_s: float) -> Iterator[Row]:
    """The paper's graphs, which have no parameters."""
    for name, share in REFERENCE:
        if only not in name:
            continue
        graph = graphs.reference(name)
        peak = keep_everything(graph).peak_bytes
        assert peak is not None
        problem = Problem(graph, peak * share // 100, objective="added-energy")
        outcomes = [
            ours(problem, limit_s),
            checkmate(problem, limit_s),
            *(by_moccasin(problem, limit_s, count) for count in INTERVALS),
        ]
        for outcome in outcomes:
            row = [name, str(len(graph.nodes)), f"{share} %", *outcome.row]
            print(", ".join(row), flush=True)
            yield row


def saved_sets(step: torch_saved.Step) -> Iterator[tuple[float, str, torch_saved.Saved]]:
    """The saved sets of all budgets, and how PyTorch weighed its operators."""
    for budget in BUDGETS:
        by_flop, by_energy = (step.saved(budget, by_energy=it) for it in (False, True))
        if by_flop == by_energy:
            yield budget, "either", by_flop
        else:
            yield budget, "FLOP", by_flop
            yield budget, "energy", by_energy


def by_torch(only: str, limit_s: float) -> Iterator[Row]:
    """Whole steps, whose parameters are outside of the RAM, by the saved sets of PyTorch."""
    for name in (it for it in TORCH_MODELS if only in it):
        step = torch_saved.Step(name, graphs.M4)
        graph = step.costs
        peak = keep_everything(graph).peak_bytes
        assert peak is not None
        known: dict[int, tuple[Outcome, Outcome]] = {}
        for budget, weighs, saved in saved_sets(step):
            events = step.events(saved)
            plan = torch_saved.replayed(graph, events)
            problem = Problem(graph, plan.ram_bytes, objective="added-energy")
            verify(problem, plan)
            if plan.ram_bytes not in known:
                found = ours(problem, limit_s), by_moccasin(problem, limit_s, INTERVALS[0])
                known[plan.ram_bytes] = found
            own, other = known[plan.ram_bytes]
            row = [
                name, f"{budget:g}", weighs, f"{saved.bytes_of(graph):,}", str(saved.other_bytes),
                str(len(events) - len(graph.nodes)), f"{plan.ram_bytes:,}",
                percent(plan.ram_bytes / peak, 1), percent(over(graph, plan.energy_uj)),
                *(percent(it) for it in (own.overhead, own.bound)), f"{own.time_s:.1f}",
                *(percent(it) for it in (other.overhead, other.bound)), f"{other.time_s:.1f}",
            ]  # fmt: skip
            print(", ".join(row), flush=True)
            yield row


def report(planners: Sequence[Row], saved: Sequence[Row], limit_s: float) -> str:
    """The tables as Markdown."""
    return filled(
        "planners",
        about=about("highspy", "ortools", "torch"),
        limit_s=limit_s,
        planners=table(PLANNERS_HEAD, planners),
        saved=table(SAVED_HEAD, saved),
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.planners", description=__doc__)
    parser.add_argument(
        "--limit", type=float, default=LIMIT_S, metavar="S", help="for each plan (default 20 s)"
    )
    parser.add_argument(
        "--only", default="", metavar="NAME", help="graphs whose name contains NAME; no file"
    )
    options = parser.parse_args()
    try:
        moccasin.require()
        planners = list(references(options.only, options.limit))
        saved = list(by_torch(options.only, options.limit))
    except PoetError as error:
        print(f"bench.planners: {error}", file=sys.stderr)
        return 1
    finally:
        POOL.close()
    text = report(planners, saved, options.limit)
    if options.only:
        print(text)
    else:
        write_whole(RESULTS, text)
        print(f"written: {RESULTS.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
