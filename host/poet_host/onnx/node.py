"""One node of an ONNX model. Its rule reads inputs and attributes from it, and adds layers."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput
from ..graph.builder import Tensor
from ..graph.graph import Node
from ..graph.rules import Shape
from ..graph.source import RUNNING
from .context import Context, Deferred, Parts, Role, Unknown, Unsupported, Value, deferred
from .fold import Constant, computed
from .model import OnnxNode
from .tokens import LOW, UNMASKED, TokenValues, is_data, mask_of

Array = NDArray[Any]

_ENDINGS = re.compile(
    r"[._/](weight|bias|gamma|beta|scale|kernel|embeddings?)(:0)?$|[._/](MatMul|Conv2D)/.*$"
)


@dataclass(frozen=True)
class ImportedNode:
    """A node of the imported file. Its methods return input `number` as a tensor or constant."""

    context: Context
    onnx: OnnxNode

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.onnx.attributes.get(name, default)

    def has(self, number: int) -> bool:
        """Return True if the node has the input `number`."""
        return bool(self.onnx.input(number))

    # Inputs that are computed from the data.

    def is_tensor(self, number: int) -> bool:
        """Return True if the input is computed from the data."""
        return not isinstance(self._value(number), Constant)

    def tensor(self, number: int) -> Tensor:
        """Return an input that is computed from the data. Its deferred operations become layers."""
        return self._materialised(number, self.deferred(number))

    def deferred(self, number: int) -> Deferred:
        """Return an input that is computed from the data, with its deferred operations."""
        value, name = self._value(number), self.onnx.input(number)
        if isinstance(value, Constant):
            raise Unsupported(f"the input {name} must not be a constant")
        if isinstance(value, TokenValues):
            if not is_data(value, self.context.texts):
                raise Unsupported(
                    f"the input {name} is computed from tokens: only embeddings, and masks before "
                    "a softmax, are supported"
                )
            value = Tensor(self.context.builder.data.name, value.shape)
        if isinstance(value, Parts):
            raise Unsupported(f"the input {name} is a sequence of tensors: read one tensor of it")
        return value if isinstance(value, Deferred) else deferred(value)

    def unpadded(self, number: int) -> Deferred:
        """Return an input that is computed from the data, without deferred padding.

        Other operations may be deferred.
        """
        value = self.deferred(number)
        return deferred(self._materialised(number, value)) if value.pads else value

    def with_padding(
        self, number: int, filling: float
    ) -> tuple[Tensor, tuple[tuple[int, int], ...]]:
        """Return an input that is computed from the data, and the padding that the node must do.

        The node can pad with the value `filling`, but not along samples or channels. Any other
        padding becomes layers.
        """
        value = self.deferred(number)
        if not value.pads or any(map(any, value.pads[:2])) or value.filling != filling:
            made = self.tensor(number)
            return made, ((0, 0),) * len(made.shape)
        made = self.materialise(replace(value, pads=(), filling=0.0))
        kept = deferred(made, pads=value.pads, filling=filling)
        self.context.values[self.onnx.input(number)] = kept
        return made, value.pads

    def parts(self, number: int) -> Parts:
        """Return an input that is a sequence."""
        value = self._value(number)
        if not isinstance(value, Parts):
            raise Unsupported(f"the input {self.onnx.input(number)} is not a sequence of tensors")
        return value

    def materialise(self, value: Deferred, name: str = "") -> Tensor:
        """Add layers for deferred operations. They are named after `name`, or else the node."""
        return self.context.materialise(value, name or self.name)

    def _materialised(self, number: int, value: Deferred) -> Tensor:
        made = self.materialise(value)
        self.context.values[self.onnx.input(number)] = made
        return made

    def is_normalised(self, number: int, first: bool) -> bool:
        """Return True if the input is the normalised data. With `first`, it may be the raw data."""
        value = self._value(number)
        tensor = value.tensor if isinstance(value, Deferred) else value
        name = tensor.name if isinstance(tensor, Tensor) else ""
        is_data = first and name == self.context.builder.data.name
        return is_data or name in self.context.normalised

    # Inputs that are constants.

    def constant(self, number: int) -> Constant:
        """Return an input that is a constant."""
        value, name = self._value(number), self.onnx.input(number)
        if not isinstance(value, Constant):
            if name in self.context.unknown:
                raise Unknown
            raise Unsupported(f"the input {name} is computed from the data: it must be a constant")
        return value

    def integers(self, number: int, attribute: str) -> list[int] | None:
        """Return a list that is an input in newer opsets, and an attribute in older opsets."""
        if self.has(number):
            return [int(value) for value in self.constant(number).value.reshape(-1)]
        found = self.attribute(attribute)
        return None if found is None else [int(value) for value in found]

    def number(self, number: int, attribute: str) -> float | None:
        """Return a number that is an input in newer opsets, and an attribute in older opsets."""
        if self.has(number):
            return float(self.constant(number).value.reshape(-1)[0])
        found = self.attribute(attribute)
        return None if found is None else float(found)

    def scalar(self, number: int) -> float | None:
        """Return one of two inputs, if it is a constant single number that is not trained.

        It must not have more axes than the other input, which defines the output's shape.
        """
        value = self._value(number)
        if not isinstance(value, Constant) or not self.is_tensor(1 - number):
            return None
        rank = len(self.deferred(1 - number).shape)
        if not is_scalar(value, rank) or self.context.is_trained(value):
            return None
        return float(value.value.reshape(-1)[0])

    def weight(self, number: int) -> Constant:
        """Return a constant that may become a parameter. It must be float32."""
        name = self.onnx.input(number)
        found = self.constant(number).whole(name)
        if found.value.dtype != np.float32:
            raise Unsupported(f"{name} holds {found.value.dtype}: export the model in float32")
        return found

    def matrix(self, number: int, rank: int = 2) -> Constant:
        """Return a weight with two axes. It may have up to `rank` axes if the first have size 1."""
        found = self.weight(number)
        if 2 < found.value.ndim <= rank and set(found.value.shape[:-2]) == {1}:
            found = replace(found, value=found.value.reshape(found.value.shape[-2:]))
        if found.value.ndim != 2:
            raise Unsupported(
                f"a weight has the shape {found.value.shape}, but must have 2 dimensions"
            )
        return found

    def transposed(self, number: int, rank: int = 2) -> Constant:
        """Return the transpose of a weight with two axes; see `matrix`."""
        found = self.matrix(number, rank)
        whole = found if found.has_file_axes else computed(self.onnx.input(number), found.value)
        return whole.transposed

    def stored(self, number: int, train_scalar: bool = False, frozen: bool = False) -> Tensor:
        """Return an input as a tensor. A constant becomes a stored tensor.

        A constant of the file with several numbers is trained, unless `frozen` is True. A single
        number is trained only with `train_scalar`, or if it is known to be a parameter.
        """
        if self.is_tensor(number):
            return self.tensor(number)
        given, part, context = self.weight(number), self.constant(number), self.context
        if part.part and not context.is_frozen(part):
            return context.part_of(self.helper_name("constant"), part)
        plain = not frozen and not given.computed and (train_scalar or given.value.size > 1)
        is_trained = (context.is_trained(given) or plain) and not context.is_frozen(given)
        role: Role = "parameter" if is_trained else "state"
        return context.stored(self.helper_name("constant"), given, role)

    def inverse(self, number: int) -> Tensor:
        """Return 1 / constant as a stored tensor. The file's node becomes a product with it."""
        given, old = self.weight(number), self.onnx.input(number)
        name = self.context.free_name(f"{old}.inverse")
        if self.context.is_trained(given):
            raise Unsupported(
                "the node divides by a trained parameter: multiply by a parameter instead"
            )
        if not given.value.all():
            raise Unsupported(f"the divisor {old} contains zeros")
        self.onnx.proto.op_type, self.onnx.proto.input[number] = "Mul", name
        inverse = computed(name, 1 / given.value)
        return self.context.stored(self.helper_name("inverse"), inverse, "state")

    # Masks.

    def sample_values(self, number: int) -> list[Array] | None:
        """Return an input's value for each sample text, or None if other data influence it."""
        value = self._value(number)
        if isinstance(value, TokenValues):
            return list(value.values)
        texts = max(len(self.context.texts), 1)
        return [value.value] * texts if isinstance(value, Constant) else None

    def added_mask(self, number: int) -> list[Array] | None:
        """Return, for each text, which scores an added input hides. None if it is not a mask."""
        values = self.sample_values(number)
        hidden = [value <= LOW for value in values or []]
        if not values or not any(map(np.any, hidden)):
            return None
        plain = all((v[~h] == 0).all() for v, h in zip(values, hidden, strict=True))
        return hidden if plain else None

    def masked(self, number: int, hidden: list[Array]) -> Deferred:
        """Return scores with a mask. `hidden` is True for scores that a softmax must ignore."""
        scores = self.deferred(number)
        found = mask_of(hidden, self.context.texts, scores.shape)
        if found is None:
            raise Unsupported(
                "the only supported masks hide padding (token 0) or later tokens: mask the scores "
                "of a softmax with one of these"
            )
        return replace(scores, mask=scores.mask | found)

    def is_masked(self, number: int, hidden: list[Array]) -> bool:
        """Return True if the input is from a softmax that masked all positions in `hidden`."""
        weights = self.deferred(number)
        found = mask_of(hidden, self.context.texts, weights.shape)
        if weights.is_transposed:
            return False
        mask = self.context.masks.get(weights.tensor.name, UNMASKED)
        return found is not None and found <= mask

    # The node that reads the output. The rule of this node can also do the work of that node.

    def factor_after(self, rank: int) -> float:
        """Return the number by which the only reader of the output multiplies it, or else 1.

        `rank` is the number of the output's axes. The rule of this node must apply the factor,
        because the reader then adds no layer.
        """
        output = self.onnx.outputs[0]
        after = self.context.only_reader(output)
        if after is None or after.op not in ("Mul", "Div"):
            return 1.0
        name = next((name for name in after.inputs if name != output), "")
        other = self.context.values.get(name)
        if (
            not is_scalar(other, rank)
            or self.context.is_trained(other)
            or (after.op == "Div" and after.inputs[0] != output)
        ):
            return 1.0
        factor = float(other.value.reshape(-1)[0])
        self.context.fused[output] = after.outputs[0]
        return 1 / factor if after.op == "Div" else factor

    def bias(self, number: int, size: int, axis: int) -> Constant | None:
        """Return the input, or else the constant that an Add, the only reader, adds along `axis`.

        The output has as many axes as the data. The rule of this node must add the constant,
        because the Add then becomes no layer. Zeros that nodes compute are not a bias: exporters
        write them for layers without bias.
        """
        found = self.weight(number) if self.has(number) else self._added(size, axis)
        return None if found is None or (found.computed and not found.value.any()) else found

    def _added(self, size: int, axis: int) -> Constant | None:
        output = self.onnx.outputs[0]
        after = self.context.only_reader(output)
        if after is None or after.op != "Add":
            return None
        name = next((name for name in after.inputs if name != output), "")
        other = self.context.values.get(name)
        if not isinstance(other, Constant):
            return None
        rank, shape = len(self.deferred(0).shape), other.value.shape
        if not -axis <= len(shape) <= rank or shape[axis] != size or other.value.size != size:
            return None
        self.context.fused[output] = after.outputs[0]
        return other.whole(name)

    # Layers.

    def layer(
        self, kind: str, inputs: tuple[Tensor, ...], *positional: Any, **options: Any
    ) -> Tensor:
        """Add a layer. An error in the layer is reported as an error of the node."""
        options["name"] = options.get("name") or self.layer_name()
        try:
            return self.context.builder.layer(kind, inputs, *positional, **options)
        except BadInput as error:
            raise Unsupported(str(error).partition("): ")[2] or str(error)) from error

    def parameter(self, layer: str, slot: str, given: Constant, shape: Shape | None = None) -> Node:
        """Return the stored node of a layer's parameter. Its first value is `given`."""
        shape = given.value.shape if shape is None else shape
        return self.context.parameter(layer, slot, (given,), shape)

    def untrained(self, layer: str, slot: str, shape: Shape, start: str) -> Node:
        """Return a parameter that the file does not have. It always keeps its first value."""
        return Node(f"{layer}.{slot}", shape, role="state", start=start)

    def running(self, layer: str, mean: Constant, variance: Constant) -> Node:
        """Return the stored node of a batchnorm's running statistics."""
        shape = (2, *mean.value.shape)
        return self.context.parameter(layer, RUNNING[1:], (mean, variance), shape, "state")

    @property
    def name(self) -> str:
        return plain_name(self.onnx.module) or self.onnx.op

    def helper_name(self, what: str) -> str:
        """Return an unused name for an additional layer of the node."""
        return self.context.free_name(f"{self.name}.{what}")

    def layer_name(self, *parameters: Constant | None) -> str:
        """Return an unused name: that of the module with these parameters, or else the node's."""
        for name in (given.source.names[0] for given in parameters if given):
            if _ENDINGS.search(name) and plain_name(_ENDINGS.sub("", name)):
                return self.context.free_name(plain_name(_ENDINGS.sub("", name)))
        return self.context.free_name(self.name)

    def _value(self, number: int) -> Value:
        name = self.onnx.input(number)
        if not name:
            raise Unsupported(f"input number {number} is missing")
        if name not in self.context.values:
            if self.context.problems:
                raise Unknown
            raise Unsupported(f"the input {name} is not an output of a supported node")
        return self.context.values[name]


Output = Tensor | Deferred | Constant | Parts | list[Tensor | Deferred]
Rule = Callable[[ImportedNode], Output]
"""Adds layers for a node; a list is several outputs."""


def is_scalar(value: Value | None, rank: int) -> TypeGuard[Constant]:
    """Return True for a constant that is one float and has at most `rank` axes."""
    if not isinstance(value, Constant) or value.value.dtype.kind != "f":
        return False
    return value.value.size == 1 and value.value.ndim <= rank


def plain_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name).strip("_.-")
