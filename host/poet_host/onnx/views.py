"""Import rules of ONNX operators that only move, select or repeat numbers.

operators.py explains the rules. A Tensor is a name and a shape, so most of these rules add no
layer. Others defer an operation (context.Deferred): it becomes a layer only if the next node cannot
do it.
"""

from dataclasses import replace
from math import prod

import numpy as np

from ..graph.builder import Tensor
from ..graph.operators_tensor import axis_of
from ..graph.rules import Shape
from .advice import advice
from .context import Deferred, Unsupported, Value
from .gates import TO_PYTORCH as RECURRENT
from .masks import sample_values
from .node import ImportedNode, Rule

_FLOATS = (1, 11)  # ONNX's codes of float32 and float64


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
    if prod(shape) != prod(x.shape) or _mixes_samples(node, x.shape, shape):
        raise Unsupported(
            f"the node cannot reshape {x.shape} to {tuple(wanted)}: export the model with a "
            "dynamic axis for the batch, or use the batch size of the export"
        )
    return Tensor(x.name, shape)


def _mixes_samples(node: ImportedNode, before: Shape, after: Shape) -> bool:
    """Return True if samples leave the first axis, which they do not with the file's batch size."""
    of_file = node.context.file_shapes
    x, y = (of_file.get(name) for name in (node.onnx.inputs[0], node.onnx.outputs[0]))
    if not x or not y or x[0] == before[0] or y[0] % node.context.file_batch:
        return False
    return y[1:] != after[1:]


def _squeeze(node: ImportedNode) -> Deferred:
    x, axes = node.unpadded(0), node.integers(1, "axes")
    rank = len(x.shape)
    gone = {axis_of(axis, rank) for axis in axes or (i for i in range(rank) if x.shape[i] == 1)}
    if any(x.shape[axis] != 1 for axis in gone):
        raise Unsupported(
            f"the node removes the axes {axes} of the shape {x.shape}, but not all of these axes "
            "have size 1: remove only axes of size 1"
        )
    return without(plain(x) if gone & {rank - 2, rank - 1} else x, gone)


def without(x: Deferred, axes: set[int]) -> Deferred:
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


def _expand(node: ImportedNode) -> Value:
    wanted = [int(size) for size in node.constant(1).value]
    if is_repeated_by_readers(node, wanted):
        return node.value(0)
    x = node.tensor(0)
    shape = np.broadcast_shapes(x.shape, tuple(node.context.with_batch(x.shape, wanted)))
    return x if shape == x.shape else node.layer("expand", (x,), shape)


def is_repeated_by_readers(node: ImportedNode, wanted: list[int]) -> bool:
    """Return True if a node repeats a tensor that samples share, and its readers do so, too.

    So the batch size of the file has no effect. Rules that repeat such a tensor are those of
    Concat, of Add, and of recurrent layers, for the states (layers, samples, units) that they begin
    with.
    """
    output, context = node.onnx.outputs[0], node.context
    if output not in context.derived:
        return False
    names, readers, shape = {output}, context.readers(output), node.deferred(0).shape
    if readers and all(reader.op == "Slice" for reader in readers):  # states of several layers
        names = {reader.outputs[0] for reader in readers}
        readers = [it for name in names for it in context.readers(name)]
    if readers and all(reader.op in RECURRENT for reader in readers):
        whole = np.broadcast_shapes(shape, tuple(wanted))
        is_state = all(names.isdisjoint(reader.inputs[:5]) for reader in readers)
        return is_state and (shape[:1], shape[2:]) == (whole[:1], whole[2:])
    is_by_samples = len(shape) == len(wanted) and (*shape[1:],) == (*wanted[1:],)
    return is_by_samples and all(
        reader.outputs[0] not in context.values
        and (reader.op == "Add" or (reader.op == "Concat" and reader.attributes.get("axis")))
        for reader in readers
    )


VIEW_RULES: dict[str, Rule] = {
    "Cast": _cast,
    "CastLike": _cast_like,
    "Concat": _concat,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _flatten,
    "Identity": lambda node: node.deferred(0),
    "Reshape": _reshape,
    "SpaceToDepth": _space_to_depth,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
