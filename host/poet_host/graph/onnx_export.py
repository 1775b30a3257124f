"""A trained graph as an .onnx file: the model that it was imported from, with new weights."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput
from .graph import Graph
from .onnx_model import onnx_package
from .source import is_given, source_of
from .weights import to_named, weight_nodes


def export(graph: Graph, values: Mapping[str, NDArray[Any]]) -> bytes:
    """The bytes of an .onnx file; `values` are parameters and states by node name.

    Raises BadInput for a graph that was not imported, or values that are not its own.
    """
    onnx = onnx_package()
    if not graph.origin:
        raise BadInput(
            f"{graph.name} was not imported from an .onnx file, so there is none to put weights "
            "into: use the .safetensors file that train wrote"
        )
    proto = onnx.load_model_from_string(graph.origin)
    tensors = {one.name: one for one in proto.graph.initializer}
    named = to_named(graph, values)
    for node in weight_nodes(graph):
        for name in source_of(graph, node).names if is_given(node) else ():
            value = np.ascontiguousarray(named[name])
            tensors[name].CopyFrom(onnx.numpy_helper.from_array(value, name))
    return bytes(proto.SerializeToString())
