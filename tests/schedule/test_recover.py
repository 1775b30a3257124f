"""A .poet file is all that training and evaluation need: the whole graph is recovered."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import poet_host as poet
import pytest
import torch
from hypothesis import given, settings
from poet_host import api
from poet_host.data.datasets import Dataset, load_data
from poet_host.data.fitted import example, fit
from poet_host.errors import BadInput
from poet_host.graph.autodiff import Sgd, training_graph
from poet_host.graph.builder import Model
from poet_host.graph.graph import Graph, Node
from poet_host.graph.models import MODELS
from poet_host.graph.weights import start_values
from poet_host.schedule.layout import model_of_graph
from poet_host.schedule.model import model_bytes
from poet_host.schedule.schedule import Schedule, parse
from support import onnx_architectures, onnx_models, toy, whole_runs as runs
from support.onnx_judge import imported
from support.random_models import random_models
from support.sim_helper import needs_compiler

GRAPHS = {
    **{name: lambda name=name: api.load_graph(name) for name in MODELS},
    "frozen": lambda: api.load("resnet-digits", train="last:1"),
    "momentum": lambda: runs.digits(0.9, 0.0005),
    "mixed": runs.mixed,
}


def rounded(node: Node) -> Node:
    """As a record holds it: floats are float32."""
    attrs = {
        name: float(np.float32(value)) if isinstance(value, float) else value
        for name, value in node.attrs.items()
    }
    return replace(node, attrs=attrs)


def check_recovered(graph: Graph) -> None:
    """The schedule's graph has the same operators, with the same attributes, as `graph`."""
    schedule = runs.schedule(graph)
    found = schedule.graph
    assert (found.name, found.data, found.label, found.loss, found.logits) == (
        graph.name, graph.data, graph.label, graph.loss, graph.logits,
    )  # fmt: skip
    stored_first = sorted(graph.nodes, key=lambda node: not node.stored)
    assert [rounded(node) for node in found] == [rounded(node) for node in stored_first]
    assert model_bytes(model_of_graph(found)) == schedule.model_part


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
def test_the_graph_of_a_schedule_is_the_graph_it_was_made_of(name: str) -> None:
    check_recovered(GRAPHS[name]())


class Product(torch.nn.Module):
    """A layer whose weight is a product of two small parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.u, self.v, self.b = (
            torch.nn.Parameter(torch.randn(*shape)) for shape in ((8, 2), (2, 8), (8,))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.u @ self.v, self.b)


def test_an_operator_updates_one_of_two_inputs_that_share_a_block() -> None:
    graph = api.load(Product(), torch.randn(2, 8), loss="cross-entropy", optimizer="momentum")
    tensors, numbers = runs.schedule(graph).model.tensors, runs.schedule(graph).numbers
    assert graph["v:momentum:new"].inputs == ("u", "MatMul:grad", "v:momentum")
    assert tensors[numbers["u"]].block == tensors[numbers["v:momentum"]].block
    check_recovered(graph)


def test_the_graph_of_a_schedule_written_by_hand_is_recovered() -> None:
    found = toy.schedule().graph
    for node in toy.graph():
        assert rounded(found[node.name]).attrs.items() >= rounded(node).attrs.items()


MODULES = [
    onnx_models.Residual, onnx_models.Depthwise, onnx_models.Transformer, onnx_models.BuiltIn,
    onnx_architectures.VisionTransformer, onnx_architectures.Between,
    onnx_architectures.Normalised, onnx_architectures.Repeated, onnx_architectures.Language,
    onnx_architectures.Padded,
]  # fmt: skip
OF_TEXTS = (
    onnx_models.Transformer,
    onnx_models.BuiltIn,
    onnx_architectures.Language,
    onnx_architectures.Padded,
)


def example_of(module_of: type[torch.nn.Module]) -> torch.Tensor:
    length = 16 if module_of is onnx_models.Transformer else 10
    return torch.randint(1, 17, (2, length)) if module_of in OF_TEXTS else torch.randn(2, 1, 8, 8)


@pytest.mark.slow
@pytest.mark.parametrize("module_of", MODULES)
def test_the_graph_of_a_module_is_recovered(module_of: type[torch.nn.Module]) -> None:
    torch.manual_seed(0)
    module, x = module_of(), example_of(module_of)
    check_recovered(api.load(module, x, loss="cross-entropy"))
    check_recovered(imported(onnx_models.by_dynamo(module, x), optimizer="adam"))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(random_models())
def test_the_graph_of_a_random_model_is_recovered(model: Model) -> None:
    check_recovered(training_graph(model, Sgd(0.05, momentum=0.9)))


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("name", [name for name in MODELS if name != "bert-base"])
def test_every_built_in_model_is_evaluated_from_its_schedule(name: str, tmp_path: Path) -> None:
    graph = api.load(name, batch=1)
    runs.schedule(graph).save(tmp_path / "m.poet")
    schedule = Schedule.load(tmp_path / "m.poet")
    data = Dataset("example", *example(graph))
    with runs.board(schedule) as board:
        found = poet.evaluate(schedule, board, data, weights=start_values(graph, 0))
    assert found.samples == 1
    assert np.isfinite(found.loss)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["tensors", "graph"])
def test_a_meta_part_without_a_graph_is_refused(key: str) -> None:
    schedule = runs.schedule(runs.digits())
    if key == "tensors":
        rows = [{"name": row["name"]} for row in schedule.meta["tensors"]]
        meta = {**schedule.meta, "tensors": rows}
    else:
        meta = {**schedule.meta, "graph": {"name": "resnet-digits"}}
    with pytest.raises(BadInput, match=r"meta part, at \$\.(tensors\[0\]\.shape|graph\.data): "):
        _ = replace(schedule, meta=meta).graph


def test_labels_of_another_role_are_refused() -> None:
    schedule = toy.schedule()
    meta = {**schedule.meta, "graph": {**schedule.meta["graph"], "label": "w"}}
    with pytest.raises(BadInput, match="`data` and `label` must name tensors whose"):
        parse(replace(schedule, meta=meta).to_bytes())


@pytest.mark.parametrize("name", ["resnet-digits", "lenet-digits", "resnet8-cifar", "linear"])
def test_an_example_batch_is_what_training_may_meet(name: str) -> None:
    graph = api.load(name, batch=3)
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
    graph = api.load("resnet-digits", batch=2000)
    x, _ = example(graph)
    assert np.array_equal(x[1437], x[0])
    with pytest.raises(BadInput, match="do not fill one batch of 2000"):
        fit(load_data("digits"), graph)
