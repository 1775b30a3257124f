"""Rows of ONNX operators that work on tensors of any shape; see operators.py."""

from dataclasses import replace
from inspect import signature
from math import inf, prod

import numpy as np

from ..graph.builder import Tensor
from ..graph.operators import OPERATORS
from ..graph.operators_tensor import axis_of
from .node import At, Moved, Rule, Unsupported
from .fold import Constant, computed
from .tokens import LOW, NOTHING
from .views import VIEW_RULES, plain


def _same(kind: str) -> Rule:
    """One of our operators whose options are the attributes."""
    options = list(signature(OPERATORS[kind].spec).parameters.values())[1:]

    def rule(at: At) -> Tensor:
        values = {option.name: at.attribute(option.name, option.default) for option in options}
        return at.layer(kind, (at.tensor(0),), **values)

    return rule


def _clip(at: At) -> Tensor:
    return _clipped(at, at.number(1, "min"), at.number(2, "max"))


def _clipped(at: At, low: float | None, high: float | None, number: int = 0) -> Tensor:
    """The input `number` between bounds."""
    low, high = -inf if low is None else low, inf if high is None or high > 3e38 else high
    if low == 0 and high in (6, inf):
        return at.layer("relu" if high == inf else "relu6", (at.tensor(number),))
    return at.layer("clip", (at.tensor(number),), low, high)


def _leaky_relu(at: At) -> Tensor:
    below, slope = _below(at), at.attribute("alpha", 0.01)
    return _bent(at, at.layer("scale", (below,), slope, name=at.made_name("slope")))


def _prelu(at: At) -> Tensor:
    slope = at.operand(1, single=True)
    return _bent(at, at.layer("mul", (_below(at), slope), name=at.made_name("slope")))


def _below(at: At) -> Tensor:
    return at.layer("clip", (at.tensor(0),), -inf, 0.0, name=at.made_name("below"))


def _bent(at: At, below: Tensor) -> Tensor:
    above = at.layer("relu", (at.tensor(0),), name=at.made_name("above"))
    return at.layer("add", (above, below))


def _hard_sigmoid(at: At) -> Tensor:
    return _hard(at, at.attribute("alpha", 0.2), at.attribute("beta", 0.5))


def _hard_swish(at: At) -> Tensor:
    return at.layer("mul", (at.tensor(0), _hard(at, 1 / 6, 0.5)))


def _hard(at: At, slope: float, middle: float) -> Tensor:
    """slope * x + middle, from 0 to 1."""
    if slope <= 0 or middle <= 0:
        raise Unsupported(f"its alpha {slope} and beta {middle} must be more than 0")
    ends = (-middle / slope, (1 - middle) / slope)
    x = at.layer("clip", (at.tensor(0),), *ends, name=at.made_name("clip"))
    x = at.layer("scale", (x,), slope / middle, name=at.made_name("slope"))
    one = at.layer("parameter", (), (1,), start="ones", trainable=False, name=at.made_name("one"))
    x = at.layer("add", (x, one), name=at.made_name("sum"))
    return at.layer("scale", (x,), middle, name=at.made_name("whole"))


def _sum_of_all(at: At) -> Tensor:
    """Sum: of one tensor or more."""
    total = at.operand(0)
    for number in range(1, len(at.node.inputs)):
        total = at.layer("add", (total, at.operand(number)))
    return total


def _bound(which: str) -> Rule:
    """Min or Max of a tensor and a number."""

    def rule(at: At) -> Tensor:
        for x in (0, 1) if len(at.node.inputs) == 2 else ():
            number = at.scalar(1 - x)
            if number is not None:
                low, high = (number, None) if which == "Max" else (None, number)
                return _clipped(at, low, high, x)
        raise Unsupported("only that of a tensor and a number is built")

    return rule


