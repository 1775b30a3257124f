"""checkmate: optimal rematerialisation, while data and parameters stay in RAM.

P. Jain et al., *Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization*, MLSys
2020, arXiv 1910.02653. In every stage, an integer program chooses which tensors are recomputed
(R_t,i) and which are kept (S_t,i), at the least cost. Inputs and parameters take a constant part of
memory: U_t,0 begins with M_input + 2 M_param, where the factor 2 stands for parameters and their
gradients. In this project gradients take no memory of their own, since the update is part of the
gradient's kernel. Stored tensors are those that no operator computes, such as data and parameters.
This module has two cases:

  published: RAM has room for all stored tensors all the time. They stay in RAM from the first use
  to the last one. An update overwrites its parameter in RAM, and the result is paged out at once.
  The integer program plans the other tensors in the rest of RAM.
  extension, if no such plan is found, since stored tensors leave too little RAM for the others:
  stored tensors may leave RAM between uses, as in the method `poet-remat`.

Both cases use this planner's own integer program (stage_model.py), for rematerialisation alone. The
program does not fix the order within stages, so it allows every schedule that Checkmate's program
allows. It minimises energy; Checkmate minimises time.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from ..packing.blocks import ALIGNMENT
from ..plan.completion import complete
from ..plan.effects import events_of
from ..plan.infeasible import largest_operator_bytes
from ..plan.placed_plan import PlacedPlan, realise
from ..plan.placement import aligned_graph
from ..plan.plan import Plan, Statement
from ..plan.problem import CostGraph, CostNode, Problem
from ..solver.search import SeedPlan
from ..solver.settings import Settings, Stopwatch
from ..solver.solve import solve
from .method import EXTENSION

MAX_ROUNDS = 4  # most attempts; each plans for an earlier deadline than the one before
DEADLINE_FACTOR = 0.97  # the deadline of an attempt, divided by that of the attempt before
MIN_TIME_LIMIT_S = 0.1
SEED_LIMIT_S = 2.0


def checkmate(problem: Problem, settings: Settings, seed_plans: Sequence[SeedPlan] = ()) -> Plan:
    """Find the plan of least energy by recomputation. Page tensors only if RAM is too small.

    `seed_plans`: plans of other methods, from which the search starts, as for `poet-remat`.
    """
    clock = Stopwatch(settings.time_limit_s)
    graph = aligned_graph(problem.graph, ALIGNMENT if settings.placed else 1)
    resident_bytes = sum(graph.nodes[i].bytes for i in _resident(graph))
    if not graph.storage or not resident_bytes:
        # Without storage, stored tensors start in RAM; when freed, they cannot come back. Without
        # stored tensors, both cases are the method `poet-remat`.
        return _solved(problem, settings, clock.left_s, seed_plans)
    rest = results_only(problem.graph)
    ram_bytes = problem.ram_bytes - resident_bytes
    inner = replace(problem, graph=rest, ram_bytes=ram_bytes)
    if largest_operator_bytes(inner.graph) <= inner.ram_bytes:
        plan = _published(problem, inner, settings, seed_plans, clock)
        if plan is not None:
            return replace(plan, solve_s=clock.elapsed_s)
    plan = _solved(problem, settings, clock.left_s, seed_plans)
    note = (
        EXTENSION if plan.statements else "even with parameters and data leaving RAM between uses"
    )
    return replace(plan, note=note)


def _resident(graph: CostGraph) -> set[int]:
    """Return the stored tensors that operators use."""
    return {i for node in graph.nodes for i in node.inputs if graph.nodes[i].stored}


def _solved(
    problem: Problem, settings: Settings, limit_s: float, seed_plans: Sequence[SeedPlan]
) -> Plan:
    limited = replace(settings, time_limit_s=max(limit_s, MIN_TIME_LIMIT_S))
    return solve(problem, limited, method="poet-remat", seed_plans=seed_plans)


def results_only(graph: CostGraph) -> CostGraph:
    """Return the graph without its stored tensors, such as data and parameters.

    A node that overwrites a stored tensor uses the memory of that tensor, so the node gets size 0.
    """
    number: dict[int, int] = {}
    nodes: list[CostNode] = []
    inside: set[int] = set()  # results that lie in the memory of a stored tensor
    for i, node in enumerate(graph.nodes):
        if node.stored:
            continue
        over = node.overwrites
        in_place = over is not None and (graph.nodes[over].stored or over in inside)
        if in_place:
            inside.add(i)
        nodes.append(
            replace(
                node,
                inputs=tuple(number[j] for j in node.inputs if j in number),
                bytes=0 if in_place else node.bytes,
                overwrites=None if in_place or over is None else number[over],
                once=node.once or in_place,
                keep=False,
            )
        )
        number[i] = len(nodes) - 1
    return replace(graph, nodes=tuple(nodes), storage=False, may_leave_out=False)


def _published(
    problem: Problem,
    inner: Problem,
    settings: Settings,
    seed_plans: Sequence[SeedPlan],
    clock: Stopwatch,
) -> Plan | None:
    """Plan the computed tensors, then add the transfers.

    The transfers are the page-ins of stored tensors, such as parameters, and the page-outs of
    results that must be on storage at the end. Return None if no solution of the integer program is
    found, or if its solution needs a tensor that an update overwrote.
    """
    limit_us, bound = problem.deadline_us, None
    # Without a seed plan, there may be no plan at all. Then half of the time is kept for the
    # extension.
    quick = replace(settings, time_limit_s=SEED_LIMIT_S, below=inf)
    has_plan = any(seed_plan(inner, quick) is not None for seed_plan in seed_plans)
    reserve_s = 0.0 if has_plan else settings.time_limit_s / 2
    for _ in range(MAX_ROUNDS):
        left_s = clock.left_s - reserve_s
        solved = _solved(replace(inner, deadline_us=limit_us), settings, left_s, seed_plans)
        if not solved.statements:
            return None
        whole = _with_transfers(problem, solved)
        if whole is None:
            return None
        if bound is None and solved.bound is not None:
            bound = solved.bound + _given_uj(problem.counted)
        placed = realise(problem, whole, placed=settings.placed, time_limit_s=clock.left_s)
        if isinstance(placed, PlacedPlan):
            plan = placed.as_plan(problem)
            return plan if bound is None else plan.with_bound(bound)
        if placed.ram_bytes:
            return None
        limit_us = (limit_us or 0.0) * DEADLINE_FACTOR
    return None


def _given_uj(graph: CostGraph) -> float:
    """Return the energy that every plan of the published method spends on transfers."""
    ins = sum(graph.nodes[i].page_in_uj for i in _resident(graph))
    return ins + sum(node.page_out_uj for node in graph.nodes if node.keep and not node.stored)


def _with_transfers(problem: Problem, solved: Plan) -> tuple[Statement, ...] | None:
    """Add the transfers of stored tensors and of results that must be on storage at the end.

    Return None if a node needs a tensor that was overwritten.
    """
    graph = problem.graph
    computes = [it for it in solved.statements if it.op == "compute"]
    computed = {it.node for it in computes}
    whole = complete(graph, events_of(graph, computes), problem.ram_bytes).statements or ()
    paged = [it.node for it in whole if it.op == "page_in"]
    return whole if len(set(paged)) == len(paged) and computed.isdisjoint(paged) else None
