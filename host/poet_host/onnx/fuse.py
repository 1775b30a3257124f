"""Fuse functions that exporters write as several operators: gelu and layer normalisation.

The functions are recognised by their results. A cone is a set of nodes that compute one tensor from
one other tensor and constants. The cone is evaluated for a few inputs, and its results are compared
with the results of the function. So the order of the operators does not matter.
"""

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import replace
from itertools import permutations
from math import erf, erfc, pi, sqrt
from typing import Any

import numpy as np

from ..graph.rules import Shape
from ..graph.weights import Array
from .model import OnnxNode

Constants = Mapping[str, Array]

_LARGE = np.logspace(2, 30, 57)
_WIDE = np.concatenate([-_LARGE, np.linspace(-60, 60, 481), _LARGE])
_SCALES = (1.0, 1e4)  # of samples of a norm, next to that at which epsilon matters
_MAX_NODES = 20  # of a cone
_CURVES = {"Erf", "Erfc", "Tanh"}  # every gelu contains one of these operators
_NUMPY: dict[str, Callable[..., Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
    "Sqrt": np.sqrt,
    "Reciprocal": np.reciprocal,
    "Neg": np.negative,
    "Tanh": np.tanh,
    "Erf": np.vectorize(erf, otypes=[float]),
    "Erfc": np.vectorize(
        erfc, otypes=[float]
    ),  # ONNX has no operator Erfc, but Keras' exporter writes it
    "ReduceMean": lambda x: x.mean(-1, keepdims=True),
    "Softplus": lambda x: np.logaddexp(0, x),
    "Greater": np.greater,
    "Where": np.where,
}


def _gelu(x: Array) -> Array:
    return np.asarray(x / 2 * (1 + _NUMPY["Erf"](x / sqrt(2))))


def _gelu_tanh(x: Array) -> Array:
    return np.asarray(x / 2 * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))))


def fused(
    nodes: tuple[OnnxNode, ...],
    constants: Constants,
    shapes: Mapping[str, Shape],
    trained: Set[str],
) -> tuple[OnnxNode, ...]:
    """Return the nodes. If some nodes together compute a known function, fuse them.

    The last of these nodes becomes a Gelu or LayerNormalization. `shapes` are the known shapes of
    tensors, by name. `trained` are the constants that training may change. The results are compared
    for their first values only, so a function without one of them does not replace its readers.
    """
    nodes = tuple(_over_the_last(node, constants, shapes) for node in nodes)
    makers = {name: node for node in nodes for name in node.outputs}
    nodes = tuple(_unguarded(node, makers, constants, trained) for node in nodes)
    found: dict[str, OnnxNode] = {}
    inside: set[str] = set()
    for node in reversed(nodes):
        output = node.outputs[0]
        if output in inside or not _usable(node, constants):
            continue
        for made, within in _matches(output, _cone(output, makers, constants), constants):
            if trained.isdisjoint(_swallowed(made, within)):
                found[output] = made
                inside |= {name for fused_node in within for name in fused_node.outputs}
                break
    return tuple(found.get(node.outputs[0], node) for node in nodes)


def _swallowed(made: OnnxNode, within: list[OnnxNode]) -> set[str]:
    """Return what the fused nodes read and the node in their place does not."""
    return {name for node in within for name in node.inputs} - {*made.inputs}


def _unguarded(
    node: OnnxNode, makers: Mapping[str, OnnxNode], constants: Constants, trained: Set[str]
) -> OnnxNode:
    """Return the node. If it is a Where that changes nothing, it becomes its last input.

    PyTorch's softplus has such a Where, against an overflow.
    """
    output, cone = node.outputs[0], {}
    made = replace(node, op="Identity", inputs=node.inputs[2:])
    if node.op == "Where":
        cone = _cone(output, makers, constants)
    for source in _sources(cone, constants):
        needed = _between(source, output, cone, constants)
        if any(node.inputs[2] in other.outputs for other in needed) and trained.isdisjoint(
            _swallowed(made, needed)
        ):
            whole, plain = (
                _evaluated(source, _WIDE, name, needed, constants)
                for name in (output, node.inputs[2])
            )
            if _same(whole, plain):
                return made
    return node


def _sources(cone: Mapping[str, OnnxNode], constants: Constants) -> list[str]:
    read = {name for node in cone.values() for name in node.inputs}
    return sorted(name for name in read if name and name not in constants)


def _over_the_last(node: OnnxNode, constants: Constants, shapes: Mapping[str, Shape]) -> OnnxNode:
    """Return the node. If it is a ReduceMean over the last axis alone, its axes become [-1]."""
    rank, axes = len(shapes.get(node.input(0), ())), _axes(node, constants)
    if node.op != "ReduceMean" or not rank or axes != [rank - 1]:
        return node
    return replace(node, inputs=node.inputs[:1], attributes={**node.attributes, "axes": [-1]})


def _axes(node: OnnxNode, constants: Constants) -> list[int] | None:
    axes: list[int] | None = node.attributes.get("axes")
    if axes is None and node.input(1) in constants:
        axes = constants[node.input(1)].tolist()
    return axes