def _reduced(kind: str) -> Rule:
    def rule(at: At) -> Tensor:
        x, axes = at.tensor(0), at.integers(1, "axes")
        if not axes and at.attribute("noop_with_empty_axes", 0):
            return x
        over = tuple(sorted(axis_of(axis, len(x.shape)) for axis in axes or range(len(x.shape))))
        keep = bool(at.attribute("keepdims", 1))
        if kind == "mean" and over == (2, 3) and len(x.shape) == 4:
            y = at.layer("global_avgpool", (x,))
            return Tensor(y.name, (*y.shape, 1, 1)) if keep else y
        return at.layer(kind, (x,), over, keepdims=keep)

    return rule


def _largest(at: At) -> Tensor:
    """ReduceMax: a window as large as what it goes over, which is moved to the end."""
    x, axes = at.moved(0), at.integers(1, "axes") or []
    rank = len(x.shape)
    over = sorted({axis_of(axis, rank) for axis in axes})
    if not over or 0 in over:
        raise Unsupported("only the largest of each sample is built: give it axes behind the batch")
    lead = [axis for axis in range(rank) if axis not in over]
    order = tuple(x.order[axis] for axis in (*lead, *over))
    made = at.walk.made_of(replace(x, order=order), at.made_name("moved"))
    sizes, count = made.shape[: len(lead)], prod(made.shape[len(lead) :])
    rows = Tensor(made.name, (sizes[0], prod(sizes[1:]), 1, count))
    y = at.layer("maxpool2d", (rows,), (1, count))
    kept = tuple(1 if axis in over else x.shape[axis] for axis in range(rank))
    return Tensor(y.name, kept if at.attribute("keepdims", 1) else sizes)


def _swish(at: At) -> Tensor:
    x = at.tensor(0)
    inner = replace(at.view(0), factor=at.view(0).factor * at.attribute("alpha", 1.0))
    scaled = at.walk.made_of(inner, at.made_name("slope"))
    return at.layer("mul", (x, at.layer("sigmoid", (scaled,), name=at.made_name("sigmoid"))))


def _add(at: At) -> Tensor | Moved:
    for x, mask in ((0, 1), (1, 0)):
        hidden = at.added_mask(mask)
        if hidden and at.known(x) is None:
            return at.unseen(x, hidden)
    return _arithmetic(at, "add")


def _where(at: At) -> Tensor | Moved:
    """Scores where a mask allows it, else minus infinity; weights where it does, else zeros."""
    condition = at.known(0)
    for x, other, allowed in ((1, 2, True), (2, 1, False)):
        fill = at.known(other)
        if not condition or at.known(x) is not None:
            continue
        shapes = (condition[0].shape, fill[0].shape if fill else at.view(other).shape)
        if np.broadcast_shapes(at.view(x).shape, *shapes) != at.view(x).shape:
            continue
        hidden = [value.astype(bool) != allowed for value in condition]
        if not any(map(np.any, hidden)):
            return at.view(x)
        if fill and all((value <= LOW).all() for value in fill):
            return at.unseen(x, hidden)
        if fill and not any(map(np.any, fill)) and at.is_hidden_already(x, hidden):
            return at.view(x)
    raise Unsupported("only a mask of padding or of what comes later, at a softmax, is built")


def _is_nan(at: At) -> Constant:
    """Numbers that are trained with are finite: a loss that is not stops the training."""
    shape = at.view(0).shape
    return computed(at.node.outputs[0], np.zeros(shape, bool))


def _arithmetic(at: At, kind: str) -> Tensor:
    """Of two tensors, or one and a constant; what makes the data ready stays as it is."""
    whole = [number for number in (0, 1) if at.is_tensor(number)]
    ready = len(whole) == 1 and at.is_made_ready(whole[0], kind == "sub")
    operands = [at.operand(number, fixed=ready) for number in (0, 1)]
    y = at.layer(kind, tuple(operands))
    if ready:
        at.walk.ready.add(y.name)
    return y


def _sub(at: At) -> Tensor:
    return _arithmetic(at, "sub")


def _mul(at: At) -> Tensor | Moved:
    for x, factor in ((0, 1), (1, 0)):
        number = at.scalar(factor)
        if number is not None:
            return _scaled(at.view(x), number)
    return _arithmetic(at, "mul")


