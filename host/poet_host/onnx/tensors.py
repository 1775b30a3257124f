"""Import rules of ONNX operators on tensors of any shape; operators.py explains the rules."""

from dataclasses import replace
from inspect import signature
from math import inf, prod

import numpy as np

from ..graph.builder import Tensor
from ..graph.operators import OPERATORS
from ..graph.operators_tensor import axis_of
from ..graph.weights import Array
from .advice import advice
from .conditions import CONDITION_RULES
from .context import Deferred, Unsupported, deferred
from .fold import computed
from .masks import MASK_RULES, added_mask, masked, sample_values
from .node import ImportedNode, Rule
from .resizing import RESIZING_RULES
from .selections import SELECTION_RULES
from .views import VIEW_RULES, plain
from .windows import maximum


def _same(kind: str) -> Rule:
    """Return a rule that adds the operator `kind`, with the node's attributes as its options."""
    options = list(signature(OPERATORS[kind].spec).parameters.values())[1:]

    def rule(node: ImportedNode) -> Tensor:
        values = {option.name: node.attribute(option.name, option.default) for option in options}
        return node.layer(kind, (node.tensor(0),), **values)

    return rule


def _clipped(node: ImportedNode, low: float | None, high: float | None, number: int = 0) -> Tensor:
    """Clip the input `number` to the bounds `low` and `high`. None means no bound."""
    low, high = -inf if low is None else low, inf if high is None or high > 3e38 else high
    if (low, high) == (0, 6):
        return node.layer("relu6", (node.tensor(number),))
    return node.layer("clip", (node.tensor(number),), low, high)


def _bent(node: ImportedNode) -> Tensor:
    """Compute LeakyRelu or PRelu, which multiply numbers below 0 by a slope."""
    slope = () if node.onnx.op == "LeakyRelu" else (node.stored(1, is_weight=True),)
    below = node.helper("below", "clip", (node.tensor(0),), -inf, 0.0)
    if slope:
        below = node.helper("slope", "mul", (below, *slope))
    else:
        below = node.helper("slope", "scale", (below,), node.attribute("alpha", 0.01))
    above = node.helper("above", "relu", (node.tensor(0),))
    return node.layer("add", (above, below))


def _hard(node: ImportedNode, slope: float, middle: float) -> Tensor:
    """Return slope * x + middle, limited to the range from 0 to 1."""
    if slope <= 0 or middle <= 0:
        raise Unsupported(f"alpha {slope} or beta {middle} is not positive: use Mul, Add and Clip")
    ends = (-middle / slope, (1 - middle) / slope)
    x = node.helper("clip", "clip", (node.tensor(0),), *ends)
    x = node.helper("slope", "scale", (x,), slope / middle)
    one = node.ones("one")
    x = node.helper("sum", "add", (x, one))
    return node.helper("whole", "scale", (x,), middle)


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
        made = node.expanded(made, shape)
        whole.append(Tensor(made.name, (shape[0], 1, 1, prod(shape[1:]))))
    rows = node.concatenated(whole, 2, "rows")
    y = node.layer("maxpool2d", (rows,), (len(whole), 1))
    return _scaled(deferred(Tensor(y.name, shape)), sign)


def _reduced(node: ImportedNode, kind: str, x: Tensor, name: str = "") -> Tensor:
    axes = node.integers(1, "axes")
    if not axes and node.attribute("noop_with_empty_axes", 0):
        return x
    over = tuple(sorted(axis_of(axis, len(x.shape)) for axis in axes or range(len(x.shape))))
    keep = bool(node.attribute("keepdims", 1))
    if kind == "mean" and over == (2, 3) and len(x.shape) == 4:
        y = node.layer("global_avgpool", (x,), name=name)
        return Tensor(y.name, (*y.shape, 1, 1)) if keep else y
    return node.layer(kind, (x,), over, keepdims=keep, name=name)


