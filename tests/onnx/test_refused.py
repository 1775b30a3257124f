"""Models that cannot be trained: every node is named, with what to do about it."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from poet_host.errors import BadInput
from poet_host.onnx.operators import RULES
from support.onnx_judge import IMAGE, imported, random, two_layers, with_gain
from support.onnx_models import model, one_node


def test_everything_that_cannot_be_trained_is_listed_at_once() -> None:
    make = helper.make_node
    nodes = [
        make("ConvTranspose", ["x", "w"], ["a"], "first", auto_pad="SAME_UPPER"),
        make("Softsign", ["a"], ["b"], "second"),
        make("MaxPool", ["b"], ["c"], "third", kernel_shape=[2, 2], dilations=[2, 2]),
        make("Conv", ["c", "w"], ["d"], "fine"),
        make("LRN", ["d"], ["y"], "fourth", size=3),
    ]
    with pytest.raises(BadInput) as caught:
        imported(model(nodes, IMAGE, {"w": random(4, 4, 3, 3)}))
    first, *lines, last = str(caught.value).split("\n")
    assert first.startswith("model m: 4 of 5 nodes ")
    assert [line.split(":")[0].strip() for line in lines] == [
        "first (ConvTranspose)", "second (Softsign)", "third (MaxPool)", "fourth (LRN)",
    ]  # fmt: skip
    assert "auto_pad" in lines[0]
    assert "Relu" in lines[1]
    assert "BatchNormalization" in lines[3]
    assert ", ".join(sorted(RULES)) in last


def test_each_node_without_its_first_output_is_listed() -> None:
    make = helper.make_node
    nodes = [
        make("Transpose", ["x"], ["s"], perm=[1, 0, 2]),
        make("RNN", ["s", "w", "w"], ["", "a"], "first", hidden_size=3, clip=1.0),
        make("Transpose", ["a"], ["b"], perm=[1, 0, 2]),
        make("RNN", ["b", "w", "w"], ["", "y"], "second", hidden_size=3, clip=1.0),
    ]
    with pytest.raises(BadInput) as caught:
        imported(model(nodes, (2, 3, 4), {"w": random(1, 9, 4)}))
    assert "first (RNN): " in str(caught.value)
    assert "second (RNN): " in str(caught.value)


def parted(sizes: dict[str, Any], place: int) -> bytes:
    """One part of a tensor's second axis, of size 4."""
    nodes = [
        helper.make_node("Mul", ["x", "gain"], ["scaled"]),
        helper.make_node("SplitToSequence", ["scaled", *sizes], ["parts"], axis=1),
        helper.make_node("SequenceAt", ["parts", "place"], ["y"]),
    ]
    return model(nodes, IMAGE, {**sizes, "place": np.array(place), "gain": random(4, 1, 1)})


