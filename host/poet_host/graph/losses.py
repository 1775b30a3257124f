"""Loss: the name of a loss function with its options, and how both are written as text."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from ..errors import BadInput
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
        return LOSSES[self.name][0]

    @property
    def layer_options(self) -> dict[str, Any]:
        """Return the options of the operator. The importer moves the axis of the classes."""
        return {key: value for key, value in self.options.items() if key != "axis"}

    def __str__(self) -> str:
        values = {
            key: ",".join(f"{v:g}" for v in (value if isinstance(value, tuple) else (value,)))
            for key, value in self.options.items()
        }
        return ":".join((self.name, *(f"{key}={text}" for key, text in values.items())))


def _positive(text: str) -> float:
    value = float(text)
    if not (isfinite(value) and value > 0):
        raise ValueError("it must be a number above 0")
    return value


_Options = Mapping[str, Callable[[str], Any]]
# The name of a loss -> its row in OPERATORS, and how to read its options.
LOSSES: Mapping[str, tuple[str, _Options]] = {
    "cross-entropy": ("softmax_xent", {"axis": int}),
    "mse": ("mse", {}),
    "bce": ("bce", {}),
    "l1": ("l1", {}),
    "huber": ("huber", {"delta": _positive}),
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


def loss_of(graph: Graph) -> Loss:
    """Return the loss of a training graph."""
    if graph.criterion:
        return parse_loss(graph.criterion)
    return Loss("mse" if graph[graph.loss].op == "mse" else "cross-entropy")
