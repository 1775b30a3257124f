"""Rows of ONNX operators that only move, select or repeat numbers; see operators.py.

A Tensor is a name and the shape that it is seen in, so most of these cost nothing; a Moved tensor
is put in order only where its reader needs it so.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, groupby, pairwise
from math import inf, prod
from typing import Any

import numpy as np

from ..graph.builder import Tensor
from ..graph.operators import Shape
from ..graph.operators_tensor import axis_of
from .node import At, Moved, Parts, Rule, Unsupported
from .fold import Constant

_FLOATS = (1, 11)  # ONNX's numbers of float32 and float64
LEFT_OUT = -inf  # padding that a window's maximum takes no notice of


def plain(x: Moved) -> Moved:
    """A tensor of which nothing is hidden: masks know their axes, and a sign would show it."""
    if x.hides:
        raise Unsupported("it changes masked scores: mask them right in front of the softmax")
    return x


def _same(at: At) -> Moved:
    return at.view(0)


def _cast(at: At) -> Moved:
    x, data = at.view(0), at.walk.model.input.dtype
    tokens = x.tensor.name == at.walk.builder.data.name and data.kind in "iu"
    if not tokens and at.attribute("to") not in _FLOATS:
        raise Unsupported("only float32 is computed with: export the model in float32")
    return x


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


def _squeeze(at: At) -> Moved:
    x, axes = at.moved(0), at.integers(1, "axes")
    rank = len(x.shape)
    gone = {axis_of(axis, rank) for axis in axes or (i for i in range(rank) if x.shape[i] == 1)}
    if any(x.shape[axis] != 1 for axis in gone):
        raise Unsupported(f"it drops axes {axes} of {x.shape}, which are not all 1")
    return _without(plain(x) if gone & {rank - 2, rank - 1} else x, gone)


def _without(x: Moved, axes: set[int]) -> Moved:
    """A tensor without some of its axes, which have the size 1."""
    gone = {x.order[axis] for axis in axes}
    kept = [axis for axis in range(len(x.order)) if axis not in gone]
    shape = tuple(x.tensor.shape[axis] for axis in kept)
    order = tuple(kept.index(axis) for axis in x.order if axis not in gone)
    return replace(x, tensor=Tensor(x.tensor.name, shape), order=order)


def _unsqueeze(at: At) -> Tensor:
    x, axes = at.tensor(0), at.integers(1, "axes") or []
    shape, sizes = len(x.shape) + len(axes), list(x.shape)
    for axis in sorted(axis_of(axis, shape) for axis in axes):
        sizes.insert(axis, 1)
    return Tensor(x.name, tuple(sizes))


def _transpose(at: At) -> Tensor | Moved:
    x = plain(at.view(0))
    order = at.attribute("perm") or list(range(len(x.order)))[::-1]
    whole = tuple(x.order[axis] for axis in order)
    pads = tuple(x.pads[axis] for axis in order) if x.pads else ()
    large = [axis for axis in whole if x.tensor.shape[axis] != 1]
    if large == sorted(large):  # only axes of size 1 move, so no number does
        seen = Tensor(x.tensor.name, tuple(x.tensor.shape[axis] for axis in whole))
        return replace(x, tensor=seen, order=tuple(range(len(whole))), pads=pads)
    return replace(x, order=whole, pads=pads)


def _pad(at: At) -> Moved:
    x, sides = plain(at.view(0)), at.integers(1, "pads") or []
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


def _gather(at: At) -> Tensor | Moved:
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
    x, chosen = at.moved(0), at.constant(1).value
    axis = axis_of(axis, len(x.shape))
    size = x.shape[axis]
    if (chosen >= size).any() or (chosen < -size).any():
        raise Unsupported(
            f"it picks places {chosen.tolist()} of {size}, some of which are not there"
        )
    if not chosen.size:
        raise Unsupported("it picks no places: leave it out of what is exported")
    places = [int(place) % size for place in chosen.reshape(-1)]
    if places != list(range(places[0], places[0] + len(places))):
        raise Unsupported("it picks places that do not follow one another: slice instead")
    part = _part(at, x, axis, places[0], places[-1] + 1)
    if chosen.ndim == 0:
        return _without(part, {axis})
    made = at.walk.made_of(part, at.made_name("picked"))
    return Tensor(made.name, (*made.shape[:axis], *chosen.shape, *made.shape[axis + 1 :]))


def _part(at: At, x: Moved, axis: int, begin: int, end: int) -> Moved:
    """What lies from `begin` to before `end` along one axis, wherever that is in memory."""
    if (begin, end) == (0, x.shape[axis]):
        return x
    part = at.layer("slice", (plain(x).tensor,), x.order[axis], begin, end)
    return replace(x, tensor=part)


def _slice(at: At) -> Moved:
    x = at.moved(0)
    begins, ends = at.integers(1, "starts") or [], at.integers(2, "ends") or []
    axes, steps = at.integers(3, "axes") or list(range(len(begins))), at.integers(4, "steps")
    if any(step != 1 for step in steps or []):
        raise Unsupported(f"it takes every {steps}th: only whole ranges are built")
    for axis, begin, end in zip(
        (axis_of(a, len(x.shape)) for a in axes), begins, ends, strict=True
    ):
        size = x.shape[axis]
        begin, end = (min(max(place + size * (place < 0), 0), size) for place in (begin, end))
        x = _part(at, x, axis, begin, end)
    return x


def _split(at: At) -> list[Tensor | Moved]:
    x, sizes, count = at.moved(0), at.integers(1, "split"), len(at.node.outputs)
    axis = axis_of(at.attribute("axis", 0), len(x.shape))
    each = -(-x.shape[axis] // count)
    sizes = sizes or [min(each, x.shape[axis] - i * each) for i in range(count)]
    return [
        _part(at, x, axis, begin, end)
        if at.walk.readers(name) or name == at.walk.model.output
        else Tensor(x.tensor.name, (*x.shape[:axis], end - begin, *x.shape[axis + 1 :]))
        for (begin, end), name in zip(_ranges(x.shape[axis], sizes), at.node.outputs, strict=True)
    ]


def _ranges(size: int, sizes: list[int]) -> tuple[tuple[int, int], ...]:
    """Where parts of these sizes begin and end."""
    if min(sizes) < 1 or sum(sizes) != size:
        raise Unsupported(
            f"it splits {size} into {sizes}: parts must be of 1 or more, and make the whole"
        )
    return tuple(pairwise(accumulate(sizes, initial=0)))


def _split_to_sequence(at: At) -> Parts:
    """As Split, but one value; the parts that are read are made where they are."""
    x = at.moved(0)
    axis = axis_of(at.attribute("axis", 0), len(x.shape))
    size = x.shape[axis]
    sizes = at.integers(1, "split") or [1] * size
    if at.has(1) and not at.constant(1).value.ndim:
        each = max(sizes[0], 0)
        sizes = [min(each, size - i) for i in range(0, size, each or size)]
    dropped = not at.has(1) and not at.attribute("keepdims", 1)
    return Parts(x, axis, _ranges(size, sizes), dropped)


def _sequence_at(at: At) -> Moved:
    parts, place = at.parts(0), int(at.constant(1).value)
    count = len(parts.ranges)
    if not -count <= place < count:
        raise Unsupported(f"it takes part {place} of {count}, which is not there")
    part = _part(at, parts.whole, parts.axis, *parts.ranges[place])
    return _without(part, {parts.axis}) if parts.dropped else part


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


def _resize(at: At) -> Tensor:
    """Each number repeated: nearest neighbours at whole multiples of the size."""
    x, policy = at.tensor(0), at.attribute("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        raise Unsupported(f"it keeps the aspect ratio ({policy}): use the policy stretch")
    axes = [axis_of(one, len(x.shape)) for one in at.attribute("axes") or range(len(x.shape))]
    if at.has(3):
        sizes = [int(size) for size in at.constant(3).value]
    else:
        scales = at.constant(2).value.tolist()
        sizes = [int(x.shape[axis] * scale) for axis, scale in zip(axes, scales, strict=True)]
    wanted = list(x.shape)
    for axis, size in zip(axes, sizes, strict=True):
        wanted[axis] = size
    wanted = at.for_batch(x.shape, wanted)
    how = at.attribute("coordinate_transformation_mode", "half_pixel")
    nearest = at.attribute("nearest_mode", "round_prefer_floor")
    if at.attribute("mode", "nearest") != "nearest" or not all(
        _repeats(size, whole, how, nearest) for size, whole in zip(x.shape, wanted, strict=True)
    ):
        raise Unsupported(
            "only sizes that are doubled, or multiplied otherwise, by repeating what is nearest "
            "are built: use the mode nearest and a whole factor"
        )
    return _repeated(at, x, tuple(wanted), behind=True)


def _repeated(at: At, x: Tensor, wanted: Shape, behind: bool) -> Tensor:
    """Along each axis, every number several times (`behind` itself), or the whole of it."""
    pairs = [(size, n // size) for size, n in zip(x.shape, wanted, strict=True)]
    order = (0, 1) if behind else (1, 0)
    seen = tuple((size, 1)[i] for size, _ in pairs for i in order)
    whole = tuple(pair[i] for pair in pairs for i in order)
    if seen == whole:
        return x
    runs = [*groupby(a != b for a, b in zip(seen, whole, strict=True) if b != 1)]
    if len(runs) > 4:  # than which no layer can tell more apart: the last axis by itself
        last = max(axis for axis, (_, times) in enumerate(pairs) if times > 1)
        x = _repeated(at, x, (*wanted[:last], *x.shape[last:]), behind)
        return _repeated(at, x, wanted, behind)
    y = at.layer("expand", (Tensor(x.name, seen),), whole)
    return Tensor(y.name, wanted)


def _tile(at: At) -> Tensor:
    x, times = at.tensor(0), at.constant(1).value.tolist()
    wanted = tuple(size * n for size, n in zip(x.shape, times, strict=True))
    return _repeated(at, x, wanted, behind=False)


def _repeats(size: int, whole: int, how: str, nearest: str) -> bool:
    """Is each of `size` places taken as often as the others, one after the other?"""
    places = np.arange(whole)
    factor = whole / size
    found = {
        "asymmetric": places / factor,
        "half_pixel": (places + 0.5) / factor - 0.5,
        "pytorch_half_pixel": (places + 0.5) / factor - 0.5,
        "tf_half_pixel_for_nn": (places + 0.5) / factor,
    }.get(how)
    rounds: dict[str, Callable[[Any], Any]] = {
        "floor": np.floor,
        "round_prefer_floor": lambda x: np.ceil(x - 0.5),
        "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    }
    rounded = rounds.get(nearest)
    if whole % size or found is None or rounded is None:
        return False
    return bool((rounded(found).clip(0, size - 1) == places // factor).all())


def _expand(at: At) -> Tensor | Constant:
    wanted = [int(size) for size in at.constant(1).value]
    if not at.is_tensor(0):  # see Walk.is_shared
        return at.constant(0)
    x = at.tensor(0)
    shape = np.broadcast_shapes(x.shape, tuple(at.for_batch(x.shape, wanted)))
    return x if shape == x.shape else at.layer("expand", (x,), shape)


VIEW_RULES: dict[str, Rule] = {
    "Cast": _cast,
    "Concat": _concat,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "Identity": _same,
    "Pad": _pad,
    "Reshape": _reshape,
    "Resize": _resize,
    "SequenceAt": _sequence_at,
    "Slice": _slice,
    "Split": _split,
    "SplitToSequence": _split_to_sequence,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
