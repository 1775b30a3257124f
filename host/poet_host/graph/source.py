"""Source: which tensors of a file hold the values of a parameter, and in which layout.

Names and layout in a file may differ from those in a graph. In a graph, a linear weight is
(outputs, inputs), even if the file has (inputs, outputs). The running mean and variance of a
batchnorm are the rows of one tensor. The field `start` of an imported parameter is a Source,
written as text. Schedules store this text like every other `start`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput, quoted
from ..files import parse_json
from ..schema import Count, convert
from .graph import Graph, Node

Array = NDArray[Any]

RUNNING = ".running"
_MODEL = "model:"


@dataclass(frozen=True)
class Source:
    """The place of a graph tensor in a file: one tensor with all values, or one for each row."""

    names: tuple[str, ...]
    shape: tuple[Count, ...]  # of each tensor in the file
    transposed: bool = False  # True if the file has the axes in reverse order
    computed: bool = False  # True if a node of the user's model computes the tensor
    rolled: Count = 0  # number of last rows in the file that come first in the graph

    def with_axes_reversed(self) -> "Source":
        """Return a source with the same file tensors, for a graph tensor with reversed axes."""
        return replace(self, transposed=not self.transposed)

    def start(self) -> str:
        """Return this source as text, for the field `start` of a node."""
        about: dict[str, Any] = {
            "names": self.names, "shape": self.shape, "transposed": self.transposed
        }  # fmt: skip
        about |= {"computed": True} if self.computed else {}
        about |= {"rolled": self.rolled} if self.rolled else {}
        return _MODEL + json.dumps(about, separators=(",", ":"))

    def ours(self, tensors: Sequence[Array], shape: tuple[int, ...]) -> Array:
        """Convert tensors of the file to one graph tensor of shape `shape`."""
        parts = [tensor.T if self.transposed else tensor for tensor in tensors]
        return np.roll(np.stack(parts).reshape(shape), self.rolled, axis=0)

    def theirs(self, value: Array) -> dict[str, Array]:
        """Convert a graph tensor to the tensors of the file, by name."""
        shape = self.shape[::-1] if self.transposed else self.shape
        parts = np.roll(value, -self.rolled, axis=0).reshape((len(self.names), *shape))
        return {
            name: part.T if self.transposed else part
            for name, part in zip(self.names, parts, strict=True)
        }


def is_given(node: Node) -> bool:
    """Return True if the first value of the node is in the model's file."""
    return node.start.startswith(_MODEL)


def source_of(graph: Graph, node: Node) -> Source:
    """Return the names and the layout that a parameter or state has in files.

    The optimiser state `fc.weight:momentum` of a graph has the name `momentum:fc.weight` in files.
    Raises BadInput if the node's name or `start` does not fit the graph.
    """
    where = f"graph {graph.name}, node {quoted(node.name)}"
    if ":" in node.name:
        name, *kinds = node.name.split(":")
        if len(kinds) != 1 or name not in graph.by_name:
            raise BadInput(
                f"{where}: the node is an optimiser state, but the graph has no node for its "
                "parameter"
            )
        source = source_of(graph, graph[name])
        return replace(source, names=tuple(f"{kinds[0]}:{name}" for name in source.names))
    source = Source((node.name,), node.shape)
    if is_given(node):
        about = parse_json(node.start.removeprefix(_MODEL), f"{where}, start")
        source = convert(about, Source, f"{where}, start")
    elif node.start == "running":
        base = node.name.removesuffix(RUNNING)
        source = Source((f"{base}.running_mean", f"{base}.running_var"), node.shape[1:])
    if len(source.names) * prod(source.shape) != prod(node.shape):
        raise BadInput(
            f"{where}: the number of start values differs from the number of elements of the node"
        )
    return source
