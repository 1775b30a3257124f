"""A trained graph as an .onnx file: the model that it was imported from, with its new weights."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from ..graph.graph import Graph
from ..graph.onnx_file import onnx_package
from ..graph.source import is_given, source_of
from ..graph.weights import to_named, weight_nodes
from .write import write_model


def export(graph: Graph, values: Mapping[str, NDArray[Any]]) -> bytes:
    """The bytes of an .onnx file; `values` are parameters and states by node name.

    A built-in model is written anew. Raises BadInput for values that are not the graph's own, or a
    built-in model that ONNX cannot express here.
    """
    if not graph.origin:
        return write_model(graph, values)
    onnx = onnx_package()
    proto = onnx.load_model_from_string(graph.origin)
    tensors = {one.name: one for one in proto.graph.initializer}
    named = to_named(graph, values)
    for node in weight_nodes(graph):
        for name in source_of(graph, node).names if is_given(node) else ():
            tensors[name].CopyFrom(onnx.numpy_helper.from_array(named[name], name))
    return bytes(proto.SerializeToString())
