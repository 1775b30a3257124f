"""What an ONNX operator is here: one row of `RULES`, a function that adds our layers for it.

A function takes the node, an `At`, and returns its output; it raises Unsupported, saying what
cannot be done and what to try. A change of shape alone costs nothing: a Tensor is a name and the
shape that it is seen in. Here are layers with weights and windows; what works on tensors of any
shape is in tensors.py.
"""

from math import nan, prod
from typing import Any

from ..graph.builder import Tensor
from ..graph.operators import Shape
from ..graph.operators_tensor import axis_of
from .node import At, Moved, Rule, Unsupported
from .fold import Constant
from .names import is_numbered
from .tensors import TENSOR_RULES
from .views import LEFT_OUT, plain

# Orders of (batch, length, heads, width) in which attention reads its heads, and the keys turned.
_SPLIT, _SPLIT_TURNED = (0, 2, 1, 3), (0, 2, 3, 1)


def _image(x: Tensor) -> Tensor:
    """A signal (N, C, L) as an image of one row; images as they are."""
    if len(x.shape) == 3:
        return Tensor(x.name, (*x.shape[:2], 1, x.shape[2]))
    if len(x.shape) != 4:
        raise Unsupported(
            f"its input has {len(x.shape)} dimensions: signals (3) or images (4) work"
        )
    return x


def _as_before(y: Tensor, x: Tensor) -> Tensor:
    """A signal again, if `x` was one."""
    return Tensor(y.name, (*y.shape[:2], y.shape[3])) if len(x.shape) == 3 else y


def _windowed(at: At, kernel: Shape, filling: float) -> tuple[Tensor, dict[str, Any]]:
    """What a window slides over, as it is in the model, and options kernel, stride and padding of
    an image. Padding in front of the node, with `filling`, is the window's too.
    """
    if any(one != 1 for one in at.attribute("dilations") or [1]):
        raise Unsupported(
            f"dilations {at.attribute('dilations')} are not built: use dilation 1, with a larger "
            "kernel or a stride"
        )
    x, around = at.padded(0, filling)
    stride = tuple(at.attribute("strides") or [1] * len(kernel))
    if len(x.shape) != len(kernel) + 2:
        raise Unsupported(f"its kernel {kernel} does not go with its input of shape {x.shape}")
    sizes = tuple(n + sum(pad) for n, pad in zip(x.shape[2:], around[2:], strict=True))
    own = _pads(at, sizes, kernel, stride)
    pads = tuple((a + c, b + d) for (a, b), (c, d) in zip(around[2:], own, strict=True))
    if filling == 0 and any(
        a != b and max(a, b) >= taps for (a, b), taps in zip(pads, kernel, strict=True)
    ):  # windows that see nothing but padding
        whole = Moved(x, tuple(range(len(x.shape))), pads=((0, 0), (0, 0), *pads))
        x, pads = at.walk.made_of(whole, at.walk.plain_name(at.node)), ((0, 0),) * len(kernel)
    if len(kernel) == 1:
        kernel, stride, pads = (1, *kernel), (1, *stride), ((0, 0), *pads)
    return x, {"kernel": kernel, "stride": stride, "padding": pads}


