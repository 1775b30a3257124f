"""Padding as a node of its own, and incomplete windows, compared with ONNX Runtime."""

from typing import Any

import numpy as np
import pytest
import torch
from onnx import helper
from poet_host.graph.graph import Graph
from support.onnx_judge import IMAGE, random, same_as_runtime, with_gain
from support.onnx_models import model

AROUND = np.array([0, 0, 1, 0, 0, 0, 1, 2])  # of an image: above, below and to the right


def forward(graph: Graph) -> list[str]:
    return [node.op for node in graph if node.phase == "forward"][:-1]


def padded(nodes: list[Any], constants: dict[str, Any], x: tuple[int, ...] = IMAGE) -> Graph:
    return same_as_runtime(model(nodes, x, {"pads": AROUND, **constants}, opset=18))


@pytest.mark.parametrize("own", [{}, {"pads": [1, 0, 0, 0], "strides": [2, 2]}])
def test_padding_before_a_convolution_becomes_its_padding(own: dict[str, Any]) -> None:
    nodes = [
        helper.make_node("Pad", ["x", "pads"], ["p"]),
        helper.make_node("Conv", ["p", "w"], ["y"], **own),
    ]
    assert forward(padded(nodes, {"w": random(6, 4, 3, 3)})) == ["conv2d"]


def test_padding_passes_through_a_change_of_axes() -> None:
    """As Keras' channels come last: what is padded is still height and width."""
    nodes = [
        helper.make_node("Pad", ["x", "pads"], ["p"]),
        helper.make_node("Transpose", ["p"], ["t"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["t", "w"], ["c"], strides=[2, 2]),
        helper.make_node("Conv", ["t", "v"], ["d"], strides=[2, 2]),
        helper.make_node("Add", ["c", "d"], ["y"]),
    ]
    constants = {"pads": np.array([0, 0, 0, 0, 0, 1, 1, 0]), "w": random(6, 3, 3, 3)}
    graph = padded(nodes, {**constants, "v": random(6, 3, 3, 3)}, (2, 8, 9, 3))
    assert forward(graph) == ["transpose", "conv2d", "conv2d", "add"]


def test_padding_without_a_window_is_a_tensor() -> None:
    nodes = [
        helper.make_node("Mul", ["x", "gain"], ["s"]),
        helper.make_node("Pad", ["s", "pads"], ["p"]),
        helper.make_node("Relu", ["p"], ["y"]),
    ]
    graph = padded(nodes, {"gain": random(4, 1, 1)})
    assert forward(graph) == ["mul", "slice_grad", "slice_grad", "relu"]
    assert [node.op for node in graph if node.phase == "backward"].count("slice") == 2


def test_padding_of_channels_and_of_windows() -> None:
    nodes = [
        helper.make_node("Pad", ["x", "wider", "zero", "axes"], ["p"]),
        helper.make_node("Conv", ["p", "w"], ["y"]),
    ]
    axes = {"wider": np.array([1, 1, 2, 0]), "axes": np.array([1, -1]), "zero": np.float32(0)}
    padded(nodes, {**axes, "w": random(6, 7, 3, 3)})


@pytest.mark.parametrize(("low", "ops"), [(-np.inf, ["mul", "maxpool2d"]), (0, None)])
def test_a_maximum_ignores_low_padding(low: float, ops: Any) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "gain"], ["s"]),
        helper.make_node("Pad", ["s", "pads", "low"], ["p"]),
        helper.make_node("Relu" if low == 0 else "Identity", ["p"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["y"], kernel_shape=[3, 3], strides=[2, 2]),
    ]
    constants = {"gain": random(4, 1, 1), "pads": np.array([0, 0, 0, 0, 0, 0, 1, 1])}
    graph = padded(nodes, {**constants, "low": np.float32(low)})
    assert ops in (None, forward(graph))


@pytest.mark.parametrize(
    ("op", "attributes", "pads"),
    [
        ("MaxPool", {}, 0),
        ("MaxPool", {}, 1),
        ("AveragePool", {"count_include_pad": 0}, 0),
        ("AveragePool", {"count_include_pad": 0}, 1),
        ("AveragePool", {"count_include_pad": 1}, 0),  # with padding: see test_onnx_refused.py
    ],
)
def test_incomplete_windows(op: str, attributes: dict[str, Any], pads: int) -> None:
    window = {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [pads] * 4, "ceil_mode": 1}
    same_as_runtime(with_gain(op, (2, 3, 8, 9), opset=19, **window, **attributes))


@pytest.mark.parametrize("automatic", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_pools_of_the_same_size(op: str, automatic: str) -> None:
    for size in torch.randint(2, 5, (6, 2)).tolist():
        window = {"kernel_shape": size, "strides": [2, 1], "auto_pad": automatic}
        same_as_runtime(with_gain(op, (2, 3, 8, 7), **window))
