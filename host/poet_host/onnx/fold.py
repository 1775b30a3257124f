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
    values = evaluate(model, node, [given.value if given else None for given in inputs])
    found = {name: computed(name, value) for name, value in zip(node.outputs, values, strict=True)}
    if node.op in _VIEWS and first and not first.source.transposed:
        found[name] = replace(first, value=found[name].value)
    return found


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
