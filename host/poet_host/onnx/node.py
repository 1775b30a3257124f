"""One node of an ONNX model as its row in the tables sees it: inputs, attributes, layers to add."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput
from ..graph.builder import Tensor
from ..graph.graph import Node
from ..graph.operators import Shape
from ..graph.source import RUNNING
from .fold import Constant, computed
from .model import OnnxNode
from .tokens import LOW, NOTHING, Hidden, OfTokens, hidden_by, is_data

if TYPE_CHECKING:
    from .walk import Walk

Array = NDArray[Any]


class Unsupported(Exception):
    """What cannot be done with a node, and what to try."""


class Unknown(Exception):
    """A node reads what no earlier node could make; that one was complained about already."""


@dataclass(frozen=True)
class Moved:
    """A tensor still to be multiplied, to have its axes in another order and to be padded, unless
    what reads it does so itself.

    `pads` are what stands in front of and behind each axis of the new order, all `filling`.
    `hides` is what a softmax, which alone may read it then, takes no notice of.
    """

    tensor: Tensor
    order: tuple[int, ...]
    factor: float = 1.0
    pads: tuple[tuple[int, int], ...] = ()
    filling: float = 0.0
    hides: Hidden = NOTHING

    @property
    def shape(self) -> Shape:
        sizes = (self.tensor.shape[axis] for axis in self.order)
        pads = self.pads or ((0, 0),) * len(self.order)
        return tuple(size + sum(pad) for size, pad in zip(sizes, pads, strict=True))

    @property
    def core(self) -> "Moved":
        """It without its padding."""
        return replace(self, pads=(), filling=0.0)


@dataclass(frozen=True)
class Parts:
    """Ranges of a tensor along one axis, which is `dropped` where each is 1; a sequence of ONNX."""

    whole: Moved
    axis: int
    ranges: tuple[tuple[int, int], ...]
    dropped: bool


Value = Tensor | Moved | Constant | OfTokens | Parts


@dataclass(frozen=True)
class At:
    """One node, seen from its row: its inputs as tensors or constants, and how to add layers."""

    walk: "Walk"
    node: OnnxNode

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.node.attributes.get(name, default)

    def has(self, number: int) -> bool:
        """Is this input there?"""
        return bool(self.node.input(number))

    def is_tensor(self, number: int) -> bool:
        """Is this input computed from the data?"""
        return not isinstance(self._value(number), Constant)

    def tensor(self, number: int) -> Tensor:
        """An input that is computed from the data."""
        return self._made(number, self.view(number))

    def view(self, number: int) -> Moved:
        """An input that is computed from the data, as it is so far."""
        value = self._value(number)
        if isinstance(value, Constant):
            raise Unsupported(f"its input {self.node.input(number)} must not be a constant")
        if isinstance(value, OfTokens):
            if not is_data(value, self.walk.texts):
                raise Unsupported(
                    f"its input {self.node.input(number)} follows from the tokens: only "
                    "embeddings, and masks in front of a softmax, are built"
                )
            value = Tensor(self.walk.builder.data.name, value.shape)
        if isinstance(value, Parts):
            raise Unsupported(f"its input {self.node.input(number)} is a sequence: take one part")
        return value if isinstance(value, Moved) else Moved(value, tuple(range(len(value.shape))))

    def parts(self, number: int) -> Parts:
        """An input that is a sequence."""
        value = self._value(number)
        if not isinstance(value, Parts):
            raise Unsupported(f"its input {self.node.input(number)} is no split tensor")
        return value

    def moved(self, number: int) -> Moved:
        """An input that is computed from the data, its axes perhaps still to be moved."""
        value = self.view(number)
        if not value.pads:
            return value
        made = self._made(number, value)
        return Moved(made, tuple(range(len(made.shape))))

    def padded(self, number: int, filling: float) -> tuple[Tensor, tuple[tuple[int, int], ...]]:
        """An input that is computed from the data, and what is still to be put around its axes.

        That is nothing around samples and channels, or where it is not filled with `filling`.
        """
        value = self.view(number)
        around = any(any(pad) for pad in value.pads[:2])
        if not value.pads or around or value.filling != filling:
            made = self.tensor(number)
            return made, ((0, 0),) * len(made.shape)
        made = self.walk.made_of(value.core, self.walk.plain_name(self.node))
        identity = tuple(range(len(made.shape)))
        self.walk.values[self.node.input(number)] = replace(
            value, tensor=made, order=identity, factor=1.0
        )
        return made, value.pads

    def _made(self, number: int, value: Moved) -> Tensor:
        made = self.walk.made_of(value, self.walk.plain_name(self.node))
        self.walk.values[self.node.input(number)] = made
        return made

    def is_made_ready(self, number: int, first: bool) -> bool:
        """Is this input the data, less their mean perhaps? The `first` such takes it away."""
        value = self._value(number)
        tensor = value.tensor if isinstance(value, Moved) else value
        name = tensor.name if isinstance(tensor, Tensor) else ""
        return name in self.walk.ready or (first and name == self.walk.builder.data.name)

    def operand(self, number: int, single: bool = False, fixed: bool = False) -> Tensor:
        """An input that is a tensor, or a constant as a tensor that is stored.

        A constant of the file with several numbers is trained like a weight, a `single` one only
        where it is said, or known to be a parameter; all others stay, and what is `fixed`.
        """
        if self.is_tensor(number):
            return self.tensor(number)
        given, part = self.weight(number), self.constant(number)
        if part.part and not self.walk.is_fixed(part):
            return self.walk.part_of(self.made_name("constant"), part)
        learnt = self.walk.is_learnt(given)
        plain = not fixed and not given.computed and (single or given.value.size > 1)
        fixed = self.walk.is_fixed(given) or not (learnt or plain)
        role: Literal["parameter", "state"] = "state" if fixed else "parameter"
        return self.walk.stored(self.made_name("constant"), given, role)

    def inverse(self, number: int) -> Tensor:
        """The inverse of a constant, as a tensor that is stored; the file then multiplies by it."""
        given, name = self.weight(number), self.walk.free_name(f"{self.node.input(number)}.inverse")
        if self.walk.is_learnt(given):
            raise Unsupported("it divides by a parameter that is trained: multiply by one instead")
        if not given.value.all():
            raise Unsupported(f"{self.node.input(number)}, by which it divides, holds zeros")
        self.node.proto.op_type, self.node.proto.input[number] = "Mul", name
        return self.walk.stored(self.made_name("inverse"), computed(name, 1 / given.value), "state")

    def scalar(self, number: int) -> float | None:
        """An input of two that is one constant number, not learnt, with no more axes than the
        other, whose shape the output then has.
        """
        value = self._value(number)
        if not isinstance(value, Constant) or not self.is_tensor(1 - number):
            return None
        if not is_scalar(value, len(self.view(1 - number).shape)) or self.walk.is_learnt(value):
            return None
        return float(value.value.reshape(-1)[0])

    def added_mask(self, number: int) -> list[Array] | None:
        """Where an input that is added hides scores, if it does nothing else: for each text."""
        values = self.known(number)
        hidden = [value <= LOW for value in values or []]
        if not values or not any(map(np.any, hidden)):
            return None
        plain = all((v[~h] == 0).all() for v, h in zip(values, hidden, strict=True))
        return hidden if plain else None

    def known(self, number: int) -> list[Array] | None:
        """An input for each of the sample texts, if it depends on nothing else."""
        value = self._value(number)
        if isinstance(value, OfTokens):
            return list(value.values)
        return [value.value] * max(len(self.walk.texts), 1) if isinstance(value, Constant) else None

    def unseen(self, number: int, hidden: list[Array]) -> Moved:
        """Scores of which a softmax shall not see what is hidden."""
        scores = self.view(number)
        found = hidden_by(hidden, self.walk.texts, scores.shape)
        if found is None:
            raise Unsupported(
                "only masks that hide padding (token 0), or what comes later, are built: mask the "
                "scores of a softmax with one of these"
            )
        return replace(scores, hides=scores.hides | found)

    def is_hidden_already(self, number: int, hidden: list[Array]) -> bool:
        """Are an input's weights zero there, as a softmax took no notice of their scores?"""
        weights = self.view(number)
        found = hidden_by(hidden, self.walk.texts, weights.shape)
        if weights.order != tuple(range(len(weights.order))):
            return False
        return found is not None and found <= self.walk.hidden.get(weights.tensor.name, NOTHING)

    def factor_behind(self, rank: int) -> float:
        """What the only node behind this one multiplies its output, of so many axes, with; that is
        then done.
        """
        return self.walk.factor_behind(self.node, rank)

    def constant(self, number: int) -> Constant:
        """An input that is known."""
        value = self._value(number)
        if not isinstance(value, Constant):
            if self.node.input(number) in self.walk.unknown:
                raise Unknown
            raise Unsupported(
                f"its input {self.node.input(number)} is computed from the data, it must be a "
                "constant"
            )
        return value

    def integers(self, number: int, attribute: str) -> list[int] | None:
        """A list that newer opsets have as an input and older ones as an attribute."""
        if self.has(number):
            return [int(one) for one in self.constant(number).value.reshape(-1)]
        found = self.attribute(attribute)
        return None if found is None else [int(one) for one in found]

    def number(self, number: int, attribute: str) -> float | None:
        """A number that newer opsets have as an input and older ones as an attribute."""
        if self.has(number):
            return float(self.constant(number).value.reshape(-1)[0])
        found = self.attribute(attribute)
        return None if found is None else float(found)

    def weight(self, number: int) -> Constant:
        """A constant that may become a parameter: float32."""
        found = self.constant(number).whole(self.node.input(number))
        if found.value.dtype != np.float32:
            raise Unsupported(
                f"{self.node.input(number)} holds {found.value.dtype}: export the model in float32"
            )
        return found

    def matrix(self, number: int, rank: int = 2) -> Constant:
        """A weight with two axes; axes of 1 in front of them do nothing to data of `rank` axes."""
        found = self.weight(number)
        if 2 < found.value.ndim <= rank and set(found.value.shape[:-2]) == {1}:
            found = replace(found, value=found.value.reshape(found.value.shape[-2:]))
        if found.value.ndim != 2:
            raise Unsupported(f"a weight of shape {found.value.shape}: it must have 2 dimensions")
        return found

    def turned(self, number: int, rank: int = 2) -> Constant:
        """A weight with two axes, exchanged; `rank` as above."""
        found = self.matrix(number, rank)
        whole = found if found.turns else computed(self.node.input(number), found.value)
        return whole.transposed

    def parameter(self, layer: str, slot: str, given: Constant, shape: Shape | None = None) -> Node:
        """The node of a layer's parameter that begins with these values."""
        return self.walk.parameter(
            layer, slot, (given,), given.value.shape if shape is None else shape
        )

    def fixed(self, layer: str, slot: str, shape: Shape, start: str) -> Node:
        """A parameter that the model leaves out: it stays as it starts."""
        return Node(f"{layer}.{slot}", shape, role="state", start=start)

    def running(self, layer: str, mean: Constant, variance: Constant) -> Node:
        """Batchnorm's running statistics."""
        shape = (2, *mean.value.shape)
        return self.walk.parameter(layer, RUNNING[1:], (mean, variance), shape, "state")

    def made_name(self, what: str) -> str:
        """A name for a layer that the node needs beside its own."""
        return self.walk.free_name(f"{self.walk.plain_name(self.node)}.{what}")

    def layer_name(self, *parameters: Constant | None) -> str:
        """A name that nothing has yet: that of the module that the parameters belong to, or what
        the file calls the node.
        """
        return self.walk.layer_name(self.node, parameters)

    def layer(
        self, kind: str, inputs: tuple[Tensor, ...], *positional: Any, **options: Any
    ) -> Tensor:
        """Add one of our layers; its complaints become those of the node."""
        options.setdefault("name", None)
        options["name"] = options["name"] or self.layer_name()
        try:
            return self.walk.builder.layer(kind, inputs, *positional, **options)
        except BadInput as error:
            raise Unsupported(str(error).partition("): ")[2] or str(error)) from error

    def for_batch(self, x: Shape, shape: list[int]) -> list[int]:
        """A shape that the file makes of `x` for its own batch, for the batch that is set.

        Where the batch stands by itself, that is: of merged axes nothing tells which it is in.
        """
        batch, file = self.walk.builder.data.shape[0], self.walk.file_batch
        for i, size in enumerate(shape):
            if i >= len(x) or x[i] != size:
                alone = i < len(x) and x[i] == batch and size == file
                return [*shape[:i], batch, *shape[i + 1 :]] if alone else shape
        return shape

    def bias(self, number: int, size: int, axis: int) -> Constant | None:
        """This input, or a constant that an Add behind the node adds along `axis` to its output,
        which has as many axes as the data.

        The Add is then done: the tensor that the rule returns is the sum's. Zeros that the model
        computes are no bias: exporters put them where a layer has none.
        """
        rank = len(self.view(0).shape)
        behind = None if self.has(number) else self.walk.added(self.node, size, axis, rank)
        found = self.weight(number) if self.has(number) else behind
        return None if found is None or (found.computed and not found.value.any()) else found

    def _value(self, number: int) -> Value:
        name = self.node.input(number)
        if not name:
            raise Unsupported(f"its input {number} is missing")
        if name not in self.walk.values:
            if self.walk.problems:
                raise Unknown
            raise Unsupported(f"its input {name} is the output of nothing that is built")
        return self.walk.values[name]


Made = Tensor | Moved | Constant | Parts | list[Tensor | Moved]
Rule = Callable[[At], Made]
"""Adds layers for a node; a list is several outputs."""


def is_scalar(value: Value, rank: int) -> TypeGuard[Constant]:
    """Is it one number, that leaves a tensor of so many axes the shape that it has?"""
    if not isinstance(value, Constant) or value.value.dtype.kind != "f":
        return False
    return value.value.size == 1 and value.value.ndim <= rank
