"""What an ONNX operator is here: one row of `RULES`, a function that adds our layers for it.

A function takes the node, an `At`, and returns its first output; it raises Unsupported, saying
what cannot be done and what to try. A change of shape alone costs nothing: a Tensor is a name
and the shape that it is seen in.
"""

from collections.abc import Callable
from math import prod

from .build import Tensor
from .onnx_fold import Constant
from .onnx_walk import At, Rule, Unsupported
from .operators import Shape


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


def _window(at: At, kernel: Shape) -> dict[str, tuple[int, int]]:
    """Options kernel, stride and padding of a sliding window, of an image."""
    axes = len(kernel)
    if any(one != 1 for one in at.attribute("dilations") or [1]):
        raise Unsupported(
            f"dilations {at.attribute('dilations')} are not built: use dilation 1, with a larger "
            "kernel or a stride"
        )
    stride = tuple(at.attribute("strides") or [1] * axes)
    before, after = _pads(at, kernel, stride)
    if before != after:
        raise Unsupported(
            f"its padding {before} before and {after} behind differ: pad both sides alike"
        )
    sides = {"kernel": kernel, "stride": stride, "padding": before}
    neutral = {"kernel": 1, "stride": 1, "padding": 0}
    return {
        name: (side[0], side[1]) if axes == 2 else (neutral[name], side[0])
        for name, side in sides.items()
    }


