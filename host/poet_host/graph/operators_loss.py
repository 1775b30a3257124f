"""Rows of the table of operators for losses. Each compares x with labels, and gives one number.

Only cross-entropy and the squared error have kernels of their own. The other losses are a few
kernels for each element, and a mean over all elements.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod

from .losses import Loss
from .operators_tensor import broadcast, with_fields
from .rules import Fields, Operator, Parameter, Rule, Shape, Spec, sizes_of

_EVERY_AXIS = 15  # `variant` of reduce


def _softmax_xent(x: Shape) -> Spec:
    """Compute the mean cross-entropy of x (batch, ..., classes) and int32 labels (batch, ...)."""
    if len(x) < 2:
        raise ValueError("the input must have the shape (batch, ..., classes)")
    return Spec((1,), sizes_of((prod(x[:-1]), x[-1])), label=(x[:-1], "int32"))


def _weighted_xent(
    x: Shape,
    *,
    class_weights: tuple[float, ...] = (),
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
) -> Spec:
    """Compute the cross-entropy with the options of PyTorch's CrossEntropyLoss.

    If `ignore_index` is given, the number of classes stands for it in the labels.
    """
    plain = _softmax_xent(x)
    if class_weights and len(class_weights) != x[-1]:
        raise ValueError(f"`class_weights` are {len(class_weights)}, but there are {x[-1]} classes")
    given = {
        "class_weights": class_weights or None,
        "label_smoothing": label_smoothing or None,
        "ignore_index": ignore_index,
    }
    loss = Loss("cross-entropy", {key: v for key, v in given.items() if v is not None})
    rows = class_weights or (1.0,) * x[-1]
    table = (*rows, 0.0) if ignore_index is not None else rows
    low = label_smoothing / x[-1]
    bounds = {"k": len(table), "lower_bound": low, "upper_bound": 1 - label_smoothing + low}
    return replace(
        plain, fields={**plain.fields, **bounds}, criterion=str(loss),
        parameters={"weight": _constant(*rows), "table": _constant(*table)},
    )  # fmt: skip


def _constant(*values: float) -> Parameter:
    return Parameter((len(values), 1), "values:" + ",".join(map(str, values)), "state")


def _mse(x: Shape) -> Spec:
    """Compute the mean squared difference between x and targets of the same shape."""
    return Spec((1,), sizes_of(x), label=(x, "float32"))


def _of_values(loss: Loss, x: Shape) -> Spec:
    """Describe a mean over all elements of x, which has labels of the same shape."""
    fields = sizes_of(x) | {"share": 1 / prod(x)}
    return Spec((1,), fields, label=(x, "float32"), criterion=str(loss))


def _weighted_bce(x: Shape, *, pos_weight: tuple[float, ...]) -> Spec:
    """Compute the binary cross-entropy, with a factor for the loss of labels that are 1.

    `pos_weight` is one number, or one for each element of the last axis.
    """
    if len(pos_weight) not in (1, x[-1]):
        raise ValueError(f"`pos_weight` are {len(pos_weight)}, but the last axis has size {x[-1]}")
    spec = _of_values(Loss("bce", {"pos_weight": pos_weight}), x)
    weight = _constant(*pos_weight * (x[-1] // len(pos_weight)))
    fields = {**spec.fields, **broadcast((prod(x[:-1]), x[-1]), (1, x[-1])).fields}
    return replace(spec, fields=fields, parameters={"weight": weight})


def _huber(x: Shape, *, delta: float = 1.0) -> Spec:
    """Compute Huber's loss: mean d^2 / 2 where |d| <= delta, delta * (|d| - delta / 2) elsewhere.

    d is the difference between x and targets of the same shape.
    """
    spec = _of_values(Loss("huber", {"delta": delta} if delta != 1 else {}), x)
    bounds = {"lower_bound": -delta, "upper_bound": delta}
    return replace(spec, fields={**spec.fields, **bounds})


def _smooth_l1(x: Shape, *, beta: float = 1.0) -> Spec:
    """Compute PyTorch's SmoothL1Loss, which is Huber's loss divided by its delta."""
    spec = _huber(x, delta=beta)
    fields = {**spec.fields, "share": spec.fields["share"] / beta}
    return replace(spec, fields=fields, criterion=str(Loss("smooth-l1", {"beta": beta})))


def _sizes(f: Fields) -> Shape:
    return tuple(int(f[axis]) for axis in "nchw")


def _share(f: Fields) -> Fields:
    """Return the fields of a kernel whose result is divided by the number of elements."""
    return {**f, "variant": 0, "factor": f["share"]}


def _mean(f: Fields) -> Fields:
    return {**f, "variant": _EVERY_AXIS, "factor": f["share"]}


def _each(makes: str, kernel: str, operands: str, **fields: float) -> Rule:
    """Return the rule of a tensor with the shape of x, computed element by element."""
    return Rule(makes, kernel, operands, shape=_sizes, fields=with_fields(variant=0, **fields))


def _of_one_kernel(kernel: str, spec: Callable[..., Spec]) -> Operator:
    return _loss(spec, Rule("y", kernel, "x label"), Rule("x", f"{kernel}_grad", "x label"))


def _loss(spec: Callable[..., Spec], *rules: Rule) -> Operator:
    """Return the row of a loss. The rules after that of `y` are those of the backward pass."""
    end = next(i for i, rule in enumerate(rules, 1) if rule.makes == "y")
    return Operator(spec, rules[:end], rules[end:], inputs=("x", "label"))


_HUBER = (
    _each("gap", "sub", "x label"),
    Rule("near", "clip", "gap", shape=_sizes),
    _each("half", "scale", "near", factor=0.5),
    _each("rest", "sub", "gap half"),
    Rule("y", "reduce_product", "near rest", fields=_mean),
    Rule("x", "scale", "near", fields=_share),
)
LOSS_OPERATORS = {
    "softmax_xent": _of_one_kernel("softmax_xent", _softmax_xent),
    "weighted_xent": _loss(
        _weighted_xent,
        # the weights / the sum of the weights of all labels
        Rule("each", "embedding", "label table", lambda f: (int(f["n"]), 1), with_fields(c=1)),
        Rule(
            "whole", "reduce", "each", lambda f: (1,),
            with_fields(c=1, variant=_EVERY_AXIS, factor=1.0),
        ),
        Rule(
            "some", "clip", "whole", lambda f: (1,),
            with_fields(n=1, c=1, lower_bound=1e-30, upper_bound=3e38),
        ),
        Rule(
            "inverse", "elementary", "some", lambda f: (1,),
            with_fields(n=1, c=1, variant=4, factor=1.0),
        ),
        Rule(
            "share", "mul", "weight inverse", lambda f: (int(f["c"]), 1),
            lambda f: {**f, "n": f["c"], "c": 1, "variant": 1 << 4},
        ),
        Rule("y", "weighted_xent", "x label share"),
        Rule("x", "weighted_xent_grad", "x label share"),
    ),
    "mse": _of_one_kernel("mse", _mse),
    "bce": _loss(  # binary cross-entropy of logits and labels from 0 to 1
        partial(_of_values, Loss("bce")),
        Rule("high", "elementary", "x", shape=_sizes, fields=with_fields(variant=1, factor=1.0)),
        _each("hit", "mul", "x label"),
        _each("gap", "sub", "high hit"),
        Rule("y", "reduce", "gap", fields=_mean),
        _each("chance", "sigmoid", "x"),
        _each("error", "sub", "chance label"),
        Rule("x", "scale", "error", fields=_share),
    ),
    # Labels of 1 count as `hit`, those of 0 as `miss`.
    "weighted_bce": _loss(
        _weighted_bce,
        Rule("hit", "mul", "label weight", shape=_sizes),
        _each("one", "clip", "label", lower_bound=1.0, upper_bound=1.0),
        _each("miss", "sub", "one label"),
        _each("both", "add", "hit miss"),
        Rule("high", "elementary", "x", shape=_sizes, fields=with_fields(variant=1, factor=1.0)),
        _each("all_high", "mul", "high both"),
        _each("x_hit", "mul", "x hit"),
        _each("gap", "sub", "all_high x_hit"),
        Rule("y", "reduce", "gap", fields=_mean),
        _each("chance", "sigmoid", "x"),
        _each("part", "mul", "chance both"),
        _each("error", "sub", "part hit"),
        Rule("x", "scale", "error", fields=_share),
    ),
    "l1": _loss(  # absolute difference
        partial(_of_values, Loss("l1")),
        _each("gap", "sub", "x label"),
        _each("size", "elementary", "gap", factor=1.0),
        Rule("y", "reduce", "size", fields=_mean),
        # Equal bounds give a constant, except for NaN.
        Rule(
            "unit", "clip", "gap", shape=_sizes,
            fields=lambda f: {**f, "lower_bound": f["share"], "upper_bound": f["share"]},
        ),
        _each("x", "elementary_grad", "gap unit", factor=1.0),
    ),
    "huber": _loss(_huber, *_HUBER),
    "smooth_l1": _loss(_smooth_l1, *_HUBER),
}  # fmt: skip
