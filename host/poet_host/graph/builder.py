"""Builder: makes forward models, layer by layer.

    b = Builder("small", data=(4, 1, 8, 8))
    x = b.relu(b.conv2d(b.data, 8, 3, padding=1, name="conv1"))
    model = b.model(b.softmax_xent(b.linear(b.flatten(x), 10, name="fc")))

Builder has a method for each operator in operators.OPERATORS, such as `relu`. The options of the
method are those of the operator's function `spec`.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from typing import Literal

from ..errors import BadInput
from .graph import Node, Part, Target
from .losses import Loss
from .operators import OPERATORS
from .rules import Fields, Operator, Shape, Spec

_NAME = re.compile(r"\w[\w.-]*")  # no colon, which autodiff uses in its names


@dataclass(frozen=True)
class Tensor:
    """The data of a model, or the output of one of its layers."""

    name: str  # name of the node that computes the tensor
    shape: Shape  # may differ from the shape of the node, because a reshape adds no node


@dataclass(frozen=True)
class Layer:
    """One operator of a model."""

    name: str
    kind: str  # its row in OPERATORS
    inputs: tuple[Tensor, ...]
    shape: Shape  # of the output
    fields: Fields
    parameters: Mapping[str, Node]  # name in this layer ("weight", "bias", ...) -> stored node
    criterion: str = ""  # of a loss: see Spec
    weight: float = 1.0  # of a loss: its factor in the sum of several losses

    @property
    def is_parameter(self) -> bool:
        """Return True if the output of the layer is a stored tensor, which no kernel computes."""
        return not OPERATORS[self.kind].forward

    @property
    def output(self) -> str:
        """Return the name of the node that has the output of the layer."""
        return self.parameters["weight"].name if self.is_parameter else self.name

    @property
    def differentiable(self) -> list[str]:
        """Return the names of the operands for which the layer can compute a gradient."""
        row = OPERATORS[self.kind]
        made = {rule.makes for rule in row.backward}
        operands = [
            *zip(row.inputs, (tensor.name for tensor in self.inputs), strict=True),
            *((slot, node.name) for slot, node in self.parameters.items()),
        ]
        return [name for slot, name in operands if slot in made]


@dataclass(frozen=True)
class Model:
    """A forward model. The last layer is the loss. `origin` is the file of an imported model."""

    name: str
    data: Node
    label: Node
    layers: tuple[Layer, ...]
    origin: bytes = b""
    inputs: tuple[Part, ...] = ()  # see Graph
    targets: tuple[Target, ...] = ()

    @property
    def logits(self) -> str:
        """Return the name of the node from which the loss, or the first loss, is computed."""
        return self.targets[0].output if self.targets else self.layers[-1].inputs[0].name

    @property
    def layers_with_gradient(self) -> tuple[Layer, ...]:
        """Return all layers but those that add several losses."""
        losses = [i for i, layer in enumerate(self.layers) if OPERATORS[layer.kind].is_loss]
        first = {layer.name for layer in self.layers[: losses[0]]} | {"label"}
        return tuple(
            layer
            for layer in self.layers
            if layer.name in first or any(x.name in first for x in layer.inputs)
        )

    @property
    def parameters(self) -> tuple[Node, ...]:
        """Return parameters and running statistics in layer order, without duplicates."""
        return tuple(
            {p.name: p for layer in self.layers for p in layer.parameters.values()}.values()
        )


class Builder:
    """Collects the layers of a model.

    Raises BadInput for a wrong layer. The message has the layer's name and its input shapes.
    """

    def __init__(
        self, name: str, data: Shape, dtype: Literal["float32", "int32"] = "float32"
    ) -> None:
        """Start a model. `data` is the shape of one batch, with the number of samples first.

        `dtype` is int32 if the data are tokens.
        """
        if len(data) not in (2, 3, 4) or not all(isinstance(d, int) and d > 0 for d in data):
            raise BadInput(
                f"model {name}: the data has shape {data}. All sizes must be 1 or more. The shape "
                "must be (batch, features), (batch, length, features), (batch, channels, length) "
                "or (batch, channels, height, width)"
            )
        self._name = name
        self._data = Node("data", data, role="data", dtype=dtype)
        self._label: Node | None = None
        self._layers: list[Layer] = []
        self._sizes = {"data": prod(data), "label": 0}  # numbers of elements, by name
        self._tokens = {"data"} if dtype == "int32" else set()  # names of int32 tensors
        self._inputs: tuple[Part, ...] = ()
        self._targets: list[Target] = []
        self.data = Tensor("data", data)

    def __getattr__(self, kind: str) -> Callable[..., Tensor]:
        if kind not in OPERATORS:
            raise AttributeError(_no_operator(kind))

        def method(*inputs_and_options: object, **options: object) -> Tensor:
            count = len(OPERATORS[kind].inputs) - OPERATORS[kind].is_loss
            inputs, positional = inputs_and_options[:count], inputs_and_options[count:]
            return self.layer(kind, inputs, *positional, **options)  # type: ignore[arg-type]

        return method

    def layer(
        self,
        kind: str,
        inputs: tuple[Tensor, ...],
        *positional: object,
        name: str | None = None,
        parameters: Mapping[str, Node] | None = None,
        label: Tensor | None = None,
        **options: object,
    ) -> Tensor:
        """Add an operator and return its output.

        `parameters` maps the names of parameters, such as "weight", to nodes. The layer uses these
        nodes instead of new ones. Other layers may use the same nodes.
        """
        if kind not in OPERATORS:
            raise BadInput(f"model {self._name}: {_no_operator(kind)}")
        name = name or self._free_name(kind)
        where = f"model {self._name}, layer {name} ({kind} of {_shapes(inputs)})"
        row = OPERATORS[kind]
        if not _NAME.fullmatch(name) or name in self._sizes:
            legal = "must have only letters, digits, _ . -, and not begin with . or -"
            problem = "is used already" if name in self._sizes else legal
            raise BadInput(f"{where}: the name of the layer {problem}")
        self._check_inputs(where, row, inputs)
        if kind == "dropout":
            options.setdefault("key", sum(layer.kind == "dropout" for layer in self._layers))
        try:
            spec = row.spec(*(tensor.shape for tensor in inputs), *positional, **options)
        except (ValueError, TypeError) as error:
            raise BadInput(f"{where}: {error}") from error
        if not row.forward and inputs:
            return Tensor(inputs[0].name, spec.shape)
        nodes = {
            slot: Node(f"{name}.{slot}", p.shape, role=p.role, start=p.start)
            for slot, p in spec.parameters.items()
        }
        for slot, given in (parameters or {}).items():
            own = nodes.get(slot)
            if own is None or own.shape != given.shape:
                needs = f": it must have the shape {own.shape}" if own else ""
                raise BadInput(
                    f"{where}: the node {given.name} of shape {given.shape} cannot be the "
                    f"parameter `{slot}` of this layer{needs}"
                )
            nodes[slot] = self._new_or_same(where, given)
        for node in (*nodes.values(), Node(name, spec.shape)):
            if prod(node.shape) * 4 >= 2**32:
                raise BadInput(f"{where}: {node.name} of shape {node.shape} is larger than 4 GiB")
        if spec.label:
            inputs = (*inputs, label or self._new_label(where, spec))
        self._sizes |= {it.name: prod(it.shape) for it in (Node(name, spec.shape), *nodes.values())}
        self._tokens |= {node.name for node in nodes.values() if node.dtype == "int32"}
        self._layers.append(
            Layer(name, kind, inputs, spec.shape, spec.fields, nodes, spec.criterion)
        )
        return Tensor(self._layers[-1].output, spec.shape)

    def take_inputs(self, parts: tuple[Part, ...]) -> list[Tensor]:
        """Return the tensors of several inputs, which lie one after the other in each row of data.

        Each element takes 4 bytes. Integers keep their bits in rows of float32.
        """
        found, begin, batch = [], 0, self.data.shape[0]
        for part in parts:
            end = begin + prod(part.shape)
            taken = self.layer("slice", (self.data,), 1, begin, end, name=part.name)
            self._tokens |= {part.name} if part.dtype == "int32" else set()
            found.append(Tensor(taken.name, (batch, *part.shape)))
            begin = end
        self._inputs = parts
        return found

    def total_loss(self, losses: Mapping[str, tuple[Tensor, Loss, float]], name: str) -> Tensor:
        """Return the weighted sum of several losses. `losses`: by name (output, loss, weight).

        The labels of all outputs lie one after the other in each row. `name` is that of the sum.
        """
        for key, (x, loss, weight) in losses.items():
            try:
                spec = OPERATORS[loss.row].spec(x.shape, **loss.layer_options)
            except ValueError as error:
                raise BadInput(f"model {self._name}, output {key} of {x.shape}: {error}") from error
            assert spec.label
            shape, dtype = spec.label
            limit = x.shape[-1] if dtype == "int32" else Part.limit
            criterion = spec.criterion or loss.name
            self._targets.append(Target(key, shape[1:], dtype, limit, x.name, criterion, weight))
        batch, sizes = self.data.shape[0], [prod(part.shape) for part in self._targets]
        self._label = Node("label", (batch, sum(sizes)), role="data")
        self._sizes["label"] = batch * sum(sizes)
        row, sums = Tensor("label", self._label.shape), list[Tensor]()
        ends = accumulate(sizes)
        for part, (x, loss, weight), end in zip(self._targets, losses.values(), ends, strict=True):
            own = f"{name}.{part.name}"
            begin, shape = end - prod(part.shape), (batch, *part.shape)
            label = self.layer("slice", (row,), 1, begin, end, name=f"{own}.label")
            label = Tensor(label.name, shape)
            term = self.layer(loss.row, (x,), name=own, label=label, **loss.layer_options)
            self._layers[-1] = replace(self._layers[-1], weight=weight)
            if weight != 1:
                term = self.layer("scale", (term,), weight, name=f"{own}.weighted")
            is_last = part is self._targets[-1]
            both = (*sums[-1:], term)
            sums.append(
                self.layer("add", both, name=name if is_last else f"{own}.sum") if sums else term
            )
        return sums[-1]

    def drop_unused(self, outputs: Collection[str]) -> None:
        """Remove the layers that neither another layer nor one of `outputs` needs."""
        used, kept = {*outputs}, list[Layer]()
        for layer in reversed(self._layers):
            if layer.output in used:
                used |= {tensor.name for tensor in layer.inputs}
                kept.append(layer)
        self._layers = kept[::-1]

    def model(self, loss: Tensor) -> Model:
        """Return the finished model. Raises BadInput if the output of a layer is not used."""
        if not self._layers or self._layers[-1].name != loss.name or self._label is None:
            raise BadInput(
                f"model {self._name}: the last layer must be a loss. Pass the output of this loss "
                "to `Builder.model`"
            )
        used = {tensor.name for layer in self._layers for tensor in layer.inputs} | {loss.name}
        for name in ("data", *(layer.output for layer in self._layers)):
            if name not in used:
                raise BadInput(f"model {self._name}: no layer uses {name}: use or remove it")
        rows = {
            layer.inputs[0].name: int(layer.fields["k"])
            for layer in self._layers
            if "x" in OPERATORS[layer.kind].tokens
        }
        inputs = tuple(
            replace(part, limit=rows.get(part.name, part.limit)) for part in self._inputs
        )
        return Model(
            self._name,
            self._data,
            self._label,
            tuple(self._layers),
            inputs=inputs,
            targets=tuple(self._targets),
        )

    def _check_inputs(self, where: str, row: Operator, inputs: tuple[Tensor, ...]) -> None:
        for tensor in inputs:
            if not isinstance(tensor, Tensor) or tensor.name not in self._sizes:
                raise BadInput(f"{where}: the input {tensor!r} is not a tensor of this model")
            if prod(tensor.shape) != (size := self._sizes[tensor.name]):
                raise BadInput(
                    f"{where}: {tensor.name} has {size:,} elements, so its shape cannot be "
                    f"{tensor.shape}: use a shape of as many"
                )
        if not row.forward:
            return  # a layer that only changes the shape accepts any type
        for slot, tensor in zip(row.inputs, inputs, strict=False):
            if (tensor.name in self._tokens) != (slot in row.tokens):
                needs = "tokens (int32 data)" if slot in row.tokens else "float32"
                raise BadInput(
                    f"{where}: the input `{slot}` must be {needs}, but {tensor.name} is not"
                )

    def _free_name(self, kind: str) -> str:
        taken = (f"{kind}{i}" for i in range(1, len(self._sizes) + 2))
        return next(name for name in taken if name not in self._sizes)

    def _new_or_same(self, where: str, given: Node) -> Node:
        nodes = (node for layer in self._layers for node in layer.parameters.values())
        same = next((node for node in nodes if node.name == given.name), None)
        if same != given if same else given.name in self._sizes:
            raise BadInput(
                f"{where}: the parameter {given.name} has the name of another node: rename one of "
                "them"
            )
        return given

    def _new_label(self, where: str, spec: Spec) -> Tensor:
        assert spec.label is not None
        if self._label is not None:
            raise BadInput(f"{where}: the model has a loss already: remove one of them")
        shape, dtype = spec.label
        self._label = Node("label", shape, role="data", dtype=dtype)
        return Tensor("label", shape)


def _shapes(inputs: tuple[Tensor, ...]) -> str:
    return " and ".join(str(getattr(tensor, "shape", tensor)) for tensor in inputs)


def _no_operator(kind: str) -> str:
    return f"there is no operator {kind}; the operators are {', '.join(OPERATORS)}"
