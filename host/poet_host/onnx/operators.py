"""Import rules of ONNX operators: a rule is a function in `RULES` that adds the layers of a node.

A rule takes an ImportedNode and returns the node's output. If the node cannot be trained, the rule
raises Unsupported, with the reason and what to do. A Tensor is a name and a shape, so a change of
shape alone adds no layer. This file has the rules of layers with weights; windows.py has those of
convolutions and pooling, tensors.py those of operators on tensors of any shape.
"""

from math import prod

import numpy as np

from ..graph.builder import Tensor
from ..graph.graph import Node
from ..graph.rules import Shape
from .context import Deferred, Unsupported
from .fold import Constant
from .names import is_numbered
from .node import ImportedNode, Rule
from .recurrent import RECURRENT_RULES
from .tensors import TENSOR_RULES
from .views import plain
from .windows import WINDOW_RULES

# Permutations of the axes (batch, length, heads, width) in an attention: the first is the transpose
# of queries and values, the second is the transpose of keys.
_SPLIT, _SPLIT_TRANSPOSED = (0, 2, 1, 3), (0, 2, 3, 1)


def _gemm(node: ImportedNode) -> Tensor:
    alpha, beta = node.attribute("alpha", 1.0), node.attribute("beta", 1.0)
    simple = not node.attribute("transA", 0) and alpha == 1 and not node.is_tensor(1)
    if simple and (not node.has(2) or (beta == 1 and not node.is_tensor(2))):
        weight = node.matrix(1) if node.attribute("transB", 0) else node.transposed(1)
        is_linear = not node.context.has_other_layout(weight)  # a matrix product can transpose
        if is_linear and (not node.has(2) or _is_row(node.weight(2), weight.value.shape[0])):
            return _linear(node, weight)
    sides = (node.stored(0), node.stored(1))
    name = node.helper_name("product") if node.has(2) else None
    y = node.layer(
        "matmul", sides, transpose_a=bool(node.attribute("transA", 0)),
        transpose_b=bool(node.attribute("transB", 0)), factor=alpha, name=name,
    )  # fmt: skip
    if not node.has(2) or beta == 0:
        return y
    bias = node.stored(2)
    if beta != 1:
        bias = node.helper("bias", "scale", (bias,), beta)
    return node.layer("add", (y, bias))


def _is_row(given: Constant, size: int) -> bool:
    """Return True if the constant has one number for each of `size` columns."""
    return given.value.size == size and given.value.shape[-1:] in ((), (size,))


def _matmul(node: ImportedNode) -> Tensor | Deferred:
    if node.onnx.outputs[0] in node.context.derived:
        ranks = [node.constant(number).value.ndim for number in (0, 1)]
        if 1 in ranks:
            return _with_vectors(node, ranks)
    if node.is_tensor(1):
        return _product(node)
    rank = len(node.deferred(0).shape) if node.is_tensor(0) else 2
    weight = node.transposed(1, rank)
    return _product(node) if node.context.has_other_layout(weight) else _linear(node, weight)


def _with_vectors(node: ImportedNode, ranks: list[int]) -> Tensor:
    """Multiply tensors of which at least one is a vector: a row at the left, a column right."""
    a, b = node.stored(0), node.stored(1)
    left = a if ranks[0] > 1 else Tensor(a.name, (1, *a.shape))
    right = b if ranks[1] > 1 else Tensor(b.name, (*b.shape, 1))
    y = node.layer("matmul", (left, right))
    shape = (*a.shape[:-1], *(b.shape[-1:] if ranks[1] > 1 else ()))
    return Tensor(y.name, shape or (1,))


