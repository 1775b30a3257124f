"""Import rules of ONNX operators on tensors of any shape; operators.py explains the rules."""

from dataclasses import replace
from inspect import signature
from math import inf, prod

import numpy as np

from ..graph.builder import Tensor
from ..graph.operators import OPERATORS
from ..graph.operators_tensor import axis_of
from .context import Deferred, Unsupported, deferred
from .fold import Constant, computed
from .node import ImportedNode, Rule
from .resizing import RESIZING_RULES
from .tokens import FUTURE, LOW, UNMASKED
from .views import VIEW_RULES, plain


def _same(kind: str) -> Rule:
    """Return a rule that adds the operator `kind`, with the node's attributes as its options."""
    options = list(signature(OPERATORS[kind].spec).parameters.values())[1:]

    def rule(node: ImportedNode) -> Tensor:
        values = {option.name: node.attribute(option.name, option.default) for option in options}
        return node.layer(kind, (node.tensor(0),), **values)

    return rule


def _clip(node: ImportedNode) -> Tensor:
    return _clipped(node, node.number(1, "min"), node.number(2, "max"))


def _clipped(node: ImportedNode, low: float | None, high: float | None, number: int = 0) -> Tensor:
    """Clip the input `number` to the bounds `low` and `high`. None means no bound."""
    low, high = -inf if low is None else low, inf if high is None or high > 3e38 else high
    if low == 0 and high in (6, inf):
        return node.layer("relu" if high == inf else "relu6", (node.tensor(number),))
    return node.layer("clip", (node.tensor(number),), low, high)


def _leaky_relu(node: ImportedNode) -> Tensor:
    below, slope = _below(node), node.attribute("alpha", 0.01)
    return _bent(node, node.layer("scale", (below,), slope, name=node.helper_name("slope")))


def _prelu(node: ImportedNode) -> Tensor:
    slope = node.stored(1, train_scalar=True)
    return _bent(node, node.layer("mul", (_below(node), slope), name=node.helper_name("slope")))


def _below(node: ImportedNode) -> Tensor:
    return node.layer("clip", (node.tensor(0),), -inf, 0.0, name=node.helper_name("below"))


def _bent(node: ImportedNode, below: Tensor) -> Tensor:
    above = node.layer("relu", (node.tensor(0),), name=node.helper_name("above"))
    return node.layer("add", (above, below))


def _hard_sigmoid(node: ImportedNode) -> Tensor:
    return _hard(node, node.attribute("alpha", 0.2), node.attribute("beta", 0.5))


def _hard_swish(node: ImportedNode) -> Tensor:
    return node.layer("mul", (node.tensor(0), _hard(node, 1 / 6, 0.5)))


def _hard(node: ImportedNode, slope: float, middle: float) -> Tensor:
    """Return slope * x + middle, limited to the range from 0 to 1."""
    if slope <= 0 or middle <= 0:
        raise Unsupported(f"alpha {slope} or beta {middle} is not positive: use Mul, Add and Clip")
    ends = (-middle / slope, (1 - middle) / slope)
    x = node.layer("clip", (node.tensor(0),), *ends, name=node.helper_name("clip"))
    x = node.layer("scale", (x,), slope / middle, name=node.helper_name("slope"))
    one = node.layer(
        "parameter", (), (1,), start="ones", trainable=False, name=node.helper_name("one")
    )
    x = node.layer("add", (x, one), name=node.helper_name("sum"))
    return node.layer("scale", (x,), middle, name=node.helper_name("whole"))


def _sum_of_all(node: ImportedNode) -> Tensor:
    total = node.stored(0)
    for number in range(1, len(node.onnx.inputs)):
        total = node.layer("add", (total, node.stored(number)))
    return total


def _bound(which: str) -> Rule:
    """Return the rule for Min or Max of a tensor and a number, or of tensors."""

    def rule(node: ImportedNode) -> Tensor | Deferred:
        for x in (0, 1) if len(node.onnx.inputs) == 2 else ():
            number = node.scalar(1 - x)
            if number is not None:
                low, high = (number, None) if which == "Max" else (None, number)
                return _clipped(node, low, high, x)
        return _largest_of(node, 1.0 if which == "Max" else -1.0)

    return rule


