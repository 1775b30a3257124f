"""Import rules of convolutions and pooling; operators.py explains the rules.

The kernels have no dilation. A dilated convolution is a plain one of each *phase* of its input:
with dilation 2, the even columns are one phase, and the odd ones another. So the phases become
samples of the batch, and each multiply-accumulate costs what it costs without dilation.
"""

from dataclasses import dataclass
from math import nan, prod
from typing import Any

from ..graph.builder import Tensor
from ..graph.rules import Shape
from .context import Unsupported, deferred
from .fold import Constant
from .node import ImportedNode, Rule
from .selections import LEFT_OUT, every

_LONGEST = 255  # the most elements that a window has along an axis


def _image(x: Tensor) -> Tensor:
    """Return a signal (N, C, L) as an image (N, C, 1, L). Return an image unchanged."""
    if len(x.shape) == 3:
        return Tensor(x.name, (*x.shape[:2], 1, x.shape[2]))
    if len(x.shape) != 4:
        raise Unsupported(
            f"the input has {len(x.shape)} dimensions: use signals (3 dimensions) or images (4)"
        )
    return x


def _as_before(y: Tensor, x: Tensor) -> Tensor:
    """Return the image `y` as a signal, if `x` is a signal."""
    return Tensor(y.name, (*y.shape[:2], y.shape[3])) if len(x.shape) == 3 else y


def _windowed(node: ImportedNode, kernel: Shape, filling: float) -> tuple[Tensor, dict[str, Any]]:
    """Return the input of a convolution or pooling node, and its window.

    The window has the kernel, stride, padding and dilation for the axes of an image. If the input
    has deferred padding with the value `filling`, the padding of the window includes it.
    """
    x, around = node.with_padding(0, filling)
    stride = tuple(node.attribute("strides") or [1] * len(kernel))
    if len(x.shape) != len(kernel) + 2:
        raise Unsupported(
            f"the kernel {kernel} needs an input of {len(kernel) + 2} dimensions: reshape the "
            f"input, of shape {x.shape}"
        )
    sizes = tuple(n + sum(pad) for n, pad in zip(x.shape[2:], around[2:], strict=True))
    dilation = tuple(node.attribute("dilations") or [1] * len(kernel))
    spread = tuple((n - 1) * gap + 1 for n, gap in zip(kernel, dilation, strict=True))
    own = _pads(node, sizes, spread, stride)
    pads = tuple((a + c, b + d) for (a, b), (c, d) in zip(around[2:], own, strict=True))
    if filling == 0 and any(
        a != b and max(a, b) >= taps for (a, b), taps in zip(pads, spread, strict=True)
    ):  # some windows contain only padding
        whole = deferred(x, pads=((0, 0), (0, 0), *pads))
        x, pads = node.materialise(whole), ((0, 0),) * len(kernel)
    if len(kernel) == 1:
        kernel, stride, dilation = (1, *kernel), (1, *stride), (1, *dilation)
        pads = ((0, 0), *pads)
    return x, {"kernel": kernel, "stride": stride, "padding": pads, "dilation": dilation}


