"""Random and built-in models, written as ONNX by PyTorch: ONNX Runtime answers as they do, and
imported they answer and learn as they do.
"""

import numpy as np
import poet_host as poet
import pytest
import torch
from hypothesis import assume, given, settings
from poet_host.data.fitted import example
from poet_host.errors import BadInput
from poet_host.graph.autodiff import Sgd, training_graph
from poet_host.graph.builder import Model
from poet_host.graph.graph import Graph
from poet_host.graph.models import MODELS
from poet_host.graph.source import source_of
from poet_host.graph.weights import start_values, to_named
from poet_host.reference.inference import logits
from poet_host.reference.step import run_step
from support.onnx_judge import by_runtime, imported
from support.onnx_models import legacy
from support.random_models import random_models
from support.torch_module import AsModule

UNLIKE = {"dropout", "batchnorm2d_frozen"}  # in training; a file is for inference


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True)
@given(random_models())
def test_a_random_model_is_imported(model: Model) -> None:
    assume(any(node.role == "parameter" for node in model.parameters))
    check_import(model)


@pytest.mark.parametrize(
    "name", ["resnet-digits", "lenet-digits", "resnet8-cifar", "linear", "bert-micro"]
)
def test_a_built_in_model_is_imported(name: str) -> None:
    check_import(MODELS[name].forward(2))


def check_import(model: Model) -> None:
    graph = training_graph(model, Sgd(0.25))
    rng = np.random.default_rng(0)
    values = {
        name: np.abs(value + rng.standard_normal(value.shape).astype(np.float32) / 4)
        for name, value in start_values(graph, 0).items()
    }
    x, label = example(graph)
    given = torch.tensor(x, dtype=torch.int64 if x.dtype == np.int32 else torch.float32)
    data = legacy(AsModule(model, graph, values), given)
    expected = logits(graph, values, x)
    close(by_runtime(data, x), expected)

    loss = "cross-entropy" if model.layers[-1].kind == "softmax_xent" else "mse"
    again = imported(data, batch=len(x), loss=loss, optimizer="sgd", learning_rate=0.25)
    theirs = start_values(again, 0)
    close(logits(again, theirs, x), expected)
    if UNLIKE.isdisjoint(layer.kind for layer in model.layers):
        named = after_a_step(graph, values, x, label)
        learnt = after_a_step(again, theirs, x, label)
        # Single numbers of a file stay, and what is taken away from the data.
        stay = {node.name for node in model.parameters if node.size_bytes == 4}
        if any(layer.kind == "sub" for layer in model.layers):
            states = (node for node in again if node.role == "state")
            stay |= {name for node in states for name in source_of(again, node).names}
        assert named.keys() - learnt.keys() <= stay
        for name, value in learnt.items():
            close(value, named[name])


def after_a_step(
    graph: Graph, values: dict[str, np.ndarray], x: np.ndarray, label: np.ndarray
) -> dict[str, np.ndarray]:
    """What was learnt, by names in files."""
    found = run_step(graph, {**values, graph.data: x, graph.label: label}, 1)
    new = {node.updates: found[node.name] for node in graph if node.updates}
    changed = {name for node in graph.trainable for name in source_of(graph, node).names}
    return {n: v for n, v in to_named(graph, {**values, **new}).items() if n in changed}


def close(found: np.ndarray, expected: np.ndarray) -> None:
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(found.reshape(expected.shape), expected, atol=1e-4 * scale)


def test_a_built_in_model_is_not_exported() -> None:
    graph = poet.load("linear")
    assert isinstance(graph, Graph)
    with pytest.raises(BadInput, match=r"linear .*safetensors"):
        poet.export(graph, start_values(graph, 0))
