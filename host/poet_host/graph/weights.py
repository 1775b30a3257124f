"""Weights: first values of parameters and optimiser state, and their names in files.

Files have the names and shapes of PyTorch or of the user's model. source.py converts them.
"""

import warnings
import zlib
from collections.abc import Collection, Mapping
from contextlib import suppress

import numpy as np

from ..errors import BadInput, PoetWarning, listed, quoted
from .autodiff import ACCUMULATED, ANCHOR, AVERAGE, MOMENTUM, SQUARE
from .graph import Graph, Node
from .lora import added
from .onnx_file import initial_values
from .source import Array as Array, Source, is_given, source_of

Weights = Mapping[str, Array]

# Prefixes of the names of optimiser states in files.
_STATES = tuple(f"{state[1:]}:" for state in (MOMENTUM, AVERAGE, SQUARE, ACCUMULATED))
_VALUES = "values:"
_COUNTER = ".num_batches_tracked"  # a tensor of PyTorch's batchnorm that is not used here


def weight_nodes(graph: Graph) -> tuple[Node, ...]:
    """Return the stored nodes that are not data: parameters and states."""
    return tuple(node for node in graph if node.role in ("parameter", "state"))


def is_constant(graph: Graph, node: Node) -> bool:
    """Return True for a state that never changes. Files of weights do not contain such a state."""
    if node.role != "state":
        return False
    plain = (
        node.start in ("zeros", "ones")
        or node.start.startswith(_VALUES)
        or source_of(graph, node).computed
    )
    return plain and not any(other.updates == node.name for other in graph)


def start_values(graph: Graph, seed: int) -> dict[str, Array]:
    """Return the first value of every parameter and state, by node name.

    The values of an imported model are in its .onnx file. All other values depend only on `seed`
    and the node's name.
    """
    return _starts(graph, weight_nodes(graph), seed)


def constants_of(graph: Graph) -> list[Node]:
    """Return the states that every training of the graph has, such as the weights of classes."""
    constants = (node for node in weight_nodes(graph) if is_constant(graph, node))
    return [node for node in constants if not node.name.endswith(ANCHOR)]


def constant_values(graph: Graph) -> dict[str, Array]:
    """Return the values of `constants_of`, by node name."""
    return _starts(graph, constants_of(graph), 0)


def given_values(graph: Graph) -> dict[str, Array]:
    """Return the first values in the .onnx file of an imported model, by node name."""
    return _starts(graph, [node for node in weight_nodes(graph) if is_given(node)], 0)


def starting_values(
    graph: Graph, seed: int, weights: Weights | None, *, is_new: bool = False
) -> Mapping[str, Array]:
    """Return the first values of all parameters and states: `weights`, and new values for the rest.

    Constants in `weights` are ignored: they may be those of another loss. If `is_new` is True, a
    new run begins: states of the optimiser are ignored, too. New anchors have the first values of
    their parameters.
    Raises BadInput as `check_starting_values` does.
    """
    _check_weights(graph, weights)
    constants = {node.name for node in constants_of(graph)}
    given = {
        name: np.ascontiguousarray(array, dtype=np.float32)
        for name, array in (weights or {}).items()
        if name not in constants
        if not (is_new and ":" in name)
    }
    return {**_anchored({**start_values(graph, seed), **given}), **given}


def _anchored(values: dict[str, Array]) -> dict[str, Array]:
    """Return `values`, in which the anchors of all parameters in `values` are these parameters."""
    plain = {name: it for name, it in values.items() if not name.endswith(ANCHOR)}
    anchors = {name: name.removesuffix(ANCHOR) for name in values.keys() - plain.keys()}
    return plain | {name: plain[of] for name, of in anchors.items() if of in plain}


def check_starting_values(graph: Graph, weights: Weights | None) -> None:
    """Raise BadInput for a wrong name or shape in `weights`, or a number that is not finite.

    Raises BadInput, too, if the model's .onnx file lacks first values.
    """
    given_values(graph)
    _check_weights(graph, weights)


def check_continued(graph: Graph, weights: Weights, step: int) -> None:
    """Raise BadInput if a run cannot go on after `step` from `weights`, which it has trained.

    Files do not hold the starting weights of `--proximal`. Issue a PoetWarning if Adam's averages
    are missing, whose correction is that of `step`.
    """
    if step < graph.batches_per_update:  # no weight has changed
        return
    ends = [name for name in weights if name.endswith(ANCHOR)]
    if ends and all(
        np.array_equal(weights[name], weights.get(name.removesuffix(ANCHOR), ())) for name in ends
    ):
        raise BadInput(
            f"{graph.name} is pulled to its starting weights (--proximal), which files do not "
            "hold: resume from the card, or begin a new run: omit --resume (in Python, "
            "`first_step`)"
        )
    averages = [node.updates for node in graph if node.op == "average" and node.updates]
    if averages and not any(np.any(weights.get(name, 0)) for name in averages):
        warnings.warn(
            f"the weights were trained for {step:,} steps, but hold no state of the optimiser, so "
            "the first steps are too large: to begin a new run, omit --resume (in Python, "
            "`first_step`)",
            PoetWarning,
            stacklevel=2,
        )