def _largest_of(node: ImportedNode, sign: float) -> Deferred:
    """Compute the maximum of all inputs by max pooling. With the sign -1, it is the minimum."""
    inputs = [node.stored(number) for number in range(len(node.onnx.inputs))]
    shape = np.broadcast_shapes(*(x.shape for x in inputs))
    whole: list[Tensor] = []
    for x in inputs:
        made = node.materialise(_scaled(deferred(x), sign), node.helper_name("signed"))
        if made.shape != shape:
            made = node.layer("expand", (made,), shape, name=node.helper_name("expanded"))
        whole.append(Tensor(made.name, (shape[0], 1, 1, prod(shape[1:]))))
    rows = whole[0]
    for other in whole[1:]:
        rows = node.layer("concat", (rows, other), 2, name=node.helper_name("rows"))
    y = node.layer("maxpool2d", (rows,), (len(whole), 1))
    return _scaled(deferred(Tensor(y.name, shape)), sign)


def _reduced(kind: str) -> Rule:
    return lambda node: _reduced_of(node, kind, node.tensor(0))


def _reduced_of(node: ImportedNode, kind: str, x: Tensor) -> Tensor:
    axes = node.integers(1, "axes")
    if not axes and node.attribute("noop_with_empty_axes", 0):
        return x
    over = tuple(sorted(axis_of(axis, len(x.shape)) for axis in axes or range(len(x.shape))))
    keep = bool(node.attribute("keepdims", 1))
    if kind == "mean" and over == (2, 3) and len(x.shape) == 4:
        y = node.layer("global_avgpool", (x,))
        return Tensor(y.name, (*y.shape, 1, 1)) if keep else y
    return node.layer(kind, (x,), over, keepdims=keep)


def _largest(node: ImportedNode) -> Tensor:
    """Compute ReduceMax by max pooling, with one window over all reduced axes.

    Before the pooling, the reduced axes are moved to the end.
    """
    x, axes = node.unpadded(0), node.integers(1, "axes") or []
    rank = len(x.shape)
    over = sorted({axis_of(axis, rank) for axis in axes})
    if not over or 0 in over:
        raise Unsupported(
            "the operator `ReduceMax` is not supported over the axis of the batch: set `axes` to "
            "later axes"
        )
    lead = [axis for axis in range(rank) if axis not in over]
    order = tuple(x.order[axis] for axis in (*lead, *over))
    made = node.materialise(replace(x, order=order), node.helper_name("moved"))
    sizes, count = made.shape[: len(lead)], prod(made.shape[len(lead) :])
    rows = Tensor(made.name, (sizes[0], prod(sizes[1:]), 1, count))
    y = node.layer("maxpool2d", (rows,), (1, count))
    kept = tuple(1 if axis in over else x.shape[axis] for axis in range(rank))
    return Tensor(y.name, kept if node.attribute("keepdims", 1) else sizes)


def _swish(node: ImportedNode) -> Tensor:
    x = node.tensor(0)
    inner = replace(node.deferred(0), factor=node.deferred(0).factor * node.attribute("alpha", 1.0))
    scaled = node.materialise(inner, node.helper_name("slope"))
    return node.layer(
        "mul", (x, node.layer("sigmoid", (scaled,), name=node.helper_name("sigmoid")))
    )


def _add(node: ImportedNode) -> Tensor | Deferred:
    for x, mask in ((0, 1), (1, 0)):
        hidden = node.added_mask(mask)
        if hidden and node.sample_values(x) is None:
            return node.masked(x, hidden)
    return _arithmetic(node, "add")


def _where(node: ImportedNode) -> Tensor | Deferred:
    """Apply an attention mask that the file applies with the operator `Where`.

    `Where` sets hidden scores to minus infinity, or hidden outputs of a softmax to zero.
    """
    condition = node.sample_values(0)
    for x, other, allowed in ((1, 2, True), (2, 1, False)):
        fill = node.sample_values(other)
        if not condition or node.sample_values(x) is not None:
            continue
        shapes = (condition[0].shape, fill[0].shape if fill else node.deferred(other).shape)
        if np.broadcast_shapes(node.deferred(x).shape, *shapes) != node.deferred(x).shape:
            continue
        hidden = [value.astype(bool) != allowed for value in condition]
        if not any(map(np.any, hidden)):
            return node.deferred(x)
        if fill and all((value <= LOW).all() for value in fill):
            return node.masked(x, hidden)
        if fill and not any(map(np.any, fill)) and node.is_masked(x, hidden):
            return node.deferred(x)
    raise Unsupported(
        "the operator `Where` is supported only as an attention mask before a softmax: it must "
        "hide padding (token 0) or later tokens"
    )


