"""The table of operators: the shape, parameters, kernels and gradient of each operator.

rules.py describes the parts of a row. This file has the rows of convolutional networks.
operators_tensor.py, operators_attention.py, operators_recurrent.py and operators_loss.py have the
other rows.
"""

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from .operators_attention import ATTENTION_OPERATORS
from .operators_loss import LOSS_OPERATORS
from .operators_recurrent import RECURRENT_OPERATORS
from .operators_tensor import TENSOR_OPERATORS
from .rules import (
    Fields,
    Operator,
    Padding,
    Pair,
    Parameter,
    Rule,
    Shape,
    Spec,
    checked_count,
    elementwise,
    of_one_kernel,
    sizes_of,
)


def _pair(value: Pair, what: str, least: int) -> tuple[int, int]:
    pair = value if isinstance(value, tuple) else (value, value)
    if len(pair) != 2 or not all(isinstance(v, int) and least <= v <= 255 for v in pair):
        raise ValueError(f"{what} is {value!r}: use one or two whole numbers from {least} to 255")
    return pair


def _sides(padding: Padding) -> tuple[tuple[int, int], ...]:
    """Return the padding as ((top, bottom), (left, right))."""
    if isinstance(padding, tuple) and any(isinstance(side, tuple) for side in padding):
        sides = tuple(_pair(side, "padding", 0) for side in padding)
        if len(sides) == 2:
            return sides
    return tuple((pad, pad) for pad in _pair(padding, "padding", 0))  # type: ignore[arg-type]


def _image(shape: Shape) -> dict[str, int]:
    if len(shape) != 4:
        raise ValueError("the input must have 4 dimensions (batch, channels, height, width)")
    return sizes_of(shape)


def _window(sizes: dict[str, int], kernel: Pair, stride: Pair, padding: Padding) -> dict[str, int]:
    """Return a copy of `sizes` with more fields: those of a sliding window and of its output.

    The height and the width of the output are rounded down.
    """
    found = dict(sizes)
    axes = zip(
        "hw", _pair(kernel, "kernel", 1), _pair(stride, "stride", 1), _sides(padding), strict=True
    )
    for axis, taps, step, (before, after) in axes:
        size = sizes[axis]
        if taps > size + before + after:
            raise ValueError(
                f"a kernel of size {taps} does not fit into an input of size {size} with padding "
                f"{padding}"
            )
        found |= {f"kernel_{axis}": taps, f"stride_{axis}": step, f"pad_{axis}": before}
        found[f"o{axis}"] = (size + before + after - taps) // step + 1
        last = (found[f"o{axis}"] - 1) * step  # firmware/src/shape.c has the same check
        if last >= size + before if before < taps else last + taps > size + 2 * before:
            raise ValueError(
                f"padding {padding} is too large: the last windows lie outside the input, which "
                f"has size {size}"
            )
    return found


def _groups(groups: int, inputs: int, outputs: int) -> int:
    if inputs % checked_count(groups, "groups") or outputs % groups or groups > 65535:
        raise ValueError(
            f"the number of groups ({groups}) must divide the input channels ({inputs}) and the "
            f"output channels ({outputs})"
        )
    return groups


