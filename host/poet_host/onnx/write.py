"""A graph that was not imported as an .onnx file: the forward operators, one row of `WRITERS` each.

The batch is open: shapes begin with it, or with -1 where a tensor is seen in another shape. What
works on tensors of any shape is in write_tensors.py.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput
from ..graph.graph import Graph, Node
from ..graph.onnx_file import onnx_package
from ..graph.weights import to_named
from ..reference.inference import evaluation
from .write_tensors import TENSOR_WRITERS
from .writer import Unwritten, Writer, fields

OPSET, IR_VERSION = 20, 9  # the first with gelu


def write_model(graph: Graph, values: Mapping[str, NDArray[Any]]) -> bytes:
    """The bytes of an .onnx file with the forward model of `graph`, and `values` as its weights.

    Raises BadInput naming the kernels that have no ONNX operator here.
    """
    onnx = onnx_package()
    nodes = evaluation(graph)
    writer, unwritten = Writer(onnx, graph), []
    for node in nodes:
        try:
            if node.op not in WRITERS:
                raise Unwritten
            WRITERS[node.op](writer, node)
        except Unwritten:
            unwritten.append(f"{node.name} ({node.op})")
    if unwritten:
        raise BadInput(
            f"{graph.name} is no model that was imported, and {', '.join(unwritten)} cannot be "
            "written as ONNX for any batch: use the .safetensors file that train wrote"
        )
    used = {name for node in writer.nodes for name in node.input}
    named = to_named(graph, values)
    weights = [onnx.numpy_helper.from_array(named[n], n) for n in named if n in used]
    tokens = graph[graph.data].dtype == "int32"
    kinds = onnx.TensorProto.INT64 if tokens else onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT
    ends = [
        onnx.helper.make_tensor_value_info(name, kind, ["batch", *graph[name].shape[1:]])
        for name, kind in zip((graph.data, nodes[-1].name), kinds, strict=True)
    ]
    made = onnx.helper.make_graph(
        writer.nodes, graph.name, ends[:1], ends[1:], [*weights, *writer.constants]
    )
    model = onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", OPSET)])
    model.ir_version = IR_VERSION  # of the opset, so that programs of its time read the file
    return bytes(model.SerializeToString())


def _window(node: Node) -> dict[str, Any]:
    """Attributes of a sliding window; padding behind as in front, if that is as many windows."""
    fronts, behinds = [], []
    for axis in "hw":
        size, out, taps, step, front = fields(
            node, axis, f"o{axis}", f"kernel_{axis}", f"stride_{axis}", f"pad_{axis}"
        )
        alike = (size + 2 * front - taps) // step + 1 == out
        fronts.append(front)
        behinds.append(front if alike else max((out - 1) * step + taps - size - front, 0))
    return {
        "kernel_shape": list(fields(node, "kernel_h", "kernel_w")),
        "strides": list(fields(node, "stride_h", "stride_w")),
        "pads": fronts + behinds,
    }


def _conv(writer: Writer, node: Node) -> None:
    x, *parameters = node.inputs
    seen = writer.seen(x, fields(node, "c", "h", "w"))
    writer.add("Conv", node, seen, *parameters, group=fields(node, "groups")[0], **_window(node))


def _linear(writer: Writer, node: Node) -> None:
    x, *parameters = node.inputs
    rows = writer.rows(x, fields(node, "c", "h", "w"))
    writer.finish(node, writer.make("Gemm", rows, *parameters, transB=1), node.shape[-1:])


def _batchnorm(writer: Writer, node: Node) -> None:
    x, running, weight, bias = node.inputs
    seen = writer.seen(x, fields(node, "c", "h", "w"))
    epsilon = float(node.attrs["epsilon"])
    writer.add("BatchNormalization", node, seen, weight, bias, running, epsilon=epsilon)


def _pool(op: str) -> Callable[[Writer, Node], None]:
    def write(writer: Writer, node: Node) -> None:
        counts = {} if op == "MaxPool" else {"count_include_pad": 1 - fields(node, "variant")[0]}
        seen = writer.seen(node.inputs[0], fields(node, "c", "h", "w"))
        writer.add(op, node, seen, **_window(node), **counts)

    return write


def _global_average(writer: Writer, node: Node) -> None:
    seen = writer.seen(node.inputs[0], fields(node, "c", "h", "w"))
    writer.add("ReduceMean", node, seen, writer.constant(np.array([2, 3])), keepdims=0)


def _relu6(writer: Writer, node: Node) -> None:
    writer.add("Clip", node, *node.inputs, *writer.numbers(0, 6))


def _clip(writer: Writer, node: Node) -> None:
    limits = (float(node.attrs[field]) for field in ("lower_bound", "upper_bound"))
    writer.add("Clip", node, *node.inputs, *writer.numbers(*limits))


def _gelu(writer: Writer, node: Node) -> None:
    approximate = "tanh" if fields(node, "variant")[0] else "none"
    writer.add("Gelu", node, *node.inputs, approximate=approximate)


def _same(op: str) -> Callable[[Writer, Node], None]:
    """Elementwise, of one tensor."""
    return lambda writer, node: writer.add(op, node, writer.seen(node.inputs[0], node.shape[1:]))


WRITERS: dict[str, Callable[[Writer, Node], None]] = {
    **TENSOR_WRITERS,
    "avgpool2d": _pool("AveragePool"),
    "batchnorm": _batchnorm,
    "clip": _clip,
    "conv2d": _conv,
    "gelu": _gelu,
    "global_avgpool": _global_average,
    "linear": _linear,
    "maxpool2d": _pool("MaxPool"),
    "relu": _same("Relu"),
    "relu6": _relu6,
    "sigmoid": _same("Sigmoid"),
    "tanh": _same("Tanh"),
}
