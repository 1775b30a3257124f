"""Rows of ONNX operators that work on tensors of any shape; see onnx_operators.py."""

from dataclasses import replace
from math import inf, prod

import numpy as np

from .build import Tensor
from .onnx_at import At, Moved, Rule, Unsupported
from .onnx_fold import Constant, computed
from .onnx_tokens import LOW, NOTHING
from .operators_tensor import axis_of

LEFT_OUT = -inf  # padding that a window's maximum takes no notice of


def _elementwise(kind: str) -> Rule:
    return lambda at: at.layer(kind, (at.tensor(0),))


def _gelu(at: At) -> Tensor:
    return at.layer("gelu", (at.tensor(0),), approximate=at.attribute("approximate", "none"))


def _clip(at: At) -> Tensor:
    return _clipped(at, at.number(1, "min"), at.number(2, "max"))


def _clipped(at: At, low: float | None, high: float | None) -> Tensor:
    low, high = -inf if low is None else low, inf if high is None or high > 3e38 else high
    if low == 0 and high in (6, inf):
        return at.layer("relu" if high == inf else "relu6", (at.tensor(0),))
    return at.layer("clip", (at.tensor(0),), low, high)


def _leaky_relu(at: At) -> Tensor:
    below, slope = _below(at), at.attribute("alpha", 0.01)
    return _bent(at, at.layer("scale", (below,), slope, name=at.made_name("slope")))


def _prelu(at: At) -> Tensor:
    slope = at.operand(1)
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
        number = at.scalar(1)
        if number is None or len(at.node.inputs) != 2:
            raise Unsupported("only that of a tensor and a number is built")
        return _clipped(at, *((number, None) if which == "Max" else (None, number)))

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


def _add(at: At) -> Tensor | Moved:
    for x, mask in ((0, 1), (1, 0)):
        hidden = at.added_mask(mask)
        if hidden and at.known(x) is None:
            return at.unseen(x, hidden)
    return at.layer("add", _operands(at))


def _where(at: At) -> Tensor | Moved:
    """Scores where a mask allows it, else minus infinity; weights where it does, else zeros."""
    condition = at.known(0)
    for x, other, allowed in ((1, 2, True), (2, 1, False)):
        fill = at.known(other)
        if not condition or at.known(x) is not None:
            continue
        hidden = [value.astype(bool) != allowed for value in condition]
        if not any(map(np.any, hidden)):
            return at.view(x)
        if fill and all((value < LOW).all() for value in fill):
            return at.unseen(x, hidden)
        if fill and not any(map(np.any, fill)) and at.is_hidden_already(x, hidden):
            return at.view(x)
    raise Unsupported("only a mask of padding or of what comes later, at a softmax, is built")


def _is_nan(at: At) -> Constant:
    """Numbers that are trained with are finite: a loss that is not stops the training."""
    shape = at.view(0).shape
    return computed(at.node.outputs[0], np.zeros(shape, bool))


def _operands(at: At) -> tuple[Tensor, Tensor]:
    return at.operand(0), at.operand(1)


def _sub(at: At) -> Tensor:
    return at.layer("sub", _operands(at))


def _mul(at: At) -> Tensor | Moved:
    for x, factor in ((0, 1), (1, 0)):
        number = at.scalar(factor)
        if number is not None:
            return _scaled(at.view(x), number)
    return at.layer("mul", _operands(at))


def _div(at: At) -> Tensor | Moved:
    number = at.scalar(1)
    if number is None or number == 0:
        raise Unsupported("only a division by a constant number is built: multiply instead")
    return _scaled(at.view(0), 1 / number)


def _neg(at: At) -> Moved:
    return _scaled(at.view(0), -1.0)


def _plain(x: Moved) -> Moved:
    """A tensor of which nothing is hidden: masks know their axes, and a sign would show it."""
    if x.hides:
        raise Unsupported("it changes masked scores: mask them right in front of the softmax")
    return x


def _scaled(x: Moved, factor: float) -> Moved:
    x = x if factor > 0 else _plain(x)
    return replace(x, factor=x.factor * factor, filling=x.filling * factor)


def _pow(at: At) -> Tensor:
    if at.scalar(1) != 2:
        raise Unsupported("only the second power is built: multiply instead")
    return at.layer("mul", (at.tensor(0), at.tensor(0)))


def _dropout(at: At) -> Tensor | Moved:
    ratio = at.number(1, "ratio")
    if ratio == 0:
        return at.view(0)
    return at.layer("dropout", (at.tensor(0),), 0.5 if ratio is None else round(ratio, 6))


def _same(at: At) -> Moved:
    return at.view(0)


