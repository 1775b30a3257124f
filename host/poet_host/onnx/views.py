"""Import rules of ONNX operators that only move, select or repeat numbers.

operators.py explains the rules. A Tensor is a name and a shape, so most of these rules add no
layer. Others defer an operation (context.Deferred): it becomes a layer only if the next node cannot
do it.
"""

from dataclasses import replace
from itertools import accumulate, pairwise
from math import inf, prod

import numpy as np

from ..graph.builder import Tensor
from ..graph.operators_tensor import axis_of
from .advice import advice
from .context import Deferred, Parts, Unsupported, deferred
from .fold import Constant
from .masks import sample_values
from .names import padding_of
from .node import ImportedNode, Rule

_FLOATS = (1, 11)  # ONNX's codes of float32 and float64
LEFT_OUT = -inf  # padding that does not change the maximum of a window


def plain(x: Deferred) -> Deferred:
    """Return `x`. Raises Unsupported if it has a mask, as the node changes its axes or signs."""
    if x.mask:
        raise Unsupported(
            "the node changes attention scores after the mask: apply the mask directly before the "
            "softmax"
        )
    return x


def _cast(node: ImportedNode) -> Deferred:
    x = node.deferred(0)
    tokens = x.tensor.name in node.context.texts
    if not tokens and node.attribute("to") not in _FLOATS:
        raise Unsupported("a cast to this type is not supported: export the model in float32")
    return x


def _cast_like(node: ImportedNode) -> Deferred:
    x, like, tokens = node.deferred(0), sample_values(node, 1), node.context.texts
    is_float = like[0].dtype.kind == "f" if like else node.deferred(1).tensor.name not in tokens
    if not is_float or x.tensor.name in tokens:
        raise Unsupported(advice("CastLike"))
    return x


def _flatten(node: ImportedNode) -> Tensor:
    x = node.tensor(0)
    axis = node.attribute("axis", 1)
    axis += len(x.shape) if axis < 0 else 0  # `axis` may equal the number of axes
    return Tensor(x.name, (prod(x.shape[:axis]), prod(x.shape[axis:])))