def _conv2d(
    x: Shape,
    channels: int,
    kernel: Pair,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    groups: int = 1,
    bias: bool = True,
) -> Spec:
    """Convolve x (N, C, H, W) -> (N, channels, OH, OW): depthwise if `groups` is C."""
    a = _window(_image(x), kernel, stride, padding)
    a |= {"k": checked_count(channels, "channels"), "groups": _groups(groups, a["c"], channels)}
    weight = (channels, a["c"] // groups, a["kernel_h"], a["kernel_w"])
    return Spec((a["n"], channels, a["oh"], a["ow"]), a, _weight_and_bias(weight, bias))


def _conv_transpose2d(
    x: Shape,
    channels: int,
    kernel: Pair,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    output_padding: Pair = 0,
    groups: int = 1,
) -> Spec:
    """Transpose a convolution: x (N, C, H, W) -> (N, channels, OH, OW), as PyTorch does.

    The fields are those of the convolution that maps the output's shape to the shape of x.
    """
    a = _image(x)
    _groups(groups, a["c"], checked_count(channels, "channels"))
    sizes, sides = {"n": a["n"], "c": channels}, []
    taps, steps = _pair(kernel, "kernel", 1), _pair(stride, "stride", 1)
    rows = zip("hw", taps, steps, _sides(padding), _pair(output_padding, "padding", 0), strict=True)
    for axis, taps_of_axis, step, (before, after), more in rows:
        sizes[axis] = (a[axis] - 1) * step + taps_of_axis - before - after + more
        if more >= step or sizes[axis] < 1:
            raise ValueError(
                f"`output_padding` ({more}) must be less than the stride ({step}), and the output "
                "must not be empty: change the padding"
            )
        sides.append((before, max(after - more, 0)))
    found = _window(sizes, taps, steps, (sides[0], sides[1])) | {"k": a["c"], "groups": groups}
    weight = (a["c"], channels // groups, *taps)
    start = f"kaiming:{prod(weight[1:])}"
    return Spec(
        (a["n"], channels, sizes["h"], sizes["w"]), found, {"weight": Parameter(weight, start)}
    )


def _linear(x: Shape, features: int, *, bias: bool = True) -> Spec:
    """Apply a linear layer: x (N, C) -> (N, features), or (N, L, C) -> (N, L, features)."""
    if len(x) not in (2, 3):
        raise ValueError(
            "the input must have the shape (batch, features) or (batch, length, features): flatten "
            "it first"
        )
    weight = (checked_count(features, "features"), x[-1])
    a = sizes_of((prod(x[:-1]), x[-1])) | {"k": features, "oh": 1, "ow": 1}
    return Spec((*x[:-1], features), a, _weight_and_bias(weight, bias))


def _weight_and_bias(weight: Shape, bias: bool) -> dict[str, Parameter]:
    start = f"kaiming:{prod(weight[1:])}"
    found = {"weight": Parameter(weight, start)}
    return found | {"bias": Parameter(weight[:1], start)} if bias else found


def _batchnorm2d(x: Shape, *, epsilon: float = 1e-5, momentum: float = 0.1) -> Spec:
    """Normalise x (N, C, H, W). `momentum` is the batch's weight in the running statistics."""
    a = _image(x)
    if not 0 < epsilon < 1 or not 0 <= momentum <= 1:
        raise ValueError(
            f"`epsilon` ({epsilon}) must be above 0 and below 1, and `momentum` ({momentum}) must "
            "be from 0 to 1"
        )
    parameters = {
        "weight": Parameter((a["c"],), "ones"),
        "bias": Parameter((a["c"],), "zeros"),
        "running": Parameter((2, a["c"]), "running", "state"),
    }
    return Spec(x, a | {"epsilon": epsilon, "update_rate": momentum}, parameters)


def _avgpool2d(
    x: Shape,
    kernel: Pair,
    *,
    stride: Pair | None = None,
    padding: Padding = 0,
    count_padding: bool = True,
) -> Spec:
    """Average each window of x. `count_padding`: True if the mean includes the padding."""
    spec = _pool2d(x, kernel, stride=stride, padding=padding)
    return replace(spec, fields={**spec.fields, "variant": int(not count_padding)})


def _pool2d(x: Shape, kernel: Pair, *, stride: Pair | None = None, padding: Padding = 0) -> Spec:
    """Pool windows of x (N, C, H, W) -> (N, C, OH, OW). By default, the stride is `kernel`."""
    a = _window(_image(x), kernel, kernel if stride is None else stride, padding)
    if 2 * a["pad_h"] > a["kernel_h"] or 2 * a["pad_w"] > a["kernel_w"]:
        raise ValueError(f"padding {padding} must be at most half of the kernel size {kernel}")
    return Spec((a["n"], a["c"], a["oh"], a["ow"]), a)


def _global_avgpool(x: Shape) -> Spec:
    """Average each channel: x (N, C, H, W) -> (N, C)."""
    return Spec(x[:2], _image(x))


def _dropout(x: Shape, probability: float, *, seed: int = 0, key: int = 0) -> Spec:
    """Set elements of x to 0 at random.

    The mask depends only on (seed, step, key, index), so recomputing it gives the same mask.
    """
    if not 0 <= probability < 1:
        raise ValueError(f"`probability` ({probability}) must be at least 0 and less than 1")
    return Spec(x, sizes_of(x) | {"probability": probability, "seed": seed, "key": key})


def _two_rows(a: Fields) -> Shape:
    return (2, int(a["c"]))


_NORM_PARAMETERS = (
    Rule("weight", "batchnorm_grad_param", "sums", fields=lambda f: {**f, "variant": 1}),
    Rule("bias", "batchnorm_grad_param", "sums", fields=lambda f: {**f, "variant": 0}),
)


def _weighted(kernel: str, spec: Callable[..., Spec]) -> Operator:
    return Operator(
        spec,
        forward=(Rule("y", kernel, "x weight bias?"),),
        backward=(
            Rule("x", f"{kernel}_grad_input", "dy weight"),
            Rule("weight", f"{kernel}_grad_weight", "x dy"),
            Rule("bias", "grad_bias", "dy"),
        ),
    )


def _by(row: Operator) -> Operator:
    """Return the row of a layer whose weight is an input, because layers compute it."""

    def spec(*given: Any, **options: Any) -> Spec:
        count = len(row.inputs)
        found = row.spec(*given[:count], *given[count + 1 :], **options)
        own = dict(found.parameters)
        if own.pop("weight").shape != given[count]:
            raise ValueError(f"the weight must have the shape {found.parameters['weight'].shape}")
        return replace(found, parameters=own)

    return replace(row, spec=spec, inputs=(*row.inputs, "weight"))


OPERATORS = {
    "conv2d": _weighted("conv2d", _conv2d),
    "conv_transpose2d": Operator(
        _conv_transpose2d,
        forward=(Rule("y", "conv2d_grad_input", "x weight"),),
        backward=(
            Rule("x", "conv2d", "dy weight"),
            Rule("weight", "conv2d_grad_weight", "dy x"),
        ),
    ),
    "linear": _weighted("linear", _linear),
    "batchnorm2d": Operator(
        _batchnorm2d,
        forward=(
            Rule("stats", "batchnorm_stats", "x", shape=_two_rows),
            Rule("running", "batchnorm_running", "stats running"),
            Rule("y", "batchnorm", "x stats weight bias"),
        ),
        backward=(
            Rule("sums", "batchnorm_sums", "x stats dy", shape=_two_rows),
            Rule("x", "batchnorm_grad_input", "x stats weight dy sums"),
            *_NORM_PARAMETERS,
        ),
        frozen="batchnorm2d_frozen",
    ),
    "batchnorm2d_frozen": Operator(
        _batchnorm2d,
        forward=(Rule("y", "batchnorm", "x running weight bias"),),
        backward=(
            Rule("sums", "batchnorm_sums", "x running dy", shape=_two_rows),
            Rule("x", "batchnorm_grad_input_frozen", "running weight dy"),
            *_NORM_PARAMETERS,
        ),
    ),
    "relu": of_one_kernel("relu", elementwise, "y dy", onnx="Relu"),
    "relu6": of_one_kernel("relu6", elementwise, "y dy"),
    "maxpool2d": of_one_kernel("maxpool2d", _pool2d, "x dy"),
    "avgpool2d": of_one_kernel("avgpool2d", _avgpool2d, "dy"),
    "global_avgpool": of_one_kernel("global_avgpool", _global_avgpool, "dy"),
    "dropout": Operator(
        _dropout,
        forward=(Rule("y", "dropout", "x"),),
        backward=(Rule("x", "dropout", "dy"),),
    ),
    **LOSS_OPERATORS,
    **TENSOR_OPERATORS,
    **ATTENTION_OPERATORS,
    **RECURRENT_OPERATORS,
}
_WITH_WEIGHT = ("conv2d", "conv_transpose2d", "linear", *RECURRENT_OPERATORS)
OPERATORS |= {f"{kind}_by": _by(OPERATORS[kind]) for kind in _WITH_WEIGHT}