def _usable(node: OnnxNode, constants: Constants) -> bool:
    """Return True if a fused function can contain this node."""
    if node.op != "ReduceMean":
        return node.op in _NUMPY
    return _axes(node, constants) == [-1] and node.attributes.get("keepdims", 1) == 1


def _cone(output: str, makers: Mapping[str, OnnxNode], constants: Constants) -> dict[str, OnnxNode]:
    """Return the usable nodes that `output` depends on, by the names of their outputs.

    If there are more than _MAX_NODES, return only those nearest to `output`.
    """
    cone: dict[str, OnnxNode] = {}
    waiting = [output]
    while waiting and len(cone) < _MAX_NODES:
        name = waiting.pop(0)
        node = makers.get(name)
        if node is not None and name not in cone and _usable(node, constants):
            cone[name] = node
            waiting += node.inputs
    return cone


def _matches(
    output: str, cone: Mapping[str, OnnxNode], constants: Constants
) -> Iterator[tuple[OnnxNode, list[OnnxNode]]]:
    """Yield each Gelu or LayerNormalization that computes `output`, and the nodes it replaces."""
    ops = [node.op for node in cone.values()]
    attributes: dict[str, Any]
    if _CURVES.isdisjoint(ops) and ops.count("ReduceMean") < 2:
        return
    for source in _sources(cone, constants):
        needed = _between(source, output, cone, constants)
        if not needed:
            continue
        ops = [node.op for node in needed]
        if not _CURVES.isdisjoint(ops):
            answer = _evaluated(source, _WIDE, output, needed, constants)
            for approximate, function in (("none", _gelu), ("tanh", _gelu_tanh)):
                if _same(answer, function(_WIDE)):
                    attributes = {"approximate": approximate}
                    made = replace(cone[output], op="Gelu", inputs=(source,), attributes=attributes)
                    yield made, needed
        if ops.count("ReduceMean") > 1:
            normed = _normed(source, output, needed, constants)
            if normed:
                attributes = {"axis": -1, "epsilon": normed[2]}
                inputs = (source, normed[0], normed[1])
                made = replace(
                    cone[output], op="LayerNormalization", inputs=inputs, attributes=attributes
                )
                yield made, needed


def _between(
    source: str, output: str, cone: Mapping[str, OnnxNode], constants: Constants
) -> list[OnnxNode]:
    """Return the nodes that compute `output` from `source`, in the order of computation.

    Return an empty list if `output` depends on any other tensor that is not a constant.
    """
    ordered: list[OnnxNode] = []
    done = {source}

    def visit(name: str) -> bool:
        if name in done or name in constants or not name:
            return True
        node = cone.get(name)
        if node is None or not all(visit(needed) for needed in node.inputs):
            return False
        done.add(name)
        ordered.append(node)
        return True

    return ordered if visit(output) else []


def _evaluated(
    source: str, x: Array, output: str, nodes: list[OnnxNode], constants: Constants
) -> Array:
    values = {source: x}
    with np.errstate(all="ignore"):
        for node in nodes:
            names = node.inputs[:1] if node.op == "ReduceMean" else node.inputs
            try:
                values[node.outputs[0]] = _NUMPY[node.op](
                    *(values.get(n, constants.get(n)) for n in names)
                )
            except (ValueError, TypeError):  # shapes that do not fit
                return np.full(x.shape, np.nan)
    return values[output]


def _normed(
    source: str, output: str, nodes: list[OnnxNode], constants: Constants
) -> tuple[str, str, float] | None:
    """Return (name of the weight, name of the bias, epsilon) of a layer normalisation.

    The name of a missing weight or bias is "". Return None if the nodes compute another function.
    """
    names = dict.fromkeys(n for node in nodes if node.op != "ReduceMean" for n in node.inputs)
    known = {name: constants[name] for name in names if name in constants}
    vectors = [name for name, value in known.items() if value.size > 1 and value.ndim]
    small = [float(v.reshape(-1)[0]) for v in known.values() if v.size == 1 and 0 < v.max() < 0.1]
    sizes = {known[name].shape[-1] for name in vectors} or {8}
    is_along_last = all(known[name].size == known[name].shape[-1] for name in vectors)
    if len(sizes) > 1 or len(vectors) > 2 or not small or not is_along_last:
        return None
    rng = np.random.default_rng(0)
    # Ones and zeros, with which a training begins, do not show where they are used.
    known |= {name: rng.standard_normal(known[name].shape) for name in vectors}
    rows = np.concatenate(
        [rng.standard_normal((3, size := sizes.pop())), np.eye(size)[:4], -np.eye(size)[:4]]
    )
    for epsilon in small:
        # At its root, it matters where epsilon is added; in rows with one number, limits do.
        x = np.concatenate([rows * scale for scale in (sqrt(epsilon), *_SCALES)])
        answer = _evaluated(source, x, output, nodes, {**constants, **known})
        whole = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)
        for weight, bias in permutations((*vectors, "", "")[:2]):  # "" is a missing one
            expected = whole * (known[weight] if weight else 1) + (known[bias] if bias else 0)
            if _same(answer, expected):
                return weight, bias, epsilon
    return None


def _same(a: Array, b: Array) -> bool:
    return a.shape == b.shape and bool(np.allclose(a, b, rtol=1e-4, atol=1e-5))
