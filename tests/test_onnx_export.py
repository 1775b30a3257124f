"""Built-in models as .onnx files: ONNX Runtime answers as they do, and they come back."""

import numpy as np
import onnx
import onnxruntime
import poet_host as poet
import pytest
from poet_host.errors import BadInput
from poet_host.graph.autodiff import Sgd, training_graph
from poet_host.graph.build import Builder
from poet_host.graph.evaluate import logits
from poet_host.graph.graph import Graph
from poet_host.graph.onnx_import import training
from poet_host.graph.onnx_model import read_bytes
from poet_host.graph.weights import start_values
from poet_host.run.data import example


def other() -> Graph:
    """What the built-in models do not have."""
    b = Builder("other", data=(2, 3, 9, 9))
    x = b.relu6(b.conv2d(b.data, 6, (3, 1), stride=(2, 1), padding=(1, 0), bias=False))
    x = b.relu6(b.conv2d(x, 6, 3, padding=1, groups=6))
    x = b.avgpool2d(x, 3, stride=1, padding=1, count_padding=False)
    x = b.sub(b.mul(b.sigmoid(x), b.tanh(x)), b.avgpool2d(x, 3, stride=1, padding=1))
    x = b.linear(b.relu(b.linear(b.flatten(x), 5)), 4)
    return training_graph(b.model(b.mse(x)), Sgd(0.1))


GRAPHS = ["resnet-digits", "lenet-digits", "resnet8-cifar", "linear", "other"]


@pytest.mark.parametrize("name", GRAPHS)
def test_a_built_in_model_is_written_and_read_again(name: str) -> None:
    graph = other() if name == "other" else poet.load(name)
    rng = np.random.default_rng(0)
    values = {
        n: np.abs(v + rng.standard_normal(v.shape).astype(np.float32) / 10)
        if n.endswith("running")
        else v + rng.standard_normal(v.shape).astype(np.float32) / 10
        for n, v in start_values(graph, 0).items()
    }
    data = poet.export(graph, values)
    onnx.checker.check_model(onnx.load_model_from_string(data), full_check=True)
    x = np.concatenate([example(graph)[0]] * 3)[:5]  # a batch of its own
    expected = logits(graph, values, x)
    session = onnxruntime.InferenceSession(data)
    found = session.run(None, {session.get_inputs()[0].name: x})[0]
    assert np.allclose(found, expected, atol=1e-4)

    again = training(read_bytes(data, "again"), "again", batch=2, loss="mse")
    assert np.allclose(logits(again, start_values(again, 0), x), expected, atol=1e-5)
    mine, theirs = ({n.name for n in g if n.role == "parameter"} for g in (graph, again))
    assert mine == theirs


def test_what_onnx_cannot_say_is_refused() -> None:
    graph = poet.load("bert-micro")
    with pytest.raises(BadInput, match=r"uses embedding, gelu, .* which cannot be written as"):
        poet.export(graph, start_values(graph, 0))
