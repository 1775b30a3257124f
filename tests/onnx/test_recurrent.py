"""Recurrent layers train as in PyTorch, with weights under the names of the module."""

import copy
import io
from typing import Any

import numpy as np
import onnx
import poet_host as poet
import pytest
import torch
from onnx import helper
from poet_host.errors import BadInput
from poet_host.graph.graph import Graph
from poet_host.graph.weights import start_values, to_named
from poet_host.reference.step import run_step
from support.onnx_judge import imported, learns_as_in_pytorch, random, same_as_runtime
from support.onnx_models import model
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

BATCH, STEPS, FEATURES, UNITS, CLASSES, RATE = 3, 6, 4, 5, 3, 0.1
GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}
KINDS = (*GATES,)


class Recurrent(nn.Module):
    """A recurrent layer with a head on the last step, all steps, final states, or final cells."""

    def __init__(self, kind: str, head: str, initial: bool, **options: Any) -> None:
        super().__init__()
        self.layer = getattr(nn, kind)(FEATURES, UNITS, batch_first=True, **options)
        directions = 1 + self.layer.bidirectional
        self.classifier, self.head = nn.Linear(directions * UNITS, CLASSES), head
        count = directions * self.layer.num_layers
        sizes = (count, 1, UNITS) if initial else (0,)
        self.states = nn.ParameterList(
            nn.Parameter(torch.randn(sizes) * 0.5)
            for _ in range(int(initial) * (1 + (kind == "LSTM")))
        )

    def forward(self, x: Tensor) -> Tensor:
        states = tuple(state.expand(-1, x.shape[0], -1).contiguous() for state in self.states)
        first: Any = states if len(states) > 1 else states[0] if states else None
        y, last = self.layer(x, first)
        last = last[self.head == "cells"] if isinstance(last, tuple) else last
        if self.head in ("states", "cells"):
            count = 1 + self.layer.bidirectional
            y = torch.cat(list(last[-count:]), 1)
        found: Tensor = self.classifier(y[:, -1] if self.head == "last" else y)
        return found


def module_file(module: nn.Module, x: Tensor) -> bytes:
    """The file that the older exporter writes: with joined weights, without their names."""
    file = io.BytesIO()
    torch.onnx.export(module, (x,), file, dynamo=False)  # type: ignore[arg-type]
    return file.getvalue()


def check_against_pytorch(graph: Graph, module: nn.Module, seed: int, steps: int = 20) -> None:
    """Losses of 20 steps to 1e-4, and the weights under the names of the module."""
    rng = torch.Generator().manual_seed(seed)
    values, judge = start_values(graph, 0), copy.deepcopy(module)
    by = torch.optim.SGD(judge.parameters(), RATE)
    for step in range(1, steps + 1):
        x = torch.randn(BATCH, STEPS, FEATURES, generator=rng)
        label = torch.randint(CLASSES, graph[graph.label].shape, generator=rng)
        fed = {graph.data: x.numpy(), graph.label: label.numpy().astype(np.int32)}
        found = run_step(graph, {**values, **fed}, step)
        loss = functional.cross_entropy(judge(x).reshape(-1, CLASSES), label.reshape(-1))
        by.zero_grad()
        loss.backward()
        by.step()
        np.testing.assert_allclose(found[graph.loss].item(), loss.item(), rtol=1e-4)
        values |= {n.name: found[f"{n.name}:new"].reshape(n.shape) for n in graph.trainable}
    named = to_named(graph, values)
    for name, parameter in judge.named_parameters():
        wanted = parameter.detach().numpy()
        np.testing.assert_allclose(named[name].reshape(wanted.shape), wanted, atol=1e-5)


