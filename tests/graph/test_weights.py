"""Start values, weights under their names in files, and evaluation with trained weights."""

from dataclasses import replace
from typing import Any

import numpy as np
import poet_host as poet
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from poet_host.errors import BadInput
from poet_host.graph import models
from poet_host.graph.autodiff import Sgd, training_graph
from poet_host.graph.builder import Builder, Model
from poet_host.graph.graph import Graph
from poet_host.graph.training_options import TrainingOptions
from poet_host.graph.weights import from_named, start_values, starting_values, to_named
from poet_host.reference.inference import evaluation, logits
from support.random_models import random_models
from support.torch_model import random_values, torch_forward, torch_values

Arrays = dict[str, np.ndarray[Any, Any]]


@pytest.fixture
def graph() -> Graph:
    return models.load("resnet-digits", TrainingOptions(momentum=0.9))


def test_start_values_cover_parameters_and_state(graph: Graph) -> None:
    values = start_values(graph, 0)
    wanted = {n.name: n.shape for n in graph if n.role in ("parameter", "state")}
    assert {name: value.shape for name, value in values.items()} == wanted
    assert all(value.dtype == np.float32 for value in values.values())
    assert (values["bn1.weight"] == 1).all()
    assert (values["bn1.bias"] == 0).all()
    assert values["bn1.running"].tolist() == [[0.0] * 4, [1.0] * 4]
    assert (values["fc.weight:momentum"] == 0).all()
    bound = 1 / np.sqrt(256)
    assert np.abs(values["fc.weight"]).max() <= bound
    assert np.abs(values["fc.weight"]).max() > 0.99 * bound
    assert abs(values["fc.weight"].mean()) < bound / 20


def test_start_values_follow_from_seed_and_name_alone(graph: Graph) -> None:
    plain = models.load("resnet-digits", TrainingOptions(train="last:1", batch=7))
    values, others = start_values(graph, 3), start_values(plain, 3)
    for name, value in others.items():
        np.testing.assert_array_equal(value, values[name])
    assert (start_values(graph, 4)["fc.weight"] != values["fc.weight"]).all()
    assert (values["block.conv1.weight"] != values["block.conv2.weight"]).all()


def test_weights_of_a_run_with_other_class_weights_do_not_bring_them() -> None:
    module, x = torch.nn.Linear(3, 2), torch.zeros(2, 3)
    one, other = (
        poet.load(module, x, loss=f"cross-entropy:class_weights={it}") for it in ("1,5", "5,1")
    )
    assert isinstance(one, Graph)
    assert isinstance(other, Graph)
    found, wanted = starting_values(other, 0, start_values(one, 0)), start_values(other, 0)
    assert {name: value.tolist() for name, value in found.items()} == {
        name: value.tolist() for name, value in wanted.items()
    }


def test_an_unknown_start_is_refused(graph: Graph) -> None:
    nodes = tuple(replace(n, start="magic") if n.name == "fc.bias" else n for n in graph)
    with pytest.raises(BadInput, match=r'node fc.bias: .*"magic"'):
        start_values(replace(graph, nodes=nodes), 0)


def test_names_in_files_are_those_of_pytorch(graph: Graph) -> None:
    values = random_values(graph, 0)
    named = to_named(graph, values)
    plain = {name for name in named if not name.startswith("momentum:")}
    assert {"conv1.weight", "bn1.running_mean", "bn1.running_var", "block.bn2.bias"} <= plain
    assert {name.removeprefix("momentum:") for name in named.keys() - plain} == {
        node.name for node in graph if node.role == "parameter"
    }
    np.testing.assert_array_equal(named["bn1.running_var"], values["bn1.running"][1])
    layer = torch.nn.BatchNorm2d(4)
    state = {k.removeprefix("bn1."): torch.tensor(v) for k, v in named.items() if k[:4] == "bn1."}
    layer.load_state_dict(state, strict=False)
    assert layer.running_mean is not None
    np.testing.assert_array_equal(layer.running_mean.numpy(), named["bn1.running_mean"])


def test_names_there_and_back(graph: Graph) -> None:
    values = random_values(graph, 0)
    again = from_named(graph, to_named(graph, values))
    assert again.keys() == values.keys()
    for name, value in values.items():
        np.testing.assert_array_equal(again[name], value)


def test_momentum_may_be_missing_or_left_over(graph: Graph) -> None:
    plain = models.load("resnet-digits")
    values = random_values(graph, 0)
    named = to_named(graph, values)
    assert from_named(plain, named).keys() == start_values(plain, 0).keys()
    started = from_named(graph, to_named(plain, values))
    assert (started["fc.weight:momentum"] == 0).all()
    np.testing.assert_array_equal(started["fc.weight"], values["fc.weight"])
    del named["momentum:fc.bias"]
    with pytest.raises(BadInput, match=r"resnet-digits .*momentum:fc\.bias"):
        from_named(graph, named)


