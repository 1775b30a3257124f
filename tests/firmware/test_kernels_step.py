"""A whole training step of a model with every operator: node by node, C equals NumPy."""

from collections.abc import Callable

import numpy as np
import pytest
from poet_host import isa
from poet_host.graph.autodiff import (
    SQUARE,
    Adam,
    AdamW,
    Optimiser,
    RmsProp,
    Sgd,
    training_graph,
)
from poet_host.graph.builder import Builder, Model, Tensor
from poet_host.graph.graph import Graph, Node
from poet_host.reference.step import run_step
from support import clib
from support.functions import FUNCTIONS


def classifier() -> Model:
    """Branches, groups, strides and every kind of layer but the other loss."""
    b = Builder("classifier", data=(3, 2, 11, 10))
    x = b.relu(b.batchnorm2d(b.conv2d(b.data, 6, 3, padding=1, bias=False)))
    y = b.relu6(b.batchnorm2d(b.conv2d(x, 6, 3, padding=1, groups=6, bias=False)))
    x = b.add(x, b.dropout(b.conv2d(y, 6, (1, 3), padding=(0, 1), groups=3), 0.25, seed=4))
    x = b.avgpool2d(b.maxpool2d(x, 3, stride=2, padding=1), 2)
    pooled = b.global_avgpool(b.conv2d(x, 5, 2, stride=(2, 1)))
    hidden = b.relu(b.linear(b.flatten(x), 5))
    return b.model(b.softmax_xent(b.linear(b.add(pooled, hidden), 4)))


def regression() -> Model:
    """All functions of one tensor whose kernels every board has, in a sum."""
    b = Builder("regression", data=(4, 6))
    x = b.linear(b.data, 5)
    y = x
    for kind, options, _ in FUNCTIONS.values():
        if kind not in ("sin", "cos"):
            y = b.add(y, b.layer(kind, (x,), **options))
    return b.model(b.mse(b.linear(b.scale(y, 0.25), 3)))


def transformer() -> Model:
    """Attention and everything else that is not of convolutional networks, a table used twice."""
    b = Builder("transformer", data=(3, 5), dtype="int32")
    x = b.embedding(b.data, 7, 6, name="word")
    x = b.layernorm(b.add(x, b.parameter((5, 6), name="position")))
    q, k, v = (b.linear(x, 6) for _ in range(3))
    p = b.masked_softmax(b.attention_scores(q, k, 2), b.data, causal=True)
    x = b.layernorm(b.add(x, b.linear(b.attention_context(p, v), 6)))
    x = b.add(x, b.linear(b.gelu(b.linear(x, 8)), 6))
    y = b.sub(b.mul(x, b.sigmoid(x)), b.mean(x, 1, keepdims=True))
    y = b.mul(y, b.tanh(b.parameter((6,), name="gate")))
    y = b.sub(b.scale(y, 0.75), b.scale(b.relu(y), 0.5))
    y = b.concat(y, b.slice(x, 1, 1, 3), 1)
    y = b.softmax(b.transpose(y, (0, 2, 1)))
    y = b.sum(b.matmul(y, Tensor("word.weight", (7, 6))), 1)
    return b.model(
        b.weighted_xent(b.linear(y, 4), class_weights=(1, 2, 0.5, 3), label_smoothing=0.1)
    )


def recurrent() -> Model:
    """Layers along time, in both directions, one from the states of another."""
    b = Builder("recurrent", data=(5, 3, 4))
    x = b.gru(b.linear(b.data, 15), name="gru")
    first = b.reshape(b.slice(x, 0, 4, 5), (3, 5))
    x = b.lstm(b.linear(x, 20), backward=True, name="lstm")
    x = b.lstm_from(b.linear(x, 20), first, b.reshape(b.slice(x, 0, 0, 1), (3, 5)))
    x = b.gru_from(b.linear(x, 15), first, backward=True)
    x = b.rnn_from(b.linear(x, 5), b.reshape(b.slice(x, 0, 1, 2), (3, 5)), relu=True)
    x = b.add(x, b.rnn(b.linear(x, 5), backward=True))
    cells = b.reshape(b.slice(b.lstm_cells(b.linear(b.data, 20)), 0, 4, 5), (3, 20))
    states = (b.slice(cells, 1, at, at + 5) for at in (10, 15))
    x = b.add(x, b.slice(b.lstm_cells_from(b.linear(x, 20), *states), 2, 15, 20))
    return b.model(b.mse(b.linear(b.layer("sin", (x,)), 2)))


def random_value(rng: np.random.Generator, node: Node) -> np.ndarray:
    if node.dtype == "int32":
        return rng.integers(0, 4, node.shape, dtype=np.int32)
    scale = 1.0 if node.role == "data" else 0.3
    value = (rng.standard_normal(node.shape) * scale).astype(np.float32)
    if node.name.endswith(SQUARE):
        return value * value
    return np.abs(value) if node.start == "running" else value


def run_step_in_c(graph: Graph, stored: dict[str, np.ndarray], step: int) -> dict[str, np.ndarray]:
    values = dict(stored)
    for node in graph:
        if not node.stored:
            at = None if node.overwrites is None else node.inputs.index(node.overwrites)
            inputs = [values[name] for name in node.inputs]
            values[node.name] = clib.run(
                node.op, node.sink, node.attrs, inputs, step, node.shape, overwrites=at
            )
    return values


@pytest.mark.parametrize("model", [classifier, regression, transformer, recurrent])
@pytest.mark.parametrize(
    "optimiser",
    [
        *(Sgd(0.05), Sgd(0.05, 0.9), Sgd(0.05, 0.9, 0.01), Sgd(0.05, 0.9, 0.01, nesterov=True)),
        *(Adam(0.01), Adam(0.01, 0.5, 0.75), AdamW(0.01), RmsProp(0.003, weight_decay=0.01)),
    ],
)
def test_every_node_has_the_same_bits_over_several_steps(
    model: Callable[[], Model], optimiser: Optimiser
) -> None:
    graph = training_graph(model(), optimiser)
    rng = np.random.default_rng(1)
    stored = {node.name: random_value(rng, node) for node in graph if node.stored}
    losses = []
    for step in range(1, 5):
        in_numpy = run_step(graph, stored, step)
        in_c = run_step_in_c(graph, stored, step)
        assert list(in_numpy) == list(in_c) == [node.name for node in graph]
        for node in graph:
            assert clib.same_bits(in_numpy[node.name], in_c[node.name]), node.name
        losses.append(float(in_c[graph.loss][0]))
        stored |= {node.updates: in_c[node.name] for node in graph if node.updates}
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]


def test_the_models_use_every_kernel() -> None:
    models = (classifier(), regression(), transformer(), recurrent())
    graphs = [training_graph(model, by) for model in models for by in (Sgd(0.1, 0.9), Adam())]
    graphs.append(training_graph(models[0], Sgd(0.1), train="last:1"))
    used = {node.op for graph in graphs for node in graph}
    assert used | {"batchnorm_grad_input_frozen"} == {row.name for row in isa.rows("KERNEL")}
