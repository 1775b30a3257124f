"""Functions that have no kernel of their own, compared with ONNX Runtime."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx
import poet_host as poet
import pytest
import torch
from onnx import helper
from poet_host.errors import BadInput
from support.onnx_judge import IMAGE, answers, imported, random, same_as_runtime, with_gain
from support.onnx_models import model
from torch import nn


def test_roots_quotients_and_rms_normalisation() -> None:
    nodes = [
        helper.make_node("Mish", ["x"], ["mish"]),
        helper.make_node("Exp", ["mish"], ["e"]),
        helper.make_node("Sqrt", ["e"], ["root"]),
        helper.make_node("Log", ["root"], ["log"]),
        helper.make_node("Div", ["log", "e"], ["quotient"]),
        helper.make_node("RMSNormalization", ["quotient", "g"], ["normed"], axis=2, epsilon=1e-3),
        helper.make_node("Div", ["two", "e"], ["inverse"]),
        helper.make_node("Add", ["normed", "inverse"], ["y"]),
    ]
    constants = {"g": random(8, 8), "two": np.float32(2)}
    graph = same_as_runtime(model(nodes, IMAGE, constants, opset=23))
    assert {node.name for node in graph.trainable} == {"g"}


@pytest.mark.parametrize("how", ["half_pixel", "align_corners", "asymmetric"])
def test_resizing_by_linear_interpolation(how: str) -> None:
    constants = {"r": None, "f": None, "sizes": np.array([2, 4, 11, 16])}
    attributes = {"mode": "linear", "coordinate_transformation_mode": how}
    same_as_runtime(with_gain("Resize", IMAGE, constants, **attributes))


@pytest.mark.parametrize("how", ["half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize("factor", [1.05, 1.4, 1.5, 0.7])
def test_resizing_by_factors_that_give_no_whole_sizes(factor: float, how: str) -> None:
    constants = {"r": None, "f": np.float32([1, 1, 1, factor])}
    attributes = {"mode": "linear", "coordinate_transformation_mode": how}
    same_as_runtime(with_gain("Resize", (2, 4, 3, 5), constants, **attributes))


@pytest.mark.parametrize("threshold", [20, 1])
def test_a_softplus_that_pytorch_protects_from_an_overflow(threshold: float) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "g"], ["scaled"]),
        helper.make_node("Mul", ["scaled", "beta"], ["more"]),
        helper.make_node("Softplus", ["more"], ["plus"]),
        helper.make_node("Div", ["plus", "beta"], ["less"]),
        helper.make_node("Greater", ["more", "threshold"], ["large"]),
        helper.make_node("Where", ["large", "scaled", "less"], ["y"]),
    ]
    constants = {"g": random(4, 1, 1), "beta": np.float32(2), "threshold": np.float32(threshold)}
    data = model(nodes, IMAGE, constants)
    if threshold == 20:
        assert "greater" not in {node.op for node in same_as_runtime(data)}
    else:  # this Where changes numbers
        assert "clip_grad" in {node.op for node in same_as_runtime(data)}


def test_a_limit_that_only_large_numbers_reach_is_not_left_out() -> None:
    nodes = [
        helper.make_node("Mul", ["x", "g"], ["scaled"]),
        helper.make_node("Add", ["scaled", "scaled"], ["twice"]),
        helper.make_node("Greater", ["twice", "limit"], ["large"]),
        helper.make_node("Where", ["large", "limit", "twice"], ["y"]),
    ]
    data = model(nodes, IMAGE, {"g": random(4, 1, 1), "limit": np.float32(150)})
    same_as_runtime(data, 1000 * random(*IMAGE))


@pytest.mark.parametrize("scaled", ["s", "z"])  # before and after x
@pytest.mark.parametrize("is_outside", [False, True])
def test_a_norm_of_scaled_rows(scaled: str, is_outside: bool) -> None:
    """An epsilon may be added to the variance or to its root."""
    make = helper.make_node
    nodes = [
        make("Mul", ["x", "g"], [scaled]), make("ReduceMean", [scaled], ["mean"], axes=[-1]),
        make("Sub", [scaled, "mean"], ["d"]), make("Mul", ["d", "d"], ["squares"]),
        make("ReduceMean", ["squares"], ["variance"], axes=[-1]),
    ]  # fmt: skip
    last = ("variance", "root") if is_outside else ("more", "variance")
    add, root = make("Add", [last[1], "eps"], ["more"]), make("Sqrt", [last[0]], ["root"])
    nodes += [root, add] if is_outside else [add, root]
    nodes += [make("Div", ["d", "more" if is_outside else "root"], ["y"])]
    constants = {"g": random(8, 1) + 3, "eps": np.float32(1e-8)}
    graph = same_as_runtime(model(nodes, IMAGE, constants), 1e-4 * random(*IMAGE))
    assert ("layernorm" in {node.op for node in graph}) != is_outside


def test_neutral_numbers_that_are_trained_stay_parameters() -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.one = nn.Linear(5, 4), nn.Parameter(torch.ones(()))
            self.zero = nn.Parameter(torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.fc(x)
            h = nn.functional.gelu(h) * self.one
            return torch.where(h > self.zero, h, self.zero)

    graph = poet.load(Module(), torch.zeros(2, 5), loss="mse")
    assert isinstance(graph, poet.Graph)
    assert {node.name for node in graph.trainable} == {"fc.weight", "fc.bias", "one", "zero"}


@pytest.mark.parametrize("op", [torch.bernoulli, partial(nn.functional.dropout, p=0.5)])
def test_masks_that_each_step_would_draw_are_refused(op: Callable[..., Any]) -> None:
    class Locked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(5, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h: torch.Tensor = self.fc(x)
            masked: torch.Tensor = h * op(torch.full_like(h, 0.5))
            return masked

    with pytest.raises(BadInput, match=r"Bernoulli|Dropout"):
        poet.load(Locked(), torch.zeros(2, 5), loss="mse")


def test_swish() -> None:
    data = with_gain("Swish", IMAGE, opset=24, alpha=0.5)
    x, y = answers(imported(data))
    gain = onnx.numpy_helper.to_array(onnx.load_model_from_string(data).graph.initializer[0])
    scaled = x * gain
    assert np.allclose(y, scaled / (1 + np.exp(-scaled / 2)), atol=1e-5)


def test_the_bias_of_a_linear_layer_of_zeros_is_trained() -> None:
    nodes = [
        helper.make_node("Expand", ["zero", "shape"], ["state"]),
        helper.make_node("Gemm", ["state", "w", "b"], ["gates"], transB=1),
        helper.make_node("Mul", ["x", "gates"], ["y"]),
    ]
    constants = {
        "zero": np.float32(0),
        "shape": np.array([4, 3]),
        "w": random(5, 3),
        "b": random(5),
    }
    graph = same_as_runtime(model(nodes, (4, 5), constants))
    assert {node.name for node in graph.trainable} == {"w", "b"}


def test_a_view_of_a_computed_constant_keeps_its_values() -> None:
    nodes = [
        helper.make_node("Add", ["a", "a"], ["twice"]),
        helper.make_node("Unsqueeze", ["twice", "axes"], ["view"]),
        helper.make_node("Add", ["x", "view"], ["y"]),
    ]
    nodes.insert(0, helper.make_node("Mul", ["x", "g"], ["scaled"]))
    nodes[-1].input[0] = "scaled"
    constants = {"a": random(4, 1, 8), "axes": np.array([0]), "g": random(4, 1, 1)}
    same_as_runtime(model(nodes, IMAGE, constants))


def test_an_element_that_is_added_to_one_element_is_repeated() -> None:
    nodes = [
        helper.make_node("Mul", ["x", "g"], ["scaled"]),
        helper.make_node("Gather", ["scaled", "places"], ["chosen"], axis=1),
        helper.make_node("Add", ["chosen", "bias"], ["y"]),
    ]
    constants = {"g": random(4, 1), "places": np.array([2, 2, 2]), "bias": random(1, 1, 6)}
    same_as_runtime(model(nodes, (2, 4, 6), constants))


def test_groups_of_channels_of_a_signal() -> None:
    scale = {"s": random(4), "b": random(4)}
    same_as_runtime(with_gain("GroupNormalization", (2, 4, 6), scale, 21, num_groups=1))
    same_as_runtime(with_gain("GroupNormalization", (2, 4, 6), scale, 21, num_groups=2))
