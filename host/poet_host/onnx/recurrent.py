"""Import rules of recurrent layers, each direction of which becomes a layer along time."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ..graph.builder import Tensor
from ..graph.rules import Shape
from ..graph.source import Source
from .context import Deferred, Unsupported
from .fold import Constant
from .gates import Slots, is_early, slots_of, split
from .node import ImportedNode, Rule

_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_ACTIVATIONS = {
    "GRU": (["sigmoid", "tanh"],),
    "LSTM": (["sigmoid", "tanh", "tanh"],),
    "RNN": (["tanh"], ["relu"]),
}
_KINDS = {"GRU": "gru", "LSTM": "lstm", "RNN": "rnn"}
_STATES = {"GRU": (5,), "LSTM": (5, 6), "RNN": (5,)}  # inputs with the states before the first step
_MOST_STEPS = 1_500  # in a graph, each has about 40 tensors, of the 65,534 of a schedule
Weight = Constant | Tensor  # a tensor if layers compute it
_ROLLED = ("gru",)  # layers whose recurrent weight begins with the last gate


def _activations(node: ImportedNode) -> list[str]:
    names = node.attribute("activations") or []
    return [str(name, "utf-8").lower() for name in names]


def _check(node: ImportedNode) -> None:
    op, count = node.onnx.op, len(_DIRECTIONS[node.attribute("direction", "forward")])
    found = _activations(node)
    if found and found not in [known * count for known in _ACTIVATIONS[op]]:
        raise Unsupported(f"the activations {found} are not supported: use those of PyTorch")
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


def _weights(node: ImportedNode, number: int) -> list[Weight]:
    """Return the weights that an input joins, by direction and slot, in the order of PyTorch."""
    joined, constants = node.weight(number), node.context.model.constants
    slots = slots_of(node.onnx.op, node.onnx.attributes, number)
    parts = split(joined.value, slots)
    names = dict.fromkeys(_parameters_of(node, node.onnx.input(number)))
    kinds = {(part.shape, part.dtype) for part in parts}
    own = [name for name in names if (constants[name].shape, constants[name].dtype) in kinds]
    if len(own) == len(parts) and all(
        np.array_equal(constants[name], part) for name, part in zip(own, parts, strict=True)
    ):
        pairs = zip(own, parts, strict=True)
        return [Constant(part, Source((name,), part.shape)) for name, part in pairs]
    if number == 3 or (joined.computed and not node.is_tensor(number)):
        raise Unsupported(
            f"the weight {node.onnx.input(number)} is computed from other tensors by operators "
            "that cannot be trained: store it in the file as it is"
        )
    return [*_split(node, node.stored(number), slots)]


def _split(node: ImportedNode, joined: Tensor, slots: Slots) -> Iterator[Tensor]:
    """Yield the weights that a tensor (directions, gates * units, inputs) joins; see `_weights`."""
    units = joined.shape[1] // sum(len(order) for _, order in slots)
    for direction in range(joined.shape[0]):
        own = _part(node, joined, "direction", 0, direction, 1)
        own, begin = Tensor(own.name, own.shape[1:]), 0
        for slot, order in slots:
            size = len(order) * units
            yield _in_order(node, _part(node, own, slot, 0, begin, size), order)
            begin += size


def _in_order(node: ImportedNode, weight: Tensor, order: Sequence[int]) -> Tensor:
    """Return a weight with its gates in another order."""
    units = weight.shape[0] // len(order)
    gates = [_part(node, weight, "gate", 0, gate * units, units) for gate in order]
    return node.concatenated(gates, 0, "gates")


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
    node: ImportedNode, x: Tensor, direction: int, backward: bool, weights: list[Weight]
) -> tuple[Tensor, Tensor]:
    """Add the layers of one direction. Return the states (T, N, H) after each step, and the last.

    With the cells of an LSTM, return all states (T, N, 4 * H), the cells last.
    `weights`: weight_ih and weight_hh, then bias_ih and bias_hh unless there are none. A GRU with
    an early reset has two parts of weight_hh.
    """
    early = is_early(node.onnx.op, node.onnx.attributes)
    of_input, *of_state = weights[: 2 + early]
    biases = [bias for bias in weights[2 + early :] if isinstance(bias, Constant)]
    units = _shape(of_state[0])[1]
    a = _product(node, "input", x, of_input, *biases[:1])
    shape = (x.shape[1], units)
    initial = [_initial(node, number, direction, shape) for number in _STATES[node.onnx.op]]
    states = [
        state or node.helper("zeros", "parameter", (), shape, trainable=False)
        for state in initial
        if early or any(initial)
    ]
    if early:
        for bias in biases[1:]:
            added = node.context.stored(node.helper_name("bias"), bias, "parameter")
            a = node.helper("biased", "add", (a, added))
        return _unrolled(node, a, states[0], backward, *of_state)
    kind, name = _KINDS[node.onnx.op], node.layer_name()
    rolled = units if kind in _ROLLED else 0
    parameters = {
        slot: node.parameter(name, slot, replace(c, source=replace(c.source, rolled=rolled)))
        for slot, c in (("weight", of_state[0]), *(("bias", bias) for bias in biases[1:]))
        if isinstance(c, Constant)
    }
    if not biases:
        parameters["bias"] = node.untrained(name, "bias", a.shape[2:], "zeros")
    kind += ("_cells" if _is_read(node, 2) else "") + ("_from" if states else "")
    if isinstance(weight := of_state[0], Tensor):
        kind, weight = f"{kind}_by", _in_order(node, weight, (2, 0, 1)) if rolled else weight
        states.append(weight)
    options = {"backward": backward} | ({"relu": True} if "relu" in _activations(node) else {})
    y = node.layer(kind, (a, *states), name=name, parameters=parameters, **options)
    return y, _part(node, y, "last", 0, 0 if backward else y.shape[0] - 1, 1)


def _shape(weight: Weight) -> Shape:
    return weight.value.shape if isinstance(weight, Constant) else weight.shape


def _product(
    node: ImportedNode, what: str, x: Tensor, weight: Weight, bias: Constant | None = None
) -> Tensor:
    """Return the product of the last axis of `x` with a weight (outputs, inputs), plus a bias."""
    name, size = node.helper_name(what), _shape(weight)[0]
    given = (("weight", weight), ("bias", bias))
    parameters = {
        slot: node.parameter(name, slot, c) for slot, c in given if isinstance(c, Constant)
    }
    kind, inputs = ("linear_by", (x, weight)) if isinstance(weight, Tensor) else ("linear", (x,))
    return node.layer(kind, inputs, size, name=name, parameters=parameters, bias=bias is not None)


def _unrolled(
    node: ImportedNode, a: Tensor, state: Tensor, backward: bool, of_gates: Weight, of_new: Weight
) -> tuple[Tensor, Tensor]:
    """Add the layers of each step of a GRU whose reset gate multiplies the state early.

    The kernel of the layer `gru` multiplies the product of the state, not the state.
    """
    if a.shape[0] > _MOST_STEPS:
        raise Unsupported(
            f"the reset gate multiplies the state before the product, so each of {a.shape[0]:,} "
            f"steps needs operators of its own, but a schedule has room for {_MOST_STEPS:,} steps: "
            "use shorter sequences, or a reset gate after the product, as PyTorch and Keras with "
            "reset_after=True have it (linear_before_reset is 1)"
        )
    units, rows = state.shape[1], _rows(node, a)
    states = rows[:]
    for step in range(len(rows))[:: -1 if backward else 1]:
        row = Tensor(rows[step].name, rows[step].shape[1:])

        def layer(what: str, kind: str, *inputs: Tensor, step: int = step) -> Tensor:
            return node.helper(f"{step}.{what}", kind, inputs)

        product = _product(node, f"{step}.of_gates", state, of_gates)
        gates = layer("sum", "add", product, _part(node, row, f"{step}.given", 1, 0, 2 * units))
        gates = layer("gates", "sigmoid", gates)
        reset = _part(node, gates, f"{step}.reset", 1, 0, units)
        update = _part(node, gates, f"{step}.update", 1, units, units)
        kept = layer("kept", "mul", reset, state)
        product = _product(node, f"{step}.of_new", kept, of_new)
        given = _part(node, row, f"{step}.given_new", 1, 2 * units, units)
        new = layer("new", "tanh", layer("sum_new", "add", product, given))
        change = layer("change", "mul", update, layer("before", "sub", state, new))
        state = layer("state", "add", new, change)
        states[step] = Tensor(state.name, (1, *state.shape))
    return node.concatenated(states, 0, "states"), states[0 if backward else -1]


def _rows(node: ImportedNode, x: Tensor) -> list[Tensor]:
    """Return the parts of `x` of size 1 along the first axis.

    They are halves of halves, because a gradient of a part is padded to the size of the whole.
    """
    size = x.shape[0]
    if size == 1:
        return [x]
    ranges = ((0, size // 2), (size // 2, size - size // 2))
    halves = (_part(node, x, "rows", 0, begin, count) for begin, count in ranges)
    return [row for half in halves for row in _rows(node, half)]


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
    whole = [_weights(node, number) for number in (1, 2, 3) if node.has(number)]
    directions = _DIRECTIONS[node.attribute("direction", "forward")]
    states, last, cells = [], [], []
    for i, backward in enumerate(directions):
        sizes = [len(found) // len(directions) for found in whole]
        parts = zip(whole, sizes, strict=True)
        own = [part for found, size in parts for part in found[i * size : (i + 1) * size]]
        y, end = _direction(node, x, i, backward, own)
        if _is_read(node, 2):
            units = y.shape[2] // 4
            cells.append(_part(node, end, "last_cell", 2, 3 * units, units))
            y, end = (_part(node, it, "hidden", 2, 2 * units, units) for it in (y, end))
        states.append(Tensor(y.name, (y.shape[0], 1, *y.shape[1:])))
        last.append(end)
    # What the model does not read is left out later.
    first = node.concatenated(states, 1, "directions")
    ends = (node.concatenated(part, 0, "directions") for part in (last, cells) if part)
    return [first, *ends]


RECURRENT_RULES: dict[str, Rule] = dict.fromkeys(_KINDS, _recurrent)
