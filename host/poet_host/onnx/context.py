"""The state of an ONNX import.

It has the tensors of the file by name, the layers and parameters made so far, and the used names.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, Literal

import numpy as np

from ..graph.builder import Builder, Tensor
from ..graph.graph import Node
from ..graph.operators_tensor import MOST_MOVING_AXES, axes_that_move
from ..graph.rules import Shape
from ..graph.source import Source
from ..graph.weights import Array
from .fold import Constant
from .model import OnnxModel, OnnxNode
from .names import free_name
from .tokens import INTEGERS, UNMASKED, VIEWS, Mask, TokenValues, sample_texts, tokens_near

Role = Literal["parameter", "state"]

_LEGAL = re.compile(r"\w[\w.-]*")


class Unsupported(Exception):
    """Raised if a node of the model cannot be trained. The message says why, and what to do."""


class Unknown(Exception):
    """Raised if a node needs the output of another node, whose problem is reported already."""


@dataclass(frozen=True)
class Deferred:
    """A tensor with deferred operations (scale, transpose, pad, mask), which no layer does yet.

    The node that reads the tensor may do these operations itself, as attention and convolutions do.
    Otherwise Context.materialise adds layers for the operations.
    """

    tensor: Tensor
    order: tuple[int, ...]  # axes of `tensor`, in the order after the transpose
    factor: float = 1.0
    pads: tuple[tuple[int, int], ...] = ()  # padding (at the beginning, at the end) of each axis
    filling: float = 0.0  # the value of the padding
    mask: Mask = UNMASKED  # mask of the tensor, if it has attention scores

    @property
    def shape(self) -> Shape:
        sizes = (self.tensor.shape[axis] for axis in self.order)
        pads = self.pads or ((0, 0),) * len(self.order)
        return tuple(size + sum(pad) for size, pad in zip(sizes, pads, strict=True))

    @property
    def is_transposed(self) -> bool:
        return self.order != identity(self.order)


def identity(axes: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the order (0, 1, 2, ...), which keeps every axis in its position."""
    return tuple(range(len(axes)))


def deferred(tensor: Tensor, **changes: Any) -> Deferred:
    """Return `tensor` as a Deferred. `changes` are values for the other fields of the Deferred."""
    return replace(Deferred(tensor, identity(tensor.shape)), **changes)


@dataclass(frozen=True)
class Parts:
    """An ONNX sequence of tensors: the parts of one tensor along one axis."""

    whole: Deferred
    axis: int
    ranges: tuple[tuple[int, int], ...]  # (begin, end) of each part along `axis`
    dropped: bool  # True if each part has size 1 along `axis` and loses this axis


Value = Tensor | Deferred | Constant | TokenValues | Parts