def _is_nan(node: ImportedNode) -> Constant:
    """Replace `IsNaN` by the constant False.

    If a NaN makes the loss not finite, training stops anyway.
    """
    shape = node.deferred(0).shape
    return computed(node.onnx.outputs[0], np.zeros(shape, bool))


def _arithmetic(node: ImportedNode, kind: str) -> Tensor:
    """Add a layer that computes `kind` from two tensors, or from a tensor and a constant.

    A constant that normalises the data is not trained.
    """
    whole = [number for number in (0, 1) if node.is_tensor(number)]
    normalises = len(whole) == 1 and node.is_normalised(whole[0], kind == "sub")
    operands = [node.stored(number, frozen=normalises) for number in (0, 1)]
    y = node.layer(kind, tuple(operands))
    if normalises:
        node.context.normalised.add(y.name)
    return y


def _mul(node: ImportedNode) -> Tensor | Deferred:
    for x, factor in ((0, 1), (1, 0)):
        number = node.scalar(factor)
        if number is not None:
            return _scaled(node.deferred(x), number)
    return _arithmetic(node, "mul")


def _div(node: ImportedNode) -> Tensor | Deferred:
    number = node.scalar(1)
    if number:
        return _scaled(node.deferred(0), 1 / number)
    if not node.is_tensor(1):
        return node.layer("mul", (node.tensor(0), node.inverse(1)))
    divisor = node.tensor(1)
    inverse = node.layer("reciprocal", (divisor,), name=node.helper_name("inverse"))
    if (factor := node.scalar(0)) is not None:
        return _scaled(deferred(inverse), factor)
    return node.layer("mul", (node.stored(0), inverse))


def _scaled(x: Deferred, factor: float) -> Deferred:
    x = x if factor > 0 else plain(x)
    return replace(x, factor=x.factor * factor, filling=x.filling * factor)


def _pow(node: ImportedNode) -> Tensor:
    given = node.constant(1).value
    power = float(given.reshape(-1)[0]) if given.size == 1 else 0.0
    if abs(power) not in (0.5, 1, 2, 3, 4):
        raise Unsupported("the exponent must be 0.5, 1, 2, 3 or 4, or one of these below 0")
    x = y = node.tensor(0)
    if power < 0:
        x = y = node.layer("reciprocal", (x,), name=node.helper_name("inverse"))
    if abs(power) == 0.5:
        y = node.layer("sqrt", (x,))
    for left in range(int(abs(power)) - 1, 0, -1):
        y = node.layer("mul", (y, x), name=None if left == 1 else node.helper_name("power"))
    return Tensor(y.name, np.broadcast_shapes(x.shape, given.shape))


def _selu(node: ImportedNode) -> Deferred:
    alpha, gamma = node.attribute("alpha", 1.67326319), node.attribute("gamma", 1.05070102)
    return _scaled(deferred(node.layer("elu", (node.tensor(0),), alpha=alpha)), gamma)


def _celu(node: ImportedNode) -> Deferred:
    alpha = node.attribute("alpha", 1.0)
    inner = node.materialise(_scaled(node.deferred(0), 1 / alpha), node.helper_name("inner"))
    return _scaled(deferred(node.layer("elu", (inner,))), alpha)


def _mish(node: ImportedNode) -> Tensor:
    inner = node.layer("softplus", (node.tensor(0),), name=node.helper_name("softplus"))
    curve = node.layer("tanh", (inner,), name=node.helper_name("tanh"))
    return node.layer("mul", (node.tensor(0), curve))


def _norm(node: ImportedNode) -> Tensor:
    """Compute ReduceL2: the root of the sum of the squares."""
    x = node.tensor(0)
    square = node.layer("mul", (x, x), name=node.helper_name("square"))
    return node.layer("sqrt", (_reduced_of(node, "sum", square),))