def _largest(node: ImportedNode) -> Tensor:
    """Compute ReduceMax by max pooling over all reduced axes.

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
    y = maximum(node, rows)
    kept = tuple(1 if axis in over else x.shape[axis] for axis in range(rank))
    return Tensor(y.name, kept if node.attribute("keepdims", 1) else sizes)


def _swish(node: ImportedNode) -> Tensor:
    x = node.tensor(0)
    inner = replace(node.deferred(0), factor=node.deferred(0).factor * node.attribute("alpha", 1.0))
    scaled = node.materialise(inner, node.helper_name("slope"))
    return node.layer("mul", (x, node.helper("sigmoid", "sigmoid", (scaled,))))


def _add(node: ImportedNode) -> Tensor | Deferred:
    for x, mask in ((0, 1), (1, 0)):
        hidden = added_mask(node, mask)
        if hidden and sample_values(node, x) is None:
            return masked(node, x, hidden)
    return _arithmetic(node, "add")


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
    if not node.is_tensor(1) and not node.context.is_trained(node.constant(1)):
        return node.layer("mul", (node.stored(0), node.inverse(1)))
    divisor = node.stored(1)
    inverse = node.helper("inverse", "reciprocal", (divisor,))
    if (factor := node.scalar(0)) is not None:
        return _scaled(deferred(inverse), factor)
    return node.layer("mul", (node.stored(0), inverse))


def _scaled(x: Deferred, factor: float) -> Deferred:
    x = x if factor > 0 else plain(x)
    return replace(x, factor=x.factor * factor, filling=x.filling * factor)


def _pow(node: ImportedNode) -> Tensor:
    given = node.fixed(1).value
    power = float(given.reshape(-1)[0]) if given.size == 1 else 0.0
    if abs(power) not in (0.5, 1, 2, 3, 4):
        raise Unsupported("the exponent must be 0.5, 1, 2, 3 or 4, or one of these below 0")
    x = y = node.tensor(0)
    if power < 0:
        x = y = node.helper("inverse", "reciprocal", (x,))
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
    if alpha <= 0:
        raise Unsupported(f"`alpha` {alpha:g} is not supported: use a number above 0")
    inner = node.materialise(_scaled(node.deferred(0), 1 / alpha), node.helper_name("inner"))
    return _scaled(deferred(node.layer("elu", (inner,))), alpha)


def _mish(node: ImportedNode) -> Tensor:
    inner = node.helper("softplus", "softplus", (node.tensor(0),))
    curve = node.helper("tanh", "tanh", (inner,))
    return node.layer("mul", (node.tensor(0), curve))


def _norm(node: ImportedNode) -> Tensor:
    """Compute ReduceL2: the root of the sum of the squares.

    The gradient of the root is infinite at 0. A clip makes that of the norm 0 there, as in PyTorch.
    """
    x = node.tensor(0)
    square = node.helper("square", "mul", (x, x))
    total = _reduced(node, "sum", square, node.helper_name("sum"))
    return node.layer("sqrt", (node.helper("positive", "clip", (total,), 2.0**-126, inf),))


def _rms_norm(node: ImportedNode) -> Tensor:
    x = node.tensor(0)
    rank, epsilon = len(x.shape), node.attribute("epsilon", 1e-5)
    over = tuple(range(node.axis(rank, -1), rank))
    square = node.helper("square", "mul", (x, x))
    mean = node.helper("mean", "mean", (square,), over, keepdims=True)
    # mean + epsilon = epsilon * (mean / epsilon + 1), with the only constant that needs no file
    mean = node.helper("parts", "scale", (mean,), 1 / epsilon)
    one = node.ones("one")
    whole = node.helper("more", "add", (mean, one))
    whole = node.helper("whole", "scale", (whole,), epsilon)
    root = node.helper("root", "sqrt", (whole,))
    inverse = node.helper("inverse", "reciprocal", (root,))
    normed = node.helper("normed", "mul", (x, inverse))
    return node.layer("mul", (normed, node.stored(1, is_weight=True)))


def _scattered(node: ImportedNode) -> Tensor:
    """Overwrite elements of what is computed from parameters alone by constants."""
    context, x = node.context, node.tensor(0)
    if node.onnx.outputs[0] not in context.derived or node.attribute("reduction", "none") != "none":
        raise Unsupported(advice("ScatterND"))
    places, kept, added = node.constant(1).value, np.ones(x.shape), np.zeros(x.shape)
    kept[tuple(np.moveaxis(places, -1, 0))] = 0
    added[tuple(np.moveaxis(places, -1, 0))] = node.fixed(2).value

    def constant(what: str, value: Array) -> Tensor:
        start = "values:" + ",".join(map(str, value.reshape(-1)))
        return node.helper(what, "parameter", (), x.shape, start=start, trainable=False)

    y = node.layer("mul", (x, constant("kept", kept)))
    return node.helper("filled", "add", (y, constant("values", added))) if added.any() else y


def _dropout(node: ImportedNode) -> Tensor | Deferred:
    ratio = node.number(1, "ratio")
    if ratio == 0:
        return node.deferred(0)
    return node.layer("dropout", (node.tensor(0),), 0.5 if ratio is None else round(ratio, 6))


TENSOR_RULES: dict[str, Rule] = {
    **CONDITION_RULES,
    **MASK_RULES,
    **VIEW_RULES,
    **RESIZING_RULES,
    **SELECTION_RULES,
    **{row.onnx: _same(kind) for kind, row in OPERATORS.items() if row.onnx},
    "Add": _add,
    "Celu": _celu,
    "Clip": lambda node: _clipped(node, node.number(1, "min"), node.number(2, "max")),
    "Div": _div,
    "Dropout": _dropout,
    "HardSigmoid": lambda n: _hard(n, n.attribute("alpha", 0.2), n.attribute("beta", 0.5)),
    "HardSwish": lambda node: node.layer("mul", (node.tensor(0), _hard(node, 1 / 6, 0.5))),
    # The constant False: if a NaN makes the loss not finite, training stops anyway.
    "IsNaN": lambda node: computed(node.onnx.outputs[0], np.zeros(node.deferred(0).shape, bool)),
    "LeakyRelu": _bent,
    "Max": _bound("Max"),
    "Min": _bound("Min"),
    "Mish": _mish,
    "Mul": _mul,
    "Neg": lambda node: _scaled(node.deferred(0), -1.0),
    "PRelu": _bent,
    "Pow": _pow,
    "RMSNormalization": _rms_norm,
    "ReduceL2": _norm,
    "ReduceMax": _largest,
    "ReduceMean": lambda node: _reduced(node, "mean", node.tensor(0)),
    "ReduceSum": lambda node: _reduced(node, "sum", node.tensor(0)),
    "ScatterND": _scattered,
    "Selu": _selu,
    "Sub": lambda node: _arithmetic(node, "sub"),
    "Sum": _sum_of_all,
    "Swish": _swish,
}
