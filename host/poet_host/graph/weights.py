"""Weights: where parameters and optimiser state start, and their names in files.

In a graph, batchnorm's running statistics are one tensor `bn1.running` (2, C); files have
`bn1.running_mean` and `bn1.running_var`, as PyTorch names them. Momentum, `fc.weight:momentum`
in a graph, is `momentum:fc.weight` in files.
"""

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput
from .autodiff import MOMENTUM
from .graph import Graph, Node

Array = NDArray[np.float32]

_PREFIX = "momentum:"
_RUNNING = ".running"
_COUNTER = ".num_batches_tracked"  # PyTorch's batchnorm saves it; nothing here needs it


def weight_nodes(graph: Graph) -> tuple[Node, ...]:
    """The stored nodes that are not data: parameters and state."""
    return tuple(node for node in graph if node.role in ("parameter", "state"))


def start_values(graph: Graph, seed: int) -> dict[str, Array]:
    """What every parameter and state starts with, by node name.

    A tensor's values follow from (seed, its name) alone.
    """
    return {node.name: _start(graph, node, seed) for node in weight_nodes(graph)}


def _start(graph: Graph, node: Node, seed: int) -> Array:
    kind, _, argument = node.start.partition(":")
    if kind == "kaiming" and argument.isdecimal() and int(argument) > 0:
        rng = np.random.default_rng([seed, zlib.crc32(node.name.encode())])
        bound = np.float32(1 / np.sqrt(float(argument)))
        return (2 * rng.random(node.shape, dtype=np.float32) - 1) * bound
    if kind == "running":
        rows = np.zeros(node.shape, dtype=np.float32)
        rows[1] = 1
        return rows
    if kind in ("zeros", "ones"):
        return np.full(node.shape, kind == "ones", dtype=np.float32)
    raise BadInput(f"graph {graph.name}, node {node.name}: there is no start {node.start!r}")


def to_named(graph: Graph, values: Mapping[str, NDArray[Any]]) -> dict[str, Array]:
    """Values by node name -> by name in a file, checked against the graph.

    Raises BadInput for a tensor that is missing, of another shape, or not finite.
    """
    named: dict[str, Array] = {}
    for node in weight_nodes(graph):
        if node.name not in values:
            raise BadInput(f"weights of {graph.name}: {node.name} is missing")
        rows = np.asarray(values[node.name])
        if rows.shape != node.shape:
            raise BadInput(_wrong_shape(graph, node.name, rows.shape, node.shape))
        names = _file_names(node)
        parts = [rows] if len(names) == 1 else list(rows)
        for name, part in zip(names, parts, strict=True):
            named[name] = _finite(graph, name, part)
    return named


def from_named(graph: Graph, named: Mapping[str, NDArray[Any]]) -> dict[str, Array]:
    """Values by name in a file -> by node name, for all parameters and state of the graph.

    A file without any momentum starts it at zero, and momentum that this graph does not have
    is left aside, so that weights pass between training with and without it. Raises BadInput
    for a tensor that is missing, unknown, of another shape or type, or not finite.
    """
    nodes = weight_nodes(graph)
    known = {name for node in nodes for name in _file_names(node)}
    extra = sorted(
        name
        for name in named.keys() - known
        if not name.startswith(_PREFIX) and not name.endswith(_COUNTER)
    )
    if extra:
        raise BadInput(
            f"weights: {graph.name} has no {_some(extra)}; it has {_some(sorted(known))}"
        )
    has_momentum = any(name.startswith(_PREFIX) for name in named.keys() & known)
    missing = sorted(
        name for name in known - named.keys() if has_momentum or not name.startswith(_PREFIX)
    )
    if missing:
        raise BadInput(f"weights: {_some(missing)} of {graph.name} missing from the file")
    values: dict[str, Array] = {}
    for node in nodes:
        names = _file_names(node)
        shape = node.shape if len(names) == 1 else node.shape[1:]
        parts = [_part(graph, name, named, shape) for name in names]
        values[node.name] = parts[0] if len(parts) == 1 else np.stack(parts)
    return values


def _part(
    graph: Graph, name: str, named: Mapping[str, NDArray[Any]], shape: tuple[int, ...]
) -> Array:
    if name not in named:
        return np.zeros(shape, dtype=np.float32)
    part = np.asarray(named[name])
    if part.shape != shape:
        raise BadInput(_wrong_shape(graph, name, part.shape, shape))
    if part.dtype.kind != "f":
        raise BadInput(f"weights: {name} of {graph.name} holds {part.dtype}, it must be float32")
    return _finite(graph, name, part)


def _file_names(node: Node) -> tuple[str, ...]:
    if node.start == "running":
        base = node.name.removesuffix(_RUNNING)
        return (f"{base}.running_mean", f"{base}.running_var")
    if node.name.endswith(MOMENTUM):
        return (_PREFIX + node.name.removesuffix(MOMENTUM),)
    return (node.name,)


def _finite(graph: Graph, name: str, part: NDArray[Any]) -> Array:
    with np.errstate(over="ignore"):
        array: Array = np.ascontiguousarray(part, dtype=np.float32)
    if not np.isfinite(array).all():
        raise BadInput(f"weights: {name} of {graph.name} holds NaN or infinity")
    return array


def _wrong_shape(graph: Graph, name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    return f"weights: {name} has shape {found}, {graph.name} needs {wanted}"


def _some(names: list[str]) -> str:
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
