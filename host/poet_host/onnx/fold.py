"""The constants of an ONNX model. A node that reads only constants is computed on import."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..graph.onnx_file import onnx_package
from ..graph.source import Source
from ..graph.weights import Array
from .model import OnnxModel, OnnxNode

_VIEWS = ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze")


@dataclass(frozen=True)
class Constant:
    """A tensor with known values, and the tensor of the file from which these values come."""

    value: Array
    source: Source
    computed: bool = False  # True if the tensor that `source` names is the output of a node
    part: tuple[int, int, int] | None = None  # (axis, begin, end), or None for a whole tensor

    def whole(self, name: str) -> "Constant":
        """If the constant is a part of a tensor, return it as a separate tensor called `name`.

        Return any other constant unchanged.
        """
        return computed(name, self.value) if self.part else self

    @property
    def transposed(self) -> "Constant":
        """Return the constant with its two axes exchanged."""
        return Constant(self.value.T, self.source.with_axes_reversed(), self.computed)

    @property
    def has_file_axes(self) -> bool:
        """Return True if `value` has the shape of the tensor in the file.

        The axes are compared in reverse order if `source.transposed` is True. The tensor in the
        file may have additional axes of size 1 at its front.
        """
        file, rank = self.source.shape, self.value.ndim
        front, own = file[: len(file) - rank], file[len(file) - rank :]
        return set(front) <= {1} and self.value.shape == (
            own[::-1] if self.source.transposed else own
        )


def computed(name: str, value: Array) -> Constant:
    """Return `value` as a Constant. In the file, nodes compute it as the tensor `name`."""
    return Constant(value, Source((name,), value.shape), computed=True)


def fold(
    model: OnnxModel, node: OnnxNode, inputs: Sequence[Constant | None]
) -> dict[str, Constant]:
    """Compute the outputs of a node whose inputs are all constants. An omitted input is None.

    May raise any exception if the operator cannot be computed.
    """
    name, first = node.outputs[0], inputs[0] if inputs else None
    if node.op == "Transpose" and first and first.value.ndim == 2 and first.has_file_axes:
        if node.attributes.get("perm", [1, 0]) == [1, 0]:
            return {name: first.transposed}
        return {name: first}
    part = _part(model, node, first, inputs) if first else None
    if part:
        return {name: part}
    values = evaluate(model, node, [given.value if given else None for given in inputs])
    found = {name: computed(name, value) for name, value in zip(node.outputs, values, strict=True)}
    if node.op in _VIEWS and first and not first.source.transposed:
        found[name] = replace(first, value=found[name].value)
    return found


def _part(
    model: OnnxModel, node: OnnxNode, table: Constant, inputs: Sequence[Constant | None]
) -> Constant | None:
    """Return the part of the tensor `table` that a Slice or Gather node selects.

    Return None if the part is not one range along one axis.
    """
    plain = not (table.computed or table.part or table.source.transposed)
    if not plain or table.value.dtype != np.float32 or table.value.shape != table.source.shape:
        return None
    others = [given.value if given else None for given in inputs[1:]]
    if node.op == "Slice":
        return _range(table, model, node, others)
    if node.op == "Gather" and node.attributes.get("axis", 0) == 0 and table.value.ndim:
        return _rows(table, model, node, others)
    return None


def _range(
    table: Constant, model: OnnxModel, node: OnnxNode, others: list[Array | None]
) -> Constant | None:
    shape = table.value.shape
    places = np.arange(table.value.size).reshape(shape)
    chosen = evaluate(model, node, [places, *others])[0]
    if not chosen.size:
        return None
    begins = [int(begin) for begin in np.unravel_index(chosen.flat[0], shape)]
    box = tuple(slice(begin, begin + n) for begin, n in zip(begins, chosen.shape, strict=True))
    cut = [axis for axis, size in enumerate(shape) if chosen.shape[axis] != size]
    if len(cut) > 1 or not np.array_equal(places[box], chosen):
        return None
    part = (cut[0], begins[cut[0]], begins[cut[0]] + chosen.shape[cut[0]]) if cut else None
    return replace(table, value=table.value[box], part=part)


def _rows(
    table: Constant, model: OnnxModel, node: OnnxNode, others: list[Array | None]
) -> Constant | None:
    size = len(table.value)
    places = evaluate(model, node, [np.arange(size), *others])
    chosen = places[0].reshape(-1)
    if len(chosen) > 1 and (chosen == chosen[0]).all() and _is_only_added(model, node):
        places[0] = chosen[:1].reshape((1,) * places[0].ndim)  # one row: the addition repeats it
        chosen = chosen[:1]
    if not len(chosen) or (chosen != np.arange(chosen[0], chosen[0] + len(chosen))).any():
        return None
    begin, end = int(chosen[0]), int(chosen[-1]) + 1
    value = table.value[begin:end].reshape(*places[0].shape, *table.value.shape[1:])
    return replace(table, value=value, part=None if (begin, end) == (0, size) else (0, begin, end))


def _is_only_added(model: OnnxModel, node: OnnxNode) -> bool:
    """Return True if a node's output is only added to tensors that are not constants.

    Then one row can replace an output of several equal rows, because the addition broadcasts it.
    """
    readers = [reader for reader in model.nodes if node.outputs[0] in reader.inputs]
    known = {name for other in model.nodes if not other.inputs for name in other.outputs}
    return bool(readers) and all(
        reader.op == "Add" and not (known | model.constants.keys()) & set(reader.inputs)
        for reader in readers
    )


def evaluate(model: OnnxModel, node: OnnxNode, inputs: Sequence[Array | None]) -> list[Array]:
    """Return the outputs of one node, computed by ONNX's reference implementation."""
    onnx = onnx_package()
    from onnx.reference import ReferenceEvaluator

    known = {
        name: value for name, value in zip(node.inputs, inputs, strict=True) if value is not None
    }
    infos = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
        )
        for name, value in known.items()
    ]
    wanted = [name for name in node.proto.output if name]
    outputs = [onnx.ValueInfoProto(name=name) for name in wanted]
    graph = onnx.helper.make_graph([node.proto], "one", infos, outputs)
    evaluator = ReferenceEvaluator(graph, opsets=model.opsets)
    values = dict(zip(wanted, evaluator.run(None, known), strict=True))
    return [np.asarray(values.get(name, ())) for name in node.proto.output]
