"""Moccasin (Bartan et al., ICML 2023) as a planner of ours: rematerialisation alone, by CP-SAT.

The constraint program is in moccasin_model.py, which runs in a process of its own. The method is
treated like `checkmate`: stored tensors lie in RAM outside of the program (and never leave it), and
the search starts from the best plan of another method that the program can express. The result is
completed, placed and verified like that of every method. Its bound holds for plans of its own form
alone: at most C computations of a node, each in a stage. It is not a method of the command line,
because it needs OR-Tools.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from poet_host.baselines.checkmate import results_only
from poet_host.baselines.method import Draft, GaveUp, cheapest_plan
from poet_host.baselines.registry import SEED_PLANS
from poet_host.errors import BadInput, PoetError
from poet_host.plan.completion import complete
from poet_host.plan.events import Event, energy_uj, events_of
from poet_host.plan.plan import Plan
from poet_host.plan.problem import CostGraph, Problem
from poet_host.solver.settings import Settings, Stopwatch

ROOT = Path(__file__).parents[1]
INTERVALS = 2  # C: the most computations of a node
WORKERS = 8  # threads of CP-SAT, whose portfolio has 8 searches
SEED_LIMIT_S = 2.0  # for each plan of another method
SEARCH_TIME_SHARE = 0.8  # of the time left; the rest is for placement
GRACE_S = 30.0  # after the limit, CP-SAT is stopped

Moments = list[tuple[int, int]]  # computations in order: stage and node


@dataclass
class Found:
    """A plan, and what CP-SAT reported."""

    plan: Plan
    integers: int = 0  # variables of the program
    booleans: int = 0


def require() -> None:
    """Raise BadInput if OR-Tools is not installed."""
    if find_spec("ortools") is None:
        raise BadInput("Moccasin's program needs OR-Tools: run `pip install 'ortools>=9.15,<10'`")


def moccasin(problem: Problem, settings: Settings, intervals: int = INTERVALS) -> Found:
    """Find the plan of least added energy with at most `intervals` computations of a node.

    Raises BadInput if OR-Tools is not installed.
    """
    require()
    clock = Stopwatch(settings.time_limit_s)
    replies: list[dict[str, Any]] = []

    def drafts(graph: CostGraph, ram_bytes: int) -> Sequence[Draft]:
        numbers = [i for i, node in enumerate(graph.nodes) if not node.stored]
        inner = _results(graph)
        room = ram_bytes - sum(node.bytes for node in graph.nodes if node.stored)
        start = None if replies else _start(inner, room, intervals)
        reply = _solve(inner, room, intervals, start, clock.left_s * SEARCH_TIME_SHARE)
        replies.append(reply)
        if reply["status"] == "infeasible":
            return []
        moments = reply["moments"] or start
        if moments is None:
            raise GaveUp("CP-SAT found no plan in time")
        return [Draft([Event("compute", numbers[v]) for _, v in moments])]

    plan = cheapest_plan(drafts, problem, settings)
    first = replies[0]
    if plan.statements and plan.energy_uj is not None:
        transfers_uj = plan.energy_uj - sum(
            problem.graph.nodes[problem.graph.index[it.node]].energy_uj
            for it in plan.statements
            if it.op == "compute"
        )
        plan = plan.with_bound(first["bound_uj"] + transfers_uj)
    plan = replace(plan, method="moccasin", solve_s=clock.elapsed_s)
    return Found(plan, first["integers"], first["booleans"])


def _results(graph: CostGraph) -> CostGraph:
    """The computed nodes. Without storage, what outlives the step stays in RAM to its end."""
    inner = results_only(graph)
    if graph.storage:
        return inner
    keep = [node.keep for node in graph.nodes if not node.stored]
    nodes = zip(inner.nodes, keep, strict=True)
    return replace(inner, nodes=tuple(replace(node, keep=kept) for node, kept in nodes))


def _start(graph: CostGraph, ram_bytes: int, intervals: int) -> Moments | None:
    """The computations of the best plan of another method that the program can express."""
    problem = Problem(graph, ram_bytes, objective="added-energy")
    best: Moments | None = None
    best_uj = float("inf")
    for seed_plan in SEED_PLANS:
        plan = seed_plan(problem, Settings(SEED_LIMIT_S, placed=False))
        if plan is None:
            continue
        moments = staged(graph, events_of(graph, plan.statements))
        events = [Event("compute", v) for _, v in moments]
        counts = Counter(v for _, v in moments)
        if (
            energy_uj(graph, events) < best_uj
            and max(counts.values()) <= intervals
            and complete(graph, events, ram_bytes).statements is not None
        ):
            best, best_uj = moments, energy_uj(graph, events)
    return best


def staged(graph: CostGraph, events: Sequence[Event]) -> Moments:
    """Return computations as moments: in each stage, each node once, in the graph's order."""
    order = [event.node for event in events if event.op == "compute"]
    moments: Moments = []
    again: set[int] = set()
    stage = 0
    for v in order:
        if v < stage:
            again.add(v)
            continue
        moments += [(stage, u) for u in sorted(again)]
        moments.append((stage, v))
        again.clear()
        stage = v + 1
    return [*moments, *((stage, u) for u in sorted(again))]


def _solve(
    graph: CostGraph, ram_bytes: int, intervals: int, start: Moments | None, limit_s: float
) -> dict[str, Any]:
    """Run CP-SAT in a process of its own."""
    request = {
        "nodes": [
            {
                "inputs": node.inputs, "bytes": node.bytes, "energy_uj": node.energy_uj,
                "workspace_bytes": node.workspace_bytes, "overwrites": node.overwrites,
                "once": node.once, "keep": node.keep,
            }
            for node in graph.nodes
        ],
        "ram_bytes": ram_bytes, "intervals": intervals, "start": start,
        "time_limit_s": limit_s, "workers": WORKERS, "seed": 1,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "bench.moccasin_model"],
        input=json.dumps(request),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=limit_s + GRACE_S,
    )
    if done.returncode:
        raise PoetError(f"CP-SAT ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    reply: dict[str, Any] = json.loads(done.stdout)
    return reply
