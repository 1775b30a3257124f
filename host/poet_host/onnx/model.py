"""An ONNX file as plain data: nodes with Python attributes, constants as arrays, shapes.

The package `onnx` is imported on first use, so that only those who bring models need it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput, reason
from ..graph.onnx_file import onnx_errors, onnx_package, parse
from .names import module_of, restore

OLDEST_OPSET = 11
Array = NDArray[Any]
Size = int | str | None
"""A dimension: a number, the name of one that is open, or nothing known."""


@dataclass(frozen=True)
class OnnxNode:
    """One operator; an input that is left out is the empty name.

    `module` is what people call the node; `proto` is it in the file.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    module: str
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

    `nodes` are those that the output needs, in topological order; `constants` are initialisers,
    `learnt` those that are known to be parameters, `fixed` those that are known not to be trained.
    What an exporter merged is taken apart unless the file is not `merged`.
    """

    def __init__(self, proto: Any, where: str, merged: bool = True) -> None:
        onnx = onnx_package()
        self.where = where
        try:
            self.proto = _checked(onnx, proto, where, merged)
            self._read(onnx)
        except onnx_errors(onnx) as error:
            raise BadInput(
                f"{where}: this is no valid model ({reason(error)}): export it again"
            ) from error

    def _read(self, onnx: ModuleType) -> None:
        where = self.where
        graph = self.proto.graph
        self.constants: dict[str, Array] = {
            one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer
        }
        inputs = [_input(onnx, one) for one in graph.input if one.name not in self.constants]
        outputs = [one.name for one in graph.output]
        self.input = _only(inputs, [one.name for one in inputs], "input", where)
        self.output: str = _only(outputs, outputs, "output", where)
        self.nodes = needed_for(self.output, _nodes(onnx, graph))
        self.learnt: frozenset[str] = frozenset()
        self.fixed: frozenset[str] = frozenset()
        self.opsets = _opsets(self.proto)

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of float32 that onnx.shape_inference finds for an input of the sizes set."""
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
        except onnx_errors(onnx):  # they only help to report more problems at once
            return {}
        found = {
            one.name: _sizes(one)
            for one in (*inferred.value_info, *inferred.output)
            if one.type.tensor_type.HasField("shape")
            and one.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        }
        return {
            name: tuple(size for size in sizes if isinstance(size, int))
            for name, sizes in found.items()
            if all(isinstance(size, int) for size in sizes)
        }


def read_file(path: Path | str) -> OnnxModel:
    """The model in an .onnx file, with the data that it keeps in files of their own."""
    onnx = onnx_package()
    if not Path(path).is_file():
        problem = "this is a folder" if Path(path).is_dir() else "there is no such file"
        raise BadInput(f"model {path}: {problem}: check the name")
    try:
        proto = onnx.load(str(path), load_external_data=False)
    except onnx_errors(onnx) as error:
        raise BadInput(
            f"model {path}: this is no readable .onnx file ({reason(error)}): export it again"
        ) from error
    try:
        onnx.load_external_data_for_model(proto, str(Path(path).parent))
    except onnx_errors(onnx) as error:
        raise BadInput(
            f"model {path}: weights that it keeps in a file of their own cannot be read "
            f"({reason(error)}): put that file beside it, or export it with "
            "external_data=False"
        ) from error
    return OnnxModel(proto, f"model {Path(path).name}")


def read_bytes(data: bytes, where: str, merged: bool = True) -> OnnxModel:
    """The model in the bytes of an .onnx file."""
    return OnnxModel(parse(data, where), where, merged)


def _checked(onnx: ModuleType, proto: Any, where: str, merged: bool) -> Any:
    if not proto.graph.node:
        raise BadInput(f"{where}: it has no operators: export the model again")
    opset = _opsets(proto).get("", 0)
    if opset < OLDEST_OPSET:
        raise BadInput(
            f"{where}: its opset {opset} is older than {OLDEST_OPSET}: export it again with "
            "opset_version=17, or convert it with onnx.version_converter"
        )
    newest = onnx.defs.onnx_opset_version()
    if opset > newest:
        raise BadInput(
            f"{where}: its opset {opset} is newer than {newest}, the last that the package onnx "
            "knows: export it again with opset_version=17, or install a newer onnx"
        )
    proto = onnx.inliner.inline_local_functions(proto) if proto.functions else proto
    _check_order(proto.graph, where)
    if merged:
        restore(onnx, proto.graph)
        proto.ir_version = max(proto.ir_version, 4)  # initialisers need be no inputs from this on
    return proto


def _check_order(graph: Any, where: str) -> None:
    """What a node reads is the input, or computed before it; by one node only."""
    known = {one.name for one in (*graph.input, *graph.initializer)} | {""}
    known |= {one.values.name for one in graph.sparse_initializer}
    made: set[str] = set()
    for node in graph.node:
        name = node.name or next((one for one in node.output if one), node.op_type)
        if not any(node.output):
            raise BadInput(f"{where}: its node {name!r} computes nothing: export it again")
        missing = next((one for one in node.input if one not in known | made), None)
        twice = next((one for one in node.output if one and one in known | made), None)
        if missing is not None or twice is not None:
            problem = (
                f"reads {missing!r}, which no node before it computes"
                if missing is not None
                else f"computes {twice!r}, which is there already"
            )
            raise BadInput(f"{where}: its node {name!r} {problem}: export it again")
        made |= set(node.output)


def _opsets(proto: Any) -> dict[str, int]:
    """Versions of the operators, by domain; ONNX's own is the empty name."""
    return {one.domain.removeprefix("ai.onnx"): one.version for one in proto.opset_import}


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
    for number, proto in enumerate(graph.node):
        if not all(isinstance(name, str) for name in (*proto.input, *proto.output, proto.op_type)):
            raise ValueError("a name in it is not UTF-8")
        domain = "" if proto.domain in ("", "ai.onnx") else f"{proto.domain}."
        nodes.append(
            OnnxNode(
                proto.name or next(name for name in proto.output if name),
                domain + proto.op_type,
                tuple(proto.input),
                # What is left out gets a name too, so that each node is known by its first output.
                tuple(name or f"left out:{number}:{i}" for i, name in enumerate(proto.output)),
                {one.name: _attribute(onnx, one) for one in proto.attribute},
                module_of(proto),
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


def needed_for(output: str, nodes: Sequence[OnnxNode]) -> tuple[OnnxNode, ...]:
    """Those of the nodes that the output follows from, in their order."""
    needed, kept = {output}, []
    for node in reversed(nodes):
        if needed & set(node.outputs):
            needed |= set(node.inputs)
            kept.append(node)
    return tuple(reversed(kept))