def _pads(at: At, sizes: Shape, kernel: Shape, stride: Shape) -> tuple[tuple[int, int], ...]:
    """Padding in front of and behind each axis."""
    automatic = at.attribute("auto_pad", "NOTSET")
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        totals = [
            max((-(-size // step) - 1) * step + taps - size, 0)
            for size, taps, step in zip(sizes, kernel, stride, strict=True)
        ]
        sides = [(n // 2, -(-n // 2)) for n in totals]
        return tuple(sides if automatic == "SAME_UPPER" else (side[::-1] for side in sides))
    pads = [] if automatic == "VALID" else at.attribute("pads") or []
    pads = pads or [0] * 2 * len(kernel)
    return tuple(zip(pads[: len(kernel)], pads[len(kernel) :], strict=True))


def _conv(at: At) -> Tensor:
    weight = at.weight(1)
    channels, _, *kernel = weight.value.shape
    x, window = _windowed(at, tuple(kernel), 0.0)
    image = _image(x)
    bias = at.bias(2, channels, -1 - len(kernel))
    name = at.layer_name(weight, bias)
    shape = (channels, weight.value.shape[1], *window["kernel"])
    parameters = {"weight": at.parameter(name, "weight", weight, shape)}
    if bias:
        parameters["bias"] = at.parameter(name, "bias", bias, (channels,))
    y = at.layer(
        "conv2d", (image,), channels, name=name, parameters=parameters, bias=bias is not None,
        groups=at.attribute("group", 1), **window,
    )  # fmt: skip
    return _as_before(y, x)


def _gemm(at: At) -> Tensor:
    alpha, beta = at.attribute("alpha", 1.0), at.attribute("beta", 1.0)
    simple = not at.attribute("transA", 0) and alpha == 1 and not at.is_tensor(1)
    if simple and (not at.has(2) or (beta == 1 and not at.is_tensor(2))):
        weight = at.matrix(1) if at.attribute("transB", 0) else at.turned(1)
        if not at.has(2) or _is_row(at.weight(2), weight.value.shape[0]):
            return _linear(at, weight)
    sides, turns = (
        (at.operand(0), at.operand(1)),
        [bool(at.attribute(f"trans{s}", 0)) for s in "AB"],
    )
    name = at.made_name("product") if at.has(2) else None
    y = at.layer(
        "matmul", sides, transpose_a=turns[0], transpose_b=turns[1], factor=alpha, name=name
    )
    if not at.has(2) or beta == 0:
        return y
    bias = at.operand(2)
    if beta != 1:
        bias = at.layer("scale", (bias,), beta, name=at.made_name("bias"))
    return at.layer("add", (y, bias))


def _is_row(given: Constant, size: int) -> bool:
    """Has it a number for each column?"""
    return given.value.size == size and given.value.shape[-1:] in ((), (size,))


def _matmul(at: At) -> Tensor | Moved:
    if at.is_tensor(1):
        return _product(at)
    return _linear(at, at.turned(1, len(at.view(0).shape)))


def _product(at: At) -> Tensor | Moved:
    """A product of two computed tensors; attention reads heads where they are."""
    if not at.is_tensor(0):
        rank = len(at.view(1).order)
        weight = at.matrix(0, rank)
        columns = Moved(at.tensor(1), (*range(rank - 2), rank - 1, rank - 2))
        rows = at.walk.made_of(columns, at.walk.plain_name(at.node))
        y = _linear_of(at, rows, weight, None)
        return Moved(y, columns.order)
    a, b = plain(at.moved(0)), plain(at.moved(1))
    rank = max(len(a.order), len(b.order))
    if (a.order, b.order) == (_SPLIT, _SPLIT_TURNED):
        sides = (_joined(a.tensor), _joined(b.tensor))
        factor = a.factor * b.factor * at.factor_behind(rank)
        return at.layer("attention_scores", sides, a.tensor.shape[2], factor=factor)
    if (a.order, b.order) == ((0, 1, 2, 3), _SPLIT) and a.shape[:2] == b.shape[:2]:
        y = at.layer("attention_context", (a.tensor, _joined(b.tensor)))
        batch, length, width = y.shape
        heads = Tensor(y.name, (batch, length, a.shape[1], width // a.shape[1]))
        return Moved(heads, _SPLIT, a.factor * b.factor)
    turned = [_is_turned(side) for side in (a, b)]
    sides = (a.tensor if turned[0] else at.tensor(0), b.tensor if turned[1] else at.tensor(1))
    factor = at.factor_behind(rank)
    for side, turn in zip((a, b), turned, strict=True):
        factor *= side.factor if turn else 1.0
    return at.layer("matmul", sides, transpose_a=turned[0], transpose_b=turned[1], factor=factor)


def _joined(x: Tensor) -> Tensor:
    """(N, L, heads, D) as (N, L, heads * D)."""
    return Tensor(x.name, (*x.shape[:2], x.shape[2] * x.shape[3]))


def _is_turned(side: Moved) -> bool:
    """Are just its last two axes exchanged?"""
    rank = len(side.order)
    return side.order == (*range(rank - 2), rank - 1, rank - 2)


def _linear(at: At, weight: Constant) -> Tensor:
    """A weight (outputs, inputs) applied to the last axis of the data."""
    outputs = weight.value.shape[0]
    return _linear_of(at, at.tensor(0), weight, at.bias(2, outputs, -1))


def _linear_of(at: At, x: Tensor, weight: Constant, bias: Constant | None) -> Tensor:
    outputs, name = weight.value.shape[0], at.layer_name(weight, bias)
    parameters = {"weight": at.parameter(name, "weight", weight)}
    if bias:
        parameters["bias"] = at.parameter(name, "bias", bias, (outputs,))
    rows = x if len(x.shape) < 4 else Tensor(x.name, (prod(x.shape[:-1]), x.shape[-1]))
    y = at.layer(
        "linear", (rows,), outputs, name=name, parameters=parameters, bias=bias is not None
    )
    return Tensor(y.name, (*x.shape[:-1], outputs))


def _batchnorm(at: At) -> Tensor:
    x, (gamma, beta, mean, variance) = at.tensor(0), (at.weight(i) for i in range(1, 5))
    name = at.layer_name(gamma)
    parameters = {
        "weight": at.parameter(name, "weight", gamma),
        "bias": at.parameter(name, "bias", beta),
        "running": at.running(name, mean, variance),
    }
    y = at.layer(
        "batchnorm2d",
        (Tensor(x.name, (*x.shape, 1, 1)[: max(len(x.shape), 4)]),),
        name=name,
        parameters=parameters,
        epsilon=at.attribute("epsilon", 1e-5),
        momentum=round(1 - at.attribute("momentum", 0.9), 6),  # ONNX has the weight of the old
    )
    return Tensor(y.name, x.shape)


def _layernorm(at: At) -> Tensor:
    x = at.tensor(0)
    axes = len(x.shape) - axis_of(at.attribute("axis", -1), len(x.shape))
    name = at.layer_name(at.weight(1) if at.has(1) else None)
    parameters = {
        slot: at.parameter(name, slot, at.weight(number), x.shape[-axes:])
        if at.has(number)
        else at.fixed(name, slot, x.shape[-axes:], start)
        for number, slot, start in ((1, "weight", "ones"), (2, "bias", "zeros"))
    }
    return at.layer(
        "layernorm", (x,), name=name, parameters=parameters, axes=axes,
        epsilon=at.attribute("epsilon", 1e-5),
    )  # fmt: skip


def _instancenorm(at: At) -> Tensor:
    """Each channel of each sample less its mean, over its deviation."""
    x = at.tensor(0)
    return _normed_groups(at, x, x.shape[1], (x.shape[1], *[1] * (len(x.shape) - 2)))


def _groupnorm(at: At) -> Tensor:
    x, groups = at.tensor(0), at.attribute("num_groups")
    if groups < 1 or x.shape[1] % groups:
        raise Unsupported(
            f"its {x.shape[1]} channels do not make {groups} groups: choose a num_groups that "
            "divides them"
        )
    count = at.weight(1).value.size  # before opset 21, a scale for each group
    tail = [1] * (len(x.shape) - 2)
    seen = (groups, 1) if count == groups != x.shape[1] else (x.shape[1], *tail)
    return _normed_groups(at, x, groups, seen)


def _normed_groups(at: At, x: Tensor, groups: int, seen: Shape) -> Tensor:
    """Layer normalisation of groups of channels; scaled and shifted by what is `seen` so."""
    rows = Tensor(x.name, (x.shape[0] * groups, prod(x.shape[1:]) // groups))
    name = at.made_name("normed")
    fixed = {
        slot: at.fixed(name, slot, rows.shape[1:], start)
        for slot, start in (("weight", "ones"), ("bias", "zeros"))
    }
    epsilon = at.attribute("epsilon", 1e-5)
    y = at.layer("layernorm", (rows,), name=name, parameters=fixed, epsilon=epsilon)
    shape = (x.shape[0], groups, rows.shape[1]) if len(seen) == 2 else x.shape
    y = Tensor(y.name, shape)
    for number, kind, nothing in ((1, "mul", 1), (2, "add", 0)):
        given = at.weight(number)
        made = given.computed or is_numbered(given.source.names[0])
        if not made or (given.value != nothing).any():
            operand = at.operand(number)
            last = kind == "add"
            y = at.layer(
                kind, (y, Tensor(operand.name, seen)),
                name=None if last else at.made_name("scaled"),
            )  # fmt: skip
    return Tensor(y.name, x.shape)


def _pool(kind: str) -> Rule:
    def rule(at: At) -> Tensor:
        kernel = tuple(at.attribute("kernel_shape"))
        x, options = _windowed(at, kernel, LEFT_OUT if kind == "maxpool2d" else nan)
        counts, partial = bool(at.attribute("count_include_pad", 0)), False
        if at.attribute("ceil_mode", 0):
            whole = _rounded_up(_image(x), options)
            partial, padded = whole != options["padding"], any(map(any, options["padding"]))
            if partial and counts and padded and kind == "avgpool2d":
                raise Unsupported(
                    "it counts its padding in windows that are rounded up (ceil_mode): pad, or "
                    "crop the data, to whole windows"
                )
            options["padding"] = whole
        if kind == "avgpool2d":
            options["count_padding"] = counts and not partial
        return _as_before(at.layer(kind, (_image(x),), **options), x)

    return rule


def _rounded_up(x: Tensor, window: dict[str, Any]) -> tuple[tuple[int, int], ...]:
    """The padding with which windows that are only begun are whole, but for those in padding."""
    found = []
    axes = (window[name] for name in ("kernel", "stride", "padding"))
    for size, taps, step, (front, behind) in zip(x.shape[2:], *axes, strict=True):
        last = -(-(size + front + behind - taps) // step) * step
        last -= step if last >= size + front else 0
        found.append((front, max(behind, last + taps - size - front)))
    return tuple(found)


def _global_average(at: At) -> Tensor:
    x = at.tensor(0)
    y = at.layer("global_avgpool", (_image(x),))
    return Tensor(y.name, (*x.shape[:2], *(1 for _ in x.shape[2:])))


def _global_maximum(at: At) -> Tensor:
    x = at.tensor(0)
    y = at.layer("maxpool2d", (_image(x),), _image(x).shape[2:])
    return Tensor(y.name, (*x.shape[:2], *(1 for _ in x.shape[2:])))


RULES: dict[str, Rule] = {
    **TENSOR_RULES,
    "AveragePool": _pool("avgpool2d"),
    "BatchNormalization": _batchnorm,
    "Conv": _conv,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average,
    "GlobalMaxPool": _global_maximum,
    "GroupNormalization": _groupnorm,
    "InstanceNormalization": _instancenorm,
    "LayerNormalization": _layernorm,
    "MatMul": _matmul,
    "MaxPool": _pool("maxpool2d"),
}
