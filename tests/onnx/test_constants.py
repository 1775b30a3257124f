"""Scales of ones in files: those that an exporter made up, and weights that nodes make."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from support.onnx_judge import imported
from support.onnx_models import legacy
from torch import nn


def as_constants(graph: Any) -> list[Any]:
    return [helper.make_node("Constant", [], [it.name], value=it) for it in graph.initializer]


def as_half(graph: Any) -> list[Any]:
    return [
        helper.make_node("Cast", [f"{it.name}:half"], [it.name], to=TensorProto.FLOAT)
        for it in graph.initializer
    ]


@pytest.mark.parametrize("norm", [nn.LayerNorm(8), nn.BatchNorm1d(8)])
@pytest.mark.parametrize("nodes_of", [as_constants, as_half])
def test_a_scale_that_nodes_make_as_all_weights_is_trained(
    nodes_of: Callable[[Any], list[Any]], norm: nn.Module
) -> None:
    module = nn.Sequential(nn.Linear(6, 8), norm, nn.Linear(8, 3))
    proto = onnx.load_from_string(legacy(module, torch.randn(4, 6)))
    trained = {node.name for node in imported(proto.SerializeToString()).trainable}
    graph = proto.graph
    nodes = [*nodes_of(graph), *graph.node]
    halves = [
        numpy_helper.from_array(numpy_helper.to_array(it).astype(np.float16), f"{it.name}:half")
        for it in graph.initializer
        if nodes_of is as_half
    ]
    made = helper.make_graph(nodes, "g", graph.input, graph.output, halves)
    whole = helper.make_model(made, opset_imports=proto.opset_import)
    assert {it.name for it in imported(whole.SerializeToString()).trainable} == trained


@pytest.mark.parametrize("norm", [nn.LayerNorm(8, elementwise_affine=False),
                                  nn.BatchNorm1d(8, affine=False)])  # fmt: skip
def test_a_scale_that_the_exporter_made_up_is_not_trained(norm: nn.Module) -> None:
    module = nn.Sequential(nn.Linear(6, 8), norm, nn.Linear(8, 3))
    graph = imported(legacy(module, torch.randn(4, 6)))
    assert {it.name for it in graph.trainable} >= {name for name, _ in module.named_parameters()}
    assert not graph.made_up
