"""Rows of the table of operators for tensors of any shape: arithmetic with broadcasting,
activations, sums along axes, and operators that only move or select elements."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from math import isfinite, isnan, prod
from typing import TypeVar

from .rules import (
    Fields,
    Operator,
    Parameter,
    Rule,
    Shape,
    Spec,
    checked_count,
    elementwise,
    of_one_kernel,
    sizes_of,
)

MOST_MOVING_AXES = 4  # of the kernel, after axes that stay next to each other are merged

Change = Callable[[Fields], Fields]
Mark = TypeVar("Mark")


def _grouped(shape: Shape, marks: Sequence[Mark]) -> tuple[list[int], list[Mark]]:
    """Merge neighbouring axes of `shape` that have equal values in `marks`.

    Return the sizes and the marks of the merged axes. Axes of size 1 are dropped. Raises ValueError
    if more than 4 axes remain.
    """
    pairs = [(size, mark) for size, mark in zip(shape, marks, strict=True) if size != 1]
    groups = [(mark, [size for size, _ in of]) for mark, of in groupby(pairs, lambda pair: pair[1])]
    if len(groups) > 4:
        raise ValueError(
            "the operator merges neighbouring axes that it treats alike, but more than 4 axes "
            "remain: reshape the input to fewer axes"
        )
    return [prod(sizes) for _, sizes in groups], [mark for mark, _ in groups]


def _last(sizes: Sequence[int]) -> dict[str, int]:
    """Return the fields n, c, h, w. The last fields are `sizes`; the fields before them are 1."""
    return dict(zip("nchw", (*[1] * (4 - len(sizes)), *sizes), strict=True))


def _bits(axes: Sequence[object]) -> int:
    """Return a number whose bit i is 1 if the value of axis i of (n, c, h, w) is true.

    `axes` has one value for each of the last axes. The values of the other axes are false.
    """
    return sum(1 << i for i, marked in enumerate(axes, 4 - len(axes)) if marked)


def broadcast(a: Shape, b: Shape) -> Spec:
    """Broadcast a and b as in NumPy: align their last axes, and repeat axes of size 1."""
    rank = max(len(a), len(b))
    a, b = ((1,) * (rank - len(shape)) + shape for shape in (a, b))
    if a == b:
        return Spec(a, sizes_of(a) | {"variant": 0})
    shape = tuple(max(pair) for pair in zip(a, b, strict=True))
    if any({*pair} - {1, size} for *pair, size in zip(a, b, shape, strict=True)):
        raise ValueError(
            "along each axis, both inputs must have the same size, or one of them must have size 1"
        )
    sizes, marks = _grouped(shape, list(zip((n == 1 for n in a), (n == 1 for n in b), strict=True)))
    repeated = [_bits([mark[i] for mark in marks]) for i in (0, 1)]
    return Spec(shape, _last(sizes) | {"variant": repeated[0] | repeated[1] << 4})


def with_fields(**changes: float) -> Change:
    return lambda f: {**f, **changes}


def _axes(f: Fields, operand: int) -> int:
    """Return one bit for each axis: 1 if the operand is repeated along this axis.

    `operand` is 0 for `a` and 1 for `b`.
    """
    return int(f["variant"]) >> 4 * operand & 15


def _swapped(f: Fields) -> Fields:
    """Return the fields for the gradient of `b`: `f` with `a` and `b` exchanged and factor 1."""
    return {**f, "variant": _axes(f, 1) | _axes(f, 0) << 4, "factor": 1.0}


def _whole(operand: int) -> Callable[[Fields], bool]:
    return lambda f: not _axes(f, operand)


def _repeated(operand: int) -> Callable[[Fields], bool]:
    return lambda f: bool(_axes(f, operand))


def _summed(name: str, operand: int, factor: float) -> Rule:
    def fields(f: Fields) -> Fields:
        return {**f, "variant": _axes(f, operand), "factor": factor}

    return Rule(name, "reduce", "dy", fields=fields, when=_repeated(operand))


def _scale(x: Shape, factor: float) -> Spec:
    if not isfinite(factor):
        raise ValueError(f"`factor` ({factor}) must be finite")
    return Spec(x, sizes_of(x) | {"variant": 0, "factor": factor})


def _clip(x: Shape, low: float, high: float) -> Spec:
    """Limit x to the bounds `low` and `high`, which may be infinite."""
    if isnan(low) or isnan(high) or low > high:
        raise ValueError(f"`low` ({low}) must not be more than `high` ({high})")
    return Spec(x, sizes_of(x) | {"lower_bound": low, "upper_bound": high})


def _select(x: Shape, mask: Shape, *, low: float, high: float) -> Spec:
    """Keep x where the mask is from `low` to `high`. Elsewhere the result is 0.

    The mask gets no gradient.
    """
    if mask != x:
        raise ValueError("`x` and `mask` must have the same shape")
    return _clip(x, low, high)


def _gelu(x: Shape, *, approximate: str = "none") -> Spec:
    """Apply gelu to x: exactly, or with the tanh approximation if `approximate` is "tanh"."""
    if approximate not in ("none", "tanh"):
        raise ValueError(f'`approximate` ({approximate!r}) must be "none" or "tanh"')
    return Spec(x, sizes_of(x) | {"variant": int(approximate == "tanh")})


def _elementary(number: int, onnx: str) -> Operator:
    """Return the row of an elementary function: `number` is its variant of the kernel."""

    def plain(x: Shape) -> Spec:
        """Apply the function to each element of x."""
        return Spec(x, sizes_of(x) | {"variant": number, "factor": 1.0})

    return of_one_kernel("elementary", plain, "x dy", onnx=onnx)


def _wave(quarters: int, onnx: str) -> Operator:
    """Return the row of the sine, `quarters` quarter turns further."""

    def plain(x: Shape) -> Spec:
        """Apply the function to each element of x, in radians."""
        return Spec(x, sizes_of(x) | {"variant": quarters})

    further = with_fields(variant=quarters + 1)
    slope = Rule("slope", "sine", "x", lambda f: tuple(int(f[i]) for i in "nchw"), further)
    product = Rule("x", "mul", "dy slope", fields=with_fields(variant=0))
    return Operator(plain, (Rule("y", "sine", "x"),), (slope, product), onnx=onnx)


def _elu(x: Shape, *, alpha: float = 1.0) -> Spec:
    """Return x where it is above 0, elsewhere `alpha` * (e^x - 1)."""
    if not isfinite(alpha):
        raise ValueError(f"`alpha` ({alpha}) must be finite")
    return Spec(x, sizes_of(x) | {"variant": 2, "factor": alpha})


def axis_of(axis: int, rank: int) -> int:
    """Return `axis` as an index from 0. Raises ValueError if the axis does not exist."""
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise ValueError(f"axis {axis!r} does not exist: use an axis from {-rank} to {rank - 1}")
    return axis % rank


def _over(mean: bool, x: Shape, axes: int | tuple[int, ...], *, keepdims: bool = False) -> Spec:
    """Compute the mean or the sum of x over some axes."""
    axes = axes if isinstance(axes, tuple) else (axes,)
    chosen = {axis_of(axis, len(x)) for axis in axes}
    if not chosen:
        raise ValueError("`axes` must name at least one axis")
    sizes, marks = _grouped(x, [i in chosen for i in range(len(x))])
    count = prod(x[i] for i in chosen)
    shape = tuple(1 if i in chosen else n for i, n in enumerate(x) if keepdims or i not in chosen)
    factor = 1 / count if mean else 1.0
    return Spec(shape or (1,), _last(sizes) | {"variant": _bits(marks), "factor": factor})


def _expand(x: Shape, shape: tuple[int, ...]) -> Spec:
    """Broadcast x to `shape`: repeat axes of size 1, and add new axes in front."""
    own = (1,) * (len(shape) - len(x)) + x
    if len(own) != len(shape) or any(a not in (1, b) for a, b in zip(own, shape, strict=True)):
        raise ValueError(f"an input of shape {x} cannot be broadcast to the shape {shape}")
    sizes, marks = _grouped(shape, [a != b for a, b in zip(own, shape, strict=True)])
    return Spec(shape, _last(sizes) | {"variant": _bits(marks), "factor": 1.0})


def _flatten(x: Shape) -> Spec:
    """Reshape x (N, C, H, W) to (N, C * H * W), in the same memory."""
    return Spec((x[0], prod(x[1:])), {})


def _reshape(x: Shape, shape: tuple[int, ...]) -> Spec:
    """Reshape x to `shape`, in the same memory. One size may be -1: it follows from the others."""
    known = prod(size for size in shape if size != -1)
    if shape.count(-1) > 1 or known <= 0 or any(size < -1 for size in shape):
        raise ValueError(f"each size of the shape {shape} must be 1 or more, but one may be -1")
    whole = tuple(prod(x) // known if size == -1 else size for size in shape)
    if prod(whole) != prod(x):
        raise ValueError(f"the input has {prod(x)} elements, so it cannot have the shape {shape}")
    return Spec(whole, {})


def axes_that_move(x: Shape, order: Sequence[int]) -> list[list[int]]:
    """Return the axes of x in their new order. Axes that stay next to each other are one list."""
    kept = [axis for axis in order if x[axis] != 1]
    runs: list[list[int]] = []
    before = {axis: i for i, axis in enumerate(sorted(kept))}
    for axis in kept:
        if runs and before[axis] == before[runs[-1][-1]] + 1:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    return runs


def _transpose(x: Shape, order: tuple[int, ...]) -> Spec:
    """Transpose x: axis i of the output is axis order[i] of x."""
    rank = len(x)
    order = tuple(axis_of(axis, rank) for axis in order)
    if sorted(order) != list(range(rank)):
        raise ValueError(f"`order` ({order}) must name each of the {rank} axes once")
    runs = axes_that_move(x, order)
    if len(runs) > MOST_MOVING_AXES:
        raise ValueError(
            "the operator merges axes that stay next to each other in `order`, but more than "
            f"{MOST_MOVING_AXES} axes remain: transpose in several steps"
        )
    places = sorted(runs)
    first = 4 - len(runs)
    moved = [*range(first), *(first + places.index(run) for run in runs)]
    sizes = [prod(x[axis] for axis in run) for run in places]
    variant = sum(axis << 2 * i for i, axis in enumerate(moved))
    return Spec(tuple(x[axis] for axis in order), _last(sizes) | {"variant": variant})


def _inverse_order(f: Fields) -> Fields:
    order = [int(f["variant"]) >> 2 * i & 3 for i in range(4)]
    sizes = [f["nchw"[axis]] for axis in order]
    variant = sum(order.index(axis) << 2 * axis for axis in range(4))
    return {**dict(zip("nchw", sizes, strict=True)), "variant": variant}


def _around(x: Shape, axis: int) -> dict[str, int]:
    """Return the fields n, c, h, w of x, for an operator that works along `axis`.

    c is the size of `axis`. n is the product of all sizes before it, h the product of all sizes
    after it, and w is 1.
    """
    return {"n": prod(x[:axis]), "c": x[axis], "h": prod(x[axis + 1 :]), "w": 1}


def _concat(a: Shape, b: Shape, axis: int) -> Spec:
    """Join a and b along one axis: first the elements of a, then those of b."""
    axis = axis_of(axis, len(a))
    if a[:axis] != b[:axis] or a[axis + 1 :] != b[axis + 1 :]:
        raise ValueError(f"both inputs must have the same shape, except along axis {axis}")
    shape = (*a[:axis], a[axis] + b[axis], *a[axis + 1 :])
    return Spec(shape, _around(a, axis) | {"k": b[axis]})


def _slice(x: Shape, axis: int, begin: int, end: int) -> Spec:
    """Select the elements `begin` to `end` - 1 of x along one axis."""
    axis = axis_of(axis, len(x))
    if not 0 <= begin < end <= x[axis]:
        raise ValueError(
            f"`begin` ({begin}) and `end` ({end}) must select at least one element in the range "
            f"from 0 to {x[axis]}"
        )
    shape = (*x[:axis], end - begin, *x[axis + 1 :])
    return Spec(shape, _around(x, axis) | {"k": end - begin, "oh": begin})


def _pad(x: Shape, axis: int, before: int, after: int) -> Spec:
    """Add zeros before and after x along one axis. This is also the gradient of a slice."""
    axis = axis_of(axis, len(x))
    if before < 0 or after < 0:
        raise ValueError(f"`before` ({before}) and `after` ({after}) must be 0 or more")
    shape = (*x[:axis], before + x[axis] + after, *x[axis + 1 :])
    return Spec(shape, _around(shape, axis) | {"k": x[axis], "oh": before})


def _parameter(shape: Shape, *, start: str = "zeros", trainable: bool = True) -> Spec:
    """Add a stored tensor. If `trainable` is False, training does not change the tensor."""
    for size in shape:
        checked_count(size, "a size")
    if not shape:
        raise ValueError("the shape must have at least one axis")
    role = "parameter" if trainable else "state"
    return Spec(shape, {}, {"weight": Parameter(shape, start, role)})  # type: ignore[arg-type]


def _part(*, begin: Callable[[Fields], float], count: Callable[[Fields], float]) -> Change:
    """Return a function that converts the fields of `concat` to those of its gradient `slice`."""
    return lambda f: {**f, "c": f["c"] + f["k"], "k": count(f), "oh": begin(f)}


_REDUCE = (Rule("y", "reduce", "x"),), (Rule("x", "scale", "dy"),)


def _pair_of(kernel: str, *backward: Rule) -> Operator:
    return Operator(broadcast, (Rule("y", kernel, "a b"),), backward, inputs=("a", "b"))


TENSOR_OPERATORS = {
    "parameter": Operator(_parameter, forward=(), inputs=()),
    "add": _pair_of(
        "add",
        Rule("a", "", "dy", when=_whole(0)),
        Rule("b", "", "dy", when=_whole(1)),
        _summed("a", 0, 1.0),
        _summed("b", 1, 1.0),
    ),
    "sub": _pair_of(
        "sub",
        Rule("a", "", "dy", when=_whole(0)),
        Rule("b", "scale", "dy", fields=with_fields(variant=0, factor=-1.0), when=_whole(1)),
        _summed("a", 0, 1.0),
        _summed("b", 1, -1.0),
    ),
    "mul": _pair_of(
        "mul",
        Rule("a", "mul", "dy b", when=_whole(0)),
        Rule("b", "mul", "dy a", fields=_swapped, when=_whole(1)),
        Rule("a", "reduce_product", "dy b", fields=with_fields(factor=1.0), when=_repeated(0)),
        Rule("b", "reduce_product", "dy a", fields=_swapped, when=_repeated(1)),
    ),
    "scale": Operator(_scale, (Rule("y", "scale", "x"),), (Rule("x", "scale", "dy"),)),
    "mean": Operator(partial(_over, True), *_REDUCE),
    "sum": Operator(partial(_over, False), *_REDUCE),
    "expand": Operator(_expand, (Rule("y", "scale", "x"),), (Rule("x", "reduce", "dy"),)),
    "clip": of_one_kernel("clip", _clip, "x dy"),
    "select": Operator(
        _select,
        (Rule("y", "clip_grad", "mask x"),),
        (Rule("x", "clip_grad", "mask dy"),),
        inputs=("x", "mask"),
    ),
    "sigmoid": of_one_kernel("sigmoid", elementwise, "y dy", onnx="Sigmoid"),
    "tanh": of_one_kernel("tanh", elementwise, "y dy", onnx="Tanh"),
    "gelu": of_one_kernel("gelu", _gelu, "x dy", onnx="Gelu"),
    "abs": _elementary(0, "Abs"),
    "softplus": _elementary(1, "Softplus"),
    "elu": of_one_kernel("elementary", _elu, "x dy", onnx="Elu"),
    "exp": _elementary(3, "Exp"),
    "reciprocal": _elementary(4, "Reciprocal"),
    "log": _elementary(5, "Log"),
    "sqrt": _elementary(6, "Sqrt"),
    "sin": _wave(0, "Sin"),
    "cos": _wave(1, "Cos"),
    "flatten": Operator(_flatten, forward=()),
    "reshape": Operator(_reshape, forward=()),
    "transpose": Operator(
        _transpose,
        (Rule("y", "transpose", "x"),),
        (Rule("x", "transpose", "dy", fields=_inverse_order),),
    ),
    "concat": Operator(
        _concat,
        (Rule("y", "concat", "a b"),),
        (
            Rule("a", "slice", "dy", fields=_part(begin=lambda f: 0, count=lambda f: f["c"])),
            Rule("b", "slice", "dy", fields=_part(begin=lambda f: f["c"], count=lambda f: f["k"])),
        ),
        inputs=("a", "b"),
    ),
    "pad": Operator(_pad, (Rule("y", "slice_grad", "x"),), (Rule("x", "slice", "dy"),)),
    "slice": Operator(_slice, (Rule("y", "slice", "x"),), (Rule("x", "slice_grad", "dy"),)),
}
