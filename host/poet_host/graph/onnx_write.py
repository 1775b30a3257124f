"""A graph that was not imported as an .onnx file: the forward operators, one row of `WRITERS` each.

Convolutional networks and perceptrons; kernels of attention have no row, and are refused by name.
The batch is open: shapes begin with it, or with -1 where a tensor is seen in another shape.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput
from .evaluate import evaluation
from .graph import Graph, Node
from .onnx_model import onnx_package
from .source import source_of
from .weights import to_named, weight_nodes

OPSET = 17


def write_model(graph: Graph, values: Mapping[str, NDArray[Any]]) -> bytes:
    """The bytes of an .onnx file with the forward model of `graph`, and `values` as its weights.

    Raises BadInput naming the kernels that have no ONNX operator here.
    """
    onnx = onnx_package()
    nodes = evaluation(graph)
    unknown = sorted({node.op for node in nodes if not _is_written(graph, node)})
    if unknown:
        raise BadInput(
            f"{graph.name} is built in and uses {', '.join(unknown)}, which cannot be written as "
            "ONNX: use the .safetensors file that train wrote"
        )
    writer = _Writer(onnx, graph)
    for node in nodes:
        WRITERS[node.op](writer, node)
    used = {name for node in writer.nodes for name in node.input}
    named = to_named(graph, values)
    weights = [onnx.numpy_helper.from_array(named[n], n) for n in named if n in used]
    float32 = onnx.TensorProto.FLOAT
    ends = [
        onnx.helper.make_tensor_value_info(name, float32, ["batch", *graph[name].shape[1:]])
        for name in (graph.data, nodes[-1].name)
    ]
    made = onnx.helper.make_graph(
        writer.nodes, graph.name, ends[:1], ends[1:], [*weights, *writer.constants]
    )
    model = onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", OPSET)])
    model.ir_version = 8  # of the opset, so that programs of its time read the file
    return bytes(model.SerializeToString())


def _is_written(graph: Graph, node: Node) -> bool:
    """Has it a row, and goes it sample by sample? Repeated operands and merged axes do not."""
    repeats = node.op in ("add", "mul", "sub") and node.attrs.get("variant")
    rows = node.op == "linear" and len(node.shape) != 2
    return node.op in WRITERS and not repeats and not rows and node.shape[0] == graph.batch


class _Writer:
    def __init__(self, onnx: Any, graph: Graph) -> None:
        self.onnx, self.graph = onnx, graph
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.files = {node.name: source_of(graph, node).names for node in weight_nodes(graph)}

    def add(self, op: str, node: Node, *inputs: str, **attributes: Any) -> None:
        """The operator that computes `node`; parameters have their names in files."""
        names = [name for one in inputs for name in self.files.get(one, (one,))]
        self.nodes.append(
            self.onnx.helper.make_node(op, names, [node.name], node.name, **attributes)
        )

    def seen(self, name: str, shape: tuple[int, ...]) -> str:
        """The tensor `name`, each sample of it in this shape."""
        if self.graph[name].shape[1:] == shape:
            return name
        seen = f"{name}:{'x'.join(str(size) for size in shape)}"
        if not any(seen in node.output for node in self.nodes):
            sizes = self.onnx.numpy_helper.from_array(np.array([-1, *shape]), f"{seen}:shape")
            self.constants.append(sizes)
            self.nodes.append(
                self.onnx.helper.make_node("Reshape", [name, sizes.name], [seen], seen)
            )
        return seen


def _sizes(node: Node, *fields: str) -> tuple[int, ...]:
    return tuple(int(node.attrs.get(field, 0)) for field in fields)


def _window(node: Node) -> dict[str, Any]:
    pads = list(_sizes(node, "pad_h", "pad_w"))
    return {
        "kernel_shape": list(_sizes(node, "kernel_h", "kernel_w")),
        "strides": list(_sizes(node, "stride_h", "stride_w")),
        "pads": pads + pads,
    }


def _conv(writer: _Writer, node: Node) -> None:
    x, *parameters = node.inputs
    seen = writer.seen(x, _sizes(node, "c", "h", "w"))
    writer.add("Conv", node, seen, *parameters, group=_sizes(node, "groups")[0], **_window(node))


def _linear(writer: _Writer, node: Node) -> None:
    x, *parameters = node.inputs
    writer.add("Gemm", node, writer.seen(x, _sizes(node, "c")), *parameters, transB=1)


def _batchnorm(writer: _Writer, node: Node) -> None:
    x, running, weight, bias = node.inputs
    seen = writer.seen(x, _sizes(node, "c", "h", "w"))
    epsilon = float(node.attrs["epsilon"])
    writer.add("BatchNormalization", node, seen, weight, bias, running, epsilon=epsilon)


def _pool(op: str) -> Callable[[_Writer, Node], None]:
    def write(writer: _Writer, node: Node) -> None:
        counts = {} if op == "MaxPool" else {"count_include_pad": 1 - _sizes(node, "variant")[0]}
        seen = writer.seen(node.inputs[0], _sizes(node, "c", "h", "w"))
        writer.add(op, node, seen, **_window(node), **counts)

    return write


def _global_average(writer: _Writer, node: Node) -> None:
    seen = writer.seen(node.inputs[0], _sizes(node, "c", "h", "w"))
    writer.add("ReduceMean", node, seen, axes=[2, 3], keepdims=0)


def _relu6(writer: _Writer, node: Node) -> None:
    limits = {"relu6:low": 0, "relu6:high": 6}
    for name, value in limits.items():
        if not any(one.name == name for one in writer.constants):
            writer.constants.append(writer.onnx.numpy_helper.from_array(np.float32(value), name))
    writer.add("Clip", node, *node.inputs, *limits)


def _same(op: str) -> Callable[[_Writer, Node], None]:
    """Elementwise: all inputs as the output is."""

    def write(writer: _Writer, node: Node) -> None:
        writer.add(op, node, *(writer.seen(name, node.shape[1:]) for name in node.inputs))

    return write


WRITERS: dict[str, Callable[[_Writer, Node], None]] = {
    "add": _same("Add"),
    "avgpool2d": _pool("AveragePool"),
    "batchnorm": _batchnorm,
    "conv2d": _conv,
    "global_avgpool": _global_average,
    "linear": _linear,
    "maxpool2d": _pool("MaxPool"),
    "mul": _same("Mul"),
    "relu": _same("Relu"),
    "relu6": _relu6,
    "sigmoid": _same("Sigmoid"),
    "sub": _same("Sub"),
    "tanh": _same("Tanh"),
}
