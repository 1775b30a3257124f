"""Rows of the table of operators for layers that walk along time.

A layer maps `a` (steps, batch, gates * units) to its states (steps, batch, units). `a` has the
products of the input with a weight, which a linear layer before computes. The layer adds those of
the state before with its own weight (gates * units, units). If `backward`, the walk begins with the
last step. The states before the first step are 0, or inputs (batch, units) of the rows that end in
`_from`.

The kernel computes the states before and after each step, and its gradient computes the gates again
from the states before. Both have a row of *blocks*, of one column for each unit, for each step and
sample. The blocks of a gradient are those of the gates and, if the initial state needs a gradient,
what the state before gets directly from the state after. Plain units have no gates, and one block
of gradients.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from .rules import Fields, Operator, Parameter, Rule, Shape, Spec

_VARIANT = 0x54  # dy has size 1 along h, and the initial state along n and h
_WHOLE = 0x50  # dy has the size of the states
_RELU = 2  # bit of `groups`

Whole = Callable[[Fields], Shape]
Blocks = tuple[int, int]  # first block, number of blocks


@dataclass(frozen=True)
class _Kind:
    kernel: str
    gates: int
    states: int  # number of blocks
    output: Blocks  # of the states: the output of the layer. All: the states are the output
    recurrent: Blocks  # of the gradients: those of the recurrent weight
    input: Blocks  # of the gradients: those of the products of the input
    initial: tuple[str, ...]  # operands for the states before the first step

    @property
    def _is_whole(self) -> bool:
        return self.output == (0, self.states)

    def _spec(
        self, count: int, a: Shape, *initial: Shape, backward: bool = False, relu: bool = False
    ) -> Spec:
        if len(a) != 3 or a[2] % self.gates:
            raise ValueError(
                f"the input must have the shape (steps, batch, {self.gates} * units): add a linear "
                "layer"
            )
        n, c, k = a
        w = k // self.gates
        if len(initial) != count or any(shape != (c, w) for shape in initial):
            raise ValueError(f"the initial state must have the shape {(c, w)}")
        if relu and self.gates > 1:
            raise ValueError("only plain units can have relu: omit `relu`")
        blocks = 1 if self.gates == 1 else 5 if initial else 4
        fields = {"n": n, "c": c, "h": self.states, "w": w, "k": k, "oh": blocks * w}
        fields["variant"] = _WHOLE if self._is_whole else _VARIANT
        fields["groups"] = int(backward) + _RELU * relu
        start = f"kaiming:{w}"
        parameters = {"weight": Parameter((k, w), start), "bias": Parameter((k,), start)}
        if not initial:
            zeros = Parameter((c, w), "zeros", "state")
            parameters |= dict.fromkeys(self.initial, zeros)
        return Spec((n, c, self.output[1] * w), fields, parameters)

    def operator(self, *to_initial: Rule) -> Operator:
        """Return the row of a layer.

        `to_initial`: rules for the gradients of initial states that other layers compute, from
        those of the first step of the walk.
        """
        operands = " ".join(("a weight bias", *self.initial))
        states = "y" if self._is_whole else "states"
        y = replace(_slice("y", "states", _states, self.output), shape=None)
        forward: tuple[Rule, ...] = (Rule(states, self.kernel, operands, _states), y)
        backward = [
            Rule("gates", f"{self.kernel}_grad", f"a {states} weight bias dy", _gates),
            _slice("before", states, _states, (0, 1)),
            _slice("recurrent", "gates", _gates, self.recurrent),
            replace(_slice("a", "gates", _gates, self.input), shape=None),
            Rule(
                "weight", "linear_grad_weight", "before recurrent", fields=_products, apart=_is_long
            ),
            Rule("bias", "grad_bias", "recurrent", fields=_products),
        ]
        if to_initial:
            backward += [
                Rule("first", "slice", "gates", _of_step, _first_step),
                _slice("first_recurrent", "first", _of_step, self.recurrent),
                _slice("kept", "first", _of_step, (4, 1)),
            ]
        initial = self.initial if to_initial else ()
        return Operator(
            partial(self._spec, len(initial)),
            forward[: 2 - self._is_whole],
            (*backward, *to_initial),
            inputs=("a", *initial),
        )


def _states(f: Fields) -> Shape:
    return (int(f["n"]), int(f["c"]), int(f["h"] * f["w"]))


def _gates(f: Fields) -> Shape:
    return (int(f["n"]), int(f["c"]), int(f["oh"]))


def _of_step(f: Fields) -> Shape:
    return _gates(f)[1:]


def _slice(makes: str, of: str, whole: Whole, blocks: Blocks) -> Rule:
    """Return the rule that selects blocks from all rows of a tensor."""
    first, count = blocks

    def shape(f: Fields) -> Shape:
        return (*whole(f)[:-1], count * int(f["w"]))

    def fields(f: Fields) -> Fields:
        *rows, columns = whole(f)
        part = {"k": count * f["w"], "oh": first * f["w"]}
        return {"n": prod(rows), "c": columns, "h": 1, "w": 1, **part}

    return Rule(makes, "slice", of, shape, fields)


def _first_step(f: Fields) -> Fields:
    """Return the fields of a slice: the gradients of the step that the walk begins with."""
    size = prod(_of_step(f))
    begin = (f["n"] - 1) * size if int(f["groups"]) & 1 else 0
    return {"n": 1, "c": f["n"] * size, "h": 1, "w": 1, "k": size, "oh": begin}


def _products(f: Fields) -> Fields:
    """Return the fields of the gradients of the recurrent weight and bias."""
    return {"n": f["n"] * f["c"], "c": f["w"], "h": 1, "w": 1, "k": f["k"], "oh": 1, "ow": 1}


def _is_long(f: Fields) -> bool:
    """Return True if the operands of the weight's gradient are larger than the weight.

    Then they stream rather than the weight, and the weight would need RAM next to its gradient.
    """
    return f["n"] * f["c"] > f["w"]


def _states_of_samples(f: Fields) -> Fields:
    return {"n": f["c"], "c": f["w"], "h": 1, "w": 1, "k": f["k"], "variant": 0}


# The first step's gradients times the recurrent weight.
_FROM_FIRST = Rule(
    "initial", "linear_grad_input", "first_recurrent weight", fields=_states_of_samples
)
_GRU = _Kind("gru", 3, 2, (1, 1), (0, 3), (1, 3), ("initial",))
_PLAIN = _Kind("gru", 1, 2, (1, 1), (0, 1), (0, 1), ("initial",))
_LSTM = _Kind("lstm", 4, 3, (2, 1), (0, 4), (0, 4), ("initial", "cell"))
_CELLS = replace(_LSTM, states=4, output=(0, 4))
_CELL = Rule("cell", "", "kept")

RECURRENT_OPERATORS = {
    # `a` has the gates reset, update and new, in PyTorch's order. The rows of the recurrent weight
    # are those of new, reset and update.
    "gru": _GRU.operator(),
    "gru_from": _GRU.operator(
        replace(_FROM_FIRST, makes="products", shape=lambda f: (int(f["c"]), int(f["w"]))),
        Rule("initial", "add", "products kept", fields=_states_of_samples),
    ),
    # Both have the gates input, forget, cell and output.
    "lstm": _LSTM.operator(),
    "lstm_from": _LSTM.operator(_FROM_FIRST, _CELL),
    # The output has the states h and cell before each step, then those after it. Only the last two
    # may have a gradient.
    "lstm_cells": _CELLS.operator(),
    "lstm_cells_from": _CELLS.operator(_FROM_FIRST, _CELL),
    # A state is the tanh, or with the option `relu` the relu, of the sum of both products.
    "rnn": _PLAIN.operator(),
    "rnn_from": _PLAIN.operator(_FROM_FIRST),
}