def _flatten(at: At) -> Tensor:
    x = at.tensor(0)
    axis = at.attribute("axis", 1)
    axis += len(x.shape) if axis < 0 else 0  # it may be the number of axes, so no remainder of it
    return Tensor(x.name, (prod(x.shape[:axis]), prod(x.shape[axis:])))


def _reshape(at: At) -> Tensor:
    x, wanted = at.tensor(0), at.integers(1, "shape")
    assert wanted is not None
    if not at.attribute("allowzero", 0):
        wanted = [x.shape[i] if size == 0 else size for i, size in enumerate(wanted)]
    if -1 in wanted or prod(wanted) != prod(x.shape):
        wanted = at.for_batch(x.shape, wanted)
    known = prod(size for size in wanted if size != -1)
    shape = tuple(prod(x.shape) // known if size == -1 else size for size in wanted)
    if prod(shape) != prod(x.shape):
        raise Unsupported(
            f"it makes {tuple(wanted)} of {x.shape}: export the model with an open batch size "
            "(dynamic axes), or keep the batch that it was exported with"
        )
    return Tensor(x.name, shape)


def _squeeze(at: At) -> Tensor:
    x, axes = at.tensor(0), at.integers(1, "axes")
    rank = len(x.shape)
    gone = {axis_of(axis, rank) for axis in axes or (i for i in range(rank) if x.shape[i] == 1)}
    if any(x.shape[axis] != 1 for axis in gone):
        raise Unsupported(f"it drops axes {axes} of {x.shape}, which are not all 1")
    return Tensor(x.name, tuple(n for i, n in enumerate(x.shape) if i not in gone))


def _unsqueeze(at: At) -> Tensor:
    x, axes = at.tensor(0), at.integers(1, "axes") or []
    shape, sizes = len(x.shape) + len(axes), list(x.shape)
    for axis in sorted(axis_of(axis, shape) for axis in axes):
        sizes.insert(axis, 1)
    return Tensor(x.name, tuple(sizes))


def _transpose(at: At) -> Tensor | Moved:
    x = _plain(at.view(0))
    order = at.attribute("perm") or list(range(len(x.order)))[::-1]
    whole = tuple(x.order[axis] for axis in order)
    pads = tuple(x.pads[axis] for axis in order) if x.pads else ()
    large = [axis for axis in whole if x.tensor.shape[axis] != 1]
    if large == sorted(large):  # only axes of size 1 move, so no number does
        seen = Tensor(x.tensor.name, tuple(x.tensor.shape[axis] for axis in whole))
        return replace(x, tensor=seen, order=tuple(range(len(whole))), pads=pads)
    return replace(x, order=whole, pads=pads)


def _pad(at: At) -> Moved:
    x, sides = _plain(at.view(0)), at.integers(1, "pads") or []
    mode, rank = at.attribute("mode", "constant"), len(x.order)
    filling = float(at.constant(2).value.reshape(-1)[0]) if at.has(2) else 0.0
    filling = LEFT_OUT if filling < -3e38 else filling
    if filling not in (0, LEFT_OUT):
        raise Unsupported(f"it pads with {filling}: only zeros are built")
    if mode != "constant":
        raise Unsupported(f"it pads in the mode {mode}: only zeros (constant) are built")
    axes = [axis_of(axis, rank) for axis in (at.integers(3, "axes") or range(rank))]
    pads = [[0, 0] for _ in range(rank)]
    for axis, *pair in zip(axes, sides[: len(axes)], sides[len(axes) :], strict=True):
        pads[axis] = pair
    if min(map(min, pads)) < 0:
        raise Unsupported(f"its pads {sides} cut some off: slice instead")
    if not any(map(any, pads)):
        return x
    if x.pads and x.filling != filling:
        x = at.moved(0)
    both = zip(x.pads or ((0, 0),) * rank, pads, strict=True)
    return replace(x, pads=tuple((a + c, b + d) for (a, b), (c, d) in both), filling=filling)


def _softmax(at: At) -> Tensor | Moved:
    x = at.view(0)
    newer, rank = at.walk.model.opsets[""] >= 13, len(x.shape)
    axis = axis_of(at.attribute("axis", -1 if newer else 1), rank)
    if not newer and prod(x.shape[axis + 1 :]) > 1:
        raise Unsupported(f"before opset 13 it goes along all axes from {axis}: export a newer one")
    if newer and axis != rank - 1:
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
    raise Unsupported("only as the model's last operator, where the loss takes its place")


def _gather(at: At) -> Tensor:
    axis = at.attribute("axis", 0)
    if not at.is_tensor(0):
        table, tokens = at.matrix(0), at.tensor(1)
        if axis != 0:
            raise Unsupported(f"it looks words up along axis {axis}: only the first is built")
        name = at.layer_name(table)
        parameters = {"weight": at.parameter(name, "weight", table)}
        return at.layer(
            "embedding", (tokens,), *table.value.shape, name=name, parameters=parameters
        )
    x, chosen = at.tensor(0), at.constant(1).value
    axis, size = axis_of(axis, len(x.shape)), x.shape[axis]
    places = [int(place) % size for place in chosen.reshape(-1)]
    if places != list(range(places[0], places[0] + len(places))):
        raise Unsupported("it picks places that do not follow one another: slice instead")
    y = at.layer("slice", (x,), axis, places[0], places[-1] + 1)
    return Tensor(y.name, (*x.shape[:axis], *chosen.shape, *x.shape[axis + 1 :]))


def _slice(at: At) -> Tensor:
    x = at.tensor(0)
    begins, ends = at.integers(1, "starts") or [], at.integers(2, "ends") or []
    axes, steps = at.integers(3, "axes") or list(range(len(begins))), at.integers(4, "steps")
    if any(step != 1 for step in steps or []):
        raise Unsupported(f"it takes every {steps}th: only whole ranges are built")
    for axis, begin, end in zip(
        (axis_of(a, len(x.shape)) for a in axes), begins, ends, strict=True
    ):
        size = x.shape[axis]
        begin, end = (min(max(place + size * (place < 0), 0), size) for place in (begin, end))
        if (begin, end) != (0, size):
            x = at.layer("slice", (x,), axis, begin, end)
    return x


def _split(at: At) -> list[Tensor]:
    x, sizes, count = at.tensor(0), at.integers(1, "split"), len(at.node.outputs)
    axis = axis_of(at.attribute("axis", 0), len(x.shape))
    each = -(-x.shape[axis] // count)
    sizes = sizes or [min(each, x.shape[axis] - i * each) for i in range(count)]
    begins = [sum(sizes[:i]) for i in range(count)]
    return [
        at.layer("slice", (x,), axis, begin, begin + size)
        if at.walk.readers(name) or name == at.walk.model.output
        else Tensor(x.name, (*x.shape[:axis], size, *x.shape[axis + 1 :]))
        for begin, size, name in zip(begins, sizes, at.node.outputs, strict=True)
    ]


def _concat(at: At) -> Tensor:
    """One behind the other; a constant that all samples share, as a class token, is repeated."""
    parts, axis = (
        [at.operand(number) for number in range(len(at.node.inputs))],
        at.attribute("axis"),
    )
    batch = max(part.shape[0] for part in parts)
    rank = len(parts[0].shape)
    for i, part in enumerate(parts):
        if part.shape[0] == 1 < batch and axis_of(axis, rank) > 0:
            whole, name = (batch, *part.shape[1:]), at.made_name("repeated")
            parts[i] = at.layer("expand", (part,), whole, name=name)
    if axis_of(axis, rank) > 0 and len({part.shape[0] for part in parts}) > 1:
        raise Unsupported(
            "what the file repeats for its own batch cannot go with another: export it with an "
            "open batch size, or keep its own"
        )
    x = parts[0]
    for part in parts[1:]:
        x = at.layer("concat", (x, part), axis)
    return x


def _expand(at: At) -> Tensor | Constant:
    wanted = [int(size) for size in at.constant(1).value]
    if not at.is_tensor(0):  # see Walk.is_shared
        return at.constant(0)
    x = at.tensor(0)
    shape = np.broadcast_shapes(x.shape, tuple(at.for_batch(x.shape, wanted)))
    return x if shape == x.shape else at.layer("expand", (x,), shape)


TENSOR_RULES: dict[str, Rule] = {
    "Add": _add,
    "Cast": _same,
    "Clip": _clip,
    "Concat": _concat,
    "Div": _div,
    "Dropout": _dropout,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "Identity": _same,
    "LeakyRelu": _leaky_relu,
    "LogSoftmax": _log_softmax,
    "IsNaN": _is_nan,
    "Max": _bound("Max"),
    "Min": _bound("Min"),
    "Mul": _mul,
    "Neg": _neg,
    "Pad": _pad,
    "PRelu": _prelu,
    "Pow": _pow,
    "ReduceMean": _reduced("mean"),
    "ReduceSum": _reduced("sum"),
    "Relu": _elementwise("relu"),
    "Reshape": _reshape,
    "Sigmoid": _elementwise("sigmoid"),
    "Slice": _slice,
    "Softmax": _softmax,
    "Split": _split,
    "Squeeze": _squeeze,
    "Sub": _sub,
    "Sum": _sum_of_all,
    "Tanh": _elementwise("tanh"),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}