def _einsum(node: ImportedNode) -> Deferred:
    """Compute a product of two tensors, whose axes have letters, as a matrix product."""
    equation = node.attribute("equation").replace(" ", "")
    sides, _, last = equation.partition("->")
    names = sides.split(",")
    if (
        len(names) != 2
        or not last
        or any(len({*axes}) < len(axes) for axes in [*names, last])
        or (not {*names[0]} ^ {*names[1]} <= {*last} <= {*names[0]} | {*names[1]})
    ):
        raise Unsupported(
            f"the equation {equation} is not supported: use two inputs, letters that occur once in "
            "each, and sum only over letters of both inputs"
        )
    tensors = [node.stored(0), node.stored(1)]
    sizes = {
        axis: size
        for axes, x in zip(names, tensors, strict=True)
        for axis, size in zip(axes, x.shape, strict=True)
    }
    batch = [axis for axis in names[0] if axis in names[1] and axis in last]
    summed = [axis for axis in names[0] if axis not in last]
    free = [[axis for axis in axes if axis not in batch + summed] for axes in names]

    def matrix(number: int, rows: list[str], columns: list[str]) -> Tensor:
        order = tuple(map(names[number].index, batch + rows + columns))
        made = node.materialise(Deferred(tensors[number], order), node.helper_name("moved"))
        parts = (batch, rows, columns)
        return Tensor(made.name, tuple(prod(sizes[axis] for axis in part) for part in parts))

    y = node.layer("matmul", (matrix(0, free[0], summed), matrix(1, summed, free[1])))
    order = [*batch, *free[0], *free[1]]
    whole = Tensor(y.name, tuple(sizes[axis] for axis in order))
    return Deferred(whole, tuple(order.index(axis) for axis in last))