@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
@pytest.mark.parametrize(
    ("options", "head", "initial", "seed"),
    [
        ({}, "last", False, 0),
        ({}, "all", True, 1),
        ({"num_layers": 2}, "states", True, 2),
        ({"num_layers": 2}, "all", False, 0),
        ({"bidirectional": True}, "last", True, 1),
        ({"bidirectional": True, "num_layers": 2}, "states", False, 2),
        ({"bias": False}, "last", False, 0),
    ],
)
def test_a_module_trains_as_in_pytorch(
    kind: str, options: dict[str, Any], head: str, initial: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    module = Recurrent(kind, head, initial, **options)
    x = torch.zeros(BATCH, STEPS, FEATURES)
    graph = poet.load(module, x, batch=BATCH, loss="cross-entropy", optimizer="sgd", lr=RATE)
    assert isinstance(graph, Graph)
    assert graph.lost == graph.made_up == ()
    check_against_pytorch(graph, module, seed)


@pytest.mark.parametrize(
    ("kind", "options", "head", "initial"),
    [
        ("LSTM", {}, "cells", False),
        ("LSTM", {"num_layers": 2, "bidirectional": True}, "cells", True),
        ("RNN", {"bidirectional": True, "num_layers": 2}, "states", True),
        ("RNN", {"nonlinearity": "relu", "bias": False}, "last", False),
        ("RNN", {"nonlinearity": "relu", "bidirectional": True}, "all", True),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_file_trains_as_in_pytorch(
    kind: str, options: dict[str, Any], head: str, initial: bool
) -> None:
    for seed in range(3):
        torch.manual_seed(seed)
        module = Recurrent(kind, head, initial, **options)
        data = module_file(module, torch.zeros(BATCH, STEPS, FEATURES))
        graph = imported(data, loss="cross-entropy", learning_rate=RATE)
        check_against_pytorch(graph, module, seed)


@pytest.mark.parametrize("kind", KINDS)
def test_normalised_weights_train_as_in_pytorch(kind: str) -> None:
    torch.manual_seed(4)
    module = Recurrent(kind, "all", initial=True, bidirectional=True)
    for name in ("weight_ih_l0", "weight_hh_l0", "weight_hh_l0_reverse"):
        weight_norm(module.layer, name)
    x = torch.zeros(BATCH, STEPS, FEATURES)
    graph = poet.load(module, x, batch=BATCH, loss="cross-entropy", optimizer="sgd", lr=RATE)
    assert isinstance(graph, Graph)
    assert graph.lost == graph.made_up == ()
    check_against_pytorch(graph, module, 4)
    same_as_runtime(graph.origin, batch=BATCH, loss="cross-entropy")


class Decoder(nn.Module):
    """Each step reads the same trained row. The data give the state before the first step."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.start = nn.Linear(4, 5), nn.Parameter(torch.randn(1, 1, 3))
        self.layer, self.head = nn.GRU(3, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.tanh(self.encoder(x))[None]
        states, _ = self.layer(self.start.expand(STEPS, len(x), -1), state)
        found: Tensor = self.head(states).transpose(0, 1)
        return found


@pytest.mark.parametrize("batch", [1, BATCH])
def test_a_repeated_input_keeps_its_steps(batch: int) -> None:
    learns_as_in_pytorch(Decoder(), torch.randn(batch, 4))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore")
def test_joined_weights_of_a_file_get_the_names_of_the_module(kind: str) -> None:
    torch.manual_seed(3)
    module = Recurrent(kind, "last", initial=False, bidirectional=True, num_layers=2)
    data = module_file(module, torch.zeros(BATCH, STEPS, FEATURES))
    graph = imported(data, loss="cross-entropy", learning_rate=RATE)
    check_against_pytorch(graph, module, 3, steps=3)
    again = imported(graph.origin, loss="cross-entropy")
    assert [node.name for node in again.trainable] == [node.name for node in graph.trainable]


def node(kind: str, *inputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(
        kind, ["steps", *inputs], ["states"], "recurrent", hidden_size=UNITS, **attributes
    )


def along(nodes: list[onnx.NodeProto], constants: dict[str, Any]) -> bytes:
    """A model of nodes from `steps` to `states`, both with time as the first axis."""
    first = helper.make_node("Transpose", ["x"], ["steps"], perm=[1, 0, 2])
    last = helper.make_node("Transpose", ["states"], ["y"], perm=[2, 0, 1, 3])
    return model([first, *nodes, last], (BATCH, STEPS, FEATURES), constants)


def weights(kind: str, directions: int = 1) -> dict[str, Any]:
    k = GATES[kind] * UNITS
    shapes = {"w": (directions, k, FEATURES), "r": (directions, k, UNITS)}
    return {name: random(*shape) for name, shape in shapes.items()} | {
        "b": random(directions, 2 * k)
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_a_file_has_the_answers_of_the_runtime(kind: str, direction: str) -> None:
    own = {"linear_before_reset": 1} if kind == "GRU" else {}
    layer = node(kind, "w", "r", "b", direction=direction, **own)
    constants = weights(kind, 1 + (direction == "bidirectional"))
    same_as_runtime(along([layer], constants))


def test_lengths_of_sequences_must_be_those_of_all_steps() -> None:
    layer, constants = node("LSTM", "w", "r", "b", "lengths"), weights("LSTM")
    whole = np.full(BATCH, STEPS, np.int32)
    same_as_runtime(along([layer], {**constants, "lengths": whole}))
    with pytest.raises(BadInput, match="one length"):
        imported(along([layer], {**constants, "lengths": whole - 1}))


def test_samples_must_come_before_steps() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)[0][-1]

    with pytest.raises(BadInput, match=r"GRU walks along the first axis .* batch_first=True"):
        poet.load(Last(), torch.randn(6, 2, 4), batch=2)
    layer = helper.make_node("RNN", ["x", "w", "r"], ["y"], hidden_size=UNITS)
    for batch in (STEPS, "n"):
        with pytest.raises(BadInput, match="RNN walks along the first axis"):
            imported(model([layer], (batch, 1, FEATURES), weights("RNN")))


def test_weights_that_nodes_compute_are_trained_through_them() -> None:
    """Not through operators without a gradient."""
    whole = weights("GRU")
    rows, w = whole["w"][0], whole.pop("w")
    layer = node("GRU", "w", "r", "b", linear_before_reset=1)
    unsqueezed = helper.make_node("Unsqueeze", ["rows", "zero"], ["w"])
    constants = {**whole, "rows": rows, "zero": np.array([0])}
    graph = same_as_runtime(along([unsqueezed, layer], constants))
    assert "rows" in {it.name for it in graph.trainable}
    shrunk = helper.make_node("Shrink", ["v"], ["w"], lambd=0.5)
    with pytest.raises(BadInput, match="cannot be trained: store"):
        imported(along([shrunk, layer], {**whole, "v": w}))


@pytest.mark.parametrize(
    ("kind", "attributes", "word"),
    [
        ("GRU", {"linear_before_reset": 1, "activations": ["Relu", "Tanh"]}, "activations"),
        ("GRU", {"linear_before_reset": 1, "layout": 1}, "layout"),
        ("RNN", {"direction": "bidirectional", "activations": ["Tanh", "Relu"]}, "activations"),
        ("RNN", {"activations": ["Affine"]}, "activations"),
    ],
)
def test_what_no_kernel_computes_is_refused(
    kind: str, attributes: dict[str, Any], word: str
) -> None:
    layer = node(kind, "w", "r", "b", **attributes)
    with pytest.raises(BadInput, match=word):
        imported(along([layer], weights(kind)))