def _pads(at: At, kernel: Shape, stride: Shape) -> tuple[Shape, Shape]:
    """Padding in front of each axis, and behind it."""
    axes, automatic = len(kernel), at.attribute("auto_pad", "NOTSET")
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        sizes = at.tensor(0).shape[2:]
        totals = [
            max((-(-size // step) - 1) * step + taps - size, 0)
            for size, taps, step in zip(sizes, kernel, stride, strict=True)
        ]
        less, more = tuple(n // 2 for n in totals), tuple(-(-n // 2) for n in totals)
        return (less, more) if automatic == "SAME_UPPER" else (more, less)
    pads = at.attribute("pads") or [0] * 2 * axes
    return ((0,) * axes,) * 2 if automatic == "VALID" else (tuple(pads[:axes]), tuple(pads[axes:]))


def _conv(at: At) -> Tensor:
    x, weight = at.tensor(0), at.weight(1)
    channels, _, *kernel = weight.value.shape
    image, window = _image(x), _window(at, tuple(kernel))
    bias = at.bias(2, channels, -1 - len(kernel))
    name = at.layer_name(weight)
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
    if at.attribute("transA", 0):
        raise Unsupported("it transposes its data (transA): transpose the data in the model before")
    if at.attribute("alpha", 1.0) != 1 or (at.has(2) and at.attribute("beta", 1.0) != 1):
        raise Unsupported("alpha and beta are not 1: multiply the weights by them")
    weight = at.matrix(1) if at.attribute("transB", 0) else at.turned(1)
    return _linear(at, weight)


def _matmul(at: At) -> Tensor:
    return _linear(at, at.turned(1))


def _linear(at: At, weight: Constant) -> Tensor:
    """A weight (outputs, inputs) applied to the last axis of the data."""
    x, outputs = at.tensor(0), weight.value.shape[0]
    bias = at.bias(2, outputs, -1)
    if bias and bias.value.size != outputs:
        raise Unsupported(f"a bias of shape {bias.value.shape} is not one number for each output")
    name = at.layer_name(weight)
    parameters = {"weight": at.parameter(name, "weight", weight)}
    if bias:
        parameters["bias"] = at.parameter(name, "bias", bias, (outputs,))
    rows = Tensor(x.name, (prod(x.shape[:-1]), x.shape[-1]))
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


def _elementwise(kind: str) -> Rule:
    return lambda at: at.layer(kind, (at.tensor(0),))


def _clip(at: At) -> Tensor:
    low, high = at.number(1, "min"), at.number(2, "max")
    if low == 0 and (high is None or high >= 3e38):
        return at.layer("relu", (at.tensor(0),))
    if low == 0 and high == 6:
        return at.layer("relu6", (at.tensor(0),))
    raise Unsupported(f"it clips to {low} and {high}: use ReLU (0 and none) or ReLU6 (0 and 6)")


def _pool(kind: str) -> Rule:
    def rule(at: At) -> Tensor:
        x = at.tensor(0)
        window = _window(at, tuple(at.attribute("kernel_shape")))
        y = at.layer(kind, (_image(x),), **window)
        if at.attribute("ceil_mode", 0) and _rounded_up(_image(x), window) != y.shape[2:]:
            raise Unsupported(
                "it rounds sizes up (ceil_mode): pad, or crop the data, to whole windows"
            )
        padded = any(window["padding"])
        if kind == "avgpool2d" and padded and not at.attribute("count_include_pad", 0):
            raise Unsupported(
                "it leaves padding out of means: use count_include_pad, or no padding"
            )
        return _as_before(y, x)

    return rule


def _rounded_up(x: Tensor, window: dict[str, tuple[int, int]]) -> Shape:
    sides = zip(
        x.shape[2:], *(window[name] for name in ("kernel", "stride", "padding")), strict=True
    )
    return tuple(-(-(size + 2 * pad - taps) // step) + 1 for size, taps, step, pad in sides)


def _global_average(at: At) -> Tensor:
    x = at.tensor(0)
    y = at.layer("global_avgpool", (_image(x),))
    return Tensor(y.name, (*x.shape[:2], *(1 for _ in x.shape[2:])))


def _reduce_mean(at: At) -> Tensor:
    x, axes = at.tensor(0), at.integers(1, "axes")
    over = sorted(axis % len(x.shape) for axis in axes) if axes else list(range(len(x.shape)))
    if over != list(range(2, len(x.shape))) or len(x.shape) not in (3, 4):
        raise Unsupported(f"a mean over axes {axes}: only that over height and width is built")
    y = _global_average(at)
    return y if at.attribute("keepdims", 1) else Tensor(y.name, x.shape[:2])


def _add(at: At) -> Tensor:
    a, b = at.tensor(0), at.tensor(1)
    if a.shape != b.shape:
        raise Unsupported(f"shapes {a.shape} and {b.shape} differ: make them the same")
    return at.layer("add", (a, b))


def _dropout(at: At) -> Tensor:
    ratio = at.number(1, "ratio")
    return at.layer("dropout", (at.tensor(0),), 0.5 if ratio is None else round(ratio, 6))


def _same(at: At) -> Tensor:
    return at.tensor(0)


def _flatten(at: At) -> Tensor:
    x = at.tensor(0)
    axis = at.attribute("axis", 1) % (len(x.shape) + 1)
    return Tensor(x.name, (prod(x.shape[:axis]), prod(x.shape[axis:])))


def _reshape(at: At) -> Tensor:
    x, wanted = at.tensor(0), at.integers(1, "shape")
    assert wanted is not None
    if not at.attribute("allowzero", 0):
        wanted = [x.shape[i] if size == 0 else size for i, size in enumerate(wanted)]
    if -1 not in wanted and prod(wanted) != prod(x.shape):
        wanted = at.for_batch(wanted)
    known = prod(size for size in wanted if size != -1)
    shape = tuple(prod(x.shape) // known if size == -1 else size for size in wanted)
    if prod(shape) != prod(x.shape):
        raise Unsupported(
            f"it makes {tuple(wanted)} of {x.shape}: export the model with an open batch size "
            "(dynamic axes), or keep the batch that it was exported with"
        )
    return Tensor(x.name, shape)


def _squeeze(at: At) -> Tensor:
    x, axes = at.tensor(0), at.integers(1, "axes")
    gone = (
        {a % len(x.shape) for a in axes} if axes else {i for i, n in enumerate(x.shape) if n == 1}
    )
    return Tensor(x.name, tuple(n for i, n in enumerate(x.shape) if i not in gone))


def _unsqueeze(at: At) -> Tensor:
    x, axes = at.tensor(0), at.integers(1, "axes") or []
    shape, sizes = len(x.shape) + len(axes), list(x.shape)
    for axis in sorted(axis % shape for axis in axes):
        sizes.insert(axis, 1)
    return Tensor(x.name, tuple(sizes))


def _transpose(at: At) -> Tensor:
    x = at.tensor(0)
    order = at.attribute("perm") or list(range(len(x.shape)))[::-1]
    shape = tuple(x.shape[axis] for axis in order)
    moved = [axis for axis in order if x.shape[axis] != 1]
    if moved == sorted(moved):  # only axes of size 1 move, so no number does
        return Tensor(x.name, shape)
    raise Unsupported(f"axes in the order {order}: keep the data in one order of axes")


def _softmax(at: At) -> Tensor:
    raise Unsupported("only as the model's last operator, where the loss takes its place")


RULES: dict[str, Callable[[At], Tensor]] = {
    "Add": _add,
    "AveragePool": _pool("avgpool2d"),
    "BatchNormalization": _batchnorm,
    "Cast": _same,
    "Clip": _clip,
    "Conv": _conv,
    "Dropout": _dropout,
    "Flatten": _flatten,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average,
    "Identity": _same,
    "LogSoftmax": _softmax,
    "MatMul": _matmul,
    "MaxPool": _pool("maxpool2d"),
    "ReduceMean": _reduce_mean,
    "Relu": _elementwise("relu"),
    "Reshape": _reshape,
    "Softmax": _softmax,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
