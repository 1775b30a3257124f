"""Import rules of comparisons, and Where with any condition; operators.py explains the rules.

A condition is a tensor of 1 (true) and 0 (false) without a gradient. It selects numbers, so that
NaN and infinity of the side that is not taken do not spread.
"""

from math import inf

import numpy as np

from ..graph.builder import Tensor
from .fold import Constant, computed
from .node import ImportedNode, Rule


def _condition(node: ImportedNode, number: int) -> Tensor:
    if node.is_tensor(number):
        return node.tensor(number)
    given, name = node.constant(number), f"{node.onnx.input(number)}.numbers"
    numbers = computed(node.context.free_name(name), given.value.astype(np.float32))
    return node.context.stored(node.helper_name("condition"), numbers, "state")


def _is_in(node: ImportedNode, x: Tensor, low: float, high: float) -> Tensor:
    """Return 1 where `low` <= x <= `high`, else 0."""
    one = node.expanded(node.ones("one"), x.shape)
    return node.layer("select", (one, x), low=low, high=high)


def _comparison(low: float, high: float) -> Rule:
    """Return the rule for a comparison, which is true from `low` to `high`.

    0 is the second operand, 1 the next float above it, -1 the one below it.
    """

    def rule(node: ImportedNode) -> Tensor:
        number = node.scalar(1)
        if number is None:
            x = node.helper("difference", "sub", (node.stored(0), node.stored(1)))
        else:
            x = node.tensor(0)
        middle = np.float32(number or 0)
        below, above = (float(np.nextafter(middle, np.float32(end))) for end in (-inf, inf))
        near = {-1.0: below, 0.0: float(middle), 1.0: above}
        return _is_in(node, x, near.get(low, low), near.get(high, high))

    return rule


def _logic(low: int, high: int) -> Rule:
    """Return the rule for a node that is true if `low` to `high` of its inputs are true."""

    def rule(node: ImportedNode) -> Tensor:
        inputs = [_condition(node, number) for number in range(len(node.onnx.inputs))]
        count = inputs[0] if len(inputs) == 1 else node.helper("count", "add", tuple(inputs))
        return _is_in(node, count, low, high)

    return rule


def selected(node: ImportedNode) -> Tensor:
    """Add the layers of Where: the sum of both sides, each 0 where the other one is taken."""
    condition, values = _condition(node, 0), {side: node.value(side) for side in (1, 2)}
    zeros = {
        side
        for side, value in values.items()
        if isinstance(value, Constant)
        and value.value.size == 1
        and not value.value.any()
        and not node.context.is_trained(value)
    }
    shape = condition.shape
    sides = {side: node.stored(side) for side in values if side not in zeros or len(zeros) > 1}
    shape = np.broadcast_shapes(shape, *(x.shape for x in sides.values()))
    mask, kept = node.expanded(condition, shape), list[Tensor]()
    for side, x in sides.items():
        bounds = {"low": 2.0 - side, "high": 2.0 - side}
        kept.append(node.helper("kept", "select", (node.expanded(x, shape), mask), **bounds))
    return node.layer("add", tuple(kept)) if len(kept) > 1 else kept[0]


CONDITION_RULES: dict[str, Rule] = {
    "And": _logic(2, 2),
    "Equal": _comparison(0, 0),
    "Greater": _comparison(1, inf),
    "GreaterOrEqual": _comparison(0, inf),
    "Less": _comparison(-inf, -1),
    "LessOrEqual": _comparison(-inf, 0),
    "Not": _logic(0, 0),
    "Or": _logic(1, 2),
    "Xor": _logic(1, 1),
}