def _product(node: ImportedNode) -> Tensor | Deferred:
    """Add a matrix product whose second factor is computed from the data.

    The products of an attention become layers of their own kind. These layers read tensors of
    shape (batch, length, heads x width), so the axis of the heads need not be moved.
    """
    if not node.is_tensor(0):
        rank = len(node.deferred(1).order)
        weight = node.matrix(0, rank)
        order = (*range(rank - 2), rank - 1, rank - 2)
        rows = node.materialise(Deferred(node.tensor(1), order))
        return Deferred(_linear_of(node, rows, weight, None), order)
    a, b = plain(node.unpadded(0)), plain(node.unpadded(1))
    rank = max(len(a.order), len(b.order))
    if (a.order, b.order) == (_SPLIT, _SPLIT_TRANSPOSED):
        sides = (_joined(a.tensor), _joined(b.tensor))
        factor = a.factor * b.factor * node.factor_after(rank)
        return node.layer("attention_scores", sides, a.tensor.shape[2], factor=factor)
    if (a.order, b.order) == ((0, 1, 2, 3), _SPLIT) and a.shape[:2] == b.shape[:2]:
        y = node.layer("attention_context", (a.tensor, _joined(b.tensor)))
        batch, length, width = y.shape
        heads = Tensor(y.name, (batch, length, a.shape[1], width // a.shape[1]))
        return Deferred(heads, _SPLIT, a.factor * b.factor)
    has_each = prod(a.shape[:-2]) == prod(b.shape[:-2])  # of the first factor, one of the second
    swap_a, swap_b = has_each and _is_matrix_transpose(a), _is_matrix_transpose(b)
    sides = (a.tensor if swap_a else node.tensor(0), b.tensor if swap_b else node.tensor(1))
    factor = node.factor_after(rank)
    factor *= a.factor if swap_a else 1.0
    factor *= b.factor if swap_b else 1.0
    return node.layer("matmul", sides, transpose_a=swap_a, transpose_b=swap_b, factor=factor)


def _joined(x: Tensor) -> Tensor:
    """Return `x` of shape (N, L, heads, D) with the shape (N, L, heads * D)."""
    return Tensor(x.name, (*x.shape[:2], x.shape[2] * x.shape[3]))


def _is_matrix_transpose(side: Deferred) -> bool:
    """Return True if the deferred transpose of `side` exchanges only the last two axes."""
    rank = len(side.order)
    return side.order == (*range(rank - 2), rank - 1, rank - 2)


def _linear(node: ImportedNode, weight: Constant) -> Tensor:
    """Add a linear layer on the last axis of the data. `weight` has the shape (outputs, inputs)."""
    has_bias = node.is_tensor(0) or node.has(2)
    bias = node.bias(2, weight.value.shape[0], -1) if has_bias else None
    # A constant is the data of a small network, such as positions, or a factor of a weight.
    return _linear_of(node, node.stored(0, frozen=not _is_weight(node)), weight, bias)


def _is_weight(node: ImportedNode) -> bool:
    """Return True if a matrix product, or its transpose, is the second factor of another one."""
    output = node.onnx.outputs[0]
    reader = node.context.only_reader(output)
    if reader is not None and reader.op == "Transpose":
        output = reader.outputs[0]
        reader = node.context.only_reader(output)
    if reader is None or node.has(2):
        return False
    return reader.op in ("Gemm", "MatMul") and reader.input(1) == output


def _linear_of(node: ImportedNode, x: Tensor, weight: Constant, bias: Constant | None) -> Tensor:
    outputs, name = weight.value.shape[0], node.layer_name(weight, bias)
    parameters = {"weight": node.parameter(name, "weight", weight)}
    if bias:
        parameters["bias"] = node.parameter(name, "bias", bias, (outputs,))
    rows = x if len(x.shape) < 4 else Tensor(x.name, (prod(x.shape[:-1]), x.shape[-1]))
    y = node.layer(
        "linear", (rows,), outputs, name=name, parameters=parameters, bias=bias is not None
    )
    return Tensor(y.name, (*x.shape[:-1], outputs))


def _batchnorm(node: ImportedNode) -> Tensor:
    if node.onnx.outputs[0] in node.context.derived:  # the weight of a convolution, normalised
        rows, *given = (node.constant(number).value for number in (0, 3, 4))
        axes = (0, *range(2, rows.ndim))
        is_own = np.allclose(given, (rows.mean(axes), rows.var(axes)))
        if len(rows) != 1 or not (is_own or node.attribute("training_mode", 0)):
            raise Unsupported("only its own mean and variance can normalise a weight")
        y, proto = _instancenorm(node), node.onnx.proto
        # The file may hold this mean and variance as constants, but training changes the weight.
        proto.op_type = "InstanceNormalization"
        del proto.input[3:], proto.output[1:]
        for attribute in [it for it in proto.attribute if it.name != "epsilon"]:
            proto.attribute.remove(attribute)
        return y
    if node.is_tensor(3):
        raise Unsupported(
            "the mean is that of each batch, also when the model infers: keep a running mean "
            "(PyTorch: track_running_stats=True)"
        )
    x, mean, variance = node.tensor(0), node.weight(3), node.weight(4)
    name = node.layer_name(node.weight(1))
    parameters = _scale_and_shift(node, name, x.shape[1:2], _effective(node))
    parameters["running"] = node.running(name, mean, variance)
    y = node.layer(
        "batchnorm2d",
        (Tensor(x.name, (*x.shape, 1, 1)[: max(len(x.shape), 4)]),),
        name=name,
        parameters=parameters,
        epsilon=node.attribute("epsilon", 1e-5),
        # In ONNX, momentum is the weight of the old value; here it is the weight of the new value.
        momentum=round(1 - node.attribute("momentum", 0.9), 6),
    )
    return Tensor(y.name, x.shape)


def _effective(node: ImportedNode, numbered: bool = False) -> list[int]:
    """Return those of a norm's inputs 1 (scale) and 2 (shift) that no exporter has made up.

    Exporters write nodes of ones and zeros for a norm without scale or shift, next to weights that
    the file stores. If nodes make all weights, or convert them, they are weights too. If `numbered`
    is True, any node counts, and so do tensors of the file that have numbers as names.
    """
    model, found = node.context.model, list[int]()
    stores_weights = any(value.ndim > 1 for value in model.constants.values())
    ops = {name: it.op for it in model.nodes if stores_weights for name in it.outputs}
    for number, nothing in ((1, 1), (2, 0)):
        given = node.known(number) if node.has(number) else None
        if isinstance(given, Constant) and node.onnx.input(number) not in node.context.derived:
            name = given.source.names[0]
            is_made_up = ops.get(name) in ("Constant", "ConstantOfShape", "Expand")
            is_made_up |= numbered and (given.computed or is_numbered(name))
            found += [] if is_made_up and (given.value == nothing).all() else [number]
        elif given:
            found.append(number)
    return found


def _scale_and_shift(
    node: ImportedNode, layer: str, shape: Shape, given: list[int]
) -> dict[str, Node]:
    """Return the parameters of a norm. Those whose inputs are not `given` are not trained."""
    return {
        slot: node.parameter(layer, slot, node.weight(number), shape)
        if number in given
        else node.untrained(layer, slot, shape, start)
        for number, slot, start in ((1, "weight", "ones"), (2, "bias", "zeros"))
    }


def _layernorm(node: ImportedNode) -> Tensor:
    x = node.tensor(0)
    axes = len(x.shape) - node.axis(len(x.shape), -1)
    given, apart = _effective(node), list[int]()
    if any(map(node.is_tensor, given)):
        name, given, apart = node.helper_name("normed"), [], given
    else:
        name = node.layer_name(node.weight(1) if node.has(1) else None)
    parameters = _scale_and_shift(node, name, x.shape[-axes:], given)
    y = node.layer(
        "layernorm", (x,), name=name, parameters=parameters, axes=axes,
        epsilon=node.attribute("epsilon", 1e-5),
    )  # fmt: skip
    for number in apart:
        y = node.layer("mul" if number == 1 else "add", (y, node.stored(number)))
    return y


def _instancenorm(node: ImportedNode) -> Tensor:
    """Normalise each channel of each sample by its own mean and standard deviation."""
    x = node.tensor(0)
    return _normed_groups(node, x, x.shape[1], (x.shape[1], *[1] * (len(x.shape) - 2)))


def _groupnorm(node: ImportedNode) -> Tensor:
    x, groups = node.tensor(0), node.attribute("num_groups")
    if groups < 1 or x.shape[1] % groups:
        raise Unsupported(
            f"the {x.shape[1]} channels of the input cannot be divided into {groups} groups: "
            "choose another num_groups"
        )
    count = node.weight(1).value.size  # before opset 21, one scale for each group
    tail = [1] * (len(x.shape) - 2)
    seen = (groups, 1) if count == groups != x.shape[1] else (x.shape[1], *tail)
    return _normed_groups(node, x, groups, seen)


def _normed_groups(node: ImportedNode, x: Tensor, groups: int, seen: Shape) -> Tensor:
    """Normalise groups of channels. Then multiply by a scale and add a bias.

    The scale and the bias are read in the shape `seen`, which fits the data.
    """
    rows = Tensor(x.name, (x.shape[0] * groups, prod(x.shape[1:]) // groups))
    name = node.helper_name("normed")
    fixed = _scale_and_shift(node, name, rows.shape[1:], [])
    epsilon = node.attribute("epsilon", 1e-5)
    y = node.layer("layernorm", (rows,), name=name, parameters=fixed, epsilon=epsilon)
    shape = (x.shape[0], groups, rows.shape[1]) if seen == (groups, 1) else x.shape
    y = Tensor(y.name, shape)
    for number in _effective(node, numbered=True):
        kind, name = ("mul", node.helper_name("scaled")) if number == 1 else ("add", "")
        given = node.stored(number, is_weight=True)
        y = node.layer(kind, (y, Tensor(given.name, seen)), name=name)
    return Tensor(y.name, x.shape)


RULES: dict[str, Rule] = {
    **TENSOR_RULES,
    **RECURRENT_RULES,
    **WINDOW_RULES,
    "BatchNormalization": _batchnorm,
    "Einsum": _einsum,
    "Gemm": _gemm,
    "GroupNormalization": _groupnorm,
    "InstanceNormalization": _instancenorm,
    "LayerNormalization": _layernorm,
    "MatMul": _matmul,
}
