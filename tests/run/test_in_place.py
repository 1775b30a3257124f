"""Operators that overwrite an input as a choice: the weights are the same bits."""

from collections.abc import Callable

import pytest
from poet_host.graph.autodiff import Sgd, training_graph
from poet_host.graph.builder import Builder
from poet_host.graph.graph import Graph
from poet_host.plan.plan import Statement
from poet_host.schedule.decode import decode
from poet_host.schedule.nests import Streamed
from support import whole_runs as runs
from support.in_place import in_place_schedule


def branches() -> Graph:
    """Several operators read the same tensor, so that none of them overwrites it for good."""
    b = Builder("branches", data=(2, 1, 8, 8))
    x = b.conv2d(b.data, 4, 3, padding=1, name="conv")
    y = b.add(b.add(b.relu(x), b.sigmoid(x)), b.mul(b.tanh(x), b.gelu(x)))
    y = b.sub(b.softmax(y), b.clip(y, -1.0, 1.0))
    x = b.add(b.relu6(b.add(y, x)), y)
    x = b.linear(b.flatten(x), 10, name="fc")
    return training_graph(b.model(b.softmax_xent(x, name="loss")), Sgd(0.05))


MANY = {"relu", "sigmoid", "tanh", "gelu", "softmax", "clip", "add", "mul"}


@pytest.mark.parametrize(
    ("graph_of", "part_ram_bytes", "kernels"),
    [
        (runs.digits, None, {"batchnorm"}),
        (runs.digits, 4096, {"batchnorm"}),
        (branches, None, MANY),
    ],
    ids=["in one call", "part by part", "many kernels"],
)
def test_whatever_runs_in_place_the_weights_are_the_same(
    graph_of: Callable[[], Graph], part_ram_bytes: int | None, kernels: set[str]
) -> None:
    graph, seen = graph_of(), set[str]()
    wanted = runs.train(runs.schedule(graph), steps=2)
    for seed in range(3):
        schedule, used = in_place_schedule(graph, seed, part_ram_bytes)
        found = [it for it in decode(schedule) if isinstance(it, Statement) and it.mode]
        assert all(isinstance(it, Streamed) == bool(part_ram_bytes) for it in found)
        assert runs.same(runs.train(schedule, steps=2), wanted)
        seen |= used
    assert seen >= kernels
