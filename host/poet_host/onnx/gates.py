"""The weights of recurrent layers in ONNX files, where their gates have another order than here.

ONNX joins the weights of both directions, and both biases, to one tensor each. An exporter may
write the nodes that compute it from the parameters of a PyTorch module, or only the result.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from ..graph.weights import Array

TO_PYTORCH = {"GRU": (1, 0, 2), "LSTM": (0, 2, 3, 1), "RNN": (0,)}
"""For each gate in the order of PyTorch, its place in the order of ONNX."""
_SLOTS = (("weight_ih",), ("weight_hh",), ("bias_ih", "bias_hh"))
Slots = list[tuple[str, tuple[int, ...]]]
"""The name and the order of gates of each weight that an input of a node joins; see `slots_of`."""


def slots_of(op: str, attributes: Mapping[str, Any], number: int) -> Slots:
    """Return the weights that input `number` of a node joins for each direction.

    They have the names of PyTorch. PyTorch has no GRU with an early reset. Two products read the
    recurrent weight of such a GRU, so it has two parts.
    """
    order = TO_PYTORCH[op]
    if number == 2 and is_early(op, attributes):
        return [("weight_hh_gates", order[:2]), ("weight_hh_new", (0,))]
    return [(slot, order) for slot in _SLOTS[number - 1]]


def is_early(op: str, attributes: Mapping[str, Any]) -> bool:
    """Return True for a GRU whose reset gate multiplies the state before the product."""
    return op == "GRU" and not attributes.get("linear_before_reset", 0)


def in_order(value: Array, order: Sequence[int]) -> Array:
    """Return an array whose first axis has the gates in another order."""
    parts = np.split(value, len(order))
    return np.concatenate([parts[gate] for gate in order])


def split(joined: Array, slots: Slots) -> list[Array]:
    """Return the weights that an input of a node joins, by direction and slot."""
    gates = np.cumsum([len(order) for _, order in slots])
    ends = gates[:-1] * (joined.shape[1] // gates[-1])
    return [
        in_order(part, order)
        for direction in joined
        for part, (_, order) in zip(np.split(direction, ends), slots, strict=True)
    ]


def take_apart(
    onnx: ModuleType,
    graph: Any,
    arrays: Mapping[str, Array],
    call_of: Callable[[Any], str],
    module_of: Callable[[Any], str],
    free_name: Callable[[str], str],
) -> tuple[dict[str, Array], set[str]]:
    """Let nodes compute the joined weights from weights with PyTorch's names.

    Return the new initialisers by name, and the names of those that nodes compute now. `call_of`
    and `module_of` return the names of a node's call and module.
    """
    added: dict[str, Array] = {}
    gone: set[str] = set()
    layers = Counter[str]()
    for node in [node for node in graph.node if node.op_type in TO_PYTORCH]:
        layer = layers[call_of(node)]
        layers[call_of(node)] += 1
        for number, joined in [*enumerate(node.input)][1:4]:
            if joined in gone or joined not in arrays:
                continue
            gone.add(joined)
            made = []
            slots = slots_of(
                node.op_type, {given.name: given.i for given in node.attribute}, number
            )
            for i, value in enumerate(split(arrays[joined], slots)):
                end = "_reverse" if i >= len(slots) else ""
                slot, order = slots[i % len(slots)]
                own = free_name(f"{module_of(node)}.{slot}_l{layer}{end}")
                back = np.argsort(order).tolist()
                added[own] = value
                added[f"{own}:gates"] = in_order(np.arange(len(value)), back)[None]
                made.append([own, f"{own}:gates"])
            _join(onnx, graph, node, joined, made, len(slots))
    return added, gone


def _join(
    onnx: ModuleType, graph: Any, reader: Any, joined: str, made: list[list[str]], slots: int
) -> None:
    place = list(graph.node).index(reader)

    def add(op: str, inputs: list[str], output: str, axis: int) -> str:
        nonlocal place
        graph.node.insert(place, onnx.helper.make_node(op, inputs, [output], output, axis=axis))
        place += 1
        return output

    parts = [add("Gather", pair, f"{pair[0]}:joined", 0) for pair in made]
    each = [
        add("Concat", parts[i : i + slots], f"{parts[i]}:both", 1)
        for i in range(0, len(parts), slots)
    ]
    add("Concat", each, joined, 0)
