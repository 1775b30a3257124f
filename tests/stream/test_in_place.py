"""Modes in which an operator overwrites an input that is needed later."""

from dataclasses import replace

import pytest
from poet_host import api, isa
from poet_host.errors import BadInput
from poet_host.graph.graph import Graph
from poet_host.graph.in_place import choices
from poet_host.graph.models import load
from poet_host.plan.plan import Plan, plan_from_json
from poet_host.plan.problem import Problem
from poet_host.stream.in_place import LEAST_RAM_SHARE
from poet_host.stream.used_modes import with_used_modes
from support import whole_runs as runs
from support.in_place import everything_paged, in_place_problem

RAM_BYTES = 20_000  # of which a batchnorm of resnet-digits needs 4,096 bytes


def in_place(problem: Problem) -> dict[str, list[str]]:
    """What nodes overwrite in modes that only overwrite."""
    nodes = problem.graph.nodes
    return {
        node.name: [nodes[it.overwrites].name for it in node.modes if it.overwrites is not None]
        for node in nodes
        if node.overwrites is None and not any(it.streams for it in node.modes) and node.modes
    }


def digits(ram_bytes: int = RAM_BYTES) -> Problem:
    return api.problem(runs.digits(), runs.profile(), ram=ram_bytes, streaming=False)


@pytest.mark.parametrize("name", ["resnet-digits", "mobilenet-vww", "bert-tiny"])
def test_an_operator_may_overwrite_what_its_kernel_may(name: str) -> None:
    graph = load(name)
    found = choices(graph)
    for node in graph:
        may = [node.inputs[i] for i in isa.kernels()[node.op].may_overwrite] if node.inputs else []
        for other in may:
            same = graph[other].size_bytes == node.size_bytes and not graph[other].stored
            chosen = other in found.get(node.name, [])
            assert chosen == (same and node.overwrites is None), node.name
    assert any(found.values())
    assert all(graph[name].updates is None for name, inputs in found.items() if inputs)


def test_each_large_input_is_a_choice() -> None:
    graph = runs.digits()
    assert in_place(digits()) == {
        f"{name}": [graph[name].inputs[0]] for name in ("bn1", "block.bn1", "block.bn2", "bn2")
    }
    share = round(graph["bn1"].size_bytes / LEAST_RAM_SHARE)
    assert len(in_place(digits(share))) == 4
    assert not digits(share + 1).graph.has_modes


def test_a_mode_in_place_costs_what_mode_0_costs() -> None:
    for problem in (digits(), in_place_problem(runs.digits(), 4096)):
        nests = problem.streaming.nests if problem.streaming else {}
        for name in in_place(problem):
            node = problem.graph.nodes[problem.graph.index[name]]
            assert replace(node.mode(1), overwrites=None) == node.mode(0)
            assert nests.get((name, 1)) == nests.get((name, 0))
        assert bool(nests) == (problem.streaming is not None)


def paged() -> tuple[Graph, Plan]:
    problem = digits()
    plan = replace(everything_paged(problem.graph), problem=problem, ram_bytes=RAM_BYTES)
    return runs.digits(), plan


def test_a_saved_plan_in_place_has_the_same_schedule() -> None:
    graph, plan = paged()
    saved = plan_from_json(plan.to_json())
    schedule = api.encode(graph, plan)
    assert api.encode(graph, runs.profile(), saved).to_bytes() == schedule.to_bytes()
    assert schedule.meta["modes"] == [1, 1, 1, 1]
    modes = {node["name"]: node.get("modes", []) for node in schedule.meta["costs"]["nodes"]}
    assert [it["overwrites"] for it in modes["bn1"]] == ["conv1"]


@pytest.mark.parametrize(("node", "mode"), [("bn1", 2), ("conv1", 1), ("none", 0)])
def test_a_saved_plan_with_an_unknown_mode_is_refused(node: str, mode: int) -> None:
    graph, plan = paged()
    at = next(k for k, it in enumerate(plan.statements) if it.op == "compute")
    wrong = replace(plan.statements[at], node=node, mode=mode)
    statements = (*plan.statements[:at], wrong, *plan.statements[at + 1 :])
    with pytest.raises(BadInput, match=node):
        api.encode(graph, replace(plan, statements=statements))


def test_a_schedule_has_only_the_modes_that_its_plan_uses() -> None:
    _, plan = paged()
    assert plan.problem is not None
    never = replace(plan, statements=tuple(replace(it, mode=0) for it in plan.statements))
    assert not with_used_modes(plan.problem, never)[0].graph.has_modes
    smaller, same = with_used_modes(plan.problem, plan)
    assert (smaller.graph, same.statements) == (plan.problem.graph, plan.statements)


@pytest.mark.parametrize("method", ["checkpoint-all", "chen-sqrt", "capuchin", "keep-everything"])
def test_other_methods_use_mode_0_only(method: str) -> None:
    problem = replace(digits(), ram_bytes=60_000)
    assert problem.graph.has_modes
    plan = api.solve(problem, method=method, work_limit=1_000)
    assert plan.statements
    assert not any(it.mode for it in plan.statements)
