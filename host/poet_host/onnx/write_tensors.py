"""Rows of `WRITERS` for operators on tensors of any shape, and for attention; see write.py.

Kernels see a tensor as four axes, the first of which that is not 1 holds the batch, perhaps among
others. Here the batch gets an axis of its own in front of the four.
"""

from collections.abc import Callable

import numpy as np

from ..graph.graph import Node
from ..graph.operators_attention import A_SPLIT, A_TURNED, B_SPLIT, B_TURNED, Y_SPLIT
from .writer import Sizes, Unwritten, Writer, fields

_LOWEST = float(np.finfo(np.float32).min)
_NO_TAIL: Sizes = (0,)  # nothing ends with it: always to be reshaped


def _four(node: Node) -> Sizes:
    return fields(node, "n", "c", "h", "w")


def _batch_axis(writer: Writer, sizes: Sizes) -> int:
    """Which of the axes holds the batch."""
    if writer.graph.batch == 1:
        return 0
    return next((axis for axis, size in enumerate(sizes) if size > 1), 0)


def _arithmetic(op: str) -> Callable[[Writer, Node], None]:
    def write(writer: Writer, node: Node) -> None:
        sizes, variant = _four(node), fields(node, "variant")[0]
        axis = _batch_axis(writer, sizes)
        whole = [writer.is_from_data(name) for name in node.inputs]
        if not variant and all(whole):
            writer.add(op, node, *(writer.seen(name, node.shape[1:]) for name in node.inputs))
            return
        operands = []
        for i, name in enumerate(node.inputs):
            repeated = [variant >> (4 * i + at) & 1 for at in range(4)]
            own = tuple(1 if gone else n for n, gone in zip(sizes, repeated, strict=True))
            if any(whole) and own[axis] != (sizes[axis] if whole[i] else 1):
                raise Unwritten
            operands.append(writer.led(name, own, axis))
        writer.finish(node, writer.make(op, *operands), _NO_TAIL)

    return write


def _scale(writer: Writer, node: Node) -> None:
    if node.attrs.get("variant"):
        raise Unwritten
    x = writer.seen(node.inputs[0], node.shape[1:])
    writer.add("Mul", node, x, *writer.numbers(float(node.attrs["factor"])))


def _reduce(writer: Writer, node: Node) -> None:
    sizes, variant = _four(node), fields(node, "variant")[0]
    axis, factor = _batch_axis(writer, sizes), np.float32(node.attrs["factor"])
    axes = [at for at in range(4) if variant >> at & 1]
    if axis in axes and sizes[axis] > 1:
        raise Unwritten
    x = writer.led(node.inputs[0], sizes, axis)
    count = int(np.prod([sizes[at] for at in axes]))
    over, mean = writer.constant(np.array(axes) + 1), factor == np.float32(1 / count)
    made = writer.make("ReduceMean" if mean else "ReduceSum", x, over)
    if not mean and factor != 1:
        made = writer.make("Mul", made, *writer.numbers(float(factor)))
    writer.finish(node, made, _NO_TAIL)


def _transpose(writer: Writer, node: Node) -> None:
    sizes, variant = _four(node), fields(node, "variant")[0]
    order, axis = [variant >> 2 * at & 3 for at in range(4)], _batch_axis(writer, sizes)
    if any(sizes[at] > 1 for at in order[: order.index(axis)]) and writer.graph.batch > 1:
        raise Unwritten
    x = writer.led(node.inputs[0], sizes, axis)
    made = writer.make("Transpose", x, perm=[0, *(at + 1 for at in order)])
    writer.finish(node, made, _NO_TAIL)


def _concat(writer: Writer, node: Node) -> None:
    n, c, h, w, k = fields(node, "n", "c", "h", "w", "k")
    if len({writer.is_from_data(name) for name in node.inputs}) > 1:
        raise Unwritten
    sides = [
        writer.led(name, (n, size, h * w), 0)
        for name, size in zip(node.inputs, (c, k), strict=True)
    ]
    writer.finish(node, writer.make("Concat", *sides, axis=2), _NO_TAIL)


def _slice(writer: Writer, node: Node) -> None:
    n, c, h, w, k, begin = fields(node, "n", "c", "h", "w", "k", "oh")
    x, axis = node.inputs[0], 0
    if writer.is_from_data(x) or writer.graph[x].shape[0] != c or n != 1:
        x, axis = writer.led(x, (n, c, h * w), 0), 2
    ends = [writer.constant(np.array([one])) for one in (begin, begin + k, axis)]
    writer.finish(node, writer.make("Slice", x, *ends), _NO_TAIL)