def _div(at: At) -> Tensor | Moved:
    number = at.scalar(1)
    if number:
        return _scaled(at.view(0), 1 / number)
    if at.is_tensor(1):
        raise Unsupported("only a division by a constant is built: multiply instead")
    return at.layer("mul", (at.tensor(0), at.inverse(1)))


def _neg(at: At) -> Moved:
    return _scaled(at.view(0), -1.0)


def _scaled(x: Moved, factor: float) -> Moved:
    x = x if factor > 0 else plain(x)
    return replace(x, factor=x.factor * factor, filling=x.filling * factor)


def _pow(at: At) -> Tensor:
    given = at.constant(1).value
    power = float(given.reshape(-1)[0]) if given.size == 1 else 0.0
    if power not in (1, 2, 3, 4):
        raise Unsupported("only powers of 1 to 4 are built: multiply instead")
    x = y = at.tensor(0)
    for left in range(int(power) - 1, 0, -1):
        y = at.layer("mul", (y, x), name=None if left == 1 else at.made_name("power"))
    return Tensor(y.name, np.broadcast_shapes(x.shape, given.shape))


def _dropout(at: At) -> Tensor | Moved:
    ratio = at.number(1, "ratio")
    if ratio == 0:
        return at.view(0)
    return at.layer("dropout", (at.tensor(0),), 0.5 if ratio is None else round(ratio, 6))


def _softmax(at: At) -> Tensor | Moved:
    x = at.view(0)
    newer, rank = at.walk.model.opsets[""] >= 13, len(x.shape)
    axis = axis_of(at.attribute("axis", -1 if newer else 1), rank)
    behind = prod(x.shape[axis + 1 :])
    if axis != rank - 1 and (behind == 1 or not newer):  # older opsets take all axes from this on
        whole = at.tensor(0)
        rows = Tensor(whole.name, (prod(x.shape[:axis]), x.shape[axis] * behind))
        return Tensor(at.layer("softmax", (rows,)).name, x.shape)
    if axis != rank - 1:
        order = [*range(rank)]
        order[axis], order[-1] = order[-1], order[axis]
        last = at.layer("transpose", (at.tensor(0),), tuple(order), name=at.made_name("moved"))
        return Moved(at.layer("softmax", (last,)), tuple(order))
    causal = "future" in x.hides
    scores = at.walk.made_of(replace(x, hides=NOTHING), at.walk.plain_name(at.node))
    if "padding" in x.hides:
        texts = at.walk.builder.data
        batch, sizes = texts.shape[0], scores.shape
        by_text = Tensor(scores.name, (batch, sizes[0] // batch, *sizes[1:]))
        y = at.layer("masked_softmax", (by_text, texts), causal=causal)
        y = Tensor(y.name, sizes)
    else:
        y = at.layer("softmax", (scores,), causal=causal)
    at.walk.hidden[y.name] = x.hides
    return y


def _log_softmax(at: At) -> Tensor:
    raise Unsupported(
        "only as the model's last operator, over the classes, where the loss takes its place"
    )


TENSOR_RULES: dict[str, Rule] = {
    **VIEW_RULES,
    **{row.onnx: _same(kind) for kind, row in OPERATORS.items() if row.onnx},
    "Add": _add,
    "Clip": _clip,
    "Div": _div,
    "Dropout": _dropout,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "IsNaN": _is_nan,
    "LeakyRelu": _leaky_relu,
    "LogSoftmax": _log_softmax,
    "Max": _bound("Max"),
    "Min": _bound("Min"),
    "Mul": _mul,
    "Neg": _neg,
    "PRelu": _prelu,
    "Pow": _pow,
    "ReduceMax": _largest,
    "ReduceMean": _reduced("mean"),
    "ReduceSum": _reduced("sum"),
    "Softmax": _softmax,
    "Sub": _sub,
    "Sum": _sum_of_all,
    "Swish": _swish,
    "Where": _where,
}
