"""Models of one's own compared with ONNX Runtime, shared by the tests of importing them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime
import poet_host as poet
import torch
from onnx import helper
from poet_host.card.weights import load_weights, save_weights
from poet_host.data.fitted import example
from poet_host.graph.graph import Graph
from poet_host.graph.training_options import TrainingOptions
from poet_host.graph.weights import start_values, to_named, weight_nodes
from poet_host.onnx.exporter import export
from poet_host.onnx.importer import training
from poet_host.onnx.model import read_bytes
from poet_host.reference.step import run_step
from support.onnx_models import model
from torch import nn


def random(*shape: int) -> Any:
    return torch.randn(shape).numpy()


def imported(data: bytes, **options: Any) -> Graph:
    return training(read_bytes(data, "model m"), "m", TrainingOptions(**{"loss": "mse", **options}))


def answers(graph: Graph, x: Any = None, weights: Any = None) -> tuple[Any, Any]:
    """What goes in, and what the graph gives the loss, with batchnorm as in training."""
    drawn, label = example(graph)
    x = drawn if x is None else x
    start = start_values(graph, 0) | (weights or {})
    values = run_step(graph, {**start, graph.data: x, graph.label: label}, 1)
    return x, values[graph.logits]


def by_runtime(data: bytes, x: Any) -> Any:
    session = onnxruntime.InferenceSession(data)
    info = session.get_inputs()[0]
    return session.run(None, {info.name: x.astype(np.int64) if "int64" in info.type else x})[0]


def same_as_runtime(data: bytes, x: Any = None, **options: Any) -> Graph:
    """The graph of a model, after its answers were compared, and those of the model it holds."""
    graph = imported(data, **options)
    x, y = answers(graph, x)
    expected = by_runtime(data, x)
    assert np.allclose(y.reshape(expected.shape), expected, atol=1e-5)
    assert np.array_equal(by_runtime(graph.origin, x), expected)
    comes_back(graph, x)
    return graph


def comes_back(graph: Graph, x: Any) -> None:
    """Other weights, saved and read again, give the answers that the exported model gives."""
    others = np.random.default_rng(1)
    moved = {
        name: value * others.uniform(0.9, 1.1, value.shape).astype(np.float32)
        for name, value in start_values(graph, 0).items()
        if name in {node.name for node in weight_nodes(graph)}
    }
    with TemporaryDirectory() as folder:
        save_weights(path := Path(folder) / "w.safetensors", graph, moved)
        read = load_weights(path, graph)
    _, y = answers(graph, x, read)
    expected = by_runtime(export(graph, read), x)
    assert np.allclose(y.reshape(expected.shape), expected, rtol=1e-5, atol=1e-5)


IMAGE = (2, 4, 8, 8)
GAIN = {"gain": random(4, 1, 1)}  # something to train where an operator has nothing


def with_gain(
    op: str,
    x: tuple[int, ...],
    constants: Mapping[str, Any] | None = None,
    opset: int = 17,
    *,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] = ("y",),
    **attributes: Any,
) -> bytes:
    """A model of x times a gain, and then one operator of `scaled` and the constants, in order."""
    constants = constants or {}
    names = [name if value is not None else "" for name, value in constants.items()]
    nodes = [
        helper.make_node("Mul", ["x", "gain"], ["scaled"]),
        helper.make_node(op, inputs or ["scaled", *names], outputs, **attributes),
    ]
    gain = {"gain": random(*(1,) * (len(x) - 2), x[-1] if len(x) < 3 else 1) + 2}
    if len(x) > 2:
        gain = {"gain": random(x[1], *(1,) * (len(x) - 2)) + 2}
    return model(nodes, x, {**gain, **constants}, opset)


def two_layers(names: tuple[str, str] = ("a.weight", "b.weight")) -> bytes:
    nodes = [
        helper.make_node("Gemm", ["x", names[0]], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", names[1]], ["y"], transB=1),
    ]
    return model(nodes, (2, 5), {name: random(5, 5) for name in dict.fromkeys(names)})


def learns_as_in_pytorch(module: nn.Module, x: torch.Tensor, rate: float = 0.1) -> Graph:
    """The graph of a module, after 20 steps whose losses were compared with PyTorch's.

    Its weights are compared too, and its export in ONNX Runtime.
    """
    graph = poet.load(module, x, batch=len(x), loss="mse", optimizer="sgd", learning_rate=rate)
    assert isinstance(graph, Graph)
    y = random(*graph[graph.label].shape)
    values: dict[str, Any] = dict(start_values(graph, 0))
    optimiser = torch.optim.SGD(module.parameters(), rate)
    for step in range(1, 21):
        found = run_step(graph, {**values, graph.data: x.numpy(), graph.label: y}, step)
        values |= {node.updates: found[node.name] for node in graph if node.updates}
        optimiser.zero_grad()
        given = module(x)
        loss = nn.functional.mse_loss(given, torch.tensor(y).reshape(given.shape))
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        assert abs(found[graph.loss] - loss.item()) <= 1e-4 * abs(loss.item())
    state = module.state_dict()
    for name, value in to_named(graph, values, constants=False).items():
        assert np.allclose(value, state[name], rtol=1e-4, atol=1e-5), name
    same_as_runtime(graph.origin, x.numpy(), batch=len(x))
    return graph
