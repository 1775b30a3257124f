"""Operators' rows and the builder: shapes, mistakes, and how much work each kernel does."""

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from poet_host import isa
from poet_host.errors import BadInput
from poet_host.graph.autodiff import Sgd, training_graph
from poet_host.graph.builder import Builder, Model, Tensor
from poet_host.graph.operators import OPERATORS
from poet_host.graph.work import Work, work_of
from poet_host.reference.step import run_kernel
from support.random_models import random_models
from support.torch_model import random_batch, random_values, torch_forward, torch_values


def builder(*shape: int) -> Builder:
    return Builder("m", data=shape or (2, 4, 6, 5))


def test_rows_of_isa_agree_with_themselves_and_the_record() -> None:
    known = set(isa.field_types("poet_op"))
    for name, kernel in isa.kernels().items():
        own = [operand for operand in kernel.inputs if operand != "+"]
        assert len(kernel.letters) == len(own)
        assert kernel.has_sink == ("+" in kernel.inputs)
        for sink in isa.by_name("SINK"):
            assert set(isa.attributes(name, sink)) <= known
        assert set(kernel.work) <= {"macs", "flops", "loops", "read"}


def test_rules_name_kernels_with_as_many_operands_as_isa_says() -> None:
    for name, operator in OPERATORS.items():
        for rule in (*operator.forward, *operator.backward):
            if rule.kernel:
                wanted = [n for n in isa.kernels()[rule.kernel].inputs if n != "+"]
                given_names = rule.operands.split()
                optional = ["?" in n for n in wanted]
                found = [n.endswith("?") for n in given_names]
                assert found == optional[: len(found)], (name, rule)
                assert all(optional[len(found) :]), (name, rule)  # a last operand may be left out


def test_every_kernel_is_reached_by_some_operator() -> None:
    rules = (r for op in OPERATORS.values() for r in (*op.forward, *op.backward))
    by_optimiser = {"apply_gradient", "momentum_step", "average", "average_square", "adam_step"}
    assert {rule.kernel for rule in rules if rule.kernel} | by_optimiser == set(isa.kernels())


@settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(random_models())
def test_shapes_are_those_of_pytorch(model: Model) -> None:
    graph = training_graph(model, Sgd(0.1))
    x, label = random_batch(model, 0)
    outputs = torch_forward(model, torch_values(model, random_values(graph, 0)), x, label)
    for layer in [item for item in model.layers[:-1] if not item.is_parameter]:
        assert layer.shape == tuple(outputs[layer.name].shape)
        assert graph[layer.name].shape == layer.shape


def test_parameters_start_as_those_of_pytorch_layers() -> None:
    b = builder()
    x = b.conv2d(b.data, 6, (3, 2), groups=2, name="conv")
    x = b.linear(b.flatten(b.batchnorm2d(x, name="bn")), 7, name="fc")
    nodes = {node.name: node for node in b.model(b.mse(x)).parameters}
    layers = {
        "conv": torch.nn.Conv2d(4, 6, (3, 2), groups=2),
        "bn": torch.nn.BatchNorm2d(6),
        "fc": torch.nn.Linear(6 * 4 * 4, 7),
    }
    for name, layer in layers.items():
        for slot, parameter in layer.named_parameters():
            assert nodes[f"{name}.{slot}"].shape == tuple(parameter.shape)
    assert nodes["conv.weight"].start == nodes["conv.bias"].start == f"kaiming:{2 * 3 * 2}"
    assert nodes["fc.weight"].start == f"kaiming:{6 * 4 * 4}"
    assert (nodes["bn.running"].shape, nodes["bn.running"].role) == ((2, 6), "state")


