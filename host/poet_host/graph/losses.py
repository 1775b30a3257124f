"""Loss: the name of a loss function with its options, and how both are written as text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from ..errors import BadInput, listed
from .graph import Graph


@dataclass(frozen=True)
class Loss:
    """A loss function that compares one output of a model with its labels.

    As text, it is NAME[:OPTION=VALUE]..., such as `huber:delta=0.5`.
    """

    name: str  # a key of LOSSES
    options: Mapping[str, Any] = field(default_factory=dict)  # numbers or tuples of numbers

    @property
    def row(self) -> str:
        """Return the name of the operator (operators.OPERATORS) that computes the loss."""
        weighted = {"cross-entropy": "weighted_xent", "bce": "weighted_bce"}
        return (self.layer_options and weighted.get(self.name)) or LOSSES[self.name][0]

    @property
    def layer_options(self) -> dict[str, Any]:
        """Return the options of the operator. The importer moves the axis of the classes."""
        return {key: value for key, value in self.options.items() if key != "axis"}

    def __str__(self) -> str:
        values = {
            key: ",".join(
                str(v) if isinstance(v, int) else f"{v:.9g}"
                for v in (value if isinstance(value, tuple) else (value,))
            )
            for key, value in self.options.items()
        }
        return ":".join((self.name, *(f"{key}={text}" for key, text in values.items())))


def _positive(text: str) -> float:
    value = float(text)
    if not (isfinite(value) and value > 0):
        raise ValueError("it must be a number above 0")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise ValueError("it must be a number from 0 to below 1")
    return value


def _weights(text: str) -> tuple[float, ...]:
    values = tuple(map(float, text.split(",")))
    if not all(0 <= value < 1e30 for value in values) or not any(values):
        raise ValueError("the weights must be numbers from 0, such as 1,2.5")
    return values


_Options = Mapping[str, Callable[[str], Any]]
# The name of a loss -> its row in OPERATORS, and how to read its options.
LOSSES: Mapping[str, tuple[str, _Options]] = {
    "cross-entropy": (
        "softmax_xent",
        {"axis": int, "class_weights": _weights, "label_smoothing": _share, "ignore_index": int},
    ),
    "mse": ("mse", {}),
    "bce": ("bce", {"pos_weight": _weights}),
    "l1": ("l1", {}),
    "huber": ("huber", {"delta": _positive}),
    "smooth-l1": ("smooth_l1", {"beta": _positive}),
}


def parse_loss(text: str) -> Loss:
    """Return the loss that `text` describes. Raises BadInput if there is no such loss or option."""
    name, *parts = text.split(":")
    if name not in LOSSES:
        raise BadInput(f"the loss {text!r} is unknown: set --loss to one of {', '.join(LOSSES)}")
    readers, options = LOSSES[name][1], {}
    for part in parts:
        key, _, value = part.partition("=")
        if key not in readers:
            known = ", ".join(readers) or "none"
            raise BadInput(f"the loss {name} has no option {key!r}: its options are: {known}")
        try:
            options[key] = readers[key](value)
        except ValueError as error:
            raise BadInput(f"the loss {name}: {key} is {value!r}: {error}") from error
    return Loss(name, options)


def parse_losses(text: str) -> dict[str, tuple[Loss, float]]:
    """Return the loss and its weight by name of output. The name "" is all outputs.

    `text` is a loss for all outputs, or several [NAME=]LOSS[:weight=NUMBER] with spaces between
    them. Raises BadInput if it is wrong.
    """
    found: dict[str, tuple[Loss, float]] = {}
    for word in text.split():
        name, is_named, loss = word.partition("=")
        if not is_named or ":" in name:
            name, loss = "", word
        if name in found:
            raise BadInput(f"the loss {word!r}: the output {name!r} has two losses: name one")
        loss, _, weight = loss.partition(":weight=")
        try:
            found[name] = parse_loss(loss), _positive(weight or "1")
        except ValueError as error:
            raise BadInput(f"the loss {word!r}: the weight is {weight!r}: {error}") from error
    return found


def loss_by_output(text: str, names: Sequence[str]) -> dict[str, tuple[Loss | None, float]]:
    """Return the loss and its weight for each output that is trained. None: the default loss.

    `text`: see `parse_losses`. If it names outputs, only these are trained. Raises BadInput if one
    is not in `names`, or if the loss of a single output has a weight.
    """
    found: dict[str, tuple[Loss | None, float]] = {**parse_losses(text)}
    common = found.pop("", (None, 1.0))
    for name in found:
        if name not in names:
            raise BadInput(
                f"the loss of the output {name!r}: the model has no such output: name one of "
                f"{listed(names)}"
            )
    found = found or dict.fromkeys(names, common)
    if len(found) == 1 and any(weight != 1 for _, weight in found.values()):
        raise BadInput(
            f"the loss {text!r}: weights divide training among several outputs, but this model has "
            "one: omit the weight, or multiply the learning rate by it"
        )
    return found


def loss_text(graph: Graph) -> str:
    """Return the losses of a training graph as text, as `loss_by_output` reads it."""
    weights = (f":weight={t.weight:g}" if t.weight != 1 else "" for t in graph.targets)
    texts = [f"{t.name}={t.criterion}{w}" for t, w in zip(graph.targets, weights, strict=True)]
    return " ".join(texts) or str(loss_of(graph))


def loss_of(graph: Graph) -> Loss:
    """Return the loss of a training graph with one output."""
    if graph.criterion:
        return parse_loss(graph.criterion)
    return Loss("mse" if graph[graph.loss].op == "mse" else "cross-entropy")