def _check_weights(graph: Graph, weights: Weights | None) -> None:
    shapes = {node.name: node.shape for node in weight_nodes(graph)}
    for name, array in (weights or {}).items():
        if name not in shapes:
            raise BadInput(
                f"weights: {graph.name} has no parameter {name}. The parameters of the model are "
                f"{listed(list(shapes))}"
            )
        _check_shape(graph, name, array, shapes[name])
        _finite(graph.name, name, array)


def _starts(graph: Graph, nodes: Collection[Node], seed: int) -> dict[str, Array]:
    given = initial_values(graph.origin) if any(is_given(node) for node in nodes) else {}
    return {
        node.name: _given(graph, node, given) if is_given(node) else _start(graph, node, seed)
        for node in nodes
    }


def _given(graph: Graph, node: Node, given: Mapping[str, Array]) -> Array:
    source = source_of(graph, node)
    missing = [name for name in source.names if name not in given]
    if missing:
        raise BadInput(
            f"graph {graph.name}, node {node.name}: the .onnx file of the model has no tensor "
            f"{missing[0]}: solve again"
        )
    tensors = [given[name] for name in source.names]
    for tensor in tensors:
        _check_shape(graph, node.name, tensor, source.shape)
    value: Array = np.ascontiguousarray(source.ours(tensors, node.shape), dtype=np.float32)
    return value


def check_starts(graph: Graph) -> None:
    """Raise BadInput if the `start` of a node is invalid. The message names the node."""
    for node in weight_nodes(graph):
        source_of(graph, node)
        if not is_given(node) and _listed_values(node) is None:
            _kind_and_size(graph, node)


def _kind_and_size(graph: Graph, node: Node) -> tuple[str, float]:
    """Split `start`: "normal:0.02" gives ("normal", 0.02), "zeros" gives ("zeros", 0)."""
    kind, _, argument = node.start.partition(":")
    with suppress(ValueError):
        size = float(argument or 0)
        plain = kind in ("zeros", "ones", "running") and not argument
        if (
            plain
            or (kind == "kaiming" and 1 <= size < 2**53)
            or (kind == "normal" and 0 <= size < 1e30)
        ):
            return kind, size
    raise BadInput(
        f"graph {graph.name}, node {node.name}: `start` is {quoted(node.start)}, but must be "
        "zeros, ones, running, normal:DEVIATION, kaiming:FAN_IN or values:NUMBER,..."
    )


def _listed_values(node: Node) -> Array | None:
    """Return the values that `start` lists; None if it lists none, or other than the node has."""
    if node.start.startswith(_VALUES):
        with suppress(ValueError):
            numbers = [float(word) for word in node.start.removeprefix(_VALUES).split(",")]
            return np.array(numbers, dtype=node.dtype).view(np.float32).reshape(node.shape)
    return None


def _start(graph: Graph, node: Node, seed: int) -> Array:
    listed_values = _listed_values(node)
    if listed_values is not None:
        return listed_values
    kind, size = _kind_and_size(graph, node)
    rng = np.random.default_rng([seed, zlib.crc32(node.name.encode())])
    if kind == "kaiming":
        bound = np.float32(1 / np.sqrt(size))
        return (2 * rng.random(node.shape, dtype=np.float32) - 1) * bound
    if kind == "normal":
        return rng.standard_normal(node.shape, dtype=np.float32) * np.float32(size)
    values = np.full(node.shape, kind == "ones", dtype=np.float32)
    if kind == "running":
        values[1] = 1
    return values


def to_named(graph: Graph, values: Mapping[str, Array], constants: bool = True) -> dict[str, Array]:
    """Convert the values of a graph, by node name, to the tensors of a file, by tensor name.

    If `constants` is False, the nodes for which `is_constant` is True are left out, as in a file of
    weights. Raises BadInput for a tensor that is missing, of another shape, or not finite.
    """
    for node in weight_nodes(graph):
        if node.name not in values:
            raise BadInput(f"weights of {graph.name}: the tensor {node.name} is missing")
        _check_shape(graph, node.name, np.asarray(values[node.name]), node.shape)
    return tensors_of_file(graph.name, file_sources(graph, constants), values)