def _pads(
    node: ImportedNode, sizes: Shape, kernel: Shape, stride: Shape
) -> tuple[tuple[int, int], ...]:
    """Return the padding at the beginning and at the end of each axis of the kernel."""
    automatic = node.attribute("auto_pad", "NOTSET")
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        totals = [
            max((-(-size // step) - 1) * step + taps - size, 0)
            for size, taps, step in zip(sizes, kernel, stride, strict=True)
        ]
        sides = [(n // 2, -(-n // 2)) for n in totals]
        return tuple(sides if automatic == "SAME_UPPER" else (side[::-1] for side in sides))
    pads = [] if automatic == "VALID" else node.attribute("pads") or []
    pads = pads or [0] * 2 * len(kernel)
    return tuple(zip(pads[: len(kernel)], pads[len(kernel) :], strict=True))


def _conv(node: ImportedNode) -> Tensor:
    sizes, weight = _weight(node)
    channels, each, *kernel = sizes
    x, window = _windowed(node, tuple(kernel), 0.0)
    image = _image(x)
    bias = node.bias(2, channels, -1 - len(kernel))
    shape = (channels, each, *window["kernel"])
    phases = _Phases(node, image, window)
    y = _layer(
        node, "conv2d", phases.split(), weight, shape, channels, added=bias, bias=bias is not None,
        groups=node.attribute("group", 1), **window,
    )  # fmt: skip
    y = _as_before(phases.merged(y), x)
    return _biased(node, y) if node.has(2) and not bias and node.is_tensor(2) else y


def _weight(node: ImportedNode) -> tuple[Shape, Constant | Tensor]:
    """Return the weight of a convolution, and its shape."""
    weight = node.tensor(1) if node.is_tensor(1) else node.weight(1)
    return (weight.shape if isinstance(weight, Tensor) else weight.value.shape), weight


def _layer(
    node: ImportedNode, kind: str, x: Tensor, weight: Constant | Tensor, shape: Shape,
    *positional: Any, added: Constant | None = None, **options: Any,
) -> Tensor:  # fmt: skip
    """Add the layer of a convolution, with the bias `added`. `shape` is that of the weight."""
    name = node.layer_name(*(it for it in (weight, added) if isinstance(it, Constant)))
    parameters = {"bias": node.parameter(name, "bias", added, shape[:1])} if added else {}
    inputs: tuple[Tensor, ...] = (x,)
    if isinstance(weight, Tensor):
        kind, inputs = f"{kind}_by", (x, Tensor(weight.name, shape))
    else:
        parameters["weight"] = node.parameter(name, "weight", weight, shape)
    return node.layer(kind, inputs, *positional, name=name, parameters=parameters, **options)


def _biased(node: ImportedNode, y: Tensor) -> Tensor:
    bias = node.stored(2, is_weight=True)
    bias = Tensor(bias.name, (prod(bias.shape), *(1 for _ in y.shape[2:])))
    return node.helper("biased", "add", (y, bias))


class _Phases:
    """Splits the phases of a dilated convolution's input, and merges those of its output.

    `window` becomes the window of the convolution without dilation.
    """

    def __init__(self, node: ImportedNode, x: Tensor, window: dict[str, Any]) -> None:
        self.node, self.x, self.gaps = node, x, window.pop("dilation")
        self.axes: list[_Axis] = []
        kernel, pads, stride = window["kernel"], [*window["padding"]], [*window["stride"]]
        for i in (1, 0):
            gap, (before, after), size = self.gaps[i], pads[i], x.shape[2 + i]
            if gap == 1:
                continue
            outputs = size + before + after - (kernel[i] - 1) * gap
            front, whole = before % gap, before // gap
            length = -(-(size + front) // gap)
            end = max(0, -(-outputs // gap) + kernel[i] - 1 - length - whole)
            self.axes.append(_Axis(2 + i, gap, front, length, outputs, stride[i]))
            pads[i], stride[i] = (whole, end), 1
        window |= {"padding": tuple(pads), "stride": tuple(stride)}

    def split(self) -> Tensor:
        """Return the phases of the input as samples: those of one sample after each other."""
        node, x = self.node, self.x
        for axis in self.axes:
            after = axis.length * axis.gap - axis.front - x.shape[axis.number]
            if axis.front or after:
                x = node.helper("padded", "pad", (x,), axis.number, axis.front, after)
            n, *sizes = x.shape
            sizes[axis.number - 1] = axis.length
            rows = prod(sizes[: axis.number]), prod(sizes[axis.number :])
            grid = Tensor(x.name, (n, rows[0], axis.gap, rows[1]))
            x = node.helper("phases", "transpose", (grid,), (0, 2, 1, 3))
            x = Tensor(x.name, (n * axis.gap, *sizes))
        return x

    def merged(self, y: Tensor) -> Tensor:
        """Return the output of the dilated convolution, from those of its phases."""
        node = self.node
        for axis in reversed(self.axes):
            n, *sizes = y.shape
            rows = prod(sizes[: axis.number]), prod(sizes[axis.number :])
            grid = Tensor(y.name, (n // axis.gap, axis.gap, *rows))
            y = node.helper("merged", "transpose", (grid,), (0, 2, 1, 3))
            sizes[axis.number - 1] *= axis.gap
            y = Tensor(y.name, (n // axis.gap, *sizes))
            count = -(-axis.outputs // axis.stride)
            y = every(node, y, axis.number, 0, count, axis.stride)
        return y


@dataclass(frozen=True)
class _Axis:
    """One axis of a dilated convolution."""

    number: int
    gap: int  # the dilation
    front: int  # zeros before the input, in addition to those that the convolution adds
    length: int  # of a phase of the input
    outputs: int  # with stride 1
    stride: int


def _conv_transpose(node: ImportedNode) -> Tensor:
    (sizes, weight), x = _weight(node), node.tensor(0)
    inputs, each, *kernel = sizes
    groups, rank = node.attribute("group", 1), len(kernel)
    if node.attribute("auto_pad", "NOTSET") != "NOTSET" or node.attribute("output_shape"):
        raise Unsupported("`auto_pad` and `output_shape` are not supported: set `pads` instead")
    if len(x.shape) != rank + 2 or rank > 2:
        raise Unsupported(f"an input of shape {x.shape} is not supported: use 3 or 4 dimensions")
    lead = (1,) * (2 - rank)
    taps = (*lead, *kernel)
    gaps, stride = (
        (*lead, *(node.attribute(name) or [1] * rank)) for name in ("dilations", "strides")
    )
    more = (0,) * (2 - rank) + tuple(node.attribute("output_padding") or [0] * rank)
    sides = node.attribute("pads") or [0] * 2 * rank
    pads = ((0, 0),) * (2 - rank) + tuple(zip(sides[:rank], sides[rank:], strict=True))
    shape = (inputs, each, *taps)

    def layer(image: Tensor, **options: Any) -> Tensor:
        options |= {"groups": groups}
        kind = "conv_transpose2d"
        return _layer(node, kind, image, weight, shape, each * groups, taps, **options)

    if {*gaps} == {1}:
        y = layer(_image(x), stride=stride, padding=pads, output_padding=more)
    else:
        image = _spread(node, _image(x), stride)
        around = tuple(((n - 1) * gap,) * 2 for n, gap in zip(taps, gaps, strict=True))
        window = {"kernel": taps, "padding": around, "stride": (1, 1), "dilation": gaps}
        phases = _Phases(node, image, window)
        y = phases.merged(layer(phases.split()))
        for axis, size in enumerate(_image(x).shape[2:]):
            before, after = pads[axis]
            whole = (size - 1) * stride[axis] + around[axis][0] + 1
            y = every(node, y, axis + 2, before, whole + more[axis] - before - after, 1)
    return _as_before(_biased(node, y) if node.has(2) else y, x)


def _spread(node: ImportedNode, x: Tensor, stride: Shape) -> Tensor:
    """Return the image with zeros after each element, so that neighbours are `stride` apart."""
    for axis, step in enumerate(stride, 2):
        if step > 1:
            front, size, back = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
            apart = Tensor(x.name, (*front, size, 1, *back))
            x = node.helper("spread", "pad", (apart,), axis + 1, 0, step - 1)
            x = Tensor(x.name, (*front, size * step, *back))
    return x


def _pool(kind: str) -> Rule:
    def rule(node: ImportedNode) -> Tensor:
        kernel = tuple(node.attribute("kernel_shape"))
        x, options = _windowed(node, kernel, LEFT_OUT if kind == "maxpool2d" else nan)
        if set(options.pop("dilation")) != {1}:
            raise Unsupported("pooling with dilation is not supported: use dilation 1")
        counts, partial = bool(node.attribute("count_include_pad", 0)), False
        if node.attribute("ceil_mode", 0):
            whole = _rounded_up(_image(x), options)
            partial, padded = whole != options["padding"], any(map(any, options["padding"]))
            if partial and counts and padded and kind == "avgpool2d":
                raise Unsupported(
                    "count_include_pad is not supported for padded data if ceil_mode adds a "
                    "partial window: pad or crop the data to whole windows"
                )
            options["padding"] = whole
        if kind == "avgpool2d":
            options["count_padding"] = counts and not partial
        elif (options["kernel"], options["padding"]) == (_image(x).shape[2:], ((0, 0), (0, 0))):
            return _as_before(maximum(node, _image(x)), x)
        return _as_before(node.layer(kind, (_image(x),), **options), x)

    return rule


def _rounded_up(x: Tensor, window: dict[str, Any]) -> tuple[tuple[int, int], ...]:
    """Return the padding that completes a partial last window on each axis (ceil_mode).

    A window that would start in the padding at the end is omitted.
    """
    found = []
    axes = (window[name] for name in ("kernel", "stride", "padding"))
    for size, taps, step, (before, after) in zip(x.shape[2:], *axes, strict=True):
        last = -(-(size + before + after - taps) // step) * step
        last -= step if last >= size + before else 0
        found.append((before, max(after, last + taps - size - before)))
    return tuple(found)


def maximum(node: ImportedNode, x: Tensor) -> Tensor:
    """Return the maximum of each channel of an image (N, C, H, W), as (N, C, 1, 1).

    An axis that is too long for one window is pooled in parts first. The gradient goes to the first
    of equal maxima in the order of rows, as in PyTorch, so a part is of one row, or of whole rows.
    """
    for axis in (3, 2):
        while x.shape[axis] > _LONGEST:
            kernel = (1, _LONGEST) if axis == 3 else (_LONGEST, x.shape[3])
            ends = tuple((0, -size % taps) for size, taps in zip(x.shape[2:], kernel, strict=True))
            x = node.helper("parts", "maxpool2d", (x,), kernel, padding=ends)
    return node.layer("maxpool2d", (x,), x.shape[2:])


def _global(node: ImportedNode) -> Tensor:
    x = node.tensor(0)
    image = _image(x)
    if node.onnx.op == "GlobalMaxPool":
        y = maximum(node, image)
    else:
        y = node.layer("global_avgpool", (image,))
    return Tensor(y.name, (*x.shape[:2], *(1 for _ in x.shape[2:])))


WINDOW_RULES: dict[str, Rule] = {
    "AveragePool": _pool("avgpool2d"),
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "GlobalAveragePool": _global,
    "GlobalMaxPool": _global,
    "MaxPool": _pool("maxpool2d"),
}
