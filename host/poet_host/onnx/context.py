"""The state of an import: the file's values by name, and the layers, parameters and used names."""

import re
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..graph.builder import Builder, Tensor
from ..graph.graph import Node
from ..graph.rules import Shape
from ..graph.source import Source
from .fold import Constant
from .model import OnnxModel, OnnxNode
from .names import free_name
from .tokens import UNMASKED, Mask, TokenValues, sample_texts

Array = NDArray[Any]
Role = Literal["parameter", "state"]

_LEGAL = re.compile(r"\w[\w.-]*")


class Unsupported(Exception):
    """A node cannot be trained; the message says why, and what to do."""


class Unknown(Exception):
    """A node reads a tensor that could not be built. The reason is reported already."""


@dataclass(frozen=True)
class Deferred:
    """A tensor with operations that are not layers yet: scale, transpose, pad, mask.

    The node that reads the tensor may do these operations itself, as attention and convolutions do.
    Otherwise they become layers (Context.materialise).
    """

    tensor: Tensor
    order: tuple[int, ...]  # axes of `tensor`, in the new order
    factor: float = 1.0
    pads: tuple[tuple[int, int], ...] = ()  # padding before and after each axis
    filling: float = 0.0  # the value of the padding
    mask: Mask = UNMASKED  # mask of attention scores, which only a softmax may read

    @property
    def shape(self) -> Shape:
        sizes = (self.tensor.shape[axis] for axis in self.order)
        pads = self.pads or ((0, 0),) * len(self.order)
        return tuple(size + sum(pad) for size, pad in zip(sizes, pads, strict=True))

    @property
    def is_transposed(self) -> bool:
        return self.order != identity(self.order)


