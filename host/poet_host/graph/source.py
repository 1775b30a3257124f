"""Where a parameter's values come from, and how it is called and laid out in files.

Ours may differ from what people know: a linear weight is (outputs, inputs), also where a file
has (inputs, outputs), and batchnorm's running mean and variance are the rows of one tensor. A
node says by `start` where it begins; for a parameter of an imported model that is a Source as
text, so that it passes through schedules like every other start.
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
    """Tensors of a file, each of `shape`; several are the rows of one of ours.

    `transposed`: the file's axes are in reverse order. `computed`: no tensor of the file that
    people brought, but an output of one of its nodes.
    """

    names: tuple[str, ...]
    shape: tuple[Count, ...]
    transposed: bool = False
    computed: bool = False

    def transpose(self) -> "Source":
        """The source of the transpose."""
        return replace(self, transposed=not self.transposed)

    def start(self) -> str:
        """The `start` of a node that begins with these tensors of the model's file."""
        about: dict[str, Any] = {
            "names": self.names, "shape": self.shape, "transposed": self.transposed
        }  # fmt: skip
        about |= {"computed": True} if self.computed else {}
        return _MODEL + json.dumps(about, separators=(",", ":"))

    def ours(self, tensors: Sequence[Array], shape: tuple[int, ...]) -> Array:
        """The file's tensors as one of ours, of `shape`."""
        parts = [tensor.T if self.transposed else tensor for tensor in tensors]
        return np.stack(parts).reshape(shape)

    def theirs(self, value: Array) -> dict[str, Array]:
        """One of our tensors as those of the file, by name."""
        shape = self.shape[::-1] if self.transposed else self.shape
        parts = value.reshape((len(self.names), *shape))
        return {
            name: part.T if self.transposed else part
            for name, part in zip(self.names, parts, strict=True)
        }


def is_given(node: Node) -> bool:
    """Does the node begin with values of the model's file?"""
    return node.start.startswith(_MODEL)


def source_of(graph: Graph, node: Node) -> Source:
    """Names and layout of a parameter or state in files.

    A state of the optimiser, `fc.weight:momentum` in a graph, is `momentum:fc.weight` there.
    Raises BadInput if the node's name or `start` do not fit the graph.
    """
    where = f"graph {graph.name}, node {quoted(node.name)}"
    if ":" in node.name:
        name, *kinds = node.name.split(":")
        if len(kinds) != 1 or name not in graph.by_name:
            raise BadInput(f"{where}: it is a state of no tensor of the graph")
        return _prefixed(f"{kinds[0]}:", source_of(graph, graph[name]))
    source = Source((node.name,), node.shape)
    if is_given(node):
        about = parse_json(node.start.removeprefix(_MODEL), f"{where}, start")
        source = convert(about, Source, f"{where}, start")
    elif node.start == "running":
        base = node.name.removesuffix(RUNNING)
        source = Source((f"{base}.running_mean", f"{base}.running_var"), node.shape[1:])
    if len(source.names) * prod(source.shape) != prod(node.shape):
        raise BadInput(f"{where}: its start has not the numbers that its shape needs")
    return source


def _prefixed(prefix: str, source: Source) -> Source:
    return replace(source, names=tuple(prefix + name for name in source.names))
