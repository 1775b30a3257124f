"""An ONNX file as plain data: nodes with Python attributes, constants as arrays, shapes.

The package `onnx` is imported on first use, so that only those who bring models need it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput

OLDEST_OPSET = 11
Array = NDArray[Any]
Size = int | str | None
"""A dimension: a number, the name of one that is open, or nothing known."""


def onnx_package() -> ModuleType:
    """The package `onnx`; BadInput if it is not installed."""
    try:
        import onnx
        import onnx.inliner
        import onnx.numpy_helper
        import onnx.shape_inference
    except ImportError as error:
        raise BadInput(
            f".onnx models need the package onnx ({error}): pip install 'poet-host[onnx]'"
        ) from error
    return onnx


@dataclass(frozen=True)
class OnnxNode:
    """One operator; an input that is left out is the empty name."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    proto: Any = field(repr=False, compare=False)

    def input(self, number: int) -> str:
        return self.inputs[number] if number < len(self.inputs) else ""


@dataclass(frozen=True)
class OnnxInput:
    name: str
    shape: tuple[Size, ...]
    dtype: np.dtype[Any]


class OnnxModel:
    """A checked model of one input and one output; `proto` is the file.

    `nodes` are those that the output needs, in topological order; `constants` are initialisers.
    """

    def __init__(self, proto: Any, where: str) -> None:
        onnx = onnx_package()
        self.where = where
        self.proto = _checked(onnx, proto, where)
        graph = self.proto.graph
        self.constants: dict[str, Array] = {
            one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer
        }
        inputs = [_input(onnx, one) for one in graph.input if one.name not in self.constants]
        outputs = [one.name for one in graph.output]
        self.input = _only(inputs, [one.name for one in inputs], "input", where)
        self.output: str = _only(outputs, outputs, "output", where)
        self.nodes = _needed(_nodes(onnx, graph), self.output)
        self.opsets = {one.domain: one.version for one in self.proto.opset_import}

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes that onnx.shape_inference finds for an input of the sizes that are set."""
        onnx = onnx_package()
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        graph = proto.graph
        del graph.value_info[:]
        for output in graph.output:
            output.type.tensor_type.ClearField("shape")
        data = next(one for one in graph.input if one.name == self.input.name)
        for size, dim in zip(self.input.shape, data.type.tensor_type.shape.dim, strict=True):
            dim.dim_value = size
        try:
            inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
        except Exception:  # they only help to report more problems at once
            return {}
        found = {one.name: _sizes(one) for one in (*inferred.value_info, *inferred.output)}
        return {
            name: tuple(size for size in sizes if isinstance(size, int))
            for name, sizes in found.items()
            if all(isinstance(size, int) for size in sizes)
        }


def read_file(path: Path | str) -> OnnxModel:
    """The model in an .onnx file, with the data that it keeps in files of their own."""
    onnx = onnx_package()
    if not Path(path).is_file():
        raise BadInput(f"model {path}: there is no such file: check the name")
    try:
        proto = onnx.load(str(path))
    except Exception as error:  # protobuf and onnx have no common class of errors
        raise BadInput(f"model {path}: this is no readable .onnx file ({error})") from error
    return OnnxModel(proto, f"model {Path(path).name}")


def read_bytes(data: bytes, where: str) -> OnnxModel:
    """The model in the bytes of an .onnx file."""
    return OnnxModel(onnx_package().load_model_from_string(data), where)


def initial_values(data: bytes) -> dict[str, Array]:
    """Initialisers in the bytes of an .onnx file, by name."""
    onnx = onnx_package()
    graph = onnx.load_model_from_string(data).graph
    return {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}


def _checked(onnx: ModuleType, proto: Any, where: str) -> Any:
    if not proto.graph.node:
        raise BadInput(f"{where}: it has no operators: export the model again")
    opset = next((one.version for one in proto.opset_import if not one.domain), 0)
    if opset < OLDEST_OPSET:
        raise BadInput(
            f"{where}: its opset {opset} is older than {OLDEST_OPSET}: export it again with "
            "opset_version=17, or convert it with onnx.version_converter"
        )
    proto = onnx.inliner.inline_local_functions(proto) if proto.functions else proto
    _untie(onnx, proto.graph)
    return proto


def _untie(onnx: ModuleType, graph: Any) -> None:
    """Give each use its own of initialisers that are one number repeated.

    PyTorch's exporter merges equal ones, such as the ones and zeros that batchnorms begin with;
    they must not be trained as if they were shared.
    """
    arrays = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    even = {
        name: value
        for name, value in arrays.items()
        if value.dtype == np.float32 and value.size > 1 and (value == value.flat[0]).all()
    }
    taken = arrays.keys() | {one.name for one in (*graph.input, *graph.output)}
    for node in list(graph.node):
        if node.op_type == "Identity" and node.input[0] in even and node.output[0] not in taken:
            even[node.output[0]] = even[node.input[0]]
            graph.initializer.append(
                onnx.numpy_helper.from_array(even[node.output[0]], node.output[0])
            )
            graph.node.remove(node)
    uses: dict[str, list[tuple[Any, int]]] = {}
    for node in graph.node:
        taken |= set(node.output)
        for i, name in enumerate(node.input):
            uses.setdefault(name, []).append((node, i))
    for name, value in even.items():
        readers = uses.get(name, [])
        wanted = [f"{module_name(n.name, n.op_type)}.{_slot(n.op_type, i)}" for n, i in readers]
        owner = wanted.index(name) if name in wanted else 0
        for place, ((node, i), own) in enumerate(zip(readers, wanted, strict=True)):
            if place != owner:
                free = (own if k == 1 else f"{own}_{k}" for k in range(1, len(taken) + 2))
                node.input[i] = next(text for text in free if text not in taken)
                taken |= {node.input[i]}
                graph.initializer.append(onnx.numpy_helper.from_array(value, node.input[i]))


_SLOTS = ("weight", "bias", "running_mean", "running_var")


def _slot(op: str, number: int) -> str:
    """What a layer calls the parameter that is input `number` of its node."""
    return "bias" if op == "Add" else _SLOTS[(number - 1) % len(_SLOTS)]


def module_name(node: str, op: str) -> str:
    """What people call a node: /layer1/layer1.0/relu/Relu is layer1.0.relu."""
    parts = [part for part in node.removeprefix("node_").split("/") if part]
    if len(parts) > 1 and re.fullmatch(rf"{re.escape(op)}(_\d+)?", parts[-1]):
        parts.pop()
    kept: list[str] = []
    for part in parts:
        if kept and part.startswith(f"{kept[-1]}."):
            kept.pop()
        kept.append(part)
    return ".".join(kept)


def _only(found: list[Any], names: list[str], what: str, where: str) -> Any:
    if len(found) != 1:
        listed = ", ".join(names) or "none"
        raise BadInput(
            f"{where}: it has {len(found)} {what}s ({listed}): export it with one {what}, "
            + ("the data" if what == "input" else "that which the loss is computed from")
        )
    return found[0]


def _nodes(onnx: ModuleType, graph: Any) -> list[OnnxNode]:
    nodes = []
    for proto in graph.node:
        domain = "" if proto.domain in ("", "ai.onnx") else f"{proto.domain}."
        nodes.append(
            OnnxNode(
                proto.name or proto.output[0],
                domain + proto.op_type,
                tuple(proto.input),
                tuple(proto.output),
                {one.name: _attribute(onnx, one) for one in proto.attribute},
                proto,
            )
        )
    return nodes


def _attribute(onnx: ModuleType, proto: Any) -> Any:
    value = onnx.helper.get_attribute_value(proto)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return list(value) if isinstance(value, (list, tuple)) else value


def _input(onnx: ModuleType, proto: Any) -> OnnxInput:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(proto.type.tensor_type.elem_type)
    return OnnxInput(proto.name, _sizes(proto), dtype)


def _sizes(proto: Any) -> tuple[Size, ...]:
    dims = proto.type.tensor_type.shape.dim
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in dims
    )


def _needed(nodes: list[OnnxNode], output: str) -> tuple[OnnxNode, ...]:
    needed, kept = {output}, []
    for node in reversed(nodes):
        if needed & set(node.outputs):
            needed |= set(node.inputs)
            kept.append(node)
    return tuple(reversed(kept))
