"""A whole model: its batch, its end, what of it is trained, and under which names."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import poet_host as poet
import pytest
import torch
from onnx import helper
from poet_host.errors import BadInput
from poet_host.graph.weights import start_values, to_named
from poet_host.reference.inference import logits
from poet_host.reference.step import run_step
from poet_host.run.evaluate import accuracy
from poet_host.schedule.schedule import Schedule, parse
from support.onnx_judge import (
    IMAGE,
    answers,
    by_runtime,
    imported,
    random,
    same_as_runtime,
    two_layers,
)
from support.onnx_models import FOLDED, legacy, model, one_node
from torch.nn import functional

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
        with pytest.raises(BadInput, match=f"batch .* {wrong}$"):
            imported(reshaping(batch, shape), batch=wrong)


def test_a_batch_that_the_file_merges_cannot_change() -> None:
    nodes = [
        helper.make_node("Mul", ["x", "gain"], ["s"]),
        helper.make_node("Reshape", ["s", "merged"], ["r"]),
        helper.make_node("Reshape", ["r", "apart"], ["y"]),
    ]
    shapes = {"merged": np.array([2, 3]), "apart": np.array([1, 2, 3])}
    data = model(nodes, (1, 2, 3), {"gain": random(3), **shapes})
    assert imported(data).batch == 1
    with pytest.raises(BadInput, match=r"\(4, 2, 3\) to \(2, 3\)"):
        imported(data, batch=4)
    with pytest.raises(BadInput, match=r"output has shape \(2, 3\).*batch"):
        imported(model(nodes[:2], (1, 2, 3), {"gain": random(3), **shapes}, output="r"))


@pytest.mark.parametrize(
    ("first", "second", "refused"),
    [
        ([-1, 3], [1, -1, 3], r"\(8, 3\) to \(1, -1, 3\)"),
        ([2, -1], [-1, 2, 3], r"\(4, 2, 3\) to \(2, -1\)"),
    ],
)
def test_samples_that_a_reshape_would_mix_are_refused(
    first: list[int], second: list[int], refused: str
) -> None:
    make = helper.make_node
    nodes = [
        make("Mul", ["x", "gain"], ["s"]), make("Reshape", ["s", "first"], ["a"]),
        make("Reshape", ["a", "second"], ["b"]), make("Reshape", ["b", "last"], ["y"]),
    ]  # fmt: skip
    shapes = {"first": np.array(first), "second": np.array(second), "last": np.array([-1, 2, 3])}
    data = model(nodes, (1, 2, 3), {"gain": random(3), **shapes})
    assert imported(data).batch == 1
    with pytest.raises(BadInput, match=refused):
        imported(data, batch=4)


def test_a_free_sequence_length_must_be_given() -> None:
    data = one_node("MatMul", ("n", "length", 4), {"w": random(4, 3)})
    with pytest.raises(BadInput, match=r"x .*--sequence-length"):
        imported(data)
    graph = imported(data, sequence_length=7, batch=2)
    assert graph[graph.data].shape == (2, 7, 4)
    with pytest.raises(BadInput, match="--sequence-length 7"):
        imported(one_node("MatMul", (1, 5, 4), {"w": random(4, 3)}), sequence_length=7)
    with pytest.raises(BadInput, match="input x "):
        imported(one_node("Conv", (1, 3, "h", "w"), {"w": random(2, 3, 3, 3)}))


@pytest.mark.parametrize("ir_version", [3, 8])
def test_initialisers_may_be_inputs_too(ir_version: int) -> None:
    """Exporters wrote them so before IR version 4, and have an option for it since."""
    module = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    data = legacy(module, torch.zeros(2, 3, 4), keep_initializers_as_inputs=True, **FOLDED)
    proto = onnx.load_model_from_string(data)
    assert len(proto.graph.input) == 5
    proto.ir_version = ir_version
    graph = same_as_runtime(proto.SerializeToString())
    assert {node.name for node in graph.trainable} == set(module.state_dict())


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


LAYERS = {
    "linear": ("Gemm", (2, 5), (3, 5), {"transB": 1}),
    "conv2d": ("Conv", (2, 4, 3, 3), (5, 4, 3, 3), {}),
    "words": ("MatMul", (2, 4, 5), (5, 3), {}),
    "numbers": ("MatMul", (2, 4, 5), (5, 1), {}),
}
OTHER_AXIS = ["linear", "transpose", "softmax", "transpose"]  # a softmax, not over the classes


def ending(layer: str, tail: list[str], opset: int = 17, **attributes: int) -> bytes:
    """A layer and the operators that follow it, of which the first has the attributes."""
    first, x, weight, options = LAYERS[layer]
    names = [*map(str, range(len(tail))), "y"]
    nodes = [helper.make_node(first, ["x", "w"], [names[0]], **options)]
    for i, op in enumerate(tail):
        nodes.append(helper.make_node(op, [names[i]], [names[i + 1]], **attributes))
        attributes = {}
    return model(nodes, x, {"w": random(*weight)}, opset)


@pytest.mark.parametrize(
    ("layer", "tail", "how", "ops"),
    [
        ("linear", ["Softmax"], {}, ["linear"]),
        ("linear", ["LogSoftmax"], {}, ["linear"]),
        ("linear", ["Softmax", "Identity"], {}, ["linear"]),
        ("linear", ["Softmax", "Flatten"], {}, ["linear"]),
        ("linear", ["Sigmoid"], {}, ["linear", "sigmoid"]),  # of three numbers, no softmax
        ("linear", ["Softmax", "Neg"], {}, ["linear", "softmax", "scale"]),  # only views may follow
        ("words", ["Softmax"], {"axis": 1}, OTHER_AXIS),
        ("conv2d", ["Softmax"], {"axis": 1}, ["conv2d"]),  # trailing axes have size 1
        ("conv2d", ["Softmax"], {"axis": 1, "opset": 12}, ["conv2d"]),
        ("conv2d", ["LogSoftmax"], {"axis": 1}, ["conv2d"]),
        ("conv2d", ["LogSoftmax"], {"axis": 1, "opset": 12}, ["conv2d"]),
    ],
)
def test_the_loss_takes_the_place_of_a_softmax_at_the_end(
    layer: str, tail: list[str], how: dict[str, int], ops: list[str]
) -> None:
    graph = imported(ending(layer, tail, **how), loss="cross-entropy")
    forward = [node.op for node in graph if node.phase == "forward"]
    assert forward == [*ops, "softmax_xent"]
    assert graph[graph.label].shape == ((2, 4) if layer == "words" else (2,))
    assert tail[0].encode() in graph.origin  # the model that comes back has it


IN_PIXELS = {
    "sigmoid": (["Sigmoid", "Transpose"], "bce", 17, True),
    "added axis": (["Sigmoid", "Unsqueeze"], "bce", 17, True),
    "classes last": (["Softmax", "Transpose"], "cross-entropy:axis=-1", 17, True),
    "rows are classes": (["Softmax", "Transpose"], "cross-entropy:axis=1", 17, False),
    "of all pixels": (["Softmax"], "cross-entropy", 11, False),
    "classes in the middle": (["Softmax", "Reshape"], "cross-entropy:axis=1", 17, True),
    "merged": (["Softmax", "Flatten"], "cross-entropy", 17, False),
}


@pytest.mark.parametrize("case", IN_PIXELS)
def test_the_loss_contains_what_is_over_its_axis_after_all_views(case: str) -> None:
    (op, *views), loss, opset, is_contained = IN_PIXELS[case]
    order, make = {"perm": [0, 2, 3, 1]}, helper.make_node
    nodes = [
        make("Conv", ["x", "w"], ["c"]),
        make(op, ["c"], ["s" if views else "y"], **({} if op == "Sigmoid" else {"axis": 1})),
    ]
    for view in views:
        more = {"Reshape": ["whole"], "Unsqueeze": ["last"]}.get(view, [])
        nodes.append(make(view, ["s", *more], ["y"], **(order if view == "Transpose" else {})))
    constants = {"w": random(3, 4, 1, 1), "whole": np.array([2, 3, 64]), "last": np.array([4])}
    graph = imported(data := model(nodes, IMAGE, constants, opset), loss=loss)
    ops = [node.op for node in graph if node.phase == "forward"]
    assert (op.lower() not in ops) == is_contained
    if is_contained:
        x, y = answers(graph)
        expected, outputs = by_runtime(data, x), torch.tensor(y)
        if "Reshape" in views:
            expected = np.moveaxis(expected, 1, -1)
        found = outputs.softmax(-1) if op == "Softmax" else outputs.sigmoid()
        assert np.allclose(found.numpy().reshape(expected.shape), expected, atol=1e-5)


def test_the_loss_contains_the_same_with_another_batch() -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w"], ["l"], transB=1),
        helper.make_node("Sigmoid", ["l"], ["y"]),
    ]
    data = model(nodes, (1, 2, 3), {"shape": np.array([1, -1]), "w": random(1, 6)})
    for batch in (1, 4):
        graph = imported(data, loss="cross-entropy", batch=batch)
        assert "sigmoid" not in {node.op for node in graph}


@pytest.mark.parametrize("axis", [-1, 0, 2])
def test_a_softmax_over_other_axes_than_classes_stays(axis: int) -> None:
    with pytest.raises(BadInput, match=r"\(LogSoftmax\)"):
        imported(ending("numbers", ["LogSoftmax"], axis=axis), loss="cross-entropy")


@pytest.mark.parametrize("sigmoid", [True, False])
def test_one_output_for_two_classes_has_binary_cross_entropy(sigmoid: bool) -> None:
    nodes = [helper.make_node("Gemm", ["x", "w"], ["l" if sigmoid else "y"], transB=1)]
    nodes += [helper.make_node("Sigmoid", ["l"], ["y"])] if sigmoid else []
    weight = random(1, 5)
    data = model(nodes, (4, 5), {"w": weight})
    graph = imported(data, loss="cross-entropy", optimizer="sgd", learning_rate=1.0)
    x, y = random(4, 5), np.array([0, 1, 1, 0], np.int32)
    found = run_step(graph, {**start_values(graph, 0), "data": x, "label": y}, 1)
    w = torch.tensor(weight, requires_grad=True)
    loss = functional.binary_cross_entropy_with_logits(
        torch.tensor(x) @ w[0], torch.tensor(y, dtype=torch.float32)
    )
    loss.backward()
    assert found[graph.loss] == pytest.approx(loss.item(), abs=1e-6)
    assert np.allclose(found["w:new"], (w - w.grad).detach(), atol=1e-6)
    assert np.array_equal(
        logits(graph, start_values(graph, 0), x).argmax(1),
        by_runtime(graph.origin, x)[:, 0] > (0.5 if sigmoid else 0),
    )


def test_an_output_without_classes_is_refused() -> None:
    with pytest.raises(BadInput, match="cross-entropy"):
        imported(one_node("Conv", IMAGE, {"w": random(1, 4, 3, 3)}), loss="cross-entropy")
    with pytest.raises(BadInput, match="cross-entropy, mse"):
        imported(one_node("Gemm", (2, 5), {"w": random(1, 5)}, transB=1), loss="hinge")


def test_the_example_of_a_module_is_its_one_input() -> None:
    module, x = torch.nn.Linear(4, 3), torch.zeros(1, 4)
    assert poet.load(module, (x,)).nodes == poet.load(module, x).nodes  # type: ignore[union-attr]
    for wrong, what in (((x, x), "takes 2 positional"), ({"x": x}, "dict"), (None, "NoneType")):
        with pytest.raises(BadInput, match=f"model Linear: .* {what}"):
            poet.load(module, wrong)


@pytest.mark.parametrize(
    "option",
    [{"batch": "4"}, {"batch": 1.5}, {"learning_rate": "fast"}, {"momentum": 1.0}, {"train": 3}],
)
def test_options_of_the_wrong_kind_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=next(iter(option))):
        imported(two_layers(), **option)
    with pytest.raises(BadInput, match=next(iter(option))):
        poet.load("resnet-digits", **option)


# What is trained.


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


def test_constants_that_an_exporter_merged_are_separated() -> None:
    op, shared = "BatchNormalization", ["a.weight", "zeros", "zeros", "a.weight"]
    nodes = [
        helper.make_node(op, ["x", *shared], ["h"], f"/a/{op}"),
        helper.make_node(op, ["h", *shared], ["y"], f"/b/{op}"),
    ]
    ones = {"a.weight": np.ones(4, np.float32), "zeros": np.zeros(4, np.float32)}
    named = to_named(graph := imported(model(nodes, IMAGE, ones)), start_values(graph, 0))
    assert {"a.weight", "a.running_var", "b.weight", "b.bias", "b.running_mean"} <= named.keys()
    assert len(named) == 8


def test_constants_repeated_for_a_batch_fix_the_batch() -> None:
    data = one_node("Concat", (2, 3, 4), {"tokens": random(2, 1, 4)}, axis=1)
    assert imported(data).batch == 2
    with pytest.raises(BadInput, match=r"the_node \(Concat\): .*batch"):
        imported(data, batch=3)


@pytest.mark.parametrize("how", ["as it is", "repeated"])
def test_a_token_that_all_samples_share_is_one_parameter(how: str) -> None:
    make = helper.make_node
    nodes = [
        make("Shape", ["x"], ["shape"]),
        make("Slice", ["shape", "zero", "one"], ["n"]),
        make("Concat", ["n", "minus", "minus"], ["whole"], axis=0),
        make("Expand", ["token", "whole"], ["tokens"]),
        make("Concat", ["tokens" if how == "repeated" else "token", "x"], ["y"], axis=1),
    ]
    places = {"zero": np.array([0]), "one": np.array([1]), "minus": np.array([1])}
    data = model(nodes, ("n", 3, 4), {"token": random(1, 1, 4), **places})
    graph = imported(data, batch=5)
    assert [node.name for node in graph.trainable] == ["token"]
    x = random(5, 3, 4)
    if how == "repeated":
        assert np.allclose(answers(graph, x)[1], by_runtime(data, x))
    found = run_step(
        graph, {**start_values(graph, 0), "data": x, "label": np.zeros((5, 4, 4), np.float32)}, 1
    )
    token = start_values(graph, 0)["token"]
    assert np.allclose(found["token:new"], token * (1 - 0.01 * 2 * 5 / 80), atol=1e-6)


def test_optimisers_are_chosen_by_name() -> None:
    def states(**options: Any) -> int:
        return sum(node.role == "state" for node in imported(two_layers(), **options))

    assert (states(), states(optimizer="momentum"), states(optimizer="adam")) == (0, 2, 4)
    with pytest.raises(BadInput, match="'lion'"):
        imported(two_layers(), optimizer="lion")


def test_a_table_that_embeds_and_classifies_is_one_parameter() -> None:
    nodes = [
        helper.make_node("Gather", ["table", "x"], ["words"]),
        helper.make_node("Transpose", ["table"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["words", "turned"], ["y"]),
    ]
    data = model(nodes, (3, 5), {"table": random(7, 4)}, dtype=onnx.TensorProto.INT64)
    graph = same_as_runtime(data, torch.randint(7, (3, 5), dtype=torch.int32).numpy())
    assert [node.name for node in graph.trainable] == ["table"]
    assert imported(data, loss="cross-entropy")["label"].shape == (3, 5)


@pytest.mark.parametrize(
    ("ratio", "ops"), [(0.25, ["linear", "dropout", "mse"]), (0, ["linear", "mse"])]
)
def test_dropout_is_active_only_in_training(ratio: float, ops: list[str]) -> None:
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


def test_built_in_models_do_not_need_onnx(tmp_path: Path) -> None:
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
    again = Schedule.load(tmp_path / "m.poet").graph
    assert again.origin == graph.origin
    mine, theirs = start_values(graph, 0), start_values(again, 1)  # no seed changes them
    assert all(np.array_equal(mine[name], theirs[name]) for name in mine)

    data = schedule.to_bytes()
    at = data.index(graph.origin)
    with pytest.raises(BadInput, match="CRC of the origin part"):
        parse(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(BadInput, match="CRC of the forward part"):
        parse(data[:-1])
    with pytest.raises(BadInput, match="schedule"):
        parse(data + b"x")


def test_a_model_may_flatten_its_tokens() -> None:
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
    x = torch.randint(7, (4, 5), dtype=torch.int32).numpy()  # more than a batch
    found = logits(graph, start_values(graph, 0), x).reshape(4, 5, 3)
    assert np.allclose(found, by_runtime(data, x), atol=1e-5)
    best = found.argmax(-1)
    assert accuracy(graph, start_values(graph, 0), x, best) == 1