def file_sources(graph: Graph, constants: bool = False) -> dict[str, Source]:
    """Return where files of weights hold each parameter and state, by node name.

    If `constants` is False, the nodes for which `is_constant` is True are left out.
    """
    return {
        node.name: source_of(graph, node)
        for node in weight_nodes(graph)
        if constants or not is_constant(graph, node)
    }


def tensors_of_file(
    model: str, sources: Mapping[str, Source], values: Mapping[str, Array]
) -> dict[str, Array]:
    """Convert values by node name to the tensors of a file. Raises BadInput if one is not finite.

    `model`: the model's name, for the message.
    """
    return {
        name: _finite(model, name, part)
        for node, source in sources.items()
        for name, part in source.theirs(np.asarray(values[node])).items()
    }


def from_named(graph: Graph, named: Mapping[str, Array]) -> dict[str, Array]:
    """Convert the tensors of a file, by tensor name, to the values of a graph, by node name.

    If the file has no optimiser states of this graph, all of them start at zero. States of other
    optimisers are ignored. Constants keep their first values, and anchors those of their
    parameters. If the file has no adapters, the result has none either. A file of PyTorch may have
    a tied tensor several times: a copy of a tensor of this graph is ignored.
    Raises BadInput for a tensor that is missing, unknown, of another shape or type, or not finite.
    """
    nodes = weight_nodes(graph)
    constants = {node.name: node for node in nodes if is_constant(graph, node)}
    of_adapters = added(graph)
    without = of_adapters if not named.keys() & of_adapters else set()
    sources = [
        (node, source_of(graph, node))
        for node in nodes
        if node.name not in constants and node.name.split(":")[0] not in without
    ]
    known = {name for _, source in sources for name in source.names}
    unread = {name for node in constants.values() for name in source_of(graph, node).names}
    extra = sorted(
        name
        for name in named.keys() - known - unread
        if not name.startswith(_STATES)
        and not name.endswith(_COUNTER)
        and not any(_is_copy(named[name], named.get(other)) for other in known)
    )
    if extra:
        raise BadInput(
            f"weights: {graph.name} does not have these tensors: {listed(extra)}. The model has "
            f"{listed(sorted(known))}"
        )
    has_states = any(name.startswith(_STATES) for name in named.keys() & known)
    may_miss = _STATES[-1:] if has_states else _STATES  # a run may begin to accumulate
    missing = sorted(name for name in known - named.keys() if not name.startswith(may_miss))
    if missing:
        raise BadInput(f"weights: these tensors of {graph.name} are missing: {listed(missing)}")
    return _anchored(
        _starts(graph, constants.values(), 0)
        | {
            node.name: source.ours(
                [_part(graph, name, named, source.shape) for name in source.names], node.shape
            )
            for node, source in sources
        }
    )


def _is_copy(one: Array, other: Array | None) -> bool:
    """Return True for equal tensors. Tensors of one value are not copies: they say too little."""
    return other is not None and np.array_equal(one, other) and len(np.unique(one)) > 1


def _part(graph: Graph, name: str, named: Mapping[str, Array], shape: tuple[int, ...]) -> Array:
    if name not in named:
        return np.zeros(shape, dtype=np.float32)
    part = np.asarray(named[name])
    _check_shape(graph, name, part, shape)
    if part.dtype.kind != "f":
        raise BadInput(f"weights: {name} of {graph.name} must hold float32, not {part.dtype}")
    return _finite(graph.name, name, part)


def float_arrays(model: str, weights: Weights) -> dict[str, Array]:
    """Return weights as contiguous float32 arrays.

    Raises BadInput for what is not a number, or not finite in float32. `model`: the model's name.
    """
    found = {name: np.asarray(value) for name, value in weights.items()}
    for name, array in found.items():
        if array.dtype.kind not in "fiub":
            raise BadInput(f"weights: {name} of {model} must hold numbers, not {array.dtype}")
    return {name: _finite(model, name, array) for name, array in found.items()}


def _finite(model: str, name: str, part: Array) -> Array:
    with np.errstate(over="ignore"):
        array: Array = np.asarray(part, dtype=np.float32, order="C")
    if not np.isfinite(array).all():
        raise BadInput(
            f"weights: {name} of {model} holds NaN or infinity (float32 ends at 3.4e38): use "
            "finite weights"
        )
    return array


def _check_shape(graph: Graph, name: str, array: Array, wanted: tuple[int, ...]) -> None:
    if array.shape != wanted:
        raise BadInput(
            f"weights: {name} has shape {array.shape}, but {graph.name} needs {wanted}: use "
            "weights of this model"
        )