def _pad(writer: Writer, node: Node) -> None:
    n, c, h, w, k, begin = fields(node, "n", "c", "h", "w", "k", "oh")
    x = writer.led(node.inputs[0], (n, k, h * w), 0)
    pads = writer.constant(np.array([0, 0, begin, 0, 0, 0, c - k - begin, 0]))
    writer.finish(node, writer.make("Pad", x, pads), _NO_TAIL)


def _matmul(writer: Writer, node: Node) -> None:
    n, groups, h, w, k, variant = fields(node, "n", "groups", "h", "w", "k", "variant")
    a, b = node.inputs
    batch = writer.graph.batch
    merged = n % batch != 0  # one matrix b for all of a, whose rows are those of every sample
    if merged and (variant & (A_TURNED | A_SPLIT | Y_SPLIT) or writer.is_from_data(b)):
        raise Unwritten
    if writer.is_from_data(a) != writer.is_from_data(b) and not merged and batch > 1:
        raise Unwritten
    sides = []
    for name, stored, turned, split, axis in (
        (a, (h, k), variant & A_TURNED, variant & A_SPLIT, 2 if merged else 0),
        (b, (k, w), variant & B_TURNED, variant & B_SPLIT, 0),
    ):
        rows, columns = stored[::-1] if turned else stored
        if split:
            seen = writer.led(name, (n, rows, groups, columns), 0)
            order = [0, 1, 3, 4, 2] if turned else [0, 1, 3, 2, 4]
        else:
            seen = writer.led(name, (n, groups, rows, columns), axis)
            order = [0, 1, 2, 4, 3] if turned else []
        sides.append(writer.make("Transpose", seen, perm=order) if order else seen)
    made, factor = writer.make("MatMul", *sides), float(node.attrs["factor"])
    if factor != 1:
        made = writer.make("Mul", made, *writer.numbers(factor))
    if variant & Y_SPLIT:
        made = writer.make("Transpose", made, perm=[0, 1, 3, 2, 4])
    writer.finish(node, made, _NO_TAIL)


def _softmax(writer: Writer, node: Node) -> None:
    """Where nothing is seen the row is zeros, as the kernel has it."""
    n, *sizes = _four(node)
    if n != writer.graph.batch:
        raise Unwritten
    made, shown = writer.seen(node.inputs[0], tuple(sizes)), ""
    lowest, zero = writer.numbers(_LOWEST, 0.0)
    if node.attrs.get("variant"):
        past = writer.constant(np.tril(np.ones(sizes[1:], bool)))
        made = writer.make("Where", past, made, lowest)
    if len(node.inputs) > 1:
        mask = writer.shaped(node.inputs[1], (-1, 1, 1, sizes[2]))
        shown = writer.make("Cast", mask, to=writer.onnx.TensorProto.BOOL)
        made = writer.make("Where", shown, made, lowest)
    made = writer.make("Softmax", made, axis=-1)
    if shown:
        made = writer.make("Where", shown, made, zero)
    writer.finish(node, made, tuple(sizes))


def _layernorm(writer: Writer, node: Node) -> None:
    x, stats, weight, bias = node.inputs
    axes = len(writer.graph[weight].shape)
    if node.shape[-axes:] != writer.graph[weight].shape:
        raise Unwritten
    seen = writer.seen(x, node.shape[1:])
    epsilon = float(writer.graph[stats].attrs["epsilon"])
    writer.add("LayerNormalization", node, seen, weight, bias, axis=-axes, epsilon=epsilon)


def _nothing(writer: Writer, node: Node) -> None:
    """What the operator that reads it computes itself."""


def _embedding(writer: Writer, node: Node) -> None:
    tokens, table = node.inputs
    writer.add("Gather", node, table, writer.seen(tokens, node.shape[1:-1]))


TENSOR_WRITERS: dict[str, Callable[[Writer, Node], None]] = {
    "add": _arithmetic("Add"),
    "concat": _concat,
    "embedding": _embedding,
    "layernorm": _layernorm,
    "layernorm_stats": _nothing,
    "matmul": _matmul,
    "mul": _arithmetic("Mul"),
    "reduce": _reduce,
    "scale": _scale,
    "slice": _slice,
    "slice_grad": _pad,
    "softmax": _softmax,
    "sub": _arithmetic("Sub"),
    "transpose": _transpose,
}
