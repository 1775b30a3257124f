"""Each ONNX operator as our layers, beside ONNX Runtime; and what is refused, all at once."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import poet_host as poet
import pytest
from onnx import helper
from onnx_models import model, one_node
from poet_host.errors import BadInput
from poet_host.graph.evaluate import logits
from poet_host.graph.graph import Graph
from poet_host.graph.onnx_import import training
from poet_host.graph.onnx_model import read_bytes
from poet_host.graph.reference import run_step
from poet_host.graph.weights import start_values, to_named
from poet_host.run.data import example
from poet_host.run.evaluate import accuracy
from poet_host.schedule.recover import graph_of
from poet_host.schedule.schedule import Schedule, parse

RNG = np.random.default_rng(0)


def random(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def imported(data: bytes, **options: Any) -> Graph:
    return training(read_bytes(data, "model m"), "m", **{"loss": "mse", **options})


def answers(graph: Graph, x: Any = None) -> tuple[Any, Any]:
    """What goes in, and what the graph gives the loss, with batchnorm as in training."""
    drawn, label = example(graph)
    x = drawn if x is None else x
    values = run_step(graph, {**start_values(graph, 0), graph.data: x, graph.label: label}, 1)
    return x, values[graph.logits]


def by_runtime(data: bytes, x: Any) -> Any:
    session = onnxruntime.InferenceSession(data)
    info = session.get_inputs()[0]
    return session.run(None, {info.name: x.astype(np.int64) if "int64" in info.type else x})[0]


def same_as_runtime(data: bytes, x: Any = None, **options: Any) -> Graph:
    """The graph of a model, after its answers were compared, and those of the model it holds."""
    graph = imported(data, **options)
    x, y = answers(graph, x)
    expected = by_runtime(data, x)
    assert np.allclose(y.reshape(expected.shape), expected, atol=1e-5)
    assert np.array_equal(by_runtime(graph.origin, x), expected)
    return graph


IMAGE = (2, 4, 8, 8)
GAIN = {"gain": random(4, 1, 1)}  # something to train where an operator has nothing


def with_gain(
    node: Any, x: tuple[int, ...], more: Mapping[str, Any] | None = None, **kw: Any
) -> bytes:
    """A model of x times a gain, and then the node, which reads `scaled`."""
    first = helper.make_node("Mul", ["x", "gain"], ["scaled"])
    gain = {"gain": random(*(1,) * (len(x) - 2), x[-1] if len(x) < 3 else 1) + 2}
    if len(x) > 2:
        gain = {"gain": random(x[1], *(1,) * (len(x) - 2)) + 2}
    return model([first, node], x, {**gain, **(more or {})}, **kw)


CONVOLUTIONS = {
    "plain": ((6, 4, 3, 3), {}),
    "padded": ((6, 4, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    "depthwise": ((4, 1, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
    "grouped": ((6, 2, 3, 3), {"group": 2}),
    "wide": ((2, 4, 1, 5), {"pads": [0, 2, 0, 2], "strides": [1, 2]}),
    "same": ((6, 4, 3, 3), {"auto_pad": "SAME_UPPER"}),
    "valid": ((6, 4, 3, 3), {"auto_pad": "VALID"}),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("bias", [False, True])
def test_convolutions(case: str, bias: bool) -> None:
    shape, attributes = CONVOLUTIONS[case]
    constants = {"c.weight": random(*shape)} | ({"c.bias": random(shape[0])} if bias else {})
    graph = same_as_runtime(one_node("Conv", IMAGE, constants, **attributes))
    assert [node.name for node in graph.trainable] == list(constants)


def test_signals_are_convolved_and_pooled_too() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1], strides=[2]),
        helper.make_node("MaxPool", ["c"], ["p"], kernel_shape=[2], strides=[2]),
        helper.make_node("GlobalAveragePool", ["p"], ["y"]),
    ]
    data = model(nodes, (2, 3, 20), {"w": random(5, 3, 3), "b": random(5)})
    graph = same_as_runtime(data)
    assert to_named(graph, start_values(graph, 0))["w"].shape == (5, 3, 3)


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("bias", [(), (3,), (1, 3)])
def test_gemm(turned: int, bias: tuple[int, ...]) -> None:
    constants = {"fc.weight": random(3, 5) if turned else random(5, 3)}
    constants |= {"fc.bias": random(*bias)} if bias else {}
    graph = same_as_runtime(one_node("Gemm", (4, 5), constants, transB=turned))
    named = to_named(graph, start_values(graph, 0))
    for name, value in constants.items():  # in the names and the layout of the file
        assert np.array_equal(named[name], value)


@pytest.mark.parametrize("shape", [(4, 5), (2, 3, 5), (2, 2, 3, 5)])
def test_matmul_with_a_weight_takes_the_bias_behind_it(shape: tuple[int, ...]) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Add", ["b", "product"], ["y"]),
    ]
    graph = same_as_runtime(model(nodes, shape, {"w": random(5, 3), "b": random(3)}))
    assert [node.op for node in graph if node.phase == "forward"] == ["linear", "mse"]


@pytest.mark.parametrize("opset", [11, 13, 14, 17, 20])
def test_batchnorm_is_trained_or_frozen(opset: int) -> None:
    statistics = {"g": random(4), "b": random(4), "m": random(4), "v": random(4) ** 2 + 1}
    data = one_node(
        "BatchNormalization", IMAGE, statistics, opset=opset, epsilon=0.01, momentum=0.7
    )
    with pytest.raises(BadInput, match="no parameters, so nothing"):
        imported(data, batchnorm="frozen")
    trained = imported(data)
    assert {"g", "b"} == {node.name for node in trained.trainable if node.role == "parameter"}
    x, y = answers(trained)
    mean, variance = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True)
    expected = (x - mean) / np.sqrt(variance + 0.01) * statistics["g"][:, None, None]
    assert np.allclose(y, expected + statistics["b"][:, None, None], atol=1e-5)
    running = next(node for node in trained if node.op == "batchnorm_running")
    assert running.attrs["momentum"] == pytest.approx(0.3)

    scale = helper.make_node("Mul", ["x", "gain"], ["scaled"])
    norm = helper.make_node("BatchNormalization", ["scaled", *"gbmv"], ["y"], epsilon=0.01)
    frozen = same_as_runtime(
        model([scale, norm], IMAGE, {**GAIN, **statistics}, 17), batchnorm="frozen"
    )
    assert [node.name for node in frozen.trainable] == ["gain"]


UNARY: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "relu": ("Relu", {}, {}),
    "sigmoid": ("Sigmoid", {}, {}),
    "tanh": ("Tanh", {}, {}),
    "softmax": ("Softmax", {}, {"axis": -1}),
    "neg": ("Neg", {}, {}),
    "square": ("Pow", {"two": np.float32(2)}, {}),
    "relu6": ("Clip", {"low": np.float32(0), "high": np.float32(6)}, {}),
    "relu by clip": ("Clip", {"low": np.float32(0)}, {}),
    "clip": ("Clip", {"low": np.float32(-0.5), "high": np.float32(0.25)}, {}),
    "clip above": ("Clip", {"low": None, "high": np.float32(0.25)}, {}),
    "min": ("Min", {"high": np.float32(0.5)}, {}),
    "max": ("Max", {"low": np.float32(0.5)}, {}),
    "mul": ("Mul", {"factor": np.float32(3)}, {}),
    "div": ("Div", {"divisor": np.float32(3)}, {}),
    "add": ("Add", {"shift": np.float32(3)}, {}),
    "sub": ("Sub", {"shift": random(4, 1, 1)}, {}),
    "global average": ("GlobalAveragePool", {}, {}),
    "average": ("AveragePool", {}, {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "average padded": ("AveragePool", {}, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    "average counted": (
        "AveragePool", {}, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
    ),
    "max pool": ("MaxPool", {}, {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "max pool up": ("MaxPool", {}, {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
    "mean": ("ReduceMean", {}, {"axes": [2, 3], "keepdims": 0}),
    "mean kept": ("ReduceMean", {}, {"axes": [-1, -2]}),
    "mean of channels": ("ReduceMean", {}, {"axes": [1], "keepdims": 0}),
    "sum": ("ReduceSum", {"axes": np.array([2])}, {"keepdims": 0}),
    "flatten": ("Flatten", {}, {}),
    "flatten from behind": ("Flatten", {}, {"axis": -3}),
    "reshape": ("Reshape", {"shape": np.array([0, -1, 4])}, {}),
    "transpose": ("Transpose", {}, {"perm": [0, 2, 3, 1]}),
    "slice": (
        "Slice",
        {"starts": np.array([1, -5]), "ends": np.array([3, 2**40]), "axes": np.array([1, 3])},
        {},
    ),
    "gather": ("Gather", {"indices": np.array(2)}, {"axis": 1}),
    "gather more": ("Gather", {"indices": np.array([1, 2])}, {"axis": 1}),
    "unsqueeze": ("Unsqueeze", {"axes": np.array([1, 5])}, {}),
    "identity": ("Identity", {}, {}),
    "cast": ("Cast", {}, {"to": onnx.TensorProto.FLOAT}),
    "concat with a constant": ("Concat", {"c": random(2, 1, 8, 8)}, {"axis": 1}),
}  # fmt: skip


@pytest.mark.parametrize("case", UNARY)
def test_operators_of_one_tensor(case: str) -> None:
    op, constants, attributes = UNARY[case]
    names = [name if value is not None else "" for name, value in constants.items()]
    node = helper.make_node(op, ["scaled", *names], ["y"], **attributes)
    same_as_runtime(with_gain(node, IMAGE, constants))


@pytest.mark.parametrize("shapes", [((2, 3, 4), (2, 3, 4)), ((2, 3, 4), (4,)), ((2, 3, 4), (3, 1))])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul"])
def test_arithmetic_with_a_parameter_of_another_shape(
    op: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    data = one_node(op, shapes[0], {"p": random(*shapes[1])})
    graph = same_as_runtime(data)
    assert [node.name for node in graph.trainable] == ["p"]


def test_split_and_concat_put_together_what_they_took_apart() -> None:
    nodes = [
        helper.make_node("Mul", ["x", "gain"], ["s"]),
        helper.make_node("Split", ["s", "sizes"], ["a", "b", "c"], axis=1),
        helper.make_node("Concat", ["c", "a", "a"], ["y"], axis=1),
    ]
    constants = {"gain": random(5), "sizes": np.array([1, 2, 3])}
    same_as_runtime(model(nodes, (2, 6, 5), constants))


@pytest.mark.parametrize("opset", [11, 17])
def test_squeeze_and_unsqueeze_are_only_seen(opset: int) -> None:
    axes: dict[str, Any] = {"axes": [2, 3]} if opset < 13 else {}
    extra = [] if opset < 13 else ["axes"]
    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["p"]),
        helper.make_node("Squeeze", ["p", *extra], ["s"], **axes),
        helper.make_node("Gemm", ["s", "w"], ["y"], transB=1),
    ]
    constants = {"w": random(3, 4)} | ({"axes": np.array([2, 3])} if extra else {})
    same_as_runtime(model(nodes, IMAGE, constants, opset))


def test_products_of_computed_tensors() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Transpose", ["x"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["a", "turned"], ["product"]),
        helper.make_node("Div", ["product", "root"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "x"], ["y"]),
    ]
    graph = same_as_runtime(model(nodes, (2, 6, 5), {"w": random(5, 5), "root": np.float32(2)}))
    ops = [node.op for node in graph if node.phase == "forward"]
    assert ops == ["linear", "matmul", "softmax", "matmul", "mse"]  # nothing moved, nothing scaled


@pytest.mark.parametrize("how", ["add", "where"])
def test_a_mask_that_hides_the_future_makes_softmax_causal(how: str) -> None:
    hidden = np.triu(np.ones((6, 6), bool), 1)
    mask = {"mask": np.where(hidden, -np.inf, 0).astype(np.float32)}
    node = helper.make_node("Add", ["s", "mask"], ["masked"])
    if how == "where":
        mask = {"mask": hidden, "low": np.float32(-np.inf)}
        node = helper.make_node("Where", ["mask", "low", "s"], ["masked"])
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["s"]),
        node,
        helper.make_node("Softmax", ["masked"], ["y"], axis=-1),
    ]
    graph = same_as_runtime(model(nodes, (2, 6, 6), {"w": random(6, 6), **mask}))
    assert [node.name for node in graph.trainable] == ["w"]


def test_embeddings_look_tokens_up() -> None:
    data = one_node_of_tokens()
    tokens = RNG.integers(0, 7, (3, 5)).astype(np.int32)
    graph = same_as_runtime(data, tokens)
    assert graph[graph.data].dtype == "int32"
    assert [node.name for node in graph.trainable] == ["table"]


def one_node_of_tokens() -> bytes:
    node = helper.make_node("Gather", ["table", "x"], ["y"])
    return model([node], (3, 5), {"table": random(7, 4)}, dtype=onnx.TensorProto.INT64)


# Functions that exporters spell out.


@pytest.mark.parametrize("missing", [(), ("b",), ("w", "b")])
@pytest.mark.parametrize("root", ["Div", "Reciprocal", "Pow"])
def test_layer_normalisation_spelt_out(root: str, missing: tuple[str, ...]) -> None:
    constants: dict[str, Any] = {
        "two": np.float32(2),
        "eps": np.float32(1e-5),
        "gain": random(3, 1),
    }
    constants |= {"w": random(8), "b": random(8), "half": np.float32(-0.5)}
    make = helper.make_node
    nodes = [
        make("Mul", ["x", "gain"], ["s"]),
        make("ReduceMean", ["s"], ["mean"], axes=[-1]),
        make("Sub", ["s", "mean"], ["d"]),
        make("Pow", ["d", "two"], ["squares"])
        if root == "Div"
        else make("Mul", ["d", "d"], ["squares"]),
        make("ReduceMean", ["squares"], ["variance"], axes=[-1]),
        make("Add", ["variance", "eps"], ["more"]),
    ]
    if root == "Pow":
        nodes += [make("Pow", ["more", "half"], ["r"]), make("Mul", ["r", "d"], ["n"])]
    else:
        nodes += [make("Sqrt", ["more"], ["deviation"])]
        nodes += [make("Div", ["d", "deviation"], ["n"])] if root == "Div" else []
    if root == "Reciprocal":
        nodes += [make("Reciprocal", ["deviation"], ["r"]), make("Mul", ["d", "r"], ["n"])]
    last = "n"
    for name, op in (("w", "Mul"), ("b", "Add")):
        if name not in missing:
            nodes.append(make(op, [name, last], [f"{last}{name}"]))
            last += name
    nodes.append(make("Identity", [last], ["y"]))
    used = {name for node in nodes for name in node.input}
    data = model(nodes, (2, 3, 8), {n: v for n, v in constants.items() if n in used})
    graph = same_as_runtime(data)
    ops = [node.op for node in graph if node.phase == "forward"]
    assert ops == ["mul", "layernorm_stats", "layernorm", "mse"]
    assert {"w", "b", "gain"} - set(missing) == {node.name for node in graph.trainable}


@pytest.mark.parametrize("form", ["divided", "halved first", "tanh"])
def test_gelu_spelt_out(form: str) -> None:
    make, names = helper.make_node, ["half", "one", "root", "inverse", "three", "cubic", "pi"]
    numbers = (0.5, 1, np.sqrt(2), np.sqrt(0.5), 3, 0.044715, np.sqrt(2 / np.pi))
    constants = {name: np.float32(value) for name, value in zip(names, numbers, strict=True)}
    if form == "tanh":
        nodes = [
            make("Pow", ["s", "three"], ["cube"]), make("Mul", ["cube", "cubic"], ["c"]),
            make("Add", ["s", "c"], ["sum"]), make("Mul", ["pi", "sum"], ["t"]),
            make("Tanh", ["t"], ["f"]),
        ]  # fmt: skip
    else:
        scaled = ["Div", "root"] if form == "divided" else ["Mul", "inverse"]
        nodes = [make(scaled[0], ["s", scaled[1]], ["t"]), make("Erf", ["t"], ["f"])]
    nodes += [make("Add", ["f", "one"], ["g"])]
    if form == "divided":
        nodes += [make("Mul", ["s", "g"], ["h"]), make("Mul", ["h", "half"], ["y"])]
    else:
        nodes += [make("Mul", ["s", "half"], ["h"]), make("Mul", ["h", "g"], ["y"])]
    nodes = [make("Mul", ["x", "gain"], ["s"]), *nodes]
    used = {name for node in nodes for name in node.input}
    constants = {"gain": random(3, 1), **{n: v for n, v in constants.items() if n in used}}
    graph = same_as_runtime(model(nodes, (2, 3, 8), constants))
    assert [node.op for node in graph if node.phase == "forward"] == ["mul", "gelu", "mse"]


# Batch and length.


def reshaping(batch: Any, shape: list[int]) -> bytes:
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w"], ["y"], transB=1),
    ]
    return model(nodes, (batch, 2, 3), {"shape": np.array(shape), "w": random(4, 6)})


@pytest.mark.parametrize(
    ("batch", "shape"), [("n", [-1, 6]), (1, [1, 6]), (1, [1, -1]), (2, [2, 6])]
)
def test_the_batch_may_be_set(batch: Any, shape: list[int]) -> None:
    graph = imported(reshaping(batch, shape), batch=5)
    assert (graph.batch, graph[graph.logits].shape) == (5, (5, 4))
    assert imported(reshaping(batch, shape)).batch == (1 if batch == "n" else batch)
    for wrong in (0, 1 << 20):
        with pytest.raises(BadInput, match=f"a batch of {wrong} samples must be"):
            imported(reshaping(batch, shape), batch=wrong)


def test_a_batch_that_the_file_merges_with_others_must_stay() -> None:
    nodes = [
        helper.make_node("Mul", ["x", "gain"], ["s"]),
        helper.make_node("Reshape", ["s", "merged"], ["r"]),
        helper.make_node("Reshape", ["r", "apart"], ["y"]),
    ]
    shapes = {"merged": np.array([2, 3]), "apart": np.array([1, 2, 3])}
    data = model(nodes, (1, 2, 3), {"gain": random(3), **shapes})
    assert imported(data).batch == 1
    with pytest.raises(BadInput, match=r"makes \(2, 3\) of \(4, 2, 3\).*open batch size"):
        imported(data, batch=4)
    with pytest.raises(BadInput, match=r"its output has shape \(2, 3\), it must begin with the b"):
        imported(model(nodes[:2], (1, 2, 3), {"gain": random(3), **shapes}, output="r"))


def test_an_open_length_must_be_given() -> None:
    data = one_node("MatMul", ("n", "length", 4), {"w": random(4, 3)})
    with pytest.raises(BadInput, match="is open: give --sequence-length"):
        imported(data)
    assert imported(data, sequence_length=7, batch=2)[graph_data(data)].shape == (2, 7, 4)
    with pytest.raises(BadInput, match="does not go with the input"):
        imported(one_node("MatMul", (1, 5, 4), {"w": random(4, 3)}), sequence_length=7)
    with pytest.raises(BadInput, match="with all but the batch fixed"):
        imported(one_node("Conv", (1, 3, "h", "w"), {"w": random(2, 3, 3, 3)}))


def graph_data(data: bytes) -> str:
    return imported(data, sequence_length=7).data


def test_shapes_that_the_model_computes_are_constants() -> None:
    make = helper.make_node
    nodes = [
        make("Shape", ["x"], ["shape"]),
        make("Gather", ["shape", "zero"], ["n"]),
        make("Unsqueeze", ["n", "axis"], ["n1"]),
        make("Concat", ["n1", "minus"], ["flat"], axis=0),
        make("Reshape", ["x", "flat"], ["r"]),
        make("Gemm", ["r", "w"], ["y"], transB=1),
    ]
    constants = {
        "zero": np.array(0), "axis": np.array([0]), "minus": np.array([-1]), "w": random(2, 12),
    }  # fmt: skip
    graph = imported(model(nodes, ("n", 3, 4), constants), batch=3)
    assert graph[graph.logits].shape == (3, 2)


# The end of the model.


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_the_loss_takes_the_place_of_a_softmax_at_the_end(op: str) -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["l"], transB=1),
        helper.make_node(op, ["l"], ["y"]),
    ]
    data = model(nodes, (2, 5), {"w": random(3, 5)})
    graph = imported(data, loss="cross-entropy")
    assert [node.op for node in graph if node.phase == "forward"] == ["linear", "softmax_xent"]
    assert op.encode() in graph.origin  # the model that comes back has it


def test_an_output_that_gives_no_classes_is_refused() -> None:
    with pytest.raises(BadInput, match="cross-entropy needs"):
        imported(one_node("Gemm", (2, 5), {"w": random(1, 5)}, transB=1), loss="cross-entropy")
    with pytest.raises(BadInput, match="choose of cross-entropy, mse"):
        imported(one_node("Gemm", (2, 5), {"w": random(1, 5)}, transB=1), loss="hinge")


# What is trained.


def two_layers(names: tuple[str, str] = ("a.weight", "b.weight")) -> bytes:
    nodes = [
        helper.make_node("Gemm", ["x", names[0]], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", names[1]], ["y"], transB=1),
    ]
    return model(nodes, (2, 5), {name: random(5, 5) for name in dict.fromkeys(names)})


def test_only_the_backward_graph_that_is_needed_is_built() -> None:
    everything = imported(two_layers())
    last = imported(two_layers(), train="last:1")
    assert [node.name for node in last.trainable] == ["b.weight"]
    assert imported(two_layers(), train="b.*").nodes == last.nodes
    assert any(node.op == "linear_grad_input" for node in everything)
    assert not any(node.op in ("linear_grad_input", "relu_grad") for node in last)


def test_a_weight_that_two_layers_use_is_one_weight() -> None:
    graph = same_as_runtime(two_layers(("w", "w")))
    assert [node.name for node in graph.trainable] == ["w"]
    assert list(to_named(graph, start_values(graph, 0))) == ["w"]


def test_ones_and_zeros_that_an_exporter_merged_are_apart_again() -> None:
    make = helper.make_node
    nodes = [
        make(
            "BatchNormalization",
            ["x", "a.weight", "zeros", "zeros", "a.weight"],
            ["h"],
            "/a/BatchNormalization",
        ),
        make(
            "BatchNormalization",
            ["h", "a.weight", "zeros", "zeros", "a.weight"],
            ["y"],
            "/b/BatchNormalization",
        ),
    ]
    ones = {"a.weight": np.ones(4, np.float32), "zeros": np.zeros(4, np.float32)}
    named = to_named(graph := imported(model(nodes, IMAGE, ones)), start_values(graph, 0))
    assert {"a.weight", "a.running_var", "b.weight", "b.bias", "b.running_mean"} <= named.keys()
    assert len(named) == 8


def test_weights_that_the_model_computes_are_trained_as_they_come_out() -> None:
    nodes = [
        helper.make_node("Mul", ["v", "g"], ["w"]),
        helper.make_node("Gemm", ["x", "w"], ["y"], transB=1),
    ]
    graph = same_as_runtime(model(nodes, (2, 5), {"v": random(3, 5), "g": random(3, 1)}))
    assert [node.name for node in graph.trainable] == ["w"]
    assert b"Mul" not in graph.origin


def test_optimisers_are_chosen_by_name() -> None:
    def states(**options: Any) -> int:
        return sum(node.role == "state" for node in imported(two_layers(), **options))

    assert (states(), states(optimizer="momentum"), states(optimizer="adam")) == (0, 2, 4)
    with pytest.raises(BadInput, match="optimizer 'lion': choose of"):
        imported(two_layers(), optimizer="lion")


# Refusals.


def test_everything_that_cannot_be_trained_is_listed_at_once() -> None:
    make = helper.make_node
    nodes = [
        make("Conv", ["x", "w"], ["a"], "first", dilations=[2, 2], pads=[2, 2, 2, 2]),
        make("Selu", ["a"], ["b"], "second"),
        make("MaxPool", ["b"], ["c"], "third", kernel_shape=[2, 2], dilations=[2, 2]),
        make("Conv", ["c", "w"], ["d"], "fine"),
        make("LSTM", ["d", "w", "w"], ["y"], "fourth", hidden_size=3),
    ]
    with pytest.raises(BadInput) as caught:
        imported(model(nodes, IMAGE, {"w": random(4, 4, 3, 3)}))
    first, *lines, last = str(caught.value).split("\n")
    assert first == "model m: 4 of 5 nodes cannot be trained here:"
    assert [line.split(":")[0].strip() for line in lines] == [
        "first (Conv)", "second (Selu)", "third (MaxPool)", "fourth (LSTM)",
    ]  # fmt: skip
    assert "use dilation 1" in lines[0]
    assert "this operator is not built" in lines[1]
    assert "operators that are built: Add, AveragePool, BatchNormalization" in last


REFUSED: dict[str, tuple[bytes, str]] = {
    "one-sided padding": (
        one_node("Conv", IMAGE, {"w": random(2, 4, 3, 3)}, pads=[0, 0, 1, 1]),
        "pad both sides alike",
    ),
    "one-sided automatic padding": (
        one_node("Conv", IMAGE, {"w": random(2, 4, 2, 2)}, auto_pad="SAME_UPPER"),
        "pad both sides",
    ),
    "volumes": (
        one_node("Conv", (1, 2, 4, 4, 4), {"w": random(2, 2, 3, 3, 3)}),
        r"data of shape \(1, 2, 4, 4, 4\)",
    ),
    "half precision": (
        one_node("Gemm", (2, 5), {"w": random(3, 5).astype(np.float16)}, transB=1),
        "export the model in float32",
    ),
    "alpha": (one_node("Gemm", (2, 5), {"w": random(5, 3)}, alpha=2.0), "alpha and beta"),
    "transposed data": (one_node("Gemm", (2, 5), {"w": random(2, 3)}, transA=1), "transA"),
    "softmax over channels": (
        with_gain(helper.make_node("Softmax", ["scaled"], ["y"], axis=1), IMAGE),
        "only the last is built",
    ),
    "scattered places": (
        with_gain(
            helper.make_node("Gather", ["scaled", "i"], ["y"], axis=1),
            IMAGE,
            {"i": np.array([0, 2])},
        ),
        "slice instead",
    ),
    "every second": (
        with_gain(
            helper.make_node("Slice", ["scaled", "a", "b", "c", "d"], ["y"]),
            IMAGE,
            {"a": np.array([0]), "b": np.array([4]), "c": np.array([1]), "d": np.array([2])},
        ),
        "only whole ranges",
    ),
    "a cube": (
        with_gain(helper.make_node("Pow", ["scaled", "p"], ["y"]), IMAGE, {"p": np.float32(3)}),
        "second power",
    ),
    "an old opset": (one_node("Relu", IMAGE, opset=9), "opset 9 is older than 11"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_built_says_what_to_do(case: str) -> None:
    data, message = REFUSED[case]
    with pytest.raises(BadInput, match=message):
        imported(data)


def test_one_input_and_one_output() -> None:
    node = helper.make_node("Add", ["x", "z"], ["y"])
    info = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, (1, 2)) for n in "xz"]
    graph = helper.make_graph([node], "g", info, info[:1])
    graph.output[0].name = "y"
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    with pytest.raises(BadInput, match=r"it has 2 inputs \(x, z\): export it with one input"):
        imported(made.SerializeToString())


def test_a_table_that_embeds_and_classifies_is_one_parameter() -> None:
    nodes = [
        helper.make_node("Gather", ["table", "x"], ["words"]),
        helper.make_node("Transpose", ["table"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["words", "turned"], ["y"]),
    ]
    data = model(nodes, (3, 5), {"table": random(7, 4)}, dtype=onnx.TensorProto.INT64)
    graph = same_as_runtime(data, RNG.integers(0, 7, (3, 5)).astype(np.int32))
    assert [node.name for node in graph.trainable] == ["table"]
    assert imported(data, loss="cross-entropy")["label"].shape == (3, 5)


@pytest.mark.parametrize(
    ("ratio", "ops"), [(0.25, ["linear", "dropout", "mse"]), (0, ["linear", "mse"])]
)
def test_dropout_is_trained_with_and_left_out_of_answers(ratio: float, ops: list[str]) -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["h"], transB=1),
        helper.make_node("Dropout", ["h", "ratio", "training"], ["y"]),
    ]
    constants = {"w": random(3, 5), "ratio": np.float32(ratio), "training": np.array(True)}
    graph = imported(model(nodes, (4, 5), constants))
    assert [node.op for node in graph if node.phase == "forward"] == ops
    x, values = random(4, 5), start_values(graph, 0)
    assert np.allclose(by_runtime(graph.origin, x), logits(graph, values, x), atol=1e-5)


def test_a_network_as_keras_exports_it() -> None:
    """Channels last, weights of dense layers (inputs, outputs), names with slashes and colons."""
    make = helper.make_node
    names = [f"model/{n}/ReadVariableOp:0" for n in ("conv/Conv2D", "conv/BiasAdd", "dense/MatMul")]
    nodes = [
        make("Transpose", ["x"], ["first"], perm=[0, 3, 1, 2]),
        make("Conv", ["first", *names[:2]], ["c"], "model/conv/Conv2D", pads=[1, 1, 1, 1]),
        make("Relu", ["c"], ["r"], "model/conv/Relu"),
        make("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        make("Transpose", ["p"], ["last"], perm=[0, 2, 3, 1]),
        make("Reshape", ["last", "flat"], ["f"]),
        make("MatMul", ["f", names[2]], ["m"], "model/dense/MatMul"),
        make("Add", ["m", "bias"], ["y"], "model/dense/BiasAdd"),
    ]
    weights = {names[0]: random(6, 3, 3, 3), names[1]: random(6), names[2]: random(96, 4)}
    more = {"flat": np.array([-1, 96]), "bias": random(4)}
    graph = same_as_runtime(model(nodes, (2, 8, 8, 3), {**weights, **more}))
    named = to_named(graph, start_values(graph, 0))
    assert all(np.array_equal(named[name], value) for name, value in weights.items())
    assert {node.name for node in graph.trainable} == {
        "model_conv.weight", "model_conv.bias", "model_dense.weight", "bias",
    }  # fmt: skip


def test_only_who_brings_models_needs_onnx(tmp_path: Path) -> None:
    program = """