Mistake = Callable[[Builder], Any]
MISTAKES: list[tuple[str, Mistake, str]] = [
    ("kernel too large", lambda b: b.conv2d(b.data, 8, 9), "kernel of size 9"),
    ("kernel zero", lambda b: b.conv2d(b.data, 8, 0), "kernel is 0"),
    ("kernel of three", lambda b: b.conv2d(b.data, 8, (3, 3, 3)), "kernel is"),
    ("stride zero", lambda b: b.conv2d(b.data, 8, 3, stride=0), "stride is 0"),
    ("padding too large", lambda b: b.conv2d(b.data, 8, 3, padding=256), "padding is 256"),
    ("no channels", lambda b: b.conv2d(b.data, 0, 3), "channels is 0"),
    ("groups", lambda b: b.conv2d(b.data, 8, 3, groups=3), "groups (3)"),
    ("unknown option", lambda b: b.conv2d(b.data, 8, 3, dilation=2), "dilation"),
    ("missing option", lambda b: b.conv2d(b.data), "channels"),
    ("linear of image", lambda b: b.linear(b.data, 3), "flatten it first"),
    ("loss of sums", lambda b: b.softmax_xent(b.sum(b.data, (1, 2, 3))), "classes"),
    ("conv of flat", lambda b: b.conv2d(b.flatten(b.data), 8, 3), "4 dimensions"),
    ("pool padding", lambda b: b.maxpool2d(b.data, 2, padding=2), "padding 2"),
    ("add of two", lambda b: b.add(b.data, b.conv2d(b.data, 4, 3)), "along each axis"),
    ("dropout all", lambda b: b.dropout(b.data, 1.0), "`probability` (1.0)"),
    ("epsilon", lambda b: b.batchnorm2d(b.data, epsilon=0.0), "`epsilon` (0.0)"),
    ("running momentum", lambda b: b.batchnorm2d(b.data, momentum=1.5), "`momentum` (1.5)"),
    ("foreign tensor", lambda b: b.relu(Tensor("x", (2, 4, 6, 5))), "not a tensor of this model"),
    ("no tensor", lambda b: b.relu(3), "not a tensor of this model"),
    (
        "name twice",
        lambda b: b.relu(b.relu(b.data, name="a"), name="a"),
        "of the layer is used",
    ),
    ("name of ours", lambda b: b.relu(b.data, name="a:grad"), "only letters"),
    ("huge", lambda b: b.linear(b.flatten(b.data), 2**30), "4 GiB"),
]


@pytest.mark.parametrize(
    ("mistake", "says"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES]
)
def test_mistakes_name_layer_and_shapes(mistake: Mistake, says: str) -> None:
    with pytest.raises(BadInput, match=r"model m, layer \w+.* of .*\): .*") as caught:
        mistake(builder())
    assert says in str(caught.value)


def test_shapes_are_in_the_message() -> None:
    b = builder()
    with pytest.raises(BadInput) as caught:
        b.conv2d(b.data, 8, 9, name="conv1")
    start = "model m, layer conv1 (conv2d of (2, 4, 6, 5)): a kernel of size 9 "
    assert str(caught.value).startswith(start)


@pytest.mark.parametrize("shape", [(), (3,), (1, 2, 0), (0, 1, 8, 8), (1, 1, 1, 1, 1)])
def test_data_of_wrong_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadInput, match=r"model m: .* shape"):
        Builder("m", data=shape)


def test_a_model_ends_with_its_one_loss_and_uses_every_layer() -> None:
    b = builder(2, 3)
    with pytest.raises(BadInput, match=r"model m: .*loss"):
        b.model(b.linear(b.data, 3))
    loss = b.mse(b.linear(b.data, 3, name="fc"))
    with pytest.raises(BadInput, match=r"model m: .*linear1"):
        b.model(loss)
    with pytest.raises(BadInput, match="a loss already"):
        b.mse(b.data)
    with pytest.raises(AttributeError, match=r"operator conv3d.* conv2d"):
        _ = b.conv3d
    with pytest.raises(BadInput, match=r"model m: .*operator conv3d.* conv2d"):
        b.layer("conv3d", (b.data,))
    early = builder(2, 3)
    loss = early.mse(early.data)
    early.relu(early.data)
    with pytest.raises(BadInput, match=r"model m: .*loss"):
        early.model(loss)


CONVOLUTIONS = [
    ((3, 3), 1, 1, 1),
    ((3, 2), (2, 1), (0, 1), 2),
    ((1, 1), 2, 0, 1),
    ((3, 3), 1, (2, 1), 4),
    ((2, 3), 3, 1, 2),
]


