"""Constants of files: those that an exporter made up, merged or left out, and made weights."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from poet_host.errors import BadInput
from poet_host.graph.source import source_of
from poet_host.graph.weights import weight_nodes
from support.onnx_judge import IMAGE, imported, random, same_as_runtime, with_gain
from support.onnx_models import by_dynamo, legacy, model
from torch import nn


def as_constants(graph: Any) -> list[Any]:
    return [helper.make_node("Constant", [], [it.name], value=it) for it in graph.initializer]


def as_half(graph: Any) -> list[Any]:
    return [
        helper.make_node("Cast", [f"{it.name}:half"], [it.name], to=TensorProto.FLOAT)
        for it in graph.initializer
    ]


def with_nodes(proto: Any, nodes_of: Callable[[Any], list[Any]]) -> bytes:
    """The model with its weights made by nodes, as constants or from halves."""
    graph = proto.graph
    nodes = [*nodes_of(graph), *graph.node]
    halves = [
        numpy_helper.from_array(numpy_helper.to_array(it).astype(np.float16), f"{it.name}:half")
        for it in graph.initializer
        if nodes_of is as_half
    ]
    made = helper.make_graph(nodes, "g", graph.input, graph.output, halves)
    whole = helper.make_model(made, opset_imports=proto.opset_import, ir_version=proto.ir_version)
    return bytes(whole.SerializeToString())


@pytest.mark.parametrize("norm", [nn.LayerNorm(8), nn.BatchNorm1d(8)])
@pytest.mark.parametrize("nodes_of", [as_constants, as_half])
def test_a_scale_that_nodes_make_as_all_weights_is_trained(
    nodes_of: Callable[[Any], list[Any]], norm: nn.Module
) -> None:
    for statistic in norm.buffers():
        statistic.add_(2)  # not equal to a weight, with which the exporter would merge it
    module = nn.Sequential(nn.Linear(6, 8), norm, nn.Linear(8, 3))
    proto = onnx.load_from_string(legacy(module, torch.randn(4, 6)))
    trained = {node.name for node in imported(proto.SerializeToString()).trainable}
    assert {it.name for it in imported(with_nodes(proto, nodes_of)).trainable} == trained


def third(*shape: int) -> Any:
    return np.full(shape, 1 / 3, np.float32)


@pytest.mark.parametrize("nodes_of", [as_constants, as_half, None])
@pytest.mark.parametrize(
    ("op", "channels", "constants", "attributes"),
    [
        ("InstanceNormalization", 1, {"scale": third(1), "shift": third(1)}, {}),
        ("InstanceNormalization", 4, {"scale": third(4), "shift": third(4)}, {}),
        ("GroupNormalization", 4, {"scale": third(1), "shift": third(1)}, {"num_groups": 1}),
        ("ConvTranspose", 4, {"weight": random(4, 1, 2, 2), "bias": third(1)}, {}),
        ("PRelu", 4, {"slope": third(1)}, {}),
    ],
)
def test_weights_are_trained_if_they_are_single_numbers_or_made_by_nodes(
    nodes_of: Callable[[Any], list[Any]] | None,
    op: str,
    channels: int,
    constants: dict[str, Any],
    attributes: dict[str, Any],
) -> None:
    data = with_gain(op, (2, channels, 8, 8), constants, 18, **attributes)
    if nodes_of:
        data = with_nodes(onnx.load_from_string(data), nodes_of)
    assert {it.name for it in same_as_runtime(data).trainable} >= constants.keys()


@pytest.mark.parametrize("norm", [nn.LayerNorm(8, elementwise_affine=False),
                                  nn.BatchNorm1d(8, affine=False)])  # fmt: skip
def test_a_scale_that_the_exporter_made_up_is_not_trained(norm: nn.Module) -> None:
    module = nn.Sequential(nn.Linear(6, 8), norm, nn.Linear(8, 3))
    graph = imported(legacy(module, torch.randn(4, 6)))
    assert {it.name for it in graph.trainable} >= {name for name, _ in module.named_parameters()}
    assert not graph.made_up


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def about(node: Any, **metadata: str) -> Any:
    for key, value in metadata.items():
        node.metadata_props.add(key=f"pkg.{key.replace('__', '.')}", value=value)
    return node


def test_single_numbers_that_an_exporter_merged_are_separated() -> None:
    make = helper.make_node
    nodes = [
        make("BatchNormalization", ["x", "norm.weight", "zero", "zero", "norm.weight"], ["n"],
             "/norm/BatchNormalization"),
        make("PRelu", ["n", "slope"], ["a"], "/a/PRelu"),
        make("Conv", ["a", "w1", "zero"], ["c"], "/c/Conv"),
        make("Identity", ["slope"], ["b.slope"], "Identity_0"),
        make("PRelu", ["c", "b.slope"], ["b"], "/b/PRelu"),
        make("Conv", ["b", "w2", "zero"], ["y"], "/d/Conv"),
    ]  # fmt: skip
    constants = {"norm.weight": ones(1), "zero": 0 * ones(1), "slope": ones(1) / 4}
    weights = {"w1": random(1, 1, 3, 3), "w2": random(1, 1, 3, 3)}
    graph = imported(model(nodes, (2, 1, 8, 8), constants | weights))
    files = [name for node in weight_nodes(graph) for name in source_of(graph, node).names]
    assert len(files) == len({*files}) == 10
    assert {"norm.running_mean", "norm.running_var", "b.slope", "c.bias", "d.bias"} < {*files}


def test_a_slope_that_one_module_reads_twice_is_one_parameter() -> None:
    names = {"torch__onnx__name_scopes": "['', 'act', 'prelu']"}
    nodes = [
        about(helper.make_node("PRelu", ["x", "val_1"], ["p"]), **names),
        helper.make_node("Neg", ["p"], ["q"]),
        about(helper.make_node("PRelu", ["q", "val_1"], ["y"]), **names),
    ]
    graph = imported(model(nodes, (2, 3), {"val_1": ones(1) / 4}))
    assert [node.name for node in graph.trainable] == ["val_1"]


def test_a_tensor_is_not_a_weight_and_a_statistic() -> None:
    norm = helper.make_node("BatchNormalization", ["x", "w", "b", "b", "v"], ["y"], "norm")
    constants = {"w": random(4), "b": random(4), "v": abs(random(4))}
    with pytest.raises(BadInput, match=r"norm \(BatchNormalization\): b .*statistic"):
        imported(model([norm], IMAGE, constants))


@pytest.mark.parametrize("op", ["InstanceNormalization", "LayerNormalization"])
def test_copies_of_a_scale_without_a_name_get_no_names_of_a_module(op: str) -> None:
    nodes = [
        helper.make_node(op, ["x", "val_1", "val_2"], ["n"], "/1/norm"),
        helper.make_node("Conv", ["n", "w"], ["c"], "/2/Conv"),
        helper.make_node(op, ["c", "val_1", "val_2"], ["y"], "/3/norm"),
    ]
    size = 4 if op == "InstanceNormalization" else 8
    constants = {"val_1": ones(size), "val_2": 0 * ones(size), "w": random(4, 4, 1, 1)}
    graph = imported(model(nodes, IMAGE, constants))
    assert {node.name for node in graph.trainable} - {*graph.made_up} == {"w"}


@pytest.mark.parametrize("groups", [1, 2])
def test_a_bias_of_zeros_that_the_exporter_left_out_is_trained(groups: int) -> None:
    rule = {"onnxscript__rewriter__rule_name": "RemoveOptionalBiasFromConvTranspose"}
    node = helper.make_node("ConvTranspose", ["x", "up.weight"], ["y"], group=groups)
    graph = imported(model([about(node, **rule)], IMAGE, {"up.weight": random(4, 3, 2, 2)}))
    assert graph["up.bias"].shape == (3 * groups,)


class Factored(nn.Module):
    """A linear layer whose weight is a product."""

    def __init__(self) -> None:
        super().__init__()
        self.u, self.v = nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(2, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.u @ self.v)


@pytest.mark.parametrize("shape", [(4, 6), (4, 5, 6)])
def test_both_factors_of_a_weight_are_trained(shape: tuple[int, ...]) -> None:
    graph = imported(by_dynamo(Factored(), torch.randn(*shape), optimize=False), loss="mse")
    assert {name for it in graph.trainable for name in source_of(graph, it).names} == {"u", "v"}


class Two(nn.Module):
    def __init__(self, layer: Callable[[], Any], is_tied: bool) -> None:
        super().__init__()
        self.first, self.second = layer(), layer()
        if is_tied:
            self.second.weight = self.first.weight
        self.second.load_state_dict(self.first.state_dict())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(torch.relu(self.first(x)))
        return y


@pytest.mark.parametrize("layer", [lambda: nn.Linear(6, 6), lambda: nn.Conv1d(6, 6, 1)])
@pytest.mark.parametrize("is_tied", [False, True])
def test_a_tied_weight_is_one_parameter_and_a_copied_one_is_two(
    layer: Callable[[], Any], is_tied: bool
) -> None:
    module, x = Two(layer, is_tied), torch.randn(4, 6, 5)
    data = legacy(module, x[..., 0] if isinstance(module.first, nn.Linear) else x)
    trained = {node.name for node in imported(data, loss="mse").trainable}
    assert trained == {name for name, _ in module.named_parameters()}
