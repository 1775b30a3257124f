"""A node of the imported ONNX model. Its import rule reads the inputs and adds layers."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import numpy as np

from ..errors import BadInput
from ..graph.builder import Tensor
from ..graph.graph import Node
from ..graph.operators_tensor import axis_of
from ..graph.rules import Shape
from ..graph.source import RUNNING
from .context import Context, Deferred, Parts, Role, Unknown, Unsupported, Value, deferred
from .fold import Constant, computed
from .model import OnnxNode
from .tokens import TokenValues, data_of

_ENDINGS = re.compile(
    r"[._/](weight|bias|gamma|beta|scale|kernel|embeddings?)(:0)?$|[._/](MatMul|Conv2D)/.*$"
)


@dataclass(frozen=True)
class ImportedNode:
    """A node of the imported file. An import rule uses it to read inputs and to add layers.

    The argument `number` of a method is the number of an input, from 0.
    """

    context: Context
    onnx: OnnxNode

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.onnx.attributes.get(name, default)

    def has(self, number: int) -> bool:
        """Return True if the node has the input `number`."""
        return bool(self.onnx.input(number))

    # Methods for inputs that are computed from the data.

    def is_tensor(self, number: int) -> bool:
        """Return True if the input is computed from the data."""
        return not isinstance(self.value(number), Constant)

    def tensor(self, number: int) -> Tensor:
        """Return an input that is computed from the data. Its deferred operations become layers."""
        return self._materialised(number, self.deferred(number))

    def deferred(self, number: int) -> Deferred:
        """Return an input that is computed from the data, with its deferred operations."""
        value, name = self.value(number), self.onnx.input(number)
        if isinstance(value, Constant):
            if not self.context.may_be_trained(value):
                raise Unsupported(f"the input {name} is a constant: compute it from the data")
            value = self.stored(number)
        if isinstance(value, TokenValues):
            data = data_of(value, self.context.texts)
            if data is None:
                raise Unsupported(
                    f"the input {name} is computed from tokens: use tokens only for embeddings "
                    "and for masks before a softmax, or make it another input of the model"
                )
            value = Tensor(data, value.shape)
        if isinstance(value, Parts):
            raise Unsupported(f"the input {name} is a sequence of tensors: use SequenceAt first")
        return value if isinstance(value, Deferred) else deferred(value)

    def unpadded(self, number: int) -> Deferred:
        """Return an input that is computed from the data, without deferred padding.

        If the input has deferred padding, layers are added for all its deferred operations.
        """
        value = self.deferred(number)
        return deferred(self._materialised(number, value)) if value.pads else value

    def with_padding(
        self, number: int, filling: float
    ) -> tuple[Tensor, tuple[tuple[int, int], ...]]:
        """Return an input that is computed from the data, and the padding that the node must do.

        The node can pad with the value `filling`, but not along the axes of samples and channels.
        Layers are added for any other padding.
        """
        value = self.deferred(number)
        if not value.pads or any(map(any, value.pads[:2])) or value.filling != filling:
            made = self.tensor(number)
            return made, ((0, 0),) * len(made.shape)
        made = self.materialise(replace(value, pads=(), filling=0.0))
        self._replace(number, deferred(made, pads=value.pads, filling=filling))
        return made, value.pads

    def parts(self, number: int) -> Parts:
        """Return an input that is a sequence of tensors."""
        value = self.value(number)
        if not isinstance(value, Parts):
            raise Unsupported(f"the input {self.onnx.input(number)} is one tensor: split it first")
        return value

    def materialise(self, value: Deferred, name: str = "") -> Tensor:
        """Return `value` as a tensor. Layers are added for its deferred operations.

        The names of the layers begin with `name`, or with the node's name if `name` is empty.
        """
        return self.context.materialise(value, name or self.name)

    def _materialised(self, number: int, value: Deferred) -> Tensor:
        made = self.materialise(value)
        self._replace(number, made)
        return made

    def _replace(self, number: int, value: Value) -> None:
        """Let later nodes read `value` as this input, unless it is a constant."""
        name, context = self.onnx.input(number), self.context
        known = context.unfolded if name in context.derived else context.values
        if not isinstance(known[name], Constant):
            known[name] = value

    def is_normalised(self, number: int, first: bool) -> bool:
        """Return True if an earlier node has normalised the model's data, and this is the result.

        If `first` is True, also return True for the model's data itself, before any normalisation:
        this node may be the first step of the normalisation.
        """
        value = self.value(number)
        tensor = value.tensor if isinstance(value, Deferred) else value
        name = tensor.name if isinstance(tensor, Tensor) else ""
        is_data = first and name in self.context.inputs
        return is_data or name in self.context.normalised

    # Methods for inputs that are constants.

    def constant(self, number: int) -> Constant:
        """Return an input that is a constant."""
        value, name = self.known(number), self.onnx.input(number)
        seen = self.context.unfolded.get(name)
        value = seen if isinstance(seen, Constant) else value
        if not isinstance(value, Constant):
            if name in self.context.unknown:
                raise Unknown
            raise Unsupported(f"the input {name} depends on the data: use a constant instead")
        return value

    def integers(self, number: int, attribute: str) -> list[int] | None:
        """Return the integers that an input holds. In older opsets, `attribute` holds them."""
        if self.has(number):
            return [int(value) for value in self.constant(number).value.reshape(-1)]
        found = self.attribute(attribute)
        return None if found is None else [int(value) for value in found]

    def number(self, number: int, attribute: str) -> float | None:
        """Return the float that an input holds. In older opsets, `attribute` holds it."""
        if self.has(number):
            return float(self.fixed(number).value.reshape(-1)[0])
        found = self.attribute(attribute)
        return None if found is None else float(found)

    def fixed(self, number: int) -> Constant:
        """Return a constant that is not trained, even if the file computes it from parameters."""
        found = self.constant(number)
        if self.onnx.input(number) in self.context.derived:
            self.context.keep(found)
        return found

    def scalar(self, number: int) -> float | None:
        """Return the value of an input that is a single number, constant and not trained.

        Return None for any other input, or if it has more axes than the node's other input.
        """
        value, other = self.value(number), self.value(1 - number)
        if not isinstance(value, Constant):
            return None
        if isinstance(other, Constant) and not self.context.may_be_trained(other):
            return None
        rank = len(self.deferred(1 - number).shape)
        if not is_scalar(value, rank) or self.context.is_trained(value):
            return None
        return float(value.value.reshape(-1)[0])

    def weight(self, number: int) -> Constant:
        """Return a float32 constant that may become a parameter."""
        name = self.onnx.input(number)
        found = self.constant(number)
        if found.value.dtype != np.float32:
            raise Unsupported(f"{name} is of type {found.value.dtype}: export the model in float32")
        return found

    def matrix(self, number: int, rank: int = 2) -> Constant:
        """Return a weight with two axes.

        In the file, it may have up to `rank` axes if all axes before the last two have size 1.
        """
        found = self.weight(number)
        if 2 < found.value.ndim <= rank and set(found.value.shape[:-2]) == {1}:
            found = replace(found, value=found.value.reshape(found.value.shape[-2:]))
        if found.value.ndim != 2:
            raise Unsupported(
                f"the weight {self.onnx.input(number)} has the shape {found.value.shape}: reshape "
                "it to 2 dimensions before the export"
            )
        return found

    def transposed(self, number: int, rank: int = 2) -> Constant:
        """Return the transpose of a weight with two axes; see `matrix`."""
        found = self.matrix(number, rank)
        whole = found if found.has_file_axes else computed(self.onnx.input(number), found.value)
        return whole.transposed

    def stored(self, number: int, is_weight: bool = False, frozen: bool = False) -> Tensor:
        """Return an input as a tensor. A constant becomes a parameter (trained) or a state.

        If the file contains the constant and it has several numbers, it is trained, unless
        `frozen` is True. A single number is trained if it is known to be a parameter. If
        `is_weight` is True, single numbers are trained, and so is what nodes compute: but not
        zeros or ones, which exporters write for a layer without this weight.
        """
        if self.is_tensor(number):
            return self.tensor(number)
        given, context = self.weight(number), self.context
        plain = not frozen and not given.computed and given.value.size > 1
        plain |= is_weight and not (given.computed and np.isin(given.value, (0, 1)).all())
        is_trained = (context.is_trained(given) or plain) and not context.is_frozen(given)
        role: Role = "parameter" if is_trained else "state"
        return context.stored(self.helper_name("constant"), given, role)

    def inverse(self, number: int) -> Tensor:
        """Return the reciprocal of a constant input as a state, which is not trained.

        In the imported model, a product with this tensor replaces the division.
        """
        given, old = self.weight(number), self.onnx.input(number)
        name = self.context.free_name(f"{old}.inverse")
        if not given.value.all():
            raise Unsupported(f"the divisor {old} contains zeros: use a divisor without zeros")
        self.onnx.proto.op_type, self.onnx.proto.input[number] = "Mul", name
        inverse = computed(name, 1 / given.value)
        return self.context.stored(self.helper_name("inverse"), inverse, "state")

    # Methods that merge the next node into this node's layer, if only that node reads the output.

    def factor_after(self, rank: int) -> float:
        """Return the constant by which a later node multiplies this node's output.

        Return 1 if there is no such node, or if it is not the only reader of the output. No layer
        is added for the later node, so the layer of this node must apply the factor. `rank` is the
        number of the output's axes.
        """
        after, other = self._after("Mul", "Div")
        if (
            after is None
            or not is_scalar(other, rank)
            or self.context.is_trained(other)
            or (after.op == "Div" and after.inputs[0] != self.onnx.outputs[0])
        ):
            return 1.0
        factor = float(other.value.reshape(-1)[0])
        self.context.fused[self.onnx.outputs[0]] = after.outputs[0]
        return 1 / factor if after.op == "Div" else factor

    def _after(self, *ops: str) -> tuple[OnnxNode | None, Value | None]:
        """Return the only reader of the output, if it is one of `ops`, and its other input."""
        output = self.onnx.outputs[0]
        after = self.context.only_reader(output)
        if after is None or after.op not in ops:
            return None, None
        name = next((name for name in after.inputs if name != output), "")
        return after, self.context.value_of(name)

    def bias(self, number: int, size: int, axis: int) -> Constant | None:
        """Return the bias of a layer: the input `number`, or a constant that a later Add adds.

        The Add must be the only reader of the output, and add the constant along `axis`. Then no
        layer is added for the Add. The output must have as many axes as the data. Return None
        without a bias, for a bias that layers compute, and for zeros that other nodes compute:
        exporters write such zeros for layers without bias.
        """
        if self.has(number) and self.is_tensor(number):
            return None
        found = self.weight(number) if self.has(number) else self._added(size, axis)
        return None if found is None or (found.computed and not found.value.any()) else found

    def _added(self, size: int, axis: int) -> Constant | None:
        after, other = self._after("Add")
        if after is None or not isinstance(other, Constant):
            return None
        rank, shape = len(self.deferred(0).shape), other.value.shape
        if not -axis <= len(shape) <= rank or shape[axis] != size or other.value.size != size:
            return None
        self.context.fused[self.onnx.outputs[0]] = after.outputs[0]
        return other

    # Layers.

    def layer(
        self, kind: str, inputs: tuple[Tensor, ...], *positional: Any, **options: Any
    ) -> Tensor:
        """Add a layer. Raises Unsupported if the layer cannot be added."""
        options["name"] = options.get("name") or self.layer_name()
        try:
            return self.context.builder.layer(kind, inputs, *positional, **options)
        except BadInput as error:
            raise Unsupported(str(error).partition("): ")[2] or str(error)) from error

    def helper(
        self, what: str, kind: str, inputs: tuple[Tensor, ...], *positional: Any, **options: Any
    ) -> Tensor:
        """Add another layer than that of the node. Its name ends in `what`."""
        return self.layer(kind, inputs, *positional, name=self.helper_name(what), **options)

    def ones(self, what: str, shape: Shape = (1,)) -> Tensor:
        """Return a tensor of ones, which training does not change."""
        return self.helper(what, "parameter", (), shape, start="ones", trainable=False)

    def expanded(self, x: Tensor, shape: Shape) -> Tensor:
        """Return `x`, repeated until it has the shape `shape`."""
        return x if x.shape == shape else self.helper("expanded", "expand", (x,), shape)

    def concatenated(self, parts: Sequence[Tensor], axis: int, what: str = "") -> Tensor:
        """Concatenate tensors. The names of the layers end in `what`, if it is not empty.

        The layers join halves, so that each copies its part of the elements only.
        """
        if len(parts) == 1:
            return parts[0]
        half = (len(parts) + 1) // 2
        both = tuple(self.concatenated(it, axis, what) for it in (parts[:half], parts[half:]))
        name = self.helper_name(what) if what else None
        return self.layer("concat", both, axis, name=name)

    def axis(self, rank: int, default: int | None = None) -> int:
        """Return the attribute `axis` of a tensor with `rank` axes, as a number from 0."""
        return axis_of(self.attribute("axis", default), rank)

    def parameter(self, layer: str, slot: str, given: Constant, shape: Shape | None = None) -> Node:
        """Return the graph's node for a layer's parameter. Its first value is `given`."""
        shape = given.value.shape if shape is None else shape
        return self.context.parameter(layer, slot, (given,), shape)

    def untrained(self, layer: str, slot: str, shape: Shape, start: str) -> Node:
        """Return a parameter that the file does not have. Training does not change its value."""
        return Node(f"{layer}.{slot}", shape, role="state", start=start)

    def running(self, layer: str, mean: Constant, variance: Constant) -> Node:
        """Return the graph's node for the running mean and variance of a batchnorm."""
        shape = (2, *mean.value.shape)
        return self.context.parameter(layer, RUNNING[1:], (mean, variance), shape, "state")

    @property
    def name(self) -> str:
        return plain_name(self.onnx.module) or self.onnx.op

    def helper_name(self, what: str) -> str:
        """Return an unused name for an additional layer of the node."""
        return self.context.free_name(f"{self.name}.{what}")

    def layer_name(self, *parameters: Constant | None) -> str:
        """Return an unused name for a layer, taken from the names of its `parameters` in the file.

        For example, the name is `conv1` if a parameter is called `conv1.weight`. If no parameter
        has such a name, the name of the node is used.
        """
        for name in (given.source.names[0] for given in parameters if given):
            if _ENDINGS.search(name) and plain_name(_ENDINGS.sub("", name)):
                return self.context.free_name(plain_name(_ENDINGS.sub("", name)))
        return self.context.free_name(self.name)

    def value(self, number: int) -> Value:
        """Return an input. Raises Unsupported or Unknown if there is none."""
        known = self.known(number)
        return self.context.value_of(self.onnx.input(number)) or known

    def known(self, number: int) -> Value:
        """Return an input, or its value if the file computes it from parameters."""
        name = self.onnx.input(number)
        if not name:
            raise Unsupported(f"input {number} (counted from 0) is missing: export the model again")
        if name not in self.context.values:
            if self.context.problems:
                raise Unknown
            raise Unsupported(f"no supported node computes the input {name}: export it again")
        return self.context.values[name]


Output = Value | list[Tensor | Deferred]
Rule = Callable[[ImportedNode], Output]
"""Adds layers for a node, and returns its output, or a list if it has several outputs."""


def is_scalar(value: Value | None, rank: int) -> TypeGuard[Constant]:
    """Return True for a constant that is one float and has at most `rank` axes."""
    if not isinstance(value, Constant) or value.value.dtype.kind != "f":
        return False
    return value.value.size == 1 and value.value.ndim <= rank


def plain_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name).strip("_.-")
