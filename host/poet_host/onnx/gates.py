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
SLOTS = (("weight_ih",), ("weight_hh",), ("bias_ih", "bias_hh"))
"""PyTorch's names of the weights that the inputs 1, 2 and 3 of a node join."""


def in_order(value: Array, order: Sequence[int]) -> Array:
    """Return an array whose first axis has the gates in another order."""
    parts = np.split(value, len(order))
    return np.concatenate([parts[gate] for gate in order])


def split(op: str, joined: Array, number: int) -> list[Array]:
    """Return the weights that input `number` of a node joins, by direction and slot."""
    count = len(SLOTS[number - 1])
    parts = (part for direction in joined for part in np.split(direction, count))
    return [in_order(part, TO_PYTORCH[op]) for part in parts]


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
            slots = SLOTS[number - 1]
            for i, value in enumerate(split(node.op_type, arrays[joined], number)):
                end = "_reverse" if i >= len(slots) else ""
                own = free_name(f"{module_of(node)}.{slots[i % len(slots)]}_l{layer}{end}")
                order = np.argsort(TO_PYTORCH[node.op_type]).tolist()
                added[own] = value
                added[f"{own}:gates"] = in_order(np.arange(len(value)), order)[None]
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
