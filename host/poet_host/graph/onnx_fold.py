"""Constants of an ONNX model: what follows from them alone is computed once, here."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .onnx_model import OnnxModel, OnnxNode, onnx_package
from .source import Source

Array = NDArray[Any]

_VIEWS = ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze")


@dataclass(frozen=True)
class Constant:
    """A tensor that is known, and from where in the model's file its values come.

    A `computed` one is no initialiser: the tensor `source` names is the output of a node.
    """

    value: Array
    source: Source
    computed: bool = False

    @property
    def transposed(self) -> "Constant":
        """The same numbers with their two axes exchanged."""
        return Constant(self.value.T, self.source.turned(), self.computed)

    @property
    def turns(self) -> bool:
        """Has `value` the axes of the file's tensor, in their order or in reverse?"""
        file = self.source.shape[::-1] if self.source.transposed else self.source.shape
        return self.value.shape == file


def initial_constants(model: OnnxModel) -> dict[str, Constant]:
    return {
        name: Constant(value, Source((name,), value.shape))
        for name, value in model.constants.items()
    }


def computed(name: str, value: Array) -> Constant:
    """The output `name` of a node whose inputs are all constants."""
    return Constant(value, Source((name,), value.shape), computed=True)


def fold(
    model: OnnxModel, node: OnnxNode, inputs: Sequence[Constant | None]
) -> dict[str, Constant]:
    """Outputs of a node whose inputs are all constants; None is an input that is left out.

    Raises an error of any class if the operator cannot be computed.
    """
    name, first = node.outputs[0], inputs[0] if inputs else None
    if node.op == "Transpose" and first and first.value.ndim == 2 and first.turns:
        if node.attributes.get("perm", [1, 0]) == [1, 0]:
            return {name: first.transposed}
        return {name: first}
    values = evaluate(model, node, [one.value if one else None for one in inputs])
    found = {name: computed(name, value) for name, value in zip(node.outputs, values, strict=True)}
    if node.op in _VIEWS and first and not first.source.transposed:
        found[name] = replace(first, value=found[name].value)
    return found


def evaluate(model: OnnxModel, node: OnnxNode, inputs: Sequence[Array | None]) -> list[Array]:
    """Outputs of one node by ONNX's own reference implementation."""
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
    outputs = [onnx.ValueInfoProto(name=name) for name in node.outputs]
    graph = onnx.helper.make_graph([node.proto], "one", infos, outputs)
    evaluator = ReferenceEvaluator(graph, opsets=model.opsets)
    return [np.asarray(value) for value in evaluator.run(None, known)]