def _rms_norm(node: ImportedNode) -> Tensor:
    x = node.tensor(0)
    axis, epsilon = node.attribute("axis", -1), node.attribute("epsilon", 1e-5)
    over = tuple(range(axis_of(axis, len(x.shape)), len(x.shape)))
    square = node.layer("mul", (x, x), name=node.helper_name("square"))
    mean = node.layer("mean", (square,), over, keepdims=True, name=node.helper_name("mean"))
    # mean + epsilon = epsilon * (mean / epsilon + 1), with the only constant that needs no file
    mean = node.layer("scale", (mean,), 1 / epsilon, name=node.helper_name("parts"))
    one = node.layer(
        "parameter", (), (1,), start="ones", trainable=False, name=node.helper_name("one")
    )
    whole = node.layer("add", (mean, one), name=node.helper_name("more"))
    whole = node.layer("scale", (whole,), epsilon, name=node.helper_name("whole"))
    root = node.layer("sqrt", (whole,), name=node.helper_name("root"))
    inverse = node.layer("reciprocal", (root,), name=node.helper_name("inverse"))
    normed = node.layer("mul", (x, inverse), name=node.helper_name("normed"))
    return node.layer("mul", (normed, node.stored(1, train_scalar=True)))


def _dropout(node: ImportedNode) -> Tensor | Deferred:
    ratio = node.number(1, "ratio")
    if ratio == 0:
        return node.deferred(0)
    return node.layer("dropout", (node.tensor(0),), 0.5 if ratio is None else round(ratio, 6))


def _softmax(node: ImportedNode) -> Tensor | Deferred:
    x = node.deferred(0)
    newer, rank = node.context.model.opsets[""] >= 13, len(x.shape)
    axis = axis_of(node.attribute("axis", -1 if newer else 1), rank)
    rest = prod(x.shape[axis + 1 :])
    # Before opset 13, a softmax is over the axis and all later axes.
    if axis != rank - 1 and (rest == 1 or not newer):
        whole = node.tensor(0)
        rows = Tensor(whole.name, (prod(x.shape[:axis]), x.shape[axis] * rest))
        return Tensor(node.layer("softmax", (rows,)).name, x.shape)
    if axis != rank - 1:
        order = [*range(rank)]
        order[axis], order[-1] = order[-1], order[axis]
        last = node.layer(
            "transpose", (node.tensor(0),), tuple(order), name=node.helper_name("moved")
        )
        return Deferred(node.layer("softmax", (last,)), tuple(order))
    causal = "future" in x.mask
    scores = node.materialise(replace(x, mask=UNMASKED))
    padding = [*(x.mask - FUTURE)]
    if len(padding) > 1:
        raise Unsupported(
            "the scores have masks of two inputs: join both masks in one input of the model"
        )
    if padding:
        sizes, batch = scores.shape, node.context.builder.data.shape[0]
        texts = Tensor(padding[0], (batch, sizes[-1]))
        by_text = Tensor(scores.name, (batch, sizes[0] // batch, *sizes[1:]))
        y = node.layer("masked_softmax", (by_text, texts), causal=causal)
        y = Tensor(y.name, sizes)
    else:
        y = node.layer("softmax", (scores,), causal=causal)
    node.context.masks[y.name] = x.mask
    return y


def _log_softmax(node: ImportedNode) -> Tensor:
    raise Unsupported(
        "the operator `LogSoftmax` is supported only at the end of the model, over the axis of the "
        "classes: the loss then replaces it. Move it to the end, or use Softmax"
    )


TENSOR_RULES: dict[str, Rule] = {
    **VIEW_RULES,
    **RESIZING_RULES,
    **{row.onnx: _same(kind) for kind, row in OPERATORS.items() if row.onnx},
    "Add": _add,
    "Celu": _celu,
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
    "Mish": _mish,
    "Mul": _mul,
    "Neg": lambda node: _scaled(node.deferred(0), -1.0),
    "PRelu": _prelu,
    "Pow": _pow,
    "RMSNormalization": _rms_norm,
    "ReduceL2": _norm,
    "ReduceMax": _largest,
    "ReduceMean": _reduced("mean"),
    "ReduceSum": _reduced("sum"),
    "Selu": _selu,
    "Softmax": _softmax,
    "Sub": lambda node: _arithmetic(node, "sub"),
    "Sum": _sum_of_all,
    "Swish": _swish,
    "Where": _where,
}
