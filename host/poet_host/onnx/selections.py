"""Import rules of ONNX operators that select elements, and of padding; operators.py explains them.

Elements that training looks up in a table are rows that tokens select. Tokens are data, or constant
indices.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from math import inf, prod
from typing import Any

import numpy as np

from ..graph.builder import Tensor
from ..graph.operators_tensor import axis_of
from .context import Deferred, Parts, Unsupported, deferred
from .names import padding_of
from .node import ImportedNode, Rule
from .views import plain, without

_MOST_RUNS = 16  # of indices that become layers of their own; for more, tokens select rows
LEFT_OUT = -inf  # padding that does not change the maximum of a window


def _gather(node: ImportedNode) -> Tensor | Deferred:
    axis = node.attribute("axis", 0)
    if node.is_tensor(1):
        return _embedded(node, axis)
    return _chosen(node, node.unpadded(0), axis, node.constant(1).value)


def _gather_nd(node: ImportedNode) -> Tensor | Deferred:
    """Select by indices of several axes, as Gather does by those of the joined axes."""
    x, chosen, batch = node.tensor(0), node.constant(1).value, node.attribute("batch_dims", 0)
    end = batch + chosen.shape[-1]
    sizes = x.shape[batch:end]
    chosen = _in_range(chosen, sizes, f"axes of the sizes {[*sizes]}")
    rows = chosen.reshape(-1, *chosen.shape[batch:])
    if (rows != rows[:1]).any():
        raise Unsupported(
            "the node selects other elements of each sample: select the same ones of all samples"
        )
    places = np.asarray(np.ravel_multi_index(tuple(np.moveaxis(rows[0], -1, 0)), sizes))
    joined = Tensor(x.name, (*x.shape[:batch], prod(sizes), *x.shape[end:]))
    return _chosen(node, deferred(joined), batch, places)


def _chosen(
    node: ImportedNode, x: Deferred, axis: int, chosen: np.ndarray[Any, Any]
) -> Tensor | Deferred:
    """Return the elements of `x` along one axis that the indices `chosen` name."""
    axis = axis_of(axis, len(x.shape))
    size = x.shape[axis]
    chosen = _in_range(chosen, size, f"an axis of size {size}")
    indices = [int(index) for index in chosen.reshape(-1)]
    if len({*indices}) == 1 and _is_only_added(
        node, axis - len(x.shape), len(indices)
    ):  # the addition repeats the element
        indices, chosen = indices[:1], chosen.reshape(-1)[:1].reshape((1,) * chosen.ndim)
    padding = padding_of(node.onnx.proto)
    begin, end = indices[0], indices[-1] + 1
    if indices == [*range(begin, end)] and padding not in indices:
        part = _part(node, x, axis, begin, end)
    else:
        part = _picked(node, node.materialise(x), axis, indices, padding)
    if chosen.ndim == 0:
        return without(part, {axis})
    made = node.materialise(part, node.helper_name("picked"))
    return Tensor(made.name, (*made.shape[:axis], *chosen.shape, *made.shape[axis + 1 :]))


def _in_range(
    chosen: np.ndarray[Any, Any], sizes: int | Sequence[int], where: str
) -> np.ndarray[Any, Any]:
    """Return the indices, those below 0 counted from the beginning, if all are in range."""
    limits = np.array(sizes)
    if (chosen >= limits).any() or (chosen < -limits).any():
        raise Unsupported(
            f"some of the indices {chosen.tolist()} are out of range for {where}: correct the "
            "indices in the model"
        )
    if not chosen.size:
        raise Unsupported(
            "the node selects nothing, because its list of indices is empty: remove the node from "
            "the model"
        )
    return np.asarray(chosen % limits)


def _embedded(node: ImportedNode, axis: int) -> Tensor:
    """Look up the rows of tokens in a table."""
    tokens = node.tensor(1)
    if axis != 0:
        raise Unsupported(
            f"the node looks up tokens along axis {axis} of the table: only axis 0 is supported"
        )
    padding = padding_of(node.onnx.proto)
    if node.is_tensor(0):
        return node.layer("gather", (tokens, node.tensor(0)), padding=padding)
    table = node.matrix(0)
    name = node.layer_name(table)
    parameters = {"weight": node.parameter(name, "weight", table)}
    return node.layer(
        "embedding", (tokens,), *table.value.shape, name=name, parameters=parameters,
        padding=padding,
    )  # fmt: skip


def _is_only_added(node: ImportedNode, axis: int, count: int) -> bool:
    """Return True if all readers of a node add its output to `count` elements along `axis`.

    `axis` is counted from the last one, -1. What they add it to is computed from the data.
    """
    context, output = node.context, node.onnx.outputs[0]
    readers = context.readers(output)
    others = [name for reader in readers for name in reader.inputs if name != output]
    shapes = [context.model.shapes.get(name, ()) for name in others]
    made = [context.values.get(name) for name in others]  # may itself have one element yet
    shapes += [value.shape for value in made if isinstance(value, Tensor | Deferred)]
    return (
        bool(readers)
        and output not in context.model.outputs.values()
        and all(
            reader.op == "Add"
            and reader.inputs.count(output) == 1
            and reader.outputs[0] not in context.values
            for reader in readers
        )
        and all(shape[axis:][:1] == (count,) for shape in shapes)
    )


def _looked_up(
    node: ImportedNode, x: Tensor, axis: int, indices: list[int], padding: int | None
) -> Deferred:
    """Return the elements `indices` of `x` along one axis, as rows that tokens select."""
    front, back = tuple(range(axis)), tuple(range(axis + 1, len(x.shape)))
    name = node.helper_name("table")
    table = node.materialise(Deferred(x, (axis, *front, *back)), name)
    rows = Tensor(table.name, (table.shape[0], prod(table.shape[1:])))
    tokens = node.context.indices(node.helper_name("indices"), indices)
    y = node.layer("gather", (tokens, rows), padding=padding)
    whole = Tensor(y.name, (len(indices), *table.shape[1:]))
    return Deferred(whole, (*(i + 1 for i in front), 0, *back))


def _part(node: ImportedNode, x: Deferred, axis: int, begin: int, end: int) -> Deferred:
    if (begin, end) == (0, x.shape[axis]):
        return x
    part = node.layer("slice", (plain(x).tensor,), x.order[axis], begin, end)
    return replace(x, tensor=part)


def _picked(
    node: ImportedNode, x: Tensor, axis: int, indices: list[int], padding: int | None = None
) -> Deferred:
    """Return the elements `indices` of `x` along one axis: regular runs, or rows of tokens."""
    runs = _runs(indices)
    if len(runs) > _MOST_RUNS or padding in indices:
        return _looked_up(node, x, axis, indices, padding)
    parts = [
        every(node, x, axis, run[0], len(run), run[1] - run[0] if len(run) > 1 else 1)
        for run in runs
    ]
    return deferred(node.concatenated(parts, axis, "picked"))


def _runs(indices: list[int]) -> list[list[int]]:
    """Split the indices into runs with a constant step above 0."""
    runs: list[list[int]] = []
    for index in indices:
        run = runs[-1] if runs else []
        steps = [b - a for a, b in pairwise([*run, index])]
        if steps and steps[0] > 0 and len(set(steps)) == 1:
            run.append(index)
        else:
            runs.append([index])
    return runs


def every(node: ImportedNode, x: Tensor, axis: int, begin: int, count: int, step: int) -> Tensor:
    """Return `count` elements of `x` along one axis: `begin`, `begin` + `step`, and so on."""
    size, end = x.shape[axis], begin + count * step
    front, back = x.shape[:axis], x.shape[axis + 1 :]
    if (begin, count, step) == (0, size, 1):
        return x
    if begin or end < size:
        x = node.helper("part", "slice", (x,), axis, begin, min(end, size))
    if end > size:
        x = node.helper("filled", "pad", (x,), axis, 0, end - size)
    if step > 1:
        grid = Tensor(x.name, (*front, count, step, *back))
        x = node.helper("steps", "slice", (grid,), axis + 1, 0, 1)
    return Tensor(x.name, (*front, count, *back))


def _slice(node: ImportedNode) -> Deferred:
    x = node.unpadded(0)
    begins, ends = node.integers(1, "starts") or [], node.integers(2, "ends") or []
    axes = node.integers(3, "axes") or list(range(len(begins)))
    steps = node.integers(4, "steps") or [1] * len(begins)
    for axis, begin, end, step in zip(
        (axis_of(a, len(x.shape)) for a in axes), begins, ends, steps, strict=True
    ):
        chosen = range(x.shape[axis])[begin:end:step]
        if step == 1:
            x = _part(node, x, axis, chosen.start, chosen.stop)
            continue
        if not chosen:
            raise Unsupported("the node selects nothing: remove it from the model")
        x = _picked(node, node.materialise(plain(x)), axis, list(chosen))
    return x


def _split(node: ImportedNode) -> list[Tensor | Deferred]:
    x, sizes, count = node.unpadded(0), node.integers(1, "split"), len(node.onnx.outputs)
    axis = node.axis(len(x.shape), 0)
    each = -(-x.shape[axis] // count)
    sizes = sizes or [min(each, x.shape[axis] - i * each) for i in range(count)]
    return [
        _part(node, x, axis, begin, end)
        if node.context.readers(name) or name in node.context.model.outputs.values()
        else Tensor(x.tensor.name, (*x.shape[:axis], end - begin, *x.shape[axis + 1 :]))
        for (begin, end), name in zip(_ranges(x.shape[axis], sizes), node.onnx.outputs, strict=True)
    ]


def _ranges(size: int, sizes: list[int]) -> tuple[tuple[int, int], ...]:
    """Return (begin, end) of each part when an axis of size `size` is split into `sizes`."""
    if min(sizes) < 1 or sum(sizes) != size:
        raise Unsupported(
            f"the node splits an axis of size {size} into parts of the sizes {sizes}: each part "
            f"must be 1 or more, and the sum must be {size}"
        )
    return tuple(pairwise(accumulate(sizes, initial=0)))


def _split_to_sequence(node: ImportedNode) -> Parts:
    """Return all parts of a split as one value. A part becomes a layer when a node reads it."""
    x = node.unpadded(0)
    axis = node.axis(len(x.shape), 0)
    size = x.shape[axis]
    sizes = node.integers(1, "split") or [1] * size
    if node.has(1) and not node.constant(1).value.ndim:
        each = max(sizes[0], 0)
        sizes = [min(each, size - i) for i in range(0, size, each or size)]
    dropped = not node.has(1) and not node.attribute("keepdims", 1)
    return Parts(x, axis, _ranges(size, sizes), dropped)


def _sequence_at(node: ImportedNode) -> Deferred:
    parts, place = node.parts(0), int(node.constant(1).value)
    count = len(parts.ranges)
    if not -count <= place < count:
        raise Unsupported(f"there is no tensor {place}: use an index from {-count} to {count - 1}")
    part = _part(node, parts.whole, parts.axis, *parts.ranges[place])
    return without(part, {parts.axis}) if parts.dropped else part


def _pad(node: ImportedNode) -> Deferred:
    x, sides = plain(node.deferred(0)), node.integers(1, "pads") or []
    mode, rank = node.attribute("mode", "constant"), len(x.order)
    filling = float(node.constant(2).value.reshape(-1)[0]) if node.has(2) else 0.0
    filling = LEFT_OUT if filling < -3e38 else filling
    axes = [axis_of(axis, rank) for axis in (node.integers(3, "axes") or range(rank))]
    pads = [[0, 0] for _ in range(rank)]
    for axis, *pair in zip(axes, sides[: len(axes)], sides[len(axes) :], strict=True):
        pads[axis] = pair
    if min(map(min, pads)) < 0:
        raise Unsupported(f"the pads {sides} contain negative numbers: use Slice instead")
    if not any(map(any, pads)):
        return x
    if mode != "constant":
        return _mirrored(node, pads, mode)
    if filling not in (0, LEFT_OUT):
        return _padded_with(node, filling, pads)
    if x.pads and x.filling != filling:
        x = node.unpadded(0)
    both = zip(x.pads or ((0, 0),) * rank, pads, strict=True)
    return replace(x, pads=tuple((a + c, b + d) for (a, b), (c, d) in both), filling=filling)


def _mirrored(node: ImportedNode, pads: list[list[int]], mode: str) -> Deferred:
    """Pad with elements of the input, in a mode that NumPy has too (reflect, edge, wrap)."""
    x = node.tensor(0)
    for axis, pair in enumerate(pads):
        if any(pair):
            places = np.pad(np.arange(x.shape[axis]), pair, mode).tolist()  # type: ignore[call-overload]
            x = node.materialise(_picked(node, x, axis, places))
    return deferred(x)


def _padded_with(node: ImportedNode, filling: float, pads: list[list[int]]) -> Deferred:
    """Pad with zeros, and add `filling` to them."""
    axes = [axis for axis, pair in enumerate(pads) if any(pair)]
    if len(axes) > 1:
        raise Unsupported(f"the node pads several axes with {filling}: pad with zeros instead")
    axis, (before, after) = axes[0], pads[axes[0]]
    x = node.tensor(0)
    size, rest = x.shape[axis] + before + after, (1,) * (len(x.shape) - axis - 1)
    y = node.helper("zeros", "pad", (x,), axis, before, after)
    for count, zeros in ((before, (0, size - before)), (after, (size - after, 0))):
        if count:
            edge = node.ones("edge", (count, *rest))
            edge = node.helper("padded", "pad", (edge,), 0, *zeros)
            edge = node.helper("filled", "scale", (edge,), filling)
            y = node.helper("sum", "add", (y, edge))
    return deferred(y)


SELECTION_RULES: dict[str, Rule] = {
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Pad": _pad,
    "SequenceAt": _sequence_at,
    "Slice": _slice,
    "Split": _split,
    "SplitToSequence": _split_to_sequence,
}