import sys
sys.modules["onnx"] = sys.modules["torch"] = None  # importing them fails
import poet_host as poet
assert poet.load("linear").batch == 1
try:
    poet.load(sys.argv[1])
except poet.PoetError as error:
    assert "pip install 'poet-host[onnx]'" in str(error), error
    print("refused")
"""
    path = tmp_path / "m.onnx"
    path.write_bytes(two_layers())
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("refused\n", "")


def test_a_schedule_holds_its_model_and_notices_damage(tmp_path: Path) -> None:
    graph = imported(two_layers())
    profile = poet.estimate_profile(poet.load_board("native"))
    plan = poet.solve(graph, profile, ram="100%", method="keep-everything")
    schedule = poet.encode(graph, profile, plan)
    schedule.save(tmp_path / "m.poet")
    again = graph_of(Schedule.load(tmp_path / "m.poet"))
    assert again.origin == graph.origin
    mine, theirs = start_values(graph, 0), start_values(again, 1)  # no seed changes them
    assert all(np.array_equal(mine[name], theirs[name]) for name in mine)

    data = schedule.to_bytes()
    at = data.index(graph.origin)
    with pytest.raises(BadInput, match="CRC of the origin part"):
        parse(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(BadInput, match="CRC of the origin part"):
        parse(data[:-1])
    with pytest.raises(BadInput, match="bytes behind its end"):
        parse(data + b"x")


def test_tokens_that_the_model_flattens_get_their_answers() -> None:
    nodes = [
        helper.make_node("Gather", ["table", "x"], ["words"]),
        helper.make_node("Reshape", ["words", "rows"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w"], ["answers"], transB=1),
        helper.make_node("Reshape", ["answers", "back"], ["y"]),
    ]
    constants = {"table": random(7, 4), "w": random(3, 4)}
    shapes = {"rows": np.array([-1, 4]), "back": np.array([-1, 5, 3])}
    data = model(nodes, ("n", 5), {**constants, **shapes}, dtype=onnx.TensorProto.INT64)
    graph = imported(data, loss="cross-entropy", batch=3)
    x = RNG.integers(0, 7, (4, 5)).astype(np.int32)  # more than a batch
    found = logits(graph, start_values(graph, 0), x).reshape(4, 5, 3)
    assert np.allclose(found, by_runtime(data, x), atol=1e-5)
    best = found.argmax(-1)
    assert accuracy(graph, start_values(graph, 0), x, best) == 1


def test_what_is_no_onnx_file_inside_is_refused() -> None:
    broken = onnx.load_model_from_string(two_layers())
    broken.graph.initializer[0].dims[0] = 7
    with pytest.raises(BadInput, match="this is no valid model"):
        imported(broken.SerializeToString())
    with pytest.raises(BadInput, match=r"b has shape \(1,\), bias needs \(6,\)"):
        imported(one_node("Conv", IMAGE, {"w": random(6, 4, 3, 3), "b": random(1)}))


def test_old_softmax_goes_along_the_second_axis_unless_told() -> None:
    node = helper.make_node("Softmax", ["scaled"], ["y"])
    same_as_runtime(with_gain(node, (2, 5), opset=12))
    same_as_runtime(with_gain(node, (2, 5, 4), opset=13))
    with pytest.raises(BadInput, match="along axis 1: only the last"):
        imported(with_gain(node, (2, 5, 4), opset=12))


def test_a_second_output_that_is_not_built_is_named() -> None:
    nodes = [
        helper.make_node("MaxPool", ["x"], ["largest", "places"], kernel_shape=[2, 2]),
        helper.make_node("Cast", ["places"], ["y"], "cast", to=onnx.TensorProto.FLOAT),
    ]
    with pytest.raises(BadInput, match=r"cast \(Cast\): its input places is the output of nothing"):
        imported(model(nodes, IMAGE))


def test_part_of_a_tensor_may_be_a_bias_or_be_added() -> None:
    nodes = [
        helper.make_node("Slice", ["many", "one", "four"], ["bias"]),
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Add", ["h", "bias"], ["sum"]),
        helper.make_node("Gather", ["table", "places"], ["position"]),
        helper.make_node("Add", ["sum", "position"], ["y"]),
    ]
    constants = {
        "many": random(9), "one": np.array([1]), "four": np.array([4]), "w": random(5, 3),
        "table": random(6, 3), "places": np.array([2, 3]),
    }  # fmt: skip
    graph = same_as_runtime(model(nodes, (4, 2, 5), constants))
    assert {node.name for node in graph.trainable} == {"w", "bias", "table"}
    named = to_named(graph, start_values(graph, 0))
    assert np.array_equal(named["table"], constants["table"])  # all of it, as in the file


@pytest.mark.parametrize("outputs", [["y", "rest"], ["rest", "y"]])
def test_half_of_a_split_may_be_the_output(outputs: list[str]) -> None:
    same_as_runtime(with_gain(helper.make_node("Split", ["scaled"], outputs, axis=1), IMAGE))


@pytest.mark.parametrize(
    ("op", "attributes", "constants", "message"),
    [
        ("Squeeze", {}, {"axes": np.array([1])}, r"drops axes \[1\] of \(2, 4, 8, 8\)"),
        ("Flatten", {"axis": 7}, {}, "must begin with the batch"),
        ("Softmax", {"axis": 5}, {}, "axis 5 must be one of 4"),
        ("Gather", {"axis": -5}, {"places": np.array([1])}, "axis -5 must be one of 4"),
    ],
)
def test_axes_that_are_not_there_are_refused(
    op: str, attributes: dict[str, Any], constants: dict[str, Any], message: str
) -> None:
    node = helper.make_node(op, ["scaled", *constants], ["y"], **attributes)
    with pytest.raises(BadInput, match=message):
        imported(with_gain(node, IMAGE, constants))