class Context:
    """The state of the import of one ONNX model."""

    def __init__(
        self,
        model: OnnxModel,
        builder: Builder,
        inputs: Sequence[Tensor],
        file_batch: int,
        file_shapes: dict[str, Shape],
    ) -> None:
        self.model = model
        self.builder = builder
        self.file_batch = file_batch  # the batch size for which the file was exported
        self.file_shapes = file_shapes  # of tensors, with another batch size than that of the graph
        self.values: dict[str, Value] = {  # by names in the file
            name: Constant(value, Source((name,), value.shape))
            for name, value in model.constants.items()
        }
        self.inputs = dict(zip((made.name for made in inputs), model.inputs, strict=True))
        self.values |= zip((given.name for given in model.inputs), inputs, strict=True)
        # Constants that nodes of the file compute, by name: the imported model has their values.
        self.computed: dict[str, Array] = {}
        # Constants that the file computes from trained parameters. If a rule reads one as a tensor,
        # layers compute it (Walk.unfold), and it is in `unfolded`.
        self.derived: set[str] = set()
        self.unfolded: dict[str, Value] = {}
        self.unfold: Callable[[str], Value]
        self.unknown: set[str] = set()  # tensors of which only the shape is known
        self.problems: dict[str, str] = {}  # first output of a node -> what is wrong with the node
        # Output of a node -> output of the node's only reader, if one layer replaces both nodes.
        self.fused: dict[str, str] = {}
        self.masks: dict[str, Mask] = {}  # output of a softmax -> mask of the scores that it read
        self.normalised: set[str] = set()  # names of the tensors with normalised data
        self._parameters: dict[str, Node] = {}  # by their start
        self._sources: set[str] = set()  # names in the file of the values of `_parameters`
        self._stored: dict[str, Tensor] = {}
        self._names = {"data", "label", *self.inputs}

    @cached_property
    def texts(self) -> dict[str, tuple[Array, ...]]:
        """Return sample texts of each input of integers, by tensor.

        They have the numbers with which nodes compare tokens: read this after the folding.
        """
        known = {name: it.value for name, it in self.values.items() if isinstance(it, Constant)}
        names = [it.name for it in self.model.inputs if it.dtype.kind in INTEGERS]
        near = tokens_near(self.model.nodes, names, known)
        return {
            name: sample_texts(
                tuple(size for size in given.shape if isinstance(size, int)),
                seed,
                near[near.astype(given.dtype) == near],
                binary=self._is_mask(given.name),
            )
            for seed, (name, given) in enumerate(self.inputs.items())
            if given.name in names
        }

    def free_name(self, name: str) -> str:
        return free_name(name, self._names)

    def readers(self, name: str) -> list[OnnxNode]:
        return [node for node in self.model.nodes if name in node.inputs]

    def _is_mask(self, name: str) -> bool:
        """Return True for one of several inputs, whose integers select no rows of a table."""
        for node in self.readers(name):
            is_view = node.op in ("Cast", *VIEWS)
            if node.op == "Gather" or (is_view and not self._is_mask(node.outputs[0])):
                return False
        return len(self.model.inputs) > 1

    def only_reader(self, name: str) -> OnnxNode | None:
        """Return the node that reads the tensor `name`, if only one input of one node reads it.

        Otherwise, and for the model's output, return None.
        """
        readers = self.readers(name)
        if (
            len(readers) != 1
            or readers[0].inputs.count(name) != 1
            or name in self.model.outputs.values()
        ):
            return None
        return readers[0]

    def with_batch(self, x: Shape, shape: list[int]) -> list[int]:
        """Return `shape`, with the file's batch size replaced by the batch size of this import.

        In the file, a node changes the shape of a tensor from `x` to `shape`. The batch size is
        replaced only if it has its own axis: in a merged axis it cannot be found.
        """
        batch = self.builder.data.shape[0]
        for i, size in enumerate(shape):
            if i >= len(x) or x[i] != size:
                alone = i < len(x) and x[i] == batch and size == self.file_batch
                return [*shape[:i], batch, *shape[i + 1 :]] if alone else shape
        return shape

    def materialise(self, value: Deferred, name: str) -> Tensor:
        """Return `value` as a tensor. Layers are added for its deferred operations.

        The names of these layers begin with `name`.
        """
        if value.mask:
            raise Unsupported(
                "only a softmax may read masked attention scores: apply the mask directly before "
                "the softmax"
            )
        made = value.tensor
        if value.factor != 1:
            scaled = self.free_name(f"{name}.scaled")
            made = self.builder.layer("scale", (made,), value.factor, name=scaled)
        if value.is_transposed:
            made = self._transposed(made, value.order, name)
        if value.pads and value.filling != 0:
            raise Unsupported(
                "only MaxPool may read a tensor that is padded with minus infinity or the lowest "
                "float: pad with zeros"
            )
        for axis, (before, after) in enumerate(value.pads):
            if before or after:
                padded = self.free_name(f"{name}.padded")
                made = self.builder.layer("pad", (made,), axis, before, after, name=padded)
        return made

    def _transposed(self, x: Tensor, order: tuple[int, ...], name: str) -> Tensor:
        """Transpose. Each axis in front moves by a layer of its own, until one layer can do it."""
        rest = identity(order)
        while len(axes_that_move(x.shape, order)) > MOST_MOVING_AXES:
            place = next(i for i in rest if order[i] != i)
            step = (*rest[:place], order[place], *(i for i in rest[place:] if i != order[place]))
            moved = self.free_name(f"{name}.moved")
            x = self.builder.layer("transpose", (x,), step, name=moved)
            order = tuple(step.index(axis) for axis in order)
        return self.builder.layer("transpose", (x,), order, name=self.free_name(f"{name}.moved"))

    def is_frozen(self, given: Constant) -> bool:
        """Return True for a constant of a PyTorch module that PyTorch does not train.

        It is a buffer, a frozen parameter, or what nodes compute from no trained parameter.
        """
        name, trained = given.source.names[0], self.model.trained
        is_made_up = trained and given.computed and name not in trained | self.derived
        return bool(is_made_up) or name in self.model.frozen

    def is_trained(self, given: Constant) -> bool:
        """Return True if the constant is known as a trainable parameter of the PyTorch module."""
        return not given.computed and given.source.names[0] in self.model.trained

    def may_be_trained(self, given: Constant) -> bool:
        """Return True for a parameter of the PyTorch module, or a tensor of the file like one."""
        if self.model.trained or self.model.frozen:
            return self.is_trained(given)
        return not given.computed and given.value.size > 1 and given.value.dtype == np.float32

    def value_of(self, name: str) -> Value | None:
        """Return a tensor of the file. If it is computed from parameters, layers compute it."""
        return self.unfold(name) if name in self.derived else self.values.get(name)

    def keep(self, given: Constant) -> None:
        """Let the imported model have the value of a constant that nodes of the file compute."""
        name = given.source.names[0]
        if isinstance(self.unfolded.get(name), Tensor | Deferred):
            raise Unsupported(
                f"{name} is computed from parameters and read by different operators, but only "
                "some of them can train these parameters: compute it for each operator apart"
            )
        value = given.value.T if given.source.transposed else given.value
        # A view of a computed constant has another shape than the constant.
        self.computed[name] = value.reshape(given.source.shape)

    def parameter(
        self,
        layer: str,
        slot: str,
        given: tuple[Constant, ...],
        shape: Shape,
        role: Role = "parameter",
    ) -> Node:
        """Return the graph's node for a parameter or state whose first value is `given`.

        If `given` has several constants, each of them is a row of this value.
        """
        names = tuple(name for constant in given for name in constant.source.names)
        if sum(constant.value.size for constant in given) != prod(shape):
            raise Unsupported(
                f"the tensor {names[0]} has shape {given[0].value.shape}, but the layer needs "
                f"shape {shape} for its `{slot}`: export the model again"
            )
        if len({(c.source.shape, c.source.transposed) for c in given}) > 1:
            raise Unsupported(
                "the running mean and the running variance have different shapes: store both with "
                "the same shape"
            )
        computed = any(constant.computed for constant in given)
        file = given[0].source
        start = Source(names, file.shape, file.transposed, computed, file.rolled).start()
        if start not in self._parameters:
            if taken := self._sources & set(names):
                raise Unsupported(
                    f"{min(taken)} has two uses, as it is and transposed, or as a weight and a "
                    "running statistic: store a copy for one of both"
                )
            if not all(np.isfinite(constant.value).all() for constant in given):
                raise Unsupported(
                    f"the tensor {names[0]} contains NaN or infinity: export a model with finite "
                    "weights"
                )
            role = "state" if any(map(self.is_frozen, given)) else role
            name = names[0]
            if role == "state" or not _LEGAL.fullmatch(name) or name in self._names:
                name = f"{layer}.{slot}"
            self._names.add(name)
            self._sources |= set(names)
            self._parameters[start] = Node(name, shape, role=role, start=start)
            for constant in given:
                if constant.computed:
                    self.keep(constant)
        found = self._parameters[start]
        if found.shape != shape:
            raise Unsupported(
                f"the tensor {names[0]} is used with two different shapes: store a copy of the "
                "tensor for each shape"
            )
        return found

    def has_other_layout(self, given: Constant) -> bool:
        """Return True if the transpose of the constant is a parameter already."""
        other = replace(given.source.with_axes_reversed(), computed=given.computed)
        return given.value.ndim == 2 and other.start() in self._parameters

    def stored(self, layer: str, given: Constant, role: Role) -> Tensor:
        """Return the tensor of a constant, which becomes a parameter or state of the graph."""
        if self.has_other_layout(given):
            return self._transposed(self.stored(layer, given.transposed, role), (1, 0), layer)
        shape = given.value.shape or (1,)
        known = self._parameters.get(replace(given.source, computed=given.computed).start())
        node = known or self.parameter(layer, "value", (given,), shape, role)
        kept = self._stored.get(node.name)
        if kept is None:
            trainable = role == "parameter"
            kept = self.builder.layer(
                "parameter", (), node.shape, name=layer, trainable=trainable,
                parameters={"weight": node},
            )  # fmt: skip
            self._stored[node.name] = kept
        return Tensor(kept.name, shape)  # the first reader may have seen another shape

    def indices(self, layer: str, numbers: list[int]) -> Tensor:
        """Return a tensor of integers, which training does not change."""
        start = "values:" + ",".join(map(str, numbers))
        if start not in self._stored:
            node = Node(layer, (len(numbers),), role="state", dtype="int32", start=start)
            self._stored[start] = self.builder.layer(
                "parameter", (), node.shape, name=self.free_name(layer), trainable=False,
                parameters={"weight": node},
            )  # fmt: skip
        return self._stored[start]
