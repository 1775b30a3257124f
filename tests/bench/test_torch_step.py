"""A plan that PyTorch executes: eager's bits, the plan's peak, each random operator drawn once."""

from pathlib import Path

import poet_host as poet
import pytest
import torch
from poet_host.plan.costgraph import dump_cost_graph, parse_cost_graph
from poet_host.plan.problem import CostGraph, Problem
from poet_host.plan.verify import verify

from bench.torch_modules import MODULES
from bench.torch_plans import eager, example, executed
from bench.torch_step import Executor, TorchStep, allocated


def with_fixed_costs(graph: CostGraph) -> CostGraph:
    """The graph with times by size: they, and so the plan, are the same on each computer."""
    data = dump_cost_graph(graph)
    for node in data["nodes"]:
        for key, value in node.items():
            if key.endswith(("_us", "_uj")) and value:
                node[key] = float(node["bytes"] // 64 * (100 if key.startswith("page") else 1))
    return parse_cost_graph(data)


@pytest.mark.slow
@pytest.mark.parametrize("in_place", [False, True])
def test_a_plan_gives_the_bits_of_eager_execution(tmp_path: Path, in_place: bool) -> None:
    module, inputs = example("residual CNN")
    wanted = eager(module, inputs)
    step = TorchStep(module, *inputs)
    graph = with_fixed_costs(step.cost_graph("cnn", tmp_path))
    assert set(step.outputs.values()) == wanted.keys()
    problem = poet.problem(graph, ram="50%", objective="time")
    plan = poet.solve(problem, method="poet-remat", work_limit=20_000, gap=0.2)
    verify(Problem(graph, problem.ram_bytes, objective="time"), plan)
    ops = [it.op for it in plan.statements]
    assert ops.count("compute") > len(graph.nodes) - len(step.given)  # some again
    executor = Executor(step, plan, tmp_path, in_place=in_place)
    for _ in range(2):  # a plan may be executed again
        found, peak = allocated(lambda: executed(executor))
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            assert torch.equal(found[name], value), name
        assert plan.peak_bytes is not None
        assert executor.live_bytes <= plan.peak_bytes <= problem.ram_bytes
        if not in_place:  # the state of the random generator is not part of the graph
            assert peak <= plan.peak_bytes + torch.get_rng_state().nbytes + 64


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_every_module_is_a_step_that_can_be_executed(name: str, tmp_path: Path) -> None:
    module, inputs = example(name)
    wanted = eager(module, inputs)
    step = TorchStep(module, *inputs)
    plan = step.cost_graph(name, tmp_path).keep_everything
    assert plan is not None
    found = executed(Executor(step, plan, tmp_path, in_place=True))
    assert all(torch.equal(found[key], value) for key, value in wanted.items())
