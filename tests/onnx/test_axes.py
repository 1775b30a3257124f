"""The axes of ONNX operators and of their outputs, compared with ONNX Runtime."""

import numpy as np
import onnx
import pytest
from onnx import helper
from support.onnx_judge import imported, random, same_as_runtime, with_gain
from support.onnx_models import model, one_node


@pytest.mark.parametrize("opset", [11, 12, 13, 17])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((2, 5), None),
        ((2, 5, 4), None),
        ((2, 5, 4), -2),
        ((2, 5, 4), 0),
        ((2, 4, 1, 1), 1),
        ((2, 4, 1, 1), -3),
        ((2, 4, 5, 1), 2),
        ((2, 4, 5, 3), 2),
        ((2, 4, 5, 1), 3),
    ],
)
def test_softmax_uses_the_axis_of_its_opset(
    shape: tuple[int, ...], axis: int | None, opset: int
) -> None:
    """Before opset 13 it uses `axis` and all later axes. The default is the second axis."""
    attributes = {} if axis is None else {"axis": axis}
    same_as_runtime(with_gain("Softmax", shape, opset=opset, **attributes))


@pytest.mark.parametrize("order", [["scaled", "c"], ["c", "scaled"]])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Pow"])
def test_a_constant_with_more_axes_than_the_data_adds_axes(op: str, order: list[str]) -> None:
    order = ["scaled", "c"] if op in ("Div", "Pow") else order
    nodes = [
        helper.make_node("Mul", ["x", "gain"], ["scaled"]),
        helper.make_node(op, order, ["more"]),
        helper.make_node("Squeeze", ["more", "first"], ["y"]),
    ]
    constants = {"gain": random(4), "c": np.full((1, 1, 1), 2, np.float32), "first": np.array([0])}
    same_as_runtime(model(nodes, (2, 4), constants))


def test_a_sum_that_adds_axes_is_not_a_bias() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Add", ["product", "b"], ["more"]),
        helper.make_node("Squeeze", ["more", "first"], ["y"]),
    ]
    constants = {"w": random(5, 3), "b": random(1, 1, 3), "first": np.array([0])}
    graph = same_as_runtime(model(nodes, (2, 5), constants))
    assert {node.name for node in graph.trainable} == {"w", "b"}


def test_a_product_that_adds_axes_is_not_a_scale() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Transpose", ["x"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["a", "turned"], ["product"]),
        helper.make_node("Mul", ["product", "half"], ["more"]),
        helper.make_node("Squeeze", ["more", "first"], ["y"]),
    ]
    constants = {
        "w": random(5, 5), "half": np.full((1, 1, 1), 0.5, np.float32), "first": np.array([0]),
    }  # fmt: skip
    same_as_runtime(model(nodes, (2, 5), constants))


def test_gemm_adds_one_constant_to_each_row() -> None:
    data = one_node("Gemm", (3, 5), {"w": random(5, 3), "b": random(3, 1)})
    assert {node.name for node in same_as_runtime(data).trainable} == {"w", "b"}


@pytest.mark.parametrize("how", ["to itself", "to another", "and returned"])
def test_an_element_that_is_repeated_and_added_stays_repeated(how: str) -> None:
    make = helper.make_node
    nodes = [make("MatMul", ["x", "w"], ["a"]), make("Gather", ["a", "ones"], ["b"], axis=1)]
    nodes += [make("Gather", ["a", "twos"], ["c"], axis=1)] if how == "to another" else []
    others = {"to itself": "b", "to another": "c", "and returned": "a"}
    nodes += [make("Add", ["b", others[how]], ["y"])]
    constants = {"w": random(3, 3), "ones": np.array([1, 1]), "twos": np.array([2, 2])}
    rows = 2 if how == "and returned" else 4
    proto = onnx.load_from_string(model(nodes, (2, rows, 3), constants))
    if how == "and returned":
        proto.graph.output.add().CopyFrom(proto.graph.output[0])
        proto.graph.output[1].name = "b"
        graph = imported(proto.SerializeToString(), loss="y=mse b=mse")
        assert graph[graph.label].shape == (2, 12)
    else:
        same_as_runtime(proto.SerializeToString())


@pytest.mark.parametrize(
    ("op", "constants", "attributes"),
    [
        ("Slice", {"b": [-1], "e": [-(2**63)], "a": [2], "s": [-1]}, {}),
        ("Pad", {"p": [0, 0, 20, 0, 0, 20]}, {"mode": "reflect"}),
    ],
)
def test_many_runs_of_elements_are_selected_by_one_layer(
    op: str, constants: dict[str, list[int]], attributes: dict[str, str]
) -> None:
    arrays = {name: np.array(value) for name, value in constants.items()}
    graph = same_as_runtime(with_gain(op, (2, 4, 40), arrays, **attributes))
    assert len(graph.nodes) < 40
