"""Walking through an ONNX model: every node becomes layers, a constant, or a line of complaint.

What an operator becomes is a row in onnx_operators.py, a function of an `At`.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput
from .build import Builder, Tensor
from .graph import Node
from .onnx_fold import Constant, computed, fold, initial_constants
from .onnx_model import OnnxModel, OnnxNode, module_name
from .operators import Shape
from .source import RUNNING, Source

Array = NDArray[Any]

_LEGAL = re.compile(r"\w[\w.-]*")
_ENDINGS = re.compile(
    r"[._/](weight|gamma|scale|kernel|embeddings?)(:0)?$|[._/](MatMul|Conv2D)/.*$"
)


class Unsupported(Exception):
    """What cannot be done with a node, and what to try."""


class _Unknown(Exception):
    """A node reads what no earlier node could make; that one was complained about already."""


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
        return isinstance(self._value(number), Tensor)

    def tensor(self, number: int) -> Tensor:
        """An input that is computed from the data."""
        value = self._value(number)
        if isinstance(value, Constant):
            raise Unsupported(f"its input {self.node.input(number)} must not be a constant")
        return value

    def constant(self, number: int) -> Constant:
        """An input that is known."""
        value = self._value(number)
        if isinstance(value, Tensor):
            if self.node.input(number) in self.walk.unknown:
                raise _Unknown
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
        found = self.constant(number)
        if found.value.dtype != np.float32:
            raise Unsupported(
                f"{self.node.input(number)} holds {found.value.dtype}: export the model in float32"
            )
        return found

    def matrix(self, number: int) -> Constant:
        """A weight with two axes."""
        found = self.weight(number)
        if found.value.ndim != 2:
            raise Unsupported(f"a weight of shape {found.value.shape}: it must have 2 dimensions")
        return found

    def turned(self, number: int) -> Constant:
        """A weight with two axes, exchanged."""
        found = self.matrix(number)
        whole = found if found.turns else computed(self.node.input(number), found.value)
        return whole.transposed

    def parameter(self, layer: str, slot: str, given: Constant, shape: Shape | None = None) -> Node:
        """The node of a layer's parameter that begins with these values."""
        return self.walk.parameter(
            layer, slot, (given,), given.value.shape if shape is None else shape
        )

    def running(self, layer: str, mean: Constant, variance: Constant) -> Node:
        """Batchnorm's running statistics."""
        shape = (2, *mean.value.shape)
        return self.walk.parameter(layer, RUNNING[1:], (mean, variance), shape, "state")

    def layer_name(self, weight: Constant | None = None) -> str:
        """A name that nothing has yet: that of the module, or what the file calls the node."""
        return self.walk.layer_name(self.node, weight)

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

    def for_batch(self, shape: list[int]) -> list[int]:
        """A shape that the file has for its own batch, for the batch that is set."""
        if shape and shape[0] == self.walk.file_batch:
            return [self.walk.builder.data.shape[0], *shape[1:]]
        return shape

    def bias(self, number: int, size: int, axis: int) -> Constant | None:
        """This input, or a constant that an Add behind the node adds along `axis` to its output.

        The Add is then done: the tensor that the rule returns is the sum's. Zeros that the model
        computes are no bias: exporters put them where a layer has none.
        """
        found = self.weight(number) if self.has(number) else self.walk.added(self.node, size, axis)
        return None if found is None or (found.computed and not found.value.any()) else found

    def _value(self, number: int) -> Tensor | Constant:
        name = self.node.input(number)
        if not name:
            raise Unsupported(f"its input {number} is missing")
        if name not in self.walk.values:
            raise _Unknown
        return self.walk.values[name]


Rule = Callable[[At], Tensor]


