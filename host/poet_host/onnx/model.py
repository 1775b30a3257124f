"""Read an ONNX file into plain Python data: nodes, constants as arrays, and shapes.

The package `onnx` is imported on first use, so that only users of .onnx models need it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from .. import files
from ..errors import BadInput, reason
from ..graph.onnx_file import onnx_errors, onnx_package, parse
from ..graph.weights import Array
from .names import RESERVED, legal_name, module_of, restore

OLDEST_OPSET = 11
TRAINED, FROZEN = "poet_host.trained", "poet_host.frozen"  # metadata: names, one a line
Size = int | str | None
"""A dimension: a number, the name of an open dimension, or None if unknown."""


@dataclass(frozen=True)
class OnnxNode:
    """One operator of an ONNX model."""

    name: str
    op: str
    inputs: tuple[str, ...]  # "" for an omitted one
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    module: str  # the name of the module that the node belongs to
    proto: Any = field(repr=False, compare=False)  # the node in the file

    def input(self, number: int) -> str:
        return self.inputs[number] if number < len(self.inputs) else ""


@dataclass(frozen=True)
class OnnxInput:
    name: str
    shape: tuple[Size, ...]
    dtype: np.dtype[Any]


class OnnxModel:
    """A checked ONNX model.

    If `merged` is True, an exporter may have merged equal tensors. Then each layer gets its own
    copy of such a tensor (names.restore).
    """

    def __init__(self, proto: Any, where: str, merged: bool = True) -> None:
        onnx = onnx_package()
        self.where = where
        try:
            self.proto = _checked(onnx, proto, where, merged)
            self._read(onnx)
        except onnx_errors(onnx) as error:
            raise BadInput(
                f"{where}: this is not a valid model ({reason(error)}): export the model again"
            ) from error

    def _read(self, onnx: ModuleType) -> None:
        where = self.where
        graph = self.proto.graph
        self.constants: dict[str, Array] = {  # initialisers
            tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer
        }
        inputs = [_input(onnx, value) for value in graph.input]
        outputs = [value.name for value in graph.output]
        if not outputs:
            raise BadInput(f"{where}: the model has no output: export the model again")
        taken = {*RESERVED, "x"}
        # The tensors that the losses read, by names of outputs.
        self.outputs = {legal_name(name, "output", taken): name for name in outputs}
        # The nodes that the outputs need, in topological order.
        self.nodes = needed_for(self.outputs.values(), _nodes(onnx, graph))
        read = {name for node in self.nodes for name in node.inputs}
        self.inputs = [value for value in inputs if value.name in read] or inputs
        if not self.inputs:
            raise BadInput(f"{where}: the model has no input: export the model again")
        known = {entry.key: entry.value for entry in self.proto.metadata_props}
        # Initialisers that are known to be parameters, and others that must not be trained
        self.trained, self.frozen = (
            frozenset(filter(None, known.get(key, "").split("\n"))) for key in (TRAINED, FROZEN)
        )
        # Tensors that nodes compute from parameters, but that are not trained through these nodes.
        self.kept: frozenset[str] = frozenset()
        self.opsets = _opsets(self.proto)

    def set_shapes(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Set the shapes of the inputs."""
        self.inputs = [replace(it, shape=s) for it, s in zip(self.inputs, shapes, strict=True)]
        vars(self).pop("shapes", None)  # those inferred from other inputs

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of float32 tensors, by name, as ONNX infers them from the input."""
        onnx = onnx_package()
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        graph = proto.graph
        del graph.value_info[:]
        for output in graph.output:
            output.type.tensor_type.ClearField("shape")
        shapes = {given.name: given.shape for given in self.inputs}
        for value in graph.input:
            dims = value.type.tensor_type.shape.dim
            for size, dim in zip(shapes.get(value.name, ()), dims, strict=False):
                dim.dim_value = size
        try:
            inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
        except onnx_errors(onnx):  # optional: without shapes, fewer problems are reported at once
            return {}
        found = {
            value.name: _sizes(value)
            for value in (*inferred.value_info, *inferred.output)
            if value.type.tensor_type.HasField("shape")
            and value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        }
        return {
            name: tuple(size for size in sizes if isinstance(size, int))
            for name, sizes in found.items()
            if all(isinstance(size, int) for size in sizes)
        }


def read_file(path: Path | str) -> OnnxModel:
    """Read the model in an .onnx file, and the tensors that it stores in other files."""
    onnx = onnx_package()
    if not Path(path).is_file():
        problem = "this is a folder" if Path(path).is_dir() else "the file does not exist"
        raise BadInput(f"model {path}: {problem}: check the path of the model")
    proto = parse(files.read_bytes(path), f"model {path}")
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location" and (name := Path(path).parent / entry.value).exists():
                files.check_readable(name)
    try:
        onnx.load_external_data_for_model(proto, str(Path(path).parent))
    except onnx_errors(onnx) as error:
        raise BadInput(
            f"model {path}: the separate file with the weights cannot be read ({reason(error)}): "
            "put it into the folder of the .onnx file, or export the model with external_data=False"
        ) from error
    return OnnxModel(proto, f"model {Path(path).name}")


def read_bytes(data: bytes, where: str, merged: bool = True) -> OnnxModel:
    """Read the model from `data`, the content of an .onnx file."""
    return OnnxModel(parse(data, where), where, merged)


def _checked(onnx: ModuleType, proto: Any, where: str, merged: bool) -> Any:
    if not proto.graph.node:
        raise BadInput(f"{where}: the model has no operators: export the model again")
    opset = _opsets(proto).get("", 0)
    if opset < OLDEST_OPSET:
        raise BadInput(
            f"{where}: opset {opset} of the model is older than {OLDEST_OPSET}, the oldest "
            "supported opset: export the model with opset_version=17, or convert it with "
            "onnx.version_converter"
        )
    newest = onnx.defs.onnx_opset_version()
    if opset > newest:
        raise BadInput(
            f"{where}: opset {opset} of the model is newer than {newest}, the newest opset of the "
            "installed package onnx: export the model with opset_version=17, or update onnx"
        )
    proto = onnx.inliner.inline_local_functions(proto) if proto.functions else proto
    _check_order(proto.graph, where)
    initializers = {tensor.name for tensor in proto.graph.initializer}
    for value in [value for value in proto.graph.input if value.name in initializers]:
        proto.graph.input.remove(value)  # its value is always that of the initialiser
    if merged:
        restore(onnx, proto.graph)
    # From IR version 4 on, initialisers need not be inputs.
    proto.ir_version = max(proto.ir_version, 4)
    return proto


def _check_order(graph: Any, where: str) -> None:
    """Raise BadInput if a node reads a tensor that no node before it computes.

    Raise BadInput also if a tensor is computed twice, or if a node has no output. Inputs and
    initialisers exist before the first node.
    """
    known = {value.name for value in (*graph.input, *graph.initializer)} | {""}
    known |= {tensor.values.name for tensor in graph.sparse_initializer}
    made: set[str] = set()
    for node in graph.node:
        name = node.name or next(filter(None, node.output), node.op_type)
        if not any(node.output):
            raise BadInput(f"{where}: the node {name!r} has no output: export the model again")
        missing = next((name for name in node.input if name not in known | made), None)
        twice = next((name for name in node.output if name and name in known | made), None)
        if missing is not None or twice is not None:
            problem = (
                f"reads {missing!r}, which no node before it computes"
                if missing is not None
                else f"computes {twice!r}, which exists already"
            )
            raise BadInput(f"{where}: the node {name!r} {problem}: export the model again")
        made |= set(node.output)


def _opsets(proto: Any) -> dict[str, int]:
    """Return the opset version of each operator domain. The key of ONNX's own domain is ""."""
    return {opset.domain.removeprefix("ai.onnx"): opset.version for opset in proto.opset_import}


def _nodes(onnx: ModuleType, graph: Any) -> list[OnnxNode]:
    nodes = []
    for number, proto in enumerate(graph.node):
        if not all(isinstance(name, str) for name in (*proto.input, *proto.output, proto.op_type)):
            raise ValueError("the name of a node, tensor or operator is not valid UTF-8")
        domain = "" if proto.domain in ("", "ai.onnx") else f"{proto.domain}."
        nodes.append(
            OnnxNode(
                proto.name or next(name for name in proto.output if name),
                domain + proto.op_type,
                tuple(proto.input),
                # Omitted outputs get names too, because the first output identifies a node.
                tuple(name or f"left out:{number}:{i}" for i, name in enumerate(proto.output)),
                {value.name: _attribute(onnx, value) for value in proto.attribute},
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


def needed_for(outputs: Iterable[str], nodes: Sequence[OnnxNode]) -> tuple[OnnxNode, ...]:
    """Return the nodes that `outputs` depend on, in the order of `nodes`."""
    needed, kept = {*outputs}, []
    for node in reversed(nodes):
        if needed & set(node.outputs):
            needed |= set(node.inputs)
            kept.append(node)
    return tuple(reversed(kept))