def _reshape(node: ImportedNode) -> Tensor:
    x, wanted = node.tensor(0), node.integers(1, "shape")
    assert wanted is not None
    if not node.attribute("allowzero", 0):
        wanted = [x.shape[i] if size == 0 else size for i, size in enumerate(wanted)]
    if -1 in wanted or prod(wanted) != prod(x.shape):
        wanted = node.context.with_batch(x.shape, wanted)
    known = prod(size for size in wanted if size != -1)
    shape = tuple(prod(x.shape) // known if size == -1 else size for size in wanted)
    if prod(shape) != prod(x.shape):
        raise Unsupported(
            f"the node cannot reshape {x.shape} to {tuple(wanted)}: export the model with a "
            "dynamic axis for the batch, or use the batch size of the export"
        )
    return Tensor(x.name, shape)


def _squeeze(node: ImportedNode) -> Deferred:
    x, axes = node.unpadded(0), node.integers(1, "axes")
    rank = len(x.shape)
    gone = {axis_of(axis, rank) for axis in axes or (i for i in range(rank) if x.shape[i] == 1)}
    if any(x.shape[axis] != 1 for axis in gone):
        raise Unsupported(
            f"the node removes the axes {axes} of the shape {x.shape}, but not all of these axes "
            "have size 1: remove only axes of size 1"
        )
    return _without(plain(x) if gone & {rank - 2, rank - 1} else x, gone)


def _without(x: Deferred, axes: set[int]) -> Deferred:
    """Return `x` without the axes `axes`, which must have size 1."""
    gone = {x.order[axis] for axis in axes}
    kept = [axis for axis in range(len(x.order)) if axis not in gone]
    shape = tuple(x.tensor.shape[axis] for axis in kept)
    order = tuple(kept.index(axis) for axis in x.order if axis not in gone)
    return replace(x, tensor=Tensor(x.tensor.name, shape), order=order)


def _unsqueeze(node: ImportedNode) -> Tensor:
    x, axes = node.tensor(0), node.integers(1, "axes") or []
    seen = np.expand_dims(np.broadcast_to(0, x.shape), tuple(axes))
    return Tensor(x.name, seen.shape)


def _transpose(node: ImportedNode) -> Tensor | Deferred:
    x = plain(node.deferred(0))
    order = node.attribute("perm") or list(range(len(x.order)))[::-1]
    whole = tuple(x.order[axis] for axis in order)
    pads = tuple(x.pads[axis] for axis in order) if x.pads else ()
    large = [axis for axis in whole if x.tensor.shape[axis] != 1]
    if large == sorted(large):  # only axes of size 1 move, so no layer is needed
        seen = Tensor(x.tensor.name, tuple(x.tensor.shape[axis] for axis in whole))
        return replace(x, tensor=seen, order=tuple(range(len(whole))), pads=pads)
    return replace(x, order=whole, pads=pads)


def _depth_to_space(node: ImportedNode) -> Tensor:
    x, size = node.tensor(0), node.attribute("blocksize")
    n, channels, h, w = x.shape
    c, by_block = channels // size**2, node.attribute("mode", "DCR") == "DCR"
    blocks = Tensor(x.name, (n, size, size, c, h, w) if by_block else (n, c, size, size, h, w))
    moved = node.materialise(
        Deferred(blocks, (0, 3, 4, 1, 5, 2) if by_block else (0, 1, 4, 2, 5, 3))
    )
    return Tensor(moved.name, (n, c, h * size, w * size))


def _space_to_depth(node: ImportedNode) -> Tensor:
    x, size = node.tensor(0), node.attribute("blocksize")
    n, c, h, w = x.shape
    blocks = Tensor(x.name, (n, c, h // size, size, w // size, size))
    moved = node.materialise(Deferred(blocks, (0, 3, 5, 1, 2, 4)))
    return Tensor(moved.name, (n, c * size**2, h // size, w // size))


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
            x = _picked(node, x, axis, np.pad(np.arange(x.shape[axis]), pair, mode).tolist())  # type: ignore[call-overload]
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


def _gather(node: ImportedNode) -> Tensor | Deferred:
    axis = node.attribute("axis", 0)
    if not node.is_tensor(0):
        table, tokens = node.matrix(0), node.tensor(1)
        if axis != 0:
            raise Unsupported(
                f"the node looks up tokens along axis {axis} of the table: only axis 0 is supported"
            )
        name = node.layer_name(table)
        parameters = {"weight": node.parameter(name, "weight", table)}
        return node.layer(
            "embedding", (tokens,), *table.value.shape, name=name, parameters=parameters,
            padding=padding_of(node.onnx.proto),
        )  # fmt: skip
    x, chosen = node.unpadded(0), node.constant(1).value
    axis = axis_of(axis, len(x.shape))
    size = x.shape[axis]
    if (chosen >= size).any() or (chosen < -size).any():
        raise Unsupported(
            f"some of the indices {chosen.tolist()} are out of range for an axis of size {size}: "
            "correct the indices in the model"
        )
    if not chosen.size:
        raise Unsupported(
            "the node selects nothing, because its list of indices is empty: remove the node from "
            "the model"
        )
    indices = [int(index) % size for index in chosen.reshape(-1)]
    part = x
    if indices == list(range(indices[0], indices[0] + len(indices))):
        part = _part(node, x, axis, indices[0], indices[-1] + 1)
    else:
        part = deferred(_picked(node, node.tensor(0), axis, indices))
    if chosen.ndim == 0:
        return _without(part, {axis})
    made = node.materialise(part, node.helper_name("picked"))
    return Tensor(made.name, (*made.shape[:axis], *chosen.shape, *made.shape[axis + 1 :]))


def _part(node: ImportedNode, x: Deferred, axis: int, begin: int, end: int) -> Deferred:
    if (begin, end) == (0, x.shape[axis]):
        return x
    part = node.layer("slice", (plain(x).tensor,), x.order[axis], begin, end)
    return replace(x, tensor=part)


def _picked(node: ImportedNode, x: Tensor, axis: int, indices: list[int]) -> Tensor:
    """Return the elements `indices` of `x` along one axis: a concatenation of regular runs."""
    runs: list[list[int]] = []
    for index in indices:
        run = runs[-1] if runs else []
        steps = [b - a for a, b in pairwise([*run, index])]
        if steps and steps[0] > 0 and len(set(steps)) == 1:
            run.append(index)
        else:
            runs.append([index])
    parts = [
        every(node, x, axis, run[0], len(run), run[1] - run[0] if len(run) > 1 else 1)
        for run in runs
    ]
    return node.concatenated(parts, axis, "picked")


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
        x = deferred(_picked(node, node.materialise(plain(x)), axis, list(chosen)))
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
    return _without(part, {parts.axis}) if parts.dropped else part


def _concat(node: ImportedNode) -> Tensor:
    """Concatenate the inputs.

    A constant that all samples share, such as a class token, is repeated for each sample.
    """
    parts = [node.stored(number) for number in range(len(node.onnx.inputs))]
    axis = node.axis(len(parts[0].shape))
    batch = max(part.shape[0] for part in parts)
    for i, part in enumerate(parts):
        if part.shape[0] == 1 < batch and axis > 0:
            parts[i] = node.helper("repeated", "expand", (part,), (batch, *part.shape[1:]))
    if axis > 0 and len({part.shape[0] for part in parts}) > 1:
        raise Unsupported(
            "the inputs have different batch sizes, because one of them is repeated to the batch "
            "size of the export: export the model with a dynamic axis for the batch, or use the "
            "batch size of the export"
        )
    return node.concatenated(parts, axis)


def _expand(node: ImportedNode) -> Tensor | Constant:
    wanted = [int(size) for size in node.constant(1).value]
    if not node.is_tensor(0):  # Concat repeats the constant: see Walk._is_repeated_for_samples
        return node.constant(0)
    x = node.tensor(0)
    shape = np.broadcast_shapes(x.shape, tuple(node.context.with_batch(x.shape, wanted)))
    return x if shape == x.shape else node.layer("expand", (x,), shape)


VIEW_RULES: dict[str, Rule] = {
    "Cast": _cast,
    "CastLike": _cast_like,
    "Concat": _concat,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "Identity": lambda node: node.deferred(0),
    "Pad": _pad,
    "Reshape": _reshape,
    "SequenceAt": _sequence_at,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "SplitToSequence": _split_to_sequence,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
