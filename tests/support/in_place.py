"""Schedules in which many operators overwrite an input that they need not overwrite."""

import random
from dataclasses import replace

from poet_host import api
from poet_host.graph.graph import Graph
from poet_host.plan.plan import Plan, Statement
from poet_host.plan.pricing import cost_graph
from poet_host.plan.problem import CostGraph, Problem
from poet_host.schedule.schedule import Schedule
from poet_host.stream.in_place import with_modes_in_place
from poet_host.stream.streaming import with_streaming
from support.random_plans import random_plan
from support.whole_runs import profile


def in_place_problem(graph: Graph, part_ram_bytes: int | None = None) -> Problem:
    """A problem whose modes only overwrite. `part_ram_bytes`: cut tensors as for so much RAM."""
    plain = Problem(cost_graph(graph, profile()), 4, profile=profile())
    if part_ram_bytes is None:
        return with_modes_in_place(plain, graph)
    problem = with_streaming(replace(plain, ram_bytes=part_ram_bytes), graph)
    assert problem.streaming is not None
    nests = {key: nest for key, nest in problem.streaming.nests.items() if not key[1]}
    nodes = [replace(node, modes=()) for node in problem.graph.nodes]
    streaming = replace(problem.streaming, nests=nests)
    whole = replace(problem.graph, nodes=tuple(nodes))
    return with_modes_in_place(Problem(whole, 4, None, profile(), streaming=streaming), graph)


def everything_paged(graph: CostGraph) -> Plan:
    """The plan that pages in the inputs before each node, computes it in the last mode that it has,
    and pages out the output after it. Workspaces come after the tensors.
    """
    statements: list[Statement] = []
    for i, node in enumerate(graph.nodes):
        if node.stored:
            continue
        number, offsets, at = len(node.modes), dict[int, int](), 0
        for j in dict.fromkeys(node.inputs):
            statements.append(Statement("page_in", graph.nodes[j].name, at))
            offsets[j] = at
            at += graph.nodes[j].bytes
        over = node.mode(number).overwrites
        offsets[i] = at if over is None else offsets.pop(over)
        workspace = at + (0 if over is not None else node.bytes)
        has_workspace = node.mode(number).workspace_bytes > 0
        compute = Statement("compute", node.name, offsets[i], workspace, number)
        statements.append(compute if has_workspace else replace(compute, workspace_offset=None))
        statements.append(Statement("page_out", node.name))
        statements += [Statement("free", graph.nodes[j].name) for j in offsets]
    return Plan("feasible", 1 << 20, time_us=1.0, statements=tuple(statements))


def in_place_schedule(
    graph: Graph, seed: int | None = None, part_ram_bytes: int | None = None
) -> tuple[Schedule, set[str]]:
    """The schedule of a random plan, and the kernels that it runs in place as a choice.

    Without `seed`, it is that of `everything_paged`.
    """
    problem = in_place_problem(graph, part_ram_bytes)
    rng = random.Random(seed)
    plans = (random_plan(problem.graph, rng, 4096) for _ in range(100))
    plan = everything_paged(problem.graph) if seed is None else next(it for it in plans if it)
    used = {graph[it.node].op for it in plan.statements if it.mode}
    return api.encode(graph, replace(plan, problem=problem)), used