@pytest.mark.parametrize(("kernel", "stride", "padding", "groups"), CONVOLUTIONS)
def test_macs_are_the_products_that_kernels_add(
    kernel: tuple[int, int], stride: Any, padding: Any, groups: int
) -> None:
    """On tensors of ones, a sum of products counts them."""
    b = builder()
    x = b.conv2d(b.data, 4, kernel, stride=stride, padding=padding, groups=groups, name="one")
    x = b.conv2d(x, 8, 1, name="two", bias=False)
    graph = training_graph(b.model(b.mse(b.linear(b.flatten(x), 3, name="fc"))), Sgd(1.0))
    kernels = ("conv2d", "conv2d_grad_weight", "linear", "linear_grad_weight")
    for node in graph:
        if node.op in kernels or node.op.endswith("_grad_input"):
            inputs = [np.ones(graph[name].shape, np.float32) for name in node.inputs]
            sink = "store" if node.sink == "sgd" else "none"
            own = inputs[:2] if node.sink == "sgd" or node.op.startswith("conv2d") else inputs
            own = own[:2]
            counted = run_kernel(node.op, sink, node.attrs, own, 0).sum(dtype=np.float64)
            assert work_of(node, graph).macs == counted, node.name


def test_fields_not_given_are_zero() -> None:
    b = builder()
    x = b.maxpool2d(b.conv2d(b.data, 4, 3), 2)
    graph = training_graph(b.model(b.mse(x)), Sgd(0.1))
    for node in graph:
        bare = replace(node, attrs={name: v for name, v in node.attrs.items() if v})
        assert work_of(bare, graph) == work_of(node, graph)


def test_work_of_other_kernels() -> None:
    b = builder()
    x = b.batchnorm2d(b.relu(b.data, name="relu"), name="bn")
    x = b.maxpool2d(x, 2, name="max")
    x = b.global_avgpool(x, name="mean")
    optimiser = Sgd(0.1, momentum=0.9, weight_decay=0.1)
    graph = training_graph(b.model(b.softmax_xent(x, name="loss")), optimiser)
    elements = prod(b.data.shape)
    bytes_of_c = 4 * 4
    assert work_of(graph["data"], graph) == Work()
    relu = work_of(graph["relu"], graph)
    assert (relu.macs, relu.other_flops) == (0, 0)
    assert relu.bytes == 4 * elements + 4 * elements
    stats = work_of(graph["bn:stats"], graph)
    assert (stats.other_flops, stats.bytes) == (4 * elements, 4 * elements + 2 * bytes_of_c)
    norm = work_of(graph["bn"], graph)
    assert norm.bytes == 4 * elements + 4 * bytes_of_c + 4 * elements
    assert work_of(graph["max"], graph).other_flops == 2 * 4 * (6 * 4)
    gamma = work_of(graph["bn.weight:momentum:new"], graph)
    assert gamma.other_flops == 4 * 4
    assert gamma.bytes == (2 + 1 + 1 + 1) * bytes_of_c
    assert work_of(graph["bn.weight:new"], graph).other_flops == 2 * 4
    for node in graph:
        if not node.stored and node.op not in ("batchnorm_grad_param", "relu", "relu_grad"):
            done = work_of(node, graph)
            assert done.macs + done.other_flops > 0


def test_work_of_attention() -> None:
    b = Builder("m", (2, 8), "int32")
    x = b.embedding(b.data, 50, 6, name="word")
    scores = b.attention_scores(x, x, 3, name="scores")
    x = b.attention_context(b.softmax(scores, name="softmax"), x, name="context")
    x = b.slice(x, 1, 0, 1, name="first")
    graph = training_graph(b.model(b.mse(b.reshape(x, (2, 6)), name="loss")), Sgd(0.1))
    done = {node.name: work_of(node, graph) for node in graph}
    assert done["scores"].macs == done["context"].macs == 2 * 8 * 8 * 6
    assert done["scores:grad"].macs == 0
    assert done["softmax:grad"].macs == 2 * 8 * 8 * 6
    assert done["softmax"].other_flops == 20 * 2 * 3 * 8 * 8
    assert done["word"].bytes == 4 * (2 * 8 + 2 * 8 * 6) + graph["word"].size_bytes
    assert done["first"].bytes == 2 * graph["first"].size_bytes
    assert done["word.weight:new"].other_flops == 2 * 8 * (6 + 50) + 2 * 50 * 6


def test_dropout_layers_have_keys_of_their_own() -> None:
    b = builder(2, 3)
    x = b.dropout(b.relu(b.dropout(b.data, 0.5)), 0.5)
    layers = b.model(b.mse(b.dropout(x, 0.5))).layers
    assert [layer.fields["key"] for layer in layers if layer.kind == "dropout"] == [0, 1, 2]
