"""Each ONNX operator as our layers, compared with ONNX Runtime."""

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from poet_host.errors import BadInput
from poet_host.graph.operators import OPERATORS
from poet_host.graph.weights import start_values, to_named
from support.functions import FUNCTIONS
from support.onnx_judge import (
    GAIN,
    IMAGE,
    answers,
    imported,
    random,
    same_as_runtime,
    with_gain,
)
from support.onnx_models import model, one_node

CONVOLUTIONS = {
    "plain": ((6, 4, 3, 3), {}),
    "padded": ((6, 4, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    "depthwise": ((4, 1, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
    "grouped": ((6, 2, 3, 3), {"group": 2}),
    "wide": ((2, 4, 1, 5), {"pads": [0, 2, 0, 2], "strides": [1, 2]}),
    "same": ((6, 4, 3, 3), {"auto_pad": "SAME_UPPER"}),
    "valid": ((6, 4, 3, 3), {"auto_pad": "VALID"}),
    "one-sided": ((6, 4, 3, 3), {"pads": [0, 2, 1, 0], "strides": [2, 1]}),
    "as keras": ((6, 4, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "lower": ((6, 4, 2, 4), {"auto_pad": "SAME_LOWER", "strides": [1, 3]}),
    "wider than its window": ((6, 4, 2, 2), {"pads": [0, 3, 2, 0]}),
    "dilated": ((6, 4, 3, 3), {"pads": [2, 2, 2, 2], "dilations": [2, 2]}),
    "dilated, depthwise": ((4, 1, 3, 2), {"group": 4, "dilations": [1, 3]}),
    "dilated, with strides": (
        (6, 4, 2, 3),
        {"pads": [1, 0, 2, 5], "dilations": [3, 2], "strides": [2, 3]},
    ),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("bias", [False, True])
def test_convolutions(case: str, bias: bool) -> None:
    shape, attributes = CONVOLUTIONS[case]
    constants = {"c.weight": random(*shape)} | ({"c.bias": random(shape[0])} if bias else {})
    graph = same_as_runtime(one_node("Conv", IMAGE, constants, **attributes))
    assert [node.name for node in graph.trainable] == list(constants)


@pytest.mark.parametrize(
    "attributes",
    [
        {"strides": [2, 2]},
        {"pads": [1, 0, 0, 1], "strides": [1, 3]},
        {"strides": [2, 3], "pads": [1, 1, 1, 1], "output_padding": [1, 2]},
        {"strides": [3, 3], "output_padding": [0, 2]},
        {"group": 2, "pads": [2, 2, 2, 2]},
        {"dilations": [3, 2], "strides": [2, 3], "pads": [1, 0, 2, 3], "output_padding": [1, 2]},
    ],
)
def test_transposed_convolutions(attributes: dict[str, Any]) -> None:
    constants = {"c.weight": random(4, 3, 3, 2), "b": random(3 * attributes.get("group", 1))}
    graph = same_as_runtime(one_node("ConvTranspose", IMAGE, constants, **attributes))
    assert [node.name for node in graph.trainable] == list(constants)


def test_signals_of_one_dimension() -> None:
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


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "attributes", [{"alpha": 0.5}, {"beta": -2.0}, {"transA": 1}, {"beta": 0.0, "transB": 1}]
)
def test_gemm_with_all_its_attributes(attributes: dict[str, Any], bias: bool) -> None:
    shape = (5, 3)[:: -1 if "transB" in attributes else 1]
    nodes = [helper.make_node("Gemm", ["x", "w", *["b"][:bias]], ["y"], **attributes)]
    constants = {"w": random(*shape)} | ({"b": random(3)} if bias else {})
    if "transA" in attributes:
        nodes.insert(0, helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]))
        nodes[1].input[0] = "t"
    graph = same_as_runtime(model(nodes, (4, 5), constants))
    assert {node.name for node in graph.trainable} >= {"w"}


def test_a_constant_times_a_computed_tensor() -> None:
    data = model([helper.make_node("MatMul", ["w", "x"], ["y"])], (2, 5, 4), {"w": random(3, 5)})
    assert [node.name for node in same_as_runtime(data).trainable] == ["w"]


@pytest.mark.parametrize("shape", [(4, 5), (2, 3, 5), (2, 2, 3, 5)])
def test_matmul_with_a_weight_includes_the_bias_that_follows(shape: tuple[int, ...]) -> None:
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
    with pytest.raises(BadInput, match="no parameters"):
        imported(data, batchnorm="frozen")
    trained = imported(data)
    assert {"g", "b"} == {node.name for node in trained.trainable if node.role == "parameter"}
    x, y = answers(trained)
    mean, variance = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True)
    expected = (x - mean) / np.sqrt(variance + 0.01) * statistics["g"][:, None, None]
    assert np.allclose(y, expected + statistics["b"][:, None, None], atol=1e-5)
    running = next(node for node in trained if node.op == "batchnorm_running")
    assert running.attrs["update_rate"] == pytest.approx(0.3)

    scale = helper.make_node("Mul", ["x", "gain"], ["scaled"])
    norm = helper.make_node("BatchNormalization", ["scaled", *"gbmv"], ["y"], epsilon=0.01)
    frozen = same_as_runtime(
        model([scale, norm], IMAGE, {**GAIN, **statistics}, 17), batchnorm="frozen"
    )
    assert [node.name for node in frozen.trainable] == ["gain"]


UNARY: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "softmax": ("Softmax", {}, {"axis": -1}),
    "neg": ("Neg", {}, {}),
    "square": ("Pow", {"two": np.float32(2)}, {}),
    "relu6": ("Clip", {"low": np.float32(0), "high": np.float32(6)}, {}),
    "clip below 0": ("Clip", {"low": np.float32(0)}, {}),
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
    "flatten with a negative axis": ("Flatten", {}, {"axis": -3}),
    "reshape": ("Reshape", {"shape": np.array([0, -1, 4])}, {}),
    "transpose": ("Transpose", {}, {"perm": [0, 2, 3, 1]}),
    "slice": (
        "Slice",
        {"starts": np.array([1, -5]), "ends": np.array([3, 2**40]), "axes": np.array([1, 3])},
        {},
    ),
    "slice with steps": (
        "Slice",
        {
            "starts": np.array([1, -8]), "ends": np.array([2**40, 7]), "axes": np.array([1, 3]),
            "steps": np.array([2, 3]),
        },
        {},
    ),
    "slice backwards": (
        "Slice",
        {"b": np.array([-1]), "e": np.array([0]), "a": np.array([1]), "s": np.array([-2])},
        {},
    ),
    "pad with 1.5": ("Pad", {"p": np.array([0, 0, 1, 0, 0, 0, 2, 0]), "v": np.float32(1.5)}, {}),
    "gather any": ("Gather", {"indices": np.array([[3, 1, 2], [3, 3, 0]])}, {"axis": 1}),
    "gather": ("Gather", {"indices": np.array(2)}, {"axis": 1}),
    "gather more": ("Gather", {"indices": np.array([1, 2])}, {"axis": 1}),
    "gather points": (
        "GatherND", {"i": np.array([np.random.default_rng(0).integers(-4, 4, (4, 9, 3))] * 2)},
        {"batch_dims": 1},
    ),
    "unsqueeze": ("Unsqueeze", {"axes": np.array([1, 5])}, {}),
    "identity": ("Identity", {}, {}),
    "cast": ("Cast", {}, {"to": onnx.TensorProto.FLOAT}),
    "selu": ("Selu", {}, {}),
    "celu": ("Celu", {}, {"alpha": 1.5}),
    "euclidean norm": ("ReduceL2", {}, {"axes": [1]}),
    "root of a square": ("Pow", {"p": np.float32(-2)}, {}),
    "leaky relu": ("LeakyRelu", {}, {"alpha": 0.2}),
    "relu with a slope": ("PRelu", {"slope": random(4, 1, 1)}, {}),
    "hard sigmoid": ("HardSigmoid", {}, {"alpha": 0.3}),
    "hard swish": ("HardSwish", {}, {}),
    "maximum of planes": ("GlobalMaxPool", {}, {}),
    "sum of all": ("Sum", {"a": random(8), "b": random(4, 1, 1)}, {}),
    "softmax over channels": ("Softmax", {}, {"axis": 1}),
    "cube": ("Pow", {"three": np.float32(3)}, {}),
    "square by a whole number": ("Pow", {"two": np.array(2)}, {}),
    "divided by many": ("Div", {"divisors": 2 ** random(4, 1, 1).round()}, {}),
    "tile": ("Tile", {"times": np.array([1, 1, 2, 1])}, {}),
    "tile images": ("Tile", {"times": np.array([1, 1, 3, 2])}, {}),
    "tile all but the samples": ("Tile", {"times": np.array([1, 2, 3, 2])}, {}),
    "resize volumes": (
        "Resize", {"r": None, "f": None, "sizes": np.array([2, 12, 16, 16])}, {},
    ),
    "largest": ("ReduceMax", {}, {"axes": [2, 3], "keepdims": 0}),
    "largest over time": ("ReduceMax", {}, {"axes": [1, 2], "keepdims": 0}),
    "largest kept": ("ReduceMax", {}, {"axes": [-1]}),
    "twice as large": (
        "Resize", {"region": None, "factors": np.float32([1, 1, 2, 3])},
        {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    ),
    "as large as that": ("Resize", {"r": None, "f": None, "sizes": np.array([2, 4, 16, 8])}, {}),
    "instance normalisation": (
        "InstanceNormalization", {"scale": random(4), "shift": random(4)}, {"epsilon": 0.01},
    ),
    "concat with a constant": ("Concat", {"c": random(2, 1, 8, 8)}, {"axis": 1}),
    "reflected": ("Pad", {"p": np.array([0, 0, 2, 0, 0, 0, 0, 3])}, {"mode": "reflect"}),
    "edges": ("Pad", {"p": np.array([0, 0, 1, 0, 0, 0, 0, 2])}, {"mode": "edge"}),
    "larger pixels": ("DepthToSpace", {}, {"blocksize": 2}),
    "larger pixels of channels": ("DepthToSpace", {}, {"blocksize": 2, "mode": "CRD"}),
    "smaller pixels": ("SpaceToDepth", {}, {"blocksize": 2}),
    "as a float": ("CastLike", {"like": random(1)}, {}),
    "product by letters": ("Einsum", {"b": random(3, 2, 8)}, {"equation": "ncHw, knw ->n H kc"}),
    "maximum of tensors": ("Max", {"a": random(4, 8, 8), "b": random(8)}, {}),
    "minimum of tensors": ("Min", {"a": random(2, 4, 8, 8)}, {}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", UNARY)
def test_operators_of_one_tensor(case: str) -> None:
    op, constants, attributes = UNARY[case]
    same_as_runtime(with_gain(op, IMAGE, constants, **attributes))


@pytest.mark.parametrize(
    "name", [name for name, (kind, *_) in FUNCTIONS.items() if OPERATORS[kind].onnx]
)
def test_functions_that_onnx_has_too(name: str) -> None:
    kind, options, _ = FUNCTIONS[name]
    graph = same_as_runtime(with_gain(OPERATORS[kind].onnx, IMAGE, opset=20, **options))
    assert OPERATORS[kind].forward[0].kernel in {node.op for node in graph}


@pytest.mark.parametrize("shapes", [((2, 3, 4), (2, 3, 4)), ((2, 3, 4), (4,)), ((2, 3, 4), (3, 1))])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul"])
def test_arithmetic_with_a_parameter_of_another_shape(
    op: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    graph = same_as_runtime(with_gain(op, shapes[0], {"p": random(*shapes[1])}))
    assert {node.name for node in graph.trainable} == {"gain", "p"}


@pytest.mark.parametrize("order", [["scaled", "c"], ["c", "scaled"]])
@pytest.mark.parametrize("op", ["Max", "Min"])
def test_maximum_and_minimum_of_a_tensor_and_a_constant(op: str, order: list[str]) -> None:
    same_as_runtime(with_gain(op, IMAGE, {"c": np.float32(0.5)}, inputs=order))


@pytest.mark.parametrize(("opset", "count"), [(18, 2), (21, 4)])
def test_group_normalisation(opset: int, count: int) -> None:
    constants = {"scale": random(count), "shift": random(count)}
    data = with_gain("GroupNormalization", IMAGE, constants, opset, num_groups=2, epsilon=0.01)
    graph = same_as_runtime(data)
    assert {node.name for node in graph.trainable} == {"gain", "scale", "shift"}


@pytest.mark.parametrize("bias", [(), (1,), (4, 1), (4, 3)])
def test_gemm_adds_a_computed_tensor(bias: tuple[int, ...]) -> None:
    constants = {"w": random(5, 3), "b": np.float32(2) if not bias else random(*bias)}
    same_as_runtime(one_node("Gemm", (4, 5), constants))


def test_a_weight_keeps_a_leading_axis_of_size_1() -> None:
    graph = same_as_runtime(one_node("MatMul", (4, 3, 5), {"w": random(1, 5, 2)}))
    assert to_named(graph, start_values(graph, 0))["w"].shape == (1, 5, 2)


@pytest.mark.parametrize("reciprocal", [False, True])
def test_normalisation_of_the_input_is_not_trained(reciprocal: bool) -> None:
    nodes = [
        helper.make_node("Sub", ["x", "mean"], ["centred"]),
        helper.make_node("Mul" if reciprocal else "Div", ["centred", "deviation"], ["ready"]),
        helper.make_node("MatMul", ["ready", "w"], ["y"]),
    ]
    constants = {"mean": random(5), "deviation": 2 ** random(5).round(), "w": random(5, 3)}
    graph = same_as_runtime(model(nodes, (2, 5), constants))
    assert [node.name for node in graph.trainable] == ["w"]
    saved = set(to_named(graph, start_values(graph, 0), constants=False))
    assert saved == ({"w", "mean", "deviation"} if reciprocal else {"w", "mean"})


def test_split_and_concat_are_inverse() -> None:
    nodes = [
        helper.make_node("Mul", ["x", "gain"], ["s"]),
        helper.make_node("Split", ["s", "sizes"], ["a", "b", "c"], axis=1),
        helper.make_node("Concat", ["c", "a", "a"], ["y"], axis=1),
    ]
    constants = {"gain": random(5), "sizes": np.array([1, 2, 3])}
    same_as_runtime(model(nodes, (2, 6, 5), constants))


@pytest.mark.parametrize("opset", [11, 17])
def test_squeeze_and_unsqueeze_are_views(opset: int) -> None:
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


def test_embeddings() -> None:
    node = helper.make_node("Gather", ["table", "x"], ["y"])
    data = model([node], (3, 5), {"table": random(7, 4)}, dtype=onnx.TensorProto.INT64)
    tokens = torch.randint(7, (3, 5), dtype=torch.int32).numpy()
    graph = same_as_runtime(data, tokens)
    assert graph[graph.data].dtype == "int32"
    assert [node.name for node in graph.trainable] == ["table"]


# Functions that exporters spell out.


@pytest.mark.parametrize("missing", [(), ("b",), ("w", "b")])
@pytest.mark.parametrize("root", ["Div", "Reciprocal", "Pow"])
def test_layer_normalisation_from_simpler_operators(root: str, missing: tuple[str, ...]) -> None:
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


def test_layer_normalisation_of_keras() -> None:
    """Axes counted from the front, scale and shift computed before they are applied."""
    make = helper.make_node
    nodes = [
        make("Mul", ["x", "gain"], ["s"]), make("ReduceMean", ["s"], ["mean"], axes=[2]),
        make("Sub", ["s", "mean"], ["d"]), make("Mul", ["d", "d"], ["squares"]),
        make("ReduceMean", ["squares"], ["variance"], axes=[2]),
        make("Add", ["variance", "eps"], ["more"]), make("Sqrt", ["more"], ["deviation"]),
        make("Reciprocal", ["deviation"], ["r"]), make("Mul", ["r", "w"], ["scale"]),
        make("Mul", ["mean", "scale"], ["moved"]), make("Sub", ["b", "moved"], ["shift"]),
        make("Mul", ["s", "scale"], ["n"]), make("Add", ["n", "shift"], ["y"]),
    ]  # fmt: skip
    constants = {"gain": random(3, 1), "eps": np.float32(1e-3), "w": random(8), "b": random(8)}
    graph = same_as_runtime(model(nodes, (2, 3, 8), constants))
    ops = [node.op for node in graph if node.phase == "forward"]
    assert ops == ["mul", "layernorm_stats", "layernorm", "mse"]


@pytest.mark.parametrize("form", ["divided", "halved first", "tanh"])
def test_gelu_from_simpler_operators(form: str) -> None:
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
    assert {node.name for node in graph.trainable} == {"w", "many", "table"}
    named = to_named(graph, start_values(graph, 0))
    assert all(np.array_equal(named[it], constants[it]) for it in ("many", "table"))  # whole


def test_a_row_that_is_added_to_every_word_is_trained() -> None:
    """As BERT's first type of token."""
    nodes = [
        helper.make_node("Gather", ["table", "types"], ["type"]),
        helper.make_node("Mul", ["x", "gain"], ["scaled"]),
        helper.make_node("Add", ["scaled", "type"], ["y"]),
    ]
    constants = {"table": random(2, 5), "types": np.zeros((1, 3), np.int64), "gain": random(5)}
    graph = same_as_runtime(model(nodes, (2, 3, 5), constants))
    assert {node.name for node in graph.trainable} == {"table", "gain"}
    assert to_named(graph, start_values(graph, 0))["table"].shape == (2, 5)


@pytest.mark.parametrize("outputs", [["y", "rest"], ["rest", "y"]])
def test_an_output_of_split_may_be_the_model_output(outputs: list[str]) -> None:
    same_as_runtime(with_gain("Split", IMAGE, outputs=outputs, axis=1))