REFUSED: dict[str, tuple[bytes, str]] = {
    "padding with ones": (
        with_gain("Pad", IMAGE, {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "one": np.float32(1)}),
        "1.0",
    ),
    "padding that cuts": (
        with_gain("Pad", IMAGE, {"p": np.array([0, 0, -1, 0, 0, 0, 1, 1])}),
        r"\(Pad\): .*-1",
    ),
    "counted padding in windows that are only begun": (
        with_gain(
            "AveragePool",
            IMAGE,
            kernel_shape=[3, 3],
            strides=[2, 2],
            pads=[1, 1, 1, 1],
            ceil_mode=1,
            count_include_pad=1,
        ),
        "ceil_mode",
    ),
    "volumes": (
        one_node("Conv", (1, 2, 4, 4, 4), {"w": random(2, 2, 3, 3, 3)}),
        r"shape \(1, 2, 4, 4, 4\)",
    ),
    "half precision": (
        one_node("Gemm", (2, 5), {"w": random(3, 5).astype(np.float16)}, transB=1),
        "export the model in float32",
    ),
    "a root": (with_gain("Pow", IMAGE, {"p": np.float32(0.3)}), r"\(Pow\): .*1, 2, 3 or 4"),
    "whole numbers of what is computed": (
        with_gain("Cast", IMAGE, to=onnx.TensorProto.INT64),
        r"\(Cast\): .*float32",
    ),
    "places that are not there": (
        with_gain("Gather", IMAGE, {"i": np.array([9])}, axis=1),
        r"\[9\].* 4",
    ),
    "weights of nan": (
        one_node("Gemm", (2, 5), {"w": np.full((3, 5), np.nan, np.float32)}, transB=1),
        "w .*NaN",
    ),
    "a cycle": (
        model(
            [helper.make_node("Add", ["x", "y"], ["a"]), helper.make_node("Relu", ["a"], ["y"])],
            IMAGE,
        ),
        "node 'a' reads 'y'",
    ),
    "a name for two": (
        model([helper.make_node("Relu", ["x"], ["y"])] * 2, IMAGE),
        "node 'y' computes 'y'",
    ),
    "a weight with more axes than the data": (
        one_node("MatMul", (2, 5), {"w": random(1, 5, 3)}),
        r"weight .*\(1, 5, 3\)",
    ),
    "a constant with more axes than what is computed, times that": (
        model([helper.make_node("MatMul", ["w", "x"], ["y"])], (2, 5), {"w": random(1, 3, 2)}),
        r"weight .*\(1, 3, 2\)",
    ),
    "words along another axis": (
        model(
            [helper.make_node("Gather", ["table", "x"], ["y"])],
            (2, 5),
            {"table": random(1, 7, 4)},
            dtype=onnx.TensorProto.INT64,
        ),
        r"weight .*\(1, 7, 4\)",
    ),
    "branches": (
        model([helper.make_node("If", ["c"], ["y"], "if")], IMAGE, {"c": np.array(True)}),
        r"if \(If\): ",
    ),
    "quantised weights": (
        model(
            [
                helper.make_node("DequantizeLinear", ["q", "s"], ["w"]),
                helper.make_node("Gemm", ["x", "w"], ["y"]),
            ],
            (2, 5),
            {"q": np.ones((5, 3), np.int8), "s": np.float32(0.1)},
        ),
        r"w \(DequantizeLinear\): .*float32",
    ),
    "what a runtime made": (
        model([helper.make_node("BiasGelu", ["x"], ["y"], domain="com.microsoft")], IMAGE),
        "com.microsoft .*runtime",
    ),
    "what somebody made": (
        model([helper.make_node("Fold", ["x"], ["y"], domain="org.somebody")], IMAGE),
        "org.somebody ",
    ),
    "elements that are repeated nearly equally often": (
        with_gain(
            "Resize",
            IMAGE,
            {"r": None, "f": np.float32([1, 1, 1, 2.05])},
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        ),
        "resizing",
    ),
    "an activation that falls": (
        with_gain("Celu", IMAGE, alpha=-0.5),
        r"\(Celu\): `alpha` -0.5",
    ),
    "a part without elements": (
        with_gain(
            "Slice",
            IMAGE,
            {name: np.array([value]) for name, value in zip("beas", (3, 3, 1, 2), strict=True)},
        ),
        r"\(Slice\): .*selects nothing",
    ),
    "heads that einsum repeats": (
        with_gain("Einsum", (2, 1, 4), {"w": random(3, 4, 5)}, equation="bhd,hde->bhe"),
        r"elements, so its shape cannot be",
    ),
    "a product without its equation": (with_gain("Einsum", (2, 4), {"w": random(4, 5)}), "Einsum"),
    "a picture that keeps its sides": (
        with_gain(
            "Resize",
            IMAGE,
            {"r": None, "f": None, "s": np.array([2, 4, 16, 24])},
            opset=18,
            keep_aspect_ratio_policy="not_larger",
        ),
        "not_larger.* `stretch`",
    ),
    "groups of unequal size": (
        with_gain("GroupNormalization", IMAGE, {"s": random(4), "b": random(4)}, 21, num_groups=3),
        "4 channels .* 3 groups",
    ),
    "a trace": (
        with_gain("Einsum", IMAGE, {"w": random(8, 8)}, equation="abcc,cd->abd"),
        "letters that occur once",
    ),
    "noise": (with_gain("RandomNormalLike", IMAGE), "another input"),
    "no places": (
        with_gain("Gather", IMAGE, {"i": np.zeros(0, np.int64)}, axis=1),
        r"\(Gather\): ",
    ),
    "no points": (
        with_gain("GatherND", IMAGE, {"i": np.zeros((2, 0, 2), np.int64)}, batch_dims=1),
        r"\(GatherND\): .*selects nothing",
    ),
    "points that are not there": (
        with_gain("GatherND", IMAGE, {"i": np.array([[[0, 9]]] * 2)}, batch_dims=1),
        r"9.* \[4, 8\]",
    ),
    "parts of nothing": (parted({"n": np.array(0)}, 0), r"4 .*\[0\]"),
    "parts that make no whole": (parted({"n": np.array([1, 2])}, 0), r"4 .*\[1, 2\]"),
    "a split that leaves some over": (
        with_gain("Split", IMAGE, {"n": np.array([1, 2])}, outputs=["y", "rest"], axis=1),
        r"\(Split\): .*4 .*\[1, 2\]",
    ),
    "a part that is not there": (parted({"n": np.array(2)}, 2), "use an index from -2 to 1"),
    "nothing": (
        model([helper.make_node("Relu", ["x"], []), helper.make_node("Relu", ["x"], ["y"])], IMAGE),
        "node 'Relu' .*output",
    ),
    "a larger picture between its numbers": (
        with_gain("Resize", IMAGE, {"r": None, "f": np.float32([1, 1, 2, 2])}, mode="cubic"),
        r"\(Resize\): .*nearest",
    ),
    "a new opset": (one_node("Relu", IMAGE, opset=999), "opset 999 "),
    "an old opset": (one_node("Relu", IMAGE, opset=9), "opset 9 .* 11"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unsupported_operators_are_refused_with_advice(case: str) -> None:
    data, message = REFUSED[case]
    with pytest.raises(BadInput, match=message):
        imported(data)


@pytest.mark.parametrize(
    ("op", "others", "instead"),
    [
        ("ReduceL1", {}, "Abs"),
        ("GatherElements", {"i": np.zeros(IMAGE, np.int64)}, "Slice"),
        ("CastLike", {"i": np.zeros(IMAGE, np.int64)}, "sizes"),
        ("Tan", {}, "listed below"),
    ],
)
def test_operators_that_exporters_write_are_refused_with_advice(
    op: str, others: dict[str, Any], instead: str
) -> None:
    with pytest.raises(BadInput, match=rf" 1 of 2 nodes .*\n.*\({op}\): .*{instead}"):
        imported(with_gain(op, IMAGE, others), loss="cross-entropy")


def test_operators_of_sizes_are_not_listed_if_the_problem_of_an_input_hides_them() -> None:
    make = helper.make_node
    nodes = [
        make("Unknown", ["x"], ["a"], "first", domain="mine"),
        make("Shape", ["a"], ["shape"]),
        make("Mod", ["shape", "two"], ["rest"]),
        make("Reshape", ["a", "rest"], ["b"]),
        make("Softsign", ["b"], ["y"], "second"),
    ]
    with pytest.raises(BadInput, match=r"2 of 5 nodes .*\n  first .*\n  second "):
        imported(model(nodes, IMAGE, {"two": np.array([2])}))


def test_the_manual_lists_every_operator() -> None:
    manual = Path(__file__).parents[2] / "docs" / "reference" / "models-and-operators.md"
    section = manual.read_text().partition("## ONNX operators")[2]
    rows = [row for row in section.splitlines() if row.startswith("|")]
    assert set(re.findall(r"\b[A-Z]\w+", "".join(rows))) == set(RULES)


def test_inputs_have_one_batch_size() -> None:
    node = helper.make_node("Add", ["x", "z"], ["y"])
    info = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (batch, 2))
        for name, batch in (("x", 1), ("z", 3), ("y", 3))
    ]
    graph = helper.make_graph([node], "g", info[:2], info[2:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    with pytest.raises(BadInput, match=r"x of shape \(1, 2\) and z of shape \(3, 2\)"):
        imported(made.SerializeToString())


def test_invalid_content_of_onnx_files_is_refused() -> None:
    broken = onnx.load_model_from_string(two_layers())
    broken.graph.initializer[0].dims[0] = 7
    with pytest.raises(BadInput, match="valid model"):
        imported(broken.SerializeToString())
    with pytest.raises(BadInput, match=r"b .*\(1,\).* \(6,\)"):
        imported(one_node("Conv", IMAGE, {"w": random(6, 4, 3, 3), "b": random(1)}))


def test_an_unsupported_second_output_is_named() -> None:
    nodes = [
        helper.make_node("MaxPool", ["x"], ["largest", "places"], kernel_shape=[2, 2]),
        helper.make_node("Cast", ["places"], ["y"], "cast", to=onnx.TensorProto.FLOAT),
    ]
    with pytest.raises(BadInput, match=r"cast \(Cast\): .*places"):
        imported(model(nodes, IMAGE))


@pytest.mark.parametrize(
    ("op", "attributes", "constants", "message"),
    [
        ("Squeeze", {}, {"axes": np.array([1])}, r"\[1\] of .*\(2, 4, 8, 8\)"),
        ("Flatten", {"axis": 7}, {}, "batch"),
        ("Softmax", {"axis": 5}, {}, "axis 5 "),
        ("Gather", {"axis": -5}, {"places": np.array([1])}, "axis -5 "),
    ],
)
def test_axes_out_of_range_are_refused(
    op: str, attributes: dict[str, Any], constants: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        imported(with_gain(op, IMAGE, constants, **attributes))
