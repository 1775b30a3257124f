"""Modes that stream: models whose operators exceed the RAM have plans."""

from collections.abc import Iterator

import pytest
from poet_host.errors import BadInput
from poet_host.graph.cutting import choose_cuts
from poet_host.graph.graph import Graph
from poet_host.graph.models import load
from poet_host.graph.operands import operator_of
from poet_host.plan.nests import NestedOperator, parts_of
from poet_host.plan.problem import Problem
from poet_host.plan.streaming import Streaming, greedy_plan, stream
from poet_host.profile.profile import estimate_profile

RAM_BYTES = 24_576


def nested(graph: Graph, found: Streaming) -> Iterator[tuple[str, int, NestedOperator]]:
    """Every nest with its node and mode, checked against the laws."""
    for (name, number), priced in found.nests.items():
        node = graph[name]
        cuts = tuple(found.cuts.get(graph[n].updates or n) for n in (*node.inputs, name))
        yield name, number, NestedOperator(operator_of(node), cuts, priced.nest)


@pytest.mark.slow
def test_resnet8_has_a_plan_in_an_eighth_of_its_largest_operator() -> None:
    graph = load("resnet8-cifar")
    found = stream(graph, estimate_profile("mkr1000"), RAM_BYTES)
    for i, (name, number, one) in enumerate(nested(graph, found)):
        cost = found.costs.nodes[found.costs.index[name]]
        mode = cost.mode(number)
        assert mode.workspace_bytes == one.workspace_bytes <= RAM_BYTES
        if number and i % 50 == 0:  # walks take long
            assert (mode.moved_in_bytes, mode.moved_out_bytes) == (
                one.loaded_bytes, one.stored_bytes
            )  # fmt: skip
    problem = Problem(found.costs, RAM_BYTES)
    plan = greedy_plan(problem)  # verified by plan.verify
    assert (plan.peak_bytes or RAM_BYTES + 1) <= RAM_BYTES
    assert sum(statement.mode > 0 for statement in plan.statements) > 50


@pytest.mark.parametrize("model", ["resnet18", "vgg16-cifar", "bert-tiny"])
def test_cuts_are_along_axes_of_all_operators(model: str) -> None:
    graph = load(model)
    cuts = choose_cuts(graph, 4096)
    assert max(graph[name].size_bytes for name in cuts) > 100 * 4096
    for name, cut in cuts.items():
        assert cut.size_bytes == graph[name].size_bytes
        assert graph[name].updates is None
    for node in graph:
        if not node.stored:
            names = [graph[name].updates or name for name in (*node.inputs, node.name)]
            operator = operator_of(node)
            for i, name in enumerate(names):
                parts_of(operator.operand(i), cuts.get(name))  # raises LawError


def test_an_operator_without_a_mode_in_the_ram_is_named() -> None:
    found = stream(load("resnet-digits"), estimate_profile("mkr1000"), RAM_BYTES)
    with pytest.raises(BadInput, match="conv1"):
        greedy_plan(Problem(found.costs, 4096))