def test_double_precision_and_batch_counters_of_pytorch_are_accepted(graph: Graph) -> None:
    named: Arrays = {
        k: v.astype(np.float64) for k, v in to_named(graph, random_values(graph, 0)).items()
    }
    named["bn1.num_batches_tracked"] = np.array(3)
    values = from_named(graph, named)
    assert all(value.dtype == np.float32 for value in values.values())


def broken(named: Arrays, how: str) -> Arrays:
    match how:
        case "missing":
            del named["fc.weight"]
        case "half":
            del named["bn1.running_var"]
        case "extra":
            named["fc2.weight"] = np.zeros(3, np.float32)
        case "shape":
            named["fc.weight"] = named["fc.weight"].T
        case "running shape":
            named["bn1.running_mean"] = np.zeros(5, np.float32)
        case "nan":
            named["conv1.weight"][0] = np.nan
        case "too large":
            named["fc.bias"] = np.full(10, 1e300)
        case "integers":
            named["fc.bias"] = np.zeros(10, np.int32)
    return named


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("missing", "resnet-digits are missing: fc.weight"),
        ("half", "resnet-digits are missing: bn1.running_var"),
        ("extra", "resnet-digits .*fc2.weight.* block.bn1.bias"),
        ("shape", r"fc.weight has shape \(256, 10\), .*resnet-digits needs \(10, 256\)"),
        ("running shape", r"bn1.running_mean has shape \(5,\), .*resnet-digits needs \(4,\)"),
        ("nan", "conv1.weight of resnet-digits holds NaN or infinity"),
        ("too large", "fc.bias of resnet-digits holds NaN or infinity"),
        ("integers", "fc.bias of resnet-digits .*int32"),
    ],
)
def test_broken_files_are_refused(graph: Graph, how: str, says: str) -> None:
    named = broken(to_named(graph, random_values(graph, 0)), how)
    with pytest.raises(BadInput, match=f"weights: .*{says}"):
        from_named(graph, named)


def test_broken_values_are_refused(graph: Graph) -> None:
    values = random_values(graph, 0)
    with pytest.raises(BadInput, match=r"fc\.bias is missing"):
        to_named(graph, {k: v for k, v in values.items() if k != "fc.bias"})
    with pytest.raises(BadInput, match=r"fc.bias has shape \(3,\)"):
        to_named(graph, values | {"fc.bias": np.zeros(3, np.float32)})
    with pytest.raises(BadInput, match=r"bn1\.running_mean of resnet-digits holds NaN"):
        to_named(graph, values | {"bn1.running": np.full((2, 4), np.nan, np.float32)})


def pytorch_logits(model: Model, values: Arrays, x: Any) -> Any:
    """Logits of PyTorch's evaluation mode."""
    frozen = frozenset(layer.name for layer in model.layers)
    outputs = torch_forward(model, torch_values(model, values), x, frozen=frozen)
    return outputs[model.logits].detach().reshape(len(x), -1).numpy()


@pytest.mark.parametrize("train", ["all", "last:1", "block.bn2.*"])
def test_logits_are_those_of_pytorch_for_any_number_of_samples(train: str) -> None:
    model = models.MODELS["resnet-digits"].forward(4)
    graph = training_graph(model, Sgd(0.1), train)
    values = random_values(graph, 0)
    x = np.random.default_rng(0).standard_normal((70, 1, 8, 8), dtype=np.float32)
    found = logits(graph, values, x)
    np.testing.assert_allclose(found, pytorch_logits(model, values, x), rtol=1e-4, atol=1e-5)
    for count in (0, 1, 64, 65):
        np.testing.assert_array_equal(logits(graph, values, x[:count]), found[:count])


@settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(random_models())
def test_logits_of_random_models_are_those_of_pytorch(model: Model) -> None:
    graph = training_graph(model, Sgd(0.1))
    values = random_values(graph, 0)
    x = np.random.default_rng(1).standard_normal((5, *model.data.shape[1:]), dtype=np.float32)
    wanted = pytorch_logits(model, values, x)
    scale = np.abs(wanted).max() + 1e-3
    np.testing.assert_allclose(
        logits(graph, values, x).reshape(5, -1), wanted, rtol=1e-4, atol=1e-5 * scale
    )


def test_evaluation_has_running_statistics_and_no_dropout() -> None:
    b = Builder("m", data=(2, 1, 4, 4))
    x = b.batchnorm2d(b.conv2d(b.data, 2, 3, name="conv"), name="bn")
    x = b.dropout(b.flatten(b.dropout(x, 0.5, name="drop")), 0.5, name="drop2")
    graph = training_graph(b.model(b.mse(x)), Sgd(0.1))
    assert [(node.name, node.inputs) for node in evaluation(graph)] == [
        ("conv", ("data", "conv.weight", "conv.bias")),
        ("bn", ("conv", "bn.running", "bn.weight", "bn.bias")),
    ]
    values = random_values(graph, 0)
    x_batch = np.ones((3, 1, 4, 4), np.float32)
    assert logits(graph, values, x_batch).shape == (3, 8)
