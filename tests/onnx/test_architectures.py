"""Networks as people write them: by every exporter, they learn what they learn in PyTorch."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import poet_host as poet
import pytest
import torch
from poet_host.graph.graph import Graph
from poet_host.graph.weights import from_named, start_values, to_named
from poet_host.reference.inference import logits
from poet_host.reference.step import run_step
from support.onnx_architectures import (
    Between,
    Dilated,
    Language,
    Normalised,
    Padded,
    Repeated,
    VisionTransformer,
)
from support.onnx_judge import by_runtime, imported
from support.onnx_models import FOLDED, by_dynamo, legacy
from torch import nn

BATCH, STEPS = 3, 3


def images() -> torch.Tensor:
    return torch.randn(BATCH, 1, 8, 8)


def texts() -> torch.Tensor:
    found = torch.randint(1, 17, (BATCH, 10))
    found[:, -2:] = 0
    return found


MODULES: dict[type[nn.Module], Callable[[], torch.Tensor]] = {
    VisionTransformer: images,
    Between: images,
    Dilated: images,
    Normalised: images,
    Repeated: images,
    Language: texts,
    Padded: texts,
}
OPTIONS: dict[str, Any] = {"loss": "cross-entropy", "optimizer": "sgd", "learning_rate": 0.1}


def as_module(module: nn.Module, x: torch.Tensor) -> Graph:
    graph = poet.load(module, x, batch=BATCH, **OPTIONS)
    assert isinstance(graph, Graph)
    return graph


def by_legacy(module: nn.Module, x: torch.Tensor) -> Graph:
    """By TorchScript, folded as for inference."""
    open_batch = {"input_names": ["in"], "dynamic_axes": {"in": {0: "n"}}}
    return imported(legacy(module, x, **FOLDED, **open_batch), batch=BATCH, **OPTIONS)


def by_default(module: nn.Module, x: torch.Tensor) -> Graph:
    shapes = ({0: torch.export.Dim("batch")},)
    return imported(by_dynamo(module, x, dynamic_shapes=shapes), batch=BATCH, **OPTIONS)


def as_it_is(module: nn.Module, x: torch.Tensor) -> Graph:
    """By torch.export, not optimised, for one sample."""
    data = by_dynamo(module, x[:1], optimize=False, opset_version=21)
    return imported(data, batch=BATCH, **OPTIONS)


@pytest.mark.slow
@pytest.mark.parametrize("exporter", [as_module, by_legacy, by_default, as_it_is])
@pytest.mark.parametrize("module_of", MODULES)
def test_an_architecture_trains_as_in_pytorch(
    module_of: type[nn.Module], exporter: Callable[[nn.Module, torch.Tensor], Graph]
) -> None:
    torch.manual_seed(3)
    module, x = module_of(), MODULES[module_of]()
    graph = exporter(module, x)
    fed = x.numpy() if x.is_floating_point() else x.numpy().astype(np.int32)
    y = np.random.default_rng(0).integers(0, 10, graph[graph.label].shape).astype(np.int32)
    values: dict[str, Any] = dict(start_values(graph, 0))
    answers = module(x).detach()
    assert np.allclose(logits(graph, values, fed), answers, atol=1e-5)
    assert np.allclose(by_runtime(graph.origin, fed[:1]), answers[:1], atol=1e-5)

    optimiser = torch.optim.SGD(module.parameters(), 0.1)
    for step in range(1, STEPS + 1):
        found = run_step(graph, {**values, graph.data: fed, graph.label: y}, step)
        values |= {node.updates: found[node.name] for node in graph if node.updates}
        optimiser.zero_grad()
        given = module(x)
        expected = torch.tensor(y, dtype=torch.int64)
        loss = nn.functional.cross_entropy(given.reshape(-1, given.shape[-1]), expected.reshape(-1))
        loss.backward()
        optimiser.step()
        assert found[graph.loss] == pytest.approx(loss.item(), abs=1e-4)
    assert np.allclose(logits(graph, values, fed), module(x).detach(), atol=1e-4)

    named = to_named(graph, values, constants=False)
    state = module.state_dict()
    for name, value in named.items():
        assert name not in state or np.allclose(value, state[name], atol=1e-4), name
    assert exporter is not as_module or named.keys() <= state.keys()
    again = from_named(graph, named)
    assert all(np.array_equal(again[name], value) for name, value in values.items())


@pytest.mark.slow
def test_copies_of_a_layer_are_separate_layers() -> None:
    """TransformerEncoder begins with the same numbers in each layer, which exporters merge."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    module = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x = torch.randn(2, 5, 8)
    shapes = ({0: torch.export.Dim("batch")},)
    for data in (by_dynamo(module, x, dynamic_shapes=shapes), legacy(module, x, opset_version=18)):
        graph = imported(data)
        learnt = {node.name for node in graph.trainable}
        for i, (name, _) in itertools.product((0, 1), layer.named_parameters()):
            assert f"layers.{i}.{name}" in learnt
        assert len({node.start for node in graph.trainable}) == len(learnt)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 4), (2, 3, 4)])
def test_zero_biases_that_an_exporter_omitted_are_trained(shape: tuple[int, ...]) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3, bias=False)
            nn.init.zeros_(self.a.bias)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.b(torch.relu(self.a(torch.relu(self.a(x)))))
            return y

    module, x = Twice(), torch.zeros(shape)
    for data in (by_dynamo(module, x), legacy(module, x), legacy(module, x, **FOLDED)):
        graph = imported(data)
        assert {node.name for node in graph.trainable} == {"a.weight", "a.bias", "b.weight"}


def test_buffers_of_a_module_stay_constant() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    module[0].requires_grad_(False)
    graph = poet.load(module, torch.zeros(1, 4))
    assert isinstance(graph, Graph)
    assert {node.name for node in graph.trainable} == {"2.weight", "2.bias"}
    assert not any(node.op == "linear_grad_input" for node in graph)


def test_a_scalar_parameter_of_a_module_is_trained() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.linear = nn.Parameter(torch.tensor(2.0)), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.linear(x * self.scale)
            return y

    graph = poet.load(Scaled(), torch.zeros(1, 4))
    assert isinstance(graph, Graph)
    assert "scale" in {node.name for node in graph.trainable}
    assert to_named(graph, start_values(graph, 0))["scale"].shape == ()