def identity(axes: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the order that keeps every axis in its position."""
    return tuple(range(len(axes)))


def deferred(tensor: Tensor, **changes: Any) -> Deferred:
    """Return a Deferred of `tensor`. `changes` are its other fields."""
    return replace(Deferred(tensor, identity(tensor.shape)), **changes)


@dataclass(frozen=True)
class Parts:
    """A sequence of ONNX: ranges of a tensor along one axis."""

    whole: Deferred
    axis: int
    ranges: tuple[tuple[int, int], ...]  # begin and end of each part
    dropped: bool  # True if the axis is removed: it has size 1 in each part


Value = Tensor | Deferred | Constant | TokenValues | Parts


class Context:
    """The state of one import."""

    def __init__(self, model: OnnxModel, builder: Builder, file_batch: int) -> None:
        self.model = model
        self.builder = builder
        self.file_batch = file_batch  # the batch for which the file was exported
        self.values: dict[str, Value] = {  # by names in the file
            name: Constant(value, Source((name,), value.shape))
            for name, value in model.constants.items()
        }
        self.values[model.input.name] = builder.data
        self.computed: dict[str, Array] = {}  # parameters that nodes of the file compute, by name
        self.unknown: set[str] = set()  # tensors of which only the shape is known
        self.problems: dict[str, str] = {}  # first output of a node -> what is wrong with the node
        # Output of a node -> output of its only reader, if the rule of the node replaces both.
        self.fused: dict[str, str] = {}
        self.masks: dict[str, Mask] = {}  # output of a softmax -> mask of the scores that it read
        self.normalised: set[str] = set()  # tensors that are the data after subtraction, scaling...
        self.reads_tokens = model.input.dtype.kind in "iu"
        self.texts = sample_texts(builder.data.shape) if self.reads_tokens else ()
        self._parameters: dict[str, Node] = {}  # by their start
        self._stored: dict[str, Tensor] = {}
        self._names = {"data", "label"}

    def free_name(self, name: str) -> str:
        return free_name(name, self._names)

    def readers(self, name: str) -> list[OnnxNode]:
        return [node for node in self.model.nodes if name in node.inputs]

    def only_reader(self, name: str) -> OnnxNode | None:
        """Return the node that reads a tensor, if no other node does and it has this input once.

        Return None otherwise, and for the model's output.
        """
        readers = self.readers(name)
        if len(readers) != 1 or readers[0].inputs.count(name) != 1 or name == self.model.output:
            return None
        return readers[0]

    def with_batch(self, x: Shape, shape: list[int]) -> list[int]:
        """Return `shape`, with the batch of the file replaced by the batch of the import.

        `shape` is the shape that a node of the file makes from a tensor of the shape `x`. The batch
        is replaced only if it is an axis of its own: in a merged axis it cannot be found.
        """
        batch = self.builder.data.shape[0]
        for i, size in enumerate(shape):
            if i >= len(x) or x[i] != size:
                alone = i < len(x) and x[i] == batch and size == self.file_batch
                return [*shape[:i], batch, *shape[i + 1 :]] if alone else shape
        return shape

    def materialise(self, value: Deferred, name: str) -> Tensor:
        """Add the layers of the deferred operations, named after `name`; return their output."""
        if value.mask:
            raise Unsupported("the input is masked: only a softmax may read masked scores")
        made = value.tensor
        if value.factor != 1:
            scaled = self.free_name(f"{name}.scaled")
            made = self.builder.layer("scale", (made,), value.factor, name=scaled)
        if value.is_transposed:
            moved = self.free_name(f"{name}.moved")
            made = self.builder.layer("transpose", (made,), value.order, name=moved)
        if value.pads and value.filling != 0:
            raise Unsupported(
                "the input is padded with the least number, which only MaxPool may read: pad with "
                "zeros"
            )
        for axis, (before, after) in enumerate(value.pads):
            if before or after:
                padded = self.free_name(f"{name}.padded")
                made = self.builder.layer("pad", (made,), axis, before, after, name=padded)
        return made

    def is_frozen(self, given: Constant) -> bool:
        """Return True for a module's buffer or frozen parameter, which PyTorch does not train."""
        return given.source.names[0] in self.model.frozen

    def is_trained(self, given: Constant) -> bool:
        """Return True if the constant is a known parameter of a module. It may be one number."""
        return not given.computed and given.source.names[0] in self.model.trained

    def parameter(
        self,
        layer: str,
        slot: str,
        given: tuple[Constant, ...],
        shape: Shape,
        role: Role = "parameter",
    ) -> Node:
        """Return the stored node whose first value is `given`. Several constants are its rows."""
        names = tuple(name for constant in given for name in constant.source.names)
        if sum(constant.value.size for constant in given) != prod(shape):
            raise Unsupported(
                f"{names[0]} has shape {given[0].value.shape}, but `{slot}` needs the shape {shape}"
            )
        if len({(c.source.shape, c.source.transposed) for c in given}) > 1:
            raise Unsupported("the running mean and the running variance differ in shape")
        computed = any(constant.computed for constant in given)
        file = given[0].source
        start = Source(names, file.shape, file.transposed, computed).start()
        if start not in self._parameters:
            if not all(np.isfinite(constant.value).all() for constant in given):
                raise Unsupported(
                    f"{names[0]} contains NaN or infinity: export a model with finite weights"
                )
            role = "state" if any(map(self.is_frozen, given)) else role
            name = names[0]
            if role == "state" or not _LEGAL.fullmatch(name) or name in self._names:
                name = f"{layer}.{slot}"
            self._names.add(name)
            self._parameters[start] = Node(name, shape, role=role, start=start)
            for constant in given:
                if constant.computed:
                    value = constant.value.T if constant.source.transposed else constant.value
                    self.computed[constant.source.names[0]] = value
        found = self._parameters[start]
        if found.shape != shape:
            raise Unsupported(f"{names[0]} is used in two shapes: use a copy of it for each shape")
        return found

    def stored(self, layer: str, given: Constant, role: Role) -> Tensor:
        """Return a constant as a stored tensor of the model."""
        shape = given.value.shape or (1,)
        node = self.parameter(layer, "value", (given,), shape, role)
        kept = self._stored.get(node.name)
        if kept is None:
            trainable = role == "parameter"
            kept = self.builder.layer(
                "parameter", (), shape, name=layer, trainable=trainable, parameters={"weight": node}
            )
            self._stored[node.name] = kept
        return kept

    def part_of(self, layer: str, given: Constant) -> Tensor:
        """Return a part of a tensor of the file. The whole tensor is stored and trained."""
        assert given.part
        whole = Constant(self.model.constants[given.source.names[0]], given.source)
        kept = self.stored(layer, whole, "parameter")
        part = self.builder.layer("slice", (kept,), *given.part, name=self.free_name(layer))
        return Tensor(part.name, given.value.shape)
