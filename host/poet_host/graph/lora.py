"""Low-rank adapters (LoRA, Hu et al., 2021) as in PEFT, and how they are merged into the weights.

Next to a linear layer or a convolution whose weight stays as it is, an adapter adds
ALPHA / RANK * B(A(x)). A has RANK outputs. B maps them to the outputs of the layer. A starts at
random, B at zero.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import isfinite, prod

import numpy as np

from ..errors import BadInput
from .builder import Layer, Model, Tensor
from .graph import Graph, Node
from .operators import OPERATORS
from .source import Array, is_given

WORD = "lora:"
_WEIGHT, _A, _B = ".weight", ".lora_A", ".lora_B"
_MOST = 65535


@dataclass(frozen=True)
class Rank:
    """The rank of all adapters, and the factor of their output, ALPHA / RANK."""

    rank: int
    factor: float


def rank_of(word: str) -> Rank:
    """Return the rank that "lora:RANK" or "lora:RANK:ALPHA" states. By default, ALPHA is RANK.

    Raises BadInput if it states none.
    """
    count, _, alpha = word.removeprefix(WORD).partition(":")
    try:
        rank = int(count)
        factor = float(alpha or rank) / rank
    except (ValueError, ZeroDivisionError):
        rank, factor = 0, 0.0
    if not 1 <= rank <= _MOST or not isfinite(factor) or factor <= 0:
        raise BadInput(
            f"`train` is {word!r}: write lora:RANK or lora:RANK:ALPHA, with a whole number from 1 "
            f"to {_MOST:,} and a number above 0, such as lora:4:8"
        )
    return Rank(rank, factor)


def with_adapters(model: Model, of: Rank, without: frozenset[str]) -> tuple[Model, frozenset[str]]:
    """Return the model with adapters, and the names of their parameters.

    Linear layers and convolutions without groups get an adapter, but not if `without` has the name
    of their weight, or if a layer of another kind uses this weight too. Raises BadInput if no layer
    gets one.
    """
    uses = Counter(node.name for layer in model.layers for node in layer.parameters.values())
    fitting = Counter(layer.parameters["weight"].name for layer in model.layers if _fits(layer))
    chosen = {name for name, n in fitting.items() if uses[name] == n and name not in without}
    if not chosen:
        raise BadInput(
            f"`train` has {WORD}{of.rank}, but no layer of {model.name} can get an adapter: it "
            "needs a linear layer, or a convolution without groups, whose weight is not trained"
        )
    layers: list[Layer] = []
    for layer in model.layers:
        is_chosen = _fits(layer) and layer.parameters["weight"].name in chosen
        layers += _adapted(layer, of) if is_chosen else (layer,)
    names = frozenset(_adapter(name, which) for name in chosen for which in (_A, _B))
    return replace(model, layers=tuple(layers)), names


def _fits(layer: Layer) -> bool:
    is_plain = layer.kind == "conv2d" and layer.fields["groups"] == 1
    return (layer.kind == "linear" or is_plain) and layer.parameters["weight"].role == "parameter"


def _adapter(weight: str, which: str) -> str:
    """Return the name of A or B, which PEFT gives it: fc.lora_A.weight for fc.weight."""
    stem = weight.removesuffix(_WEIGHT)
    return f"{stem}{which}{weight[len(stem) :]}"


def _adapted(layer: Layer, of: Rank) -> Iterator[Layer]:
    """Return the layers that compute a layer and its adapter. The last one has the layer's name.

    The output of A is multiplied by the factor, since it has fewer elements than that of B.
    """
    name, kind, weight = layer.name, layer.kind, layer.parameters["weight"]
    outputs, *inputs = weight.shape
    batch, *image = layer.shape[:1] + layer.shape[2:] if kind == "conv2d" else layer.shape[:-1]
    shape = (batch, of.rank, *image) if kind == "conv2d" else (batch, *image, of.rank)
    low = Node(
        _adapter(weight.name, _A), (of.rank, *inputs), role="parameter",
        start=f"kaiming:{prod(inputs)}",
    )  # fmt: skip
    high = Node(
        _adapter(weight.name, _B), (outputs, of.rank, *[1] * (len(inputs) - 1)),
        role="parameter", start="zeros",
    )  # fmt: skip
    fields = {**layer.fields, "k": of.rank}
    plain = replace(layer, name=f"{name}.base")
    made = Layer(f"{name}{_A}", kind, layer.inputs, shape, fields, {"weight": low})
    yield from (plain, made)
    if of.factor != 1:
        made = _layer(f"{name}.lora_scale", "scale", (made,), {}, of.factor)
        yield made
    kernel = (1,) if kind == "conv2d" else ()
    more = _layer(f"{name}{_B}", kind, (made,), {"weight": high}, outputs, *kernel, bias=False)
    yield from (more, _layer(name, "add", (plain, more), {}))


def _layer(
    name: str,
    kind: str,
    of: tuple[Layer, ...],
    parameters: Mapping[str, Node],
    *options: float,
    **more: bool,
) -> Layer:
    spec = OPERATORS[kind].spec(*(layer.shape for layer in of), *options, **more)
    inputs = tuple(Tensor(layer.name, layer.shape) for layer in of)
    return Layer(name, kind, inputs, spec.shape, spec.fields, parameters)


def adapters(graph: Graph) -> dict[str, tuple[str, str]]:
    """Return the names of the parameters A and B of each adapter, by the name of its weight."""
    stored = {node.name: node for node in graph if node.stored}
    pairs = {name: (_adapter(name, _A), _adapter(name, _B)) for name in stored}
    return {
        name: (low, high)
        for name, (low, high) in pairs.items()
        if ":" not in name and low in stored and high in stored and not is_given(stored[low])
    }


def added(graph: Graph) -> set[str]:
    """Return the names of the parameters of all adapters."""
    return {name for pair in adapters(graph).values() for name in pair}


def merged(graph: Graph, values: Mapping[str, Array]) -> Mapping[str, Array]:
    """Return `values` with each adapter added to its weight: W + ALPHA / RANK * B A."""
    found = dict(values)
    for weight, (low, high) in adapters(graph).items():
        source = graph[next(node.inputs[0] for node in graph if high in node.inputs)]
        factor = source.attrs["factor"] if source.op == "scale" else 1.0
        total = np.asarray(found[weight], np.float64)
        columns = np.asarray(found[high], np.float64).reshape(len(total), -1).T
        for row, column in zip(np.asarray(found[low], np.float64), columns, strict=True):
            total = total + factor * np.outer(column, row).reshape(total.shape)
        found[weight] = total.astype(np.float32)
    return found
