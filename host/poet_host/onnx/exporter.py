"""Export a trained graph as an .onnx file: the imported model with the trained weights."""

from collections.abc import Mapping

from ..errors import BadInput
from ..graph.graph import Graph
from ..graph.lora import merged
from ..graph.onnx_file import onnx_package
from ..graph.source import is_given, source_of
from ..graph.weights import Array, to_named, weight_nodes


def export(graph: Graph, values: Mapping[str, Array]) -> bytes:
    """Return the bytes of an .onnx file: the model that was imported, with `values` as weights.

    Adapters are merged into the weights. `values` are the parameters and states by node name.
    Raises BadInput for a built-in model, or if the values do not fit the graph.
    """
    to_named(graph, values)  # checks them
    named = to_named(graph, merged(graph, values))
    if not graph.origin:
        raise BadInput(
            f"{graph.name} is a built-in model, but only models imported from ONNX or PyTorch can "
            "be exported to .onnx. Export to a .safetensors file instead (`export -o "
            "NAME.safetensors`): its weights have the names that PyTorch uses"
        )
    onnx = onnx_package()
    proto = onnx.load_model_from_string(graph.origin)
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    for node in weight_nodes(graph):
        for name in source_of(graph, node).names if is_given(node) else ():
            tensors[name].CopyFrom(onnx.numpy_helper.from_array(named[name], name))
    return bytes(proto.SerializeToString())
