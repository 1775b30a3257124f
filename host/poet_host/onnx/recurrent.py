"""Import rules of recurrent layers, each direction of which becomes a layer along time."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..graph.builder import Tensor
from ..graph.graph import Node
from ..graph.source import Source
from .context import Deferred, Unsupported
from .fold import Constant
from .gates import SLOTS, split
from .node import ImportedNode, Rule

_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_ACTIVATIONS = {
    "GRU": (["sigmoid", "tanh"],),
    "LSTM": (["sigmoid", "tanh", "tanh"],),
    "RNN": (["tanh"], ["relu"]),
}
_KINDS = {"GRU": "gru", "LSTM": "lstm", "RNN": "rnn"}
_STATES = {"GRU": (5,), "LSTM": (5, 6), "RNN": (5,)}  # inputs with the states before the first step
_ROLLED = ("gru",)  # layers whose recurrent weight begins with the last gate


def _activations(node: ImportedNode) -> list[str]:
    names = node.attribute("activations") or []
    return [str(name, "utf-8").lower() for name in names]


def _check(node: ImportedNode) -> None:
    op, count = node.onnx.op, len(_DIRECTIONS[node.attribute("direction", "forward")])
    found = _activations(node)
    if found and found not in [known * count for known in _ACTIVATIONS[op]]:
        raise Unsupported(f"the activations {found} are not supported: use those of PyTorch")
    if op == "GRU" and not node.attribute("linear_before_reset", 0):
        raise Unsupported(
            "the reset gate multiplies the state before the product: use it after the product, as "
            "PyTorch does, and Keras with reset_after=True (linear_before_reset is 1)"
        )
    if node.attribute("layout", 0) or node.attribute("input_forget", 0) or node.attribute("clip"):
        raise Unsupported(
            "the attributes layout, input_forget and clip are not supported: leave them out"
        )
    if node.has(7):
        raise Unsupported("peepholes are not supported: use a layer without them")


def _parameters_of(node: ImportedNode, name: str) -> Iterator[str]:
    """Yield the initialisers from which the tensor `name` is computed, in their order."""
    model = node.context.model
    if name in model.constants:
        yield name
    for maker in model.nodes:
        if name in maker.outputs:
            for source in maker.inputs:
                yield from _parameters_of(node, source)


def _weights(node: ImportedNode, number: int) -> list[Constant]:
    """Return the weights that an input joins, by direction and slot, in the order of PyTorch."""
    joined, constants = node.weight(number), node.context.model.constants
    parts = split(node.onnx.op, joined.value, number)
    names = dict.fromkeys(_parameters_of(node, node.onnx.input(number)))
    own = [name for name in names if constants[name].shape == parts[0].shape]
    if len(own) != len(parts) or not all(
        np.array_equal(constants[name], part) for name, part in zip(own, parts, strict=True)
    ):
        raise Unsupported(
            f"the weight {node.onnx.input(number)} is computed from other tensors: store it in the "
            "file as it is, without weight_norm and the like"
        )
    pairs = zip(own, parts, strict=True)
    return [Constant(part, Source((name,), part.shape)) for name, part in pairs]


def _initial(
    node: ImportedNode, number: int, direction: int, shape: tuple[int, int]
) -> Tensor | None:
    """Return the state (N, H) before the first step, or None if it is 0."""
    if not node.has(number):
        return None
    if not node.is_tensor(number):
        given = node.constant(number)
        if not given.value.any() and not node.context.is_trained(given):
            return None
    state = node.stored(number)
    if state.shape[0] > 1:
        state = node.helper("before", "slice", (state,), 0, direction, direction + 1)
    state = Tensor(state.name, state.shape[1:])
    if state.shape[0] == 1 < shape[0]:
        state = node.helper("before", "expand", (state,), shape)
    return state


def _direction(
    node: ImportedNode, x: Tensor, direction: int, backward: bool, weights: list[Constant]
) -> Tensor:
    """Add the layers of one direction. Return the states (T, N, H) after each step.

    With the cells of an LSTM, return all states (T, N, 4 * H), the cells last.
    `weights`: weight_ih and weight_hh, then bias_ih and bias_hh unless there are none.
    """
    of_input, of_state, *biases = weights
    kind, units = _KINDS[node.onnx.op], of_state.value.shape[1]
    options = {"backward": backward} | ({"relu": True} if "relu" in _activations(node) else {})

    def parameters(name: str, weight: Constant, bias: list[Constant]) -> dict[str, Node]:
        slots = zip(("weight", "bias"), (weight, *bias), strict=False)
        return {slot: node.parameter(name, slot, given) for slot, given in slots}

    name, size = node.helper_name("input"), len(of_input.value)
    given = parameters(name, of_input, biases[:1])
    a = node.layer("linear", (x,), size, name=name, parameters=given, bias=bool(biases))
    name = node.layer_name()
    rolled = units if kind in _ROLLED else 0
    of_state, *biases = (
        replace(c, source=replace(c.source, rolled=rolled)) for c in (of_state, *biases[1:])
    )
    given = parameters(name, of_state, biases)
    if not biases:
        given["bias"] = node.untrained(name, "bias", (size,), "zeros")
    shape = (x.shape[1], units)
    ending = "_cells" if _is_read(node, 2) else ""
    initial = [_initial(node, number, direction, shape) for number in _STATES[node.onnx.op]]
    if not any(initial):
        return node.layer(f"{kind}{ending}", (a,), name=name, parameters=given, **options)
    inputs = (
        a,
        *(
            state or node.helper("zeros", "parameter", (), shape, trainable=False)
            for state in initial
        ),
    )
    return node.layer(f"{kind}{ending}_from", inputs, name=name, parameters=given, **options)


def _is_read(node: ImportedNode, number: int) -> bool:
    """Return True if a node reads output `number`, or if it is the output of the model."""
    name, context = "".join(node.onnx.outputs[number : number + 1]), node.context
    return bool(name) and (name in context.model.outputs.values() or bool(context.readers(name)))


def _part(node: ImportedNode, x: Tensor, name: str, axis: int, begin: int, size: int) -> Tensor:
    return node.helper(name, "slice", (x,), axis, begin, begin + size)


def _recurrent(node: ImportedNode) -> list[Tensor | Deferred]:
    _check(node)
    x = node.tensor(0)
    if len(x.shape) != 3:
        raise Unsupported(
            f"the input has the shape {x.shape}, but must be (steps, batch, features)"
        )
    if node.has(4) and (node.is_tensor(4) or {*node.constant(4).value.tolist()} != {x.shape[0]}):
        raise Unsupported(
            "sequences of several lengths are not supported: use sequences of one length, without "
            "pack_padded_sequence"
        )
    whole = [_weights(node, number) if node.has(number) else [] for number in (1, 2, 3)]
    directions = _DIRECTIONS[node.attribute("direction", "forward")]
    states, last, cells = [], [], []
    for i, backward in enumerate(directions):
        own = [
            part
            for found, slots in zip(whole, SLOTS, strict=True)
            for part in found[i * len(slots) : (i + 1) * len(slots)]
        ]
        y = _direction(node, x, i, backward, own)
        steps, batch, _ = y.shape
        begin = 0 if backward else steps - 1
        if _is_read(node, 2):
            units = y.shape[2] // 4
            end = _part(node, y, "last", 0, begin, 1)
            cells.append(_part(node, end, "last_cell", 2, 3 * units, units))
            if _is_read(node, 0) or _is_read(node, 1):
                y = _part(node, y, "hidden", 2, 2 * units, units)
        states.append(Tensor(y.name, (steps, 1, batch, y.shape[2])))
        if _is_read(node, 1):
            last.append(_part(node, y, "last", 0, begin, 1))
    seen = _is_read(node, 0) or not (last or cells)
    first = node.concatenated(states if seen else states[:1], 1, "directions")
    ends = (node.concatenated(part, 0, "directions") if part else first for part in (last, cells))
    return [first, *ends]


RECURRENT_RULES: dict[str, Rule] = dict.fromkeys(_KINDS, _recurrent)
