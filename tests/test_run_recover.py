"""A .poet file is enough to train by: the graph comes back from it, whole."""

from dataclasses import replace

import numpy as np
import pytest
import whole_runs as runs
from poet_host import api
from poet_host.errors import BadInput
from poet_host.graph.graph import Graph, Node
from poet_host.graph.models import MODELS
from poet_host.run.data import example, fit, load_data
from poet_host.schedule.encode import model_part
from poet_host.schedule.recover import graph_of

GRAPHS = {
    **{name: lambda name=name: api.load_graph(name) for name in MODELS if name != "vgg16-cifar"},
    "frozen": lambda: api.load_graph("resnet-digits", train="last:1"),
    "momentum": lambda: runs.digits(0.9, 0.0005),
    "mixed": runs.mixed,
}


def rounded(node: Node) -> Node:
    """As a record holds it: floats are float32, what is 0 is not there."""
    attrs = {
        name: float(np.float32(value)) if isinstance(value, float) else value
        for name, value in node.attrs.items()
        if value
    }
    return replace(node, attrs=attrs)


@pytest.mark.parametrize("name", GRAPHS)
def test_the_graph_of_a_schedule_is_the_graph_it_was_made_of(name: str) -> None:
    graph: Graph = GRAPHS[name]()
    schedule = runs.schedule(graph)
    found = graph_of(schedule)
    assert (found.name, found.data, found.label, found.loss, found.logits) == (
        graph.name, graph.data, graph.label, graph.loss, graph.logits,
    )  # fmt: skip
    stored_first = sorted(graph.nodes, key=lambda node: not node.stored)
    assert [rounded(node) for node in found] == [rounded(node) for node in stored_first]
    assert model_part(found) == schedule.model_part


@pytest.mark.parametrize("key", ["tensors", "graph"])
def test_a_meta_part_without_a_graph_is_refused(key: str) -> None:
    schedule = runs.schedule(runs.digits())
    if key == "tensors":
        rows = [{"name": row["name"]} for row in schedule.meta["tensors"]]
        meta = {**schedule.meta, "tensors": rows}
    else:
        meta = {**schedule.meta, "graph": {"name": "resnet-digits"}}
    with pytest.raises(BadInput, match="schedule of resnet-digits: its meta part lacks"):
        graph_of(replace(schedule, meta=meta))


@pytest.mark.parametrize("name", ["resnet-digits", "lenet-digits", "resnet8-cifar", "linear"])
def test_an_example_batch_is_what_training_may_meet(name: str) -> None:
    graph = api.load_graph(name, batch=3)
    x, y = example(graph)
    assert x.shape == graph[graph.data].shape
    assert x.dtype == np.float32
    assert np.isfinite(x).all()
    assert y.shape == graph[graph.label].shape
    assert y.dtype == np.int32
    assert 0 <= y.min() <= y.max() < graph[graph.logits].shape[1]
    if name.endswith("digits"):
        assert np.array_equal(x, load_data("digits").x[:3])


def test_an_example_batch_for_regression() -> None:
    graph = runs.mixed()
    x, y = example(graph)
    assert x.shape == graph[graph.data].shape
    assert y.shape == graph[graph.label].shape
    assert y.dtype == np.float32
    assert not np.array_equal(y, np.zeros_like(y))


def test_a_batch_larger_than_the_data_repeats_samples() -> None:
    graph = api.load_graph("resnet-digits", batch=2000)
    x, _ = example(graph)
    assert np.array_equal(x[1437], x[0])
    with pytest.raises(BadInput, match="do not fill one batch of 2000"):
        fit(load_data("digits"), graph)
