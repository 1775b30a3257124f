"""Built-in models as .onnx files: ONNX Runtime answers as they do, and they come back."""

from collections.abc import Callable
from functools import partial

import numpy as np
import onnx
import onnxruntime
import poet_host as poet
import pytest
from poet_host.data.datasets import example
from poet_host.errors import BadInput
from poet_host.graph.autodiff import Sgd, training_graph
from poet_host.graph.builder import Builder
from poet_host.graph.graph import Graph
from poet_host.graph.models import load
from poet_host.graph.training_options import TrainingOptions
from poet_host.graph.weights import start_values
from poet_host.onnx.importer import training
from poet_host.onnx.model import read_bytes
from poet_host.reference.inference import logits

RNG = np.random.default_rng(1)


def other() -> Graph:
    """What the built-in convolutional models do not have."""
    b = Builder("other", data=(2, 3, 9, 9))
    x = b.relu6(b.conv2d(b.data, 6, (3, 1), stride=(2, 1), padding=(1, 0), bias=False))
    x = b.relu6(b.conv2d(x, 6, 3, padding=1, groups=6))
    x = b.avgpool2d(x, 3, stride=1, padding=1, count_padding=False)
    x = b.sub(b.mul(b.sigmoid(x), b.tanh(x)), b.avgpool2d(x, 3, stride=1, padding=1))
    x = b.maxpool2d(b.pad(x, 3, 1, 2), 3, stride=2, padding=((0, 1), (1, 0)))
    x = b.concat(x, b.clip(b.scale(x, -2.0), -1.0, float("inf")), axis=1)
    x = b.mul(x, b.parameter((12, 1, 1), start="ones"))
    x = b.linear(b.relu(b.linear(b.flatten(x), 5)), 4)
    return training_graph(b.model(b.mse(x)), Sgd(0.1))


def causal(batch: int) -> Graph:
    """Attention over what came before, by heads and by whole matrices, of a sequence."""
    b = Builder("causal", data=(batch, 6, 8))
    x = b.add(b.data, b.slice(b.parameter((9, 8), start="normal:1"), 0, 2, 8))
    scores = b.attention_scores(b.linear(x, 8), b.linear(x, 8), 2)
    x = b.layernorm(b.add(x, b.attention_context(b.softmax(scores, causal=True), x)))
    turned = b.transpose(x, (0, 2, 1))
    y = b.matmul(b.softmax(b.matmul(x, turned, factor=0.5)), x)
    y = b.matmul(y, b.parameter((8, 8), start="normal:1"))
    z = b.matmul(turned, turned, transpose_b=True)
    z = b.gelu(b.sub(z, b.mean(z, 2, keepdims=True)), approximate="tanh")
    return training_graph(b.model(b.mse(b.add(b.sum(y, 1), b.mean(z, (1,))))), Sgd(0.1))


GRAPHS: dict[str, Callable[[], Graph]] = {
    name: partial(poet.load, name)  # type: ignore[dict-item]
    for name in ("resnet-digits", "lenet-digits", "resnet8-cifar", "linear", "bert-micro")
} | {
    "two texts": lambda: load("bert-micro", TrainingOptions(2, 9)),
    "other": other,
    "causal": partial(causal, 3),
    "causal, one": partial(causal, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_a_built_in_model_is_written_and_read_again(name: str) -> None:
    graph = GRAPHS[name]()
    rng = np.random.default_rng(0)
    values = {
        n: np.abs(v + rng.standard_normal(v.shape).astype(np.float32) / 10)
        if n.endswith("running")
        else v + rng.standard_normal(v.shape).astype(np.float32) / 10
        for n, v in start_values(graph, 0).items()
    }
    data = poet.export(graph, values)
    onnx.checker.check_model(onnx.load_model_from_string(data), full_check=True)
    x = np.concatenate([example(graph)[0]] * 5)[:5]  # a batch of its own
    if x.dtype == np.int32:
        x = x[:, ::-1] * (RNG.random(x.shape) < 0.7)  # some are padding
        x[0] = 0
    expected = logits(graph, values, x)
    session = onnxruntime.InferenceSession(data)
    fed = x.astype(np.int64) if x.dtype == np.int32 else x
    found = session.run(None, {session.get_inputs()[0].name: fed})[0]
    assert np.allclose(found, expected, atol=1e-4)

    again = training(read_bytes(data, "again"), "again", TrainingOptions(batch=2, loss="mse"))
    assert np.allclose(logits(again, start_values(again, 0), x), expected, atol=1e-5)
    mine, theirs = ({n.name for n in g if n.role == "parameter"} for g in (graph, again))
    assert mine == theirs


def test_what_onnx_cannot_say_is_refused() -> None:
    b = Builder("mixed", data=(2, 3, 4))
    x = b.transpose(b.linear(b.data, 4), (1, 0, 2))  # samples behind one another no more
    graph = training_graph(b.model(b.mse(b.reshape(x, (6, 4)))), Sgd(0.1))
    with pytest.raises(BadInput, match=r"transpose1 \(transpose\) cannot be written as ONNX"):
        poet.export(graph, start_values(graph, 0))
