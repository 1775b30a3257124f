"""Import rules of ONNX operators that repeat numbers; operators.py explains the rules."""

from collections.abc import Callable, Mapping
from itertools import groupby
from math import prod
from typing import Any

import numpy as np

from ..graph.builder import Tensor
from ..graph.operators_tensor import axis_of
from ..graph.rules import Shape
from ..graph.weights import Array
from .context import Unsupported, Value
from .fold import computed
from .node import ImportedNode, Rule
from .views import is_repeated_by_readers


def _resize(node: ImportedNode) -> Tensor:
    """Resize by repeating each number, or by linear interpolation along each axis."""
    x, policy = node.tensor(0), node.attribute("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        raise Unsupported(f"`keep_aspect_ratio_policy` {policy} is not supported: use `stretch`")
    rank = len(x.shape)
    axes = [axis_of(axis, rank) for axis in node.attribute("axes") or range(rank)]
    steps: dict[int, float] = {}  # between results, where it is not the quotient of both sizes
    if node.has(3):
        sizes = [int(size) for size in node.constant(3).value]
    else:
        scales = node.constant(2).value.astype(np.float32)
        sizes = [int(np.float32(x.shape[axis]) * by) for axis, by in zip(axes, scales, strict=True)]
        steps = {axis: 1 / float(by) for axis, by in zip(axes, scales, strict=True)}
    wanted = list(x.shape)
    for axis, size in zip(axes, sizes, strict=True):
        wanted[axis] = size
    wanted = node.context.with_batch(x.shape, wanted)
    how = node.attribute("coordinate_transformation_mode", "half_pixel")
    nearest = node.attribute("nearest_mode", "round_prefer_floor")
    if node.attribute("mode", "nearest") == "linear" and not node.attribute("antialias", 0):
        return _interpolated(node, x, wanted, steps, how)
    if node.attribute("mode", "nearest") != "nearest" or not all(
        _repeats(size, whole, steps.get(axis), how, nearest)
        for axis, (size, whole) in enumerate(zip(x.shape, wanted, strict=True))
    ):
        raise Unsupported(
            "this resizing is not supported: use the mode `linear` without antialiasing, or "
            "`nearest` with integer factors, so that each number is repeated equally often"
        )
    return _repeated(node, x, tuple(wanted), each=True)


def _interpolated(
    node: ImportedNode, x: Tensor, wanted: list[int], steps: Mapping[int, float], how: str
) -> Tensor:
    """Interpolate along each axis: a linear layer with a constant matrix, along the last axis."""
    for axis, whole in enumerate(wanted):
        size = x.shape[axis]
        if size == whole:  # ONNX Runtime copies
            continue
        places = _places(size, whole, steps.get(axis), how)
        if places is None:
            raise Unsupported(
                f"the coordinates {how} are not supported: use half_pixel, align_corners or "
                "asymmetric"
            )
        distance = np.abs(places.clip(0, size - 1)[:, None] - np.arange(size))
        weight = computed(
            node.context.free_name(f"{node.onnx.outputs[0]}.interpolation"),
            np.maximum(0, 1 - distance).astype(np.float32),
        )
        name = node.helper_name("interpolated")
        matrix = node.context.parameter(name, "weight", (weight,), (whole, size), "state")
        order = [i for i in range(len(x.shape)) if i != axis] + [axis]
        last = axis == len(x.shape) - 1
        moved = x
        if not last:
            moved = node.helper("moved", "transpose", (x,), tuple(order))
        rows = Tensor(moved.name, (prod(moved.shape[:-1]), size))
        y = node.layer(
            "linear", (rows,), whole, name=name, parameters={"weight": matrix}, bias=False
        )
        x = Tensor(y.name, (*moved.shape[:-1], whole))
        if not last:
            back = tuple(order.index(i) for i in range(len(order)))
            x = node.helper("moved", "transpose", (x,), back)
    return x


def _places(size: int, whole: int, step: float | None, how: str) -> Array | None:
    """Return where the results of a resize lie between the numbers; None: not supported.

    `step` is the distance of two results. If it is None, the results fill the axis.
    """
    at, step = np.arange(whole), step or size / whole
    return {
        "asymmetric": at * step,
        "half_pixel": (at + 0.5) * step - 0.5,
        "pytorch_half_pixel": ((at + 0.5) * step - 0.5) * (whole > 1),
        "tf_half_pixel_for_nn": (at + 0.5) * step,
        "align_corners": at * (size - 1) / max(whole - 1, 1),
    }.get(how)


def _repeated(node: ImportedNode, x: Tensor, wanted: Shape, each: bool) -> Tensor:
    """Repeat `x` along its axes until it has the shape `wanted`.

    If `each` is True, every number is repeated: 0 1 becomes 0 0 1 1. Otherwise the whole axis is
    repeated: 0 1 becomes 0 1 0 1.
    """
    pairs = [(size, n // size) for size, n in zip(x.shape, wanted, strict=True)]
    order = (0, 1) if each else (1, 0)
    seen = tuple((size, 1)[i] for size, _ in pairs for i in order)
    whole = tuple(pair[i] for pair in pairs for i in order)
    if seen == whole:
        return x
    runs = [*groupby(a != b for a, b in zip(seen, whole, strict=True) if b != 1)]
    if len(runs) > 4:  # a layer has at most four axes, so the last axis gets a second layer
        last = max(axis for axis, (_, times) in enumerate(pairs) if times > 1)
        x = _repeated(node, x, (*wanted[:last], *x.shape[last:]), each)
        return _repeated(node, x, wanted, each)
    y = node.layer("expand", (Tensor(x.name, seen),), whole)
    return Tensor(y.name, wanted)


def _tile(node: ImportedNode) -> Value:
    shape, times = node.deferred(0).shape, node.constant(1).value.tolist()
    wanted = [size * n for size, n in zip(shape, times, strict=True)]
    if is_repeated_by_readers(node, wanted):
        return node.value(0)
    x = node.tensor(0)
    return _repeated(node, x, tuple(wanted), each=False)


def _repeats(size: int, whole: int, step: float | None, how: str, nearest: str) -> bool:
    """Return True if a resize from `size` to `whole` numbers repeats each number equally often."""
    found = _places(size, whole, step, how)
    rounds: dict[str, Callable[[Any], Any]] = {
        "floor": np.floor,
        "round_prefer_floor": lambda x: np.ceil(x - 0.5),
        "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    }
    rounded = rounds.get(nearest)
    if whole % size or found is None or rounded is None:
        return False
    return bool((rounded(found).clip(0, size - 1) == np.arange(whole) * size // whole).all())


RESIZING_RULES: dict[str, Rule] = {"Resize": _resize, "Tile": _tile}