class Walk:
    """`values` are the model's tensors so far, by their names in the file.

    `made` are values of parameters that are no initialisers of the file, by name. `file_batch` is
    the batch that sizes in the file are for.
    """

    def __init__(
        self, model: OnnxModel, builder: Builder, rules: Mapping[str, Rule], file_batch: int
    ) -> None:
        self.model = model
        self.builder = builder
        self.file_batch = file_batch
        self.values: dict[str, Tensor | Constant] = dict(initial_constants(model))
        self.values[model.input.name] = builder.data
        self.made: dict[str, Array] = {}
        self.unknown: set[str] = set()  # of these only the shape is known
        self.problems: dict[str, str] = {}
        self._rules = rules
        self._readers = Counter(name for node in model.nodes for name in node.inputs)
        self._parameters: dict[str, Node] = {}
        self._names = {"data", "label"}
        self._sums: dict[str, str] = {}  # outputs of layers with a bias that an Add behind adds

    def run(self) -> Tensor:
        """The model's output; BadInput lists every node that stands in the way."""
        for step in (self._constant, self._node):
            for node in self.model.nodes:
                if node.outputs[0] not in self.values:
                    step(node)
        if self.problems:
            listed = "".join(f"\n  {line}" for line in self.problems.values())
            count, total = len(self.problems), len(self.model.nodes)
            raise BadInput(
                f"{self.model.where}: {count} of {total} nodes cannot be trained here:{listed}"
            )
        found = self.values[self.model.output]
        if isinstance(found, Constant):
            raise BadInput(f"{self.model.where}: its output does not depend on its input")
        return found

    def _constant(self, node: OnnxNode) -> None:
        """First pass: what follows from constants alone."""
        inputs = [self.values.get(name) if name else None for name in node.inputs]
        missing = any(name and name not in self.values for name in node.inputs)
        if missing or any(isinstance(one, Tensor) for one in inputs) or "Random" in node.op:
            return
        try:
            self.values |= fold(
                self.model, node, [one for one in inputs if not isinstance(one, Tensor)]
            )
        except Exception as error:  # whatever the reference implementation has to say
            self._complain(
                node, f"it cannot be computed ({error}): simplify the model and export again"
            )

    def _node(self, node: OnnxNode) -> None:
        """Second pass: shapes are known, so what depends on them alone is constant too."""
        rule = self._rules.get(node.op)
        try:
            self._shape(node)
            self._constant(node)
            if {node.outputs[0]} & (self.values.keys() | self.problems.keys()):
                return
            if rule is None:
                raise Unsupported(
                    "there is no such operator here: leave it out of the model, or put it in front "
                    "of what is trained and export the rest"
                )
            made = rule(At(self, node))
            self.values[node.outputs[0]] = made
            if node.outputs[0] in self._sums:
                self.values[self._sums[node.outputs[0]]] = made
        except _Unknown:
            pass
        except Unsupported as problem:
            self._complain(node, str(problem))

    def _shape(self, node: OnnxNode) -> None:
        """What asks for no more of computed tensors than their shape or type."""
        x = self.values.get(node.inputs[-1]) if node.inputs else None
        if node.op == "Shape" and isinstance(x, Tensor):
            whole = np.array(x.shape, np.int64)
            part = whole[node.attributes.get("start", 0) : node.attributes.get("end")]
            self.values[node.outputs[0]] = computed(node.outputs[0], part)
        given = self.values.get(node.inputs[0]) if node.inputs else None
        if node.op == "CastLike" and isinstance(x, Tensor) and isinstance(given, Constant):
            self.values[node.outputs[0]] = computed(
                node.outputs[0], given.value.astype(self.model.input.dtype)
            )

    def _complain(self, node: OnnxNode, problem: str) -> None:
        self.problems.setdefault(node.outputs[0], f"{node.name} ({node.op}): {problem}")
        shapes = self.model.shapes
        # As something of its shape, so that problems behind it are found too.
        stand_ins = {name: shapes[name] for name in node.outputs if name in shapes}
        self.unknown |= stand_ins.keys()
        for name, shape in stand_ins.items():
            self.values[name] = Tensor(self.builder.data.name, shape)

    def parameter(
        self,
        layer: str,
        slot: str,
        given: tuple[Constant, ...],
        shape: Shape,
        role: Literal["parameter", "state"] = "parameter",
    ) -> Node:
        source = Source(
            tuple(name for one in given for name in one.source.names),
            given[0].source.shape,
            given[0].source.transposed,
        )
        if len({(one.source.shape, one.source.transposed) for one in given}) > 1:
            raise Unsupported("its running statistics differ in shape")
        start = source.start()
        if start not in self._parameters:
            name = source.names[0]
            if role == "state" or not _LEGAL.fullmatch(name) or name in self._names:
                name = f"{layer}.{slot}"
            self._names.add(name)
            self._parameters[start] = Node(name, shape, role=role, start=start)
            for one in given:
                if one.computed:
                    file = one.value.T if one.source.transposed else one.value
                    self.made[one.source.names[0]] = file
        found = self._parameters[start]
        if found.shape != shape:
            raise Unsupported(f"{source.names[0]} is used in two shapes: give each use its own")
        return found

    def layer_name(self, node: OnnxNode, weight: Constant | None) -> str:
        name = _ENDINGS.sub("", weight.source.names[0]) if weight else ""
        if not weight or name == weight.source.names[0]:
            name = module_name(node.name, node.op)
        return self.free_name(re.sub(r"[^\w.-]+", "_", name).strip("_.-") or node.op)

    def free_name(self, name: str) -> str:
        """The name, or with a number behind it if something has it."""
        free = (name if i == 1 else f"{name}_{i}" for i in range(1, len(self._names) + 2))
        name = next(one for one in free if one not in self._names)
        self._names.add(name)
        return name

    def added(self, node: OnnxNode, size: int, axis: int) -> Constant | None:
        output = node.outputs[0]
        after = next((one for one in self.model.nodes if output in one.inputs), None)
        if after is None or after.op != "Add" or self._readers[output] != 1:
            return None
        other = self.values.get(next((name for name in after.inputs if name != output), ""))
        if not isinstance(other, Constant) or output == self.model.output:
            return None
        shape = other.value.shape
        if len(shape) < -axis or shape[axis] != size or other.value.size != size:
            return None
        self._sums[output] = after.outputs[0]
        return other
