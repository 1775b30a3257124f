"""What every kernel of isa.def reads from `struct poet_op`, and how much work it does.

One row a kernel. Counts are of the arithmetic that the kernel really does: what lies in
the padding is no term. The profile scales measured times with them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

from .graph import Graph, Node

Attrs = Mapping[str, int | float]

EXP_FLOPS = 16  # of one exponential or logarithm, in float operations
_X = "n c h w"
_CONV = f"{_X} k oh ow kernel_h kernel_w stride_h stride_w pad_h pad_w groups"
_LINEAR = f"{_X} k"
_POOL = f"{_X} oh ow kernel_h kernel_w stride_h stride_w pad_h pad_w"
_NORM = f"{_X} epsilon"
_BROADCAST = f"{_X} variant"
_SUM = f"{_BROADCAST} factor"
_SLICE = f"{_X} k oh"


@dataclass(frozen=True)
class Work:
    """What computing one node takes. `flops` counts a multiply-accumulate as two."""

    macs: int
    flops: int
    read_bytes: int
    written_bytes: int


def _elements(a: Attrs) -> int:
    return int(a["n"] * a["c"] * a["h"] * a["w"])


def _inside(size: int, out: int, kernel: int, stride: int, pad: int) -> int:
    """Pairs of an output position and a kernel tap, along one axis, that are not padding."""
    return sum(0 <= o * stride + tap - pad < size for o in range(out) for tap in range(kernel))


def _taps(a: Attrs) -> int:
    """Pairs of an output pixel and an input pixel under its window, in one plane."""
    axes = (
        ("h", "oh", "kernel_h", "stride_h", "pad_h"),
        ("w", "ow", "kernel_w", "stride_w", "pad_w"),
    )
    return prod(_inside(*(int(a[field]) for field in axis)) for axis in axes)


def _conv_macs(a: Attrs) -> int:
    return int(a["n"] * a["k"] * a["c"]) // int(a["groups"]) * _taps(a)


def _linear_macs(a: Attrs) -> int:
    return _elements(a) * int(a["k"])


def _matmul_macs(a: Attrs) -> int:
    return int(a["n"] * a["groups"] * a["h"] * a["w"] * a["k"])


def _windows(a: Attrs) -> int:
    return int(a["n"] * a["c"]) * _taps(a)


def _nothing(a: Attrs) -> int:
    return 0


def _each(flops: int) -> Callable[[Attrs], int]:
    """So many float operations for each element of x."""
    return lambda a: flops * _elements(a)


@dataclass(frozen=True)
class Kernel:
    """A row: the fields it reads, its multiply-accumulates, its other float operations.

    `read_bytes` is for kernels that read only part of their inputs.
    """

    fields: str
    macs: Callable[[Attrs], int]
    flops: Callable[[Attrs], int]
    read_bytes: Callable[[Attrs], int] | None = None


KERNELS = {
    "conv2d": Kernel(_CONV, _conv_macs, _nothing),
    "conv2d_grad_input": Kernel(_CONV, _conv_macs, _nothing),
    "conv2d_grad_weight": Kernel(_CONV, _conv_macs, _nothing),
    "linear": Kernel(_LINEAR, _linear_macs, _nothing),
    "linear_grad_input": Kernel(_LINEAR, _linear_macs, _nothing),
    "linear_grad_weight": Kernel(_LINEAR, _linear_macs, _nothing),
    "grad_bias": Kernel("n k oh ow", _nothing, lambda a: int(a["n"] * a["k"] * a["oh"] * a["ow"])),
    "batchnorm_stats": Kernel(_X, _nothing, _each(4)),
    "batchnorm": Kernel(_NORM, _nothing, _each(4)),
    "batchnorm_running": Kernel(f"{_X} update_rate", _nothing, lambda a: 7 * int(a["c"])),
    "batchnorm_sums": Kernel(_NORM, _nothing, _each(5)),
    "batchnorm_grad_input": Kernel(_NORM, _nothing, _each(6)),
    "batchnorm_grad_input_frozen": Kernel(_NORM, _nothing, _each(1)),
    "batchnorm_grad_param": Kernel("c variant", _nothing, _nothing),
    "relu": Kernel(_X, _nothing, _each(1)),
    "relu_grad": Kernel(_X, _nothing, _each(1)),
    "relu6": Kernel(_X, _nothing, _each(2)),
    "relu6_grad": Kernel(_X, _nothing, _each(2)),
    "maxpool2d": Kernel(_POOL, _nothing, _windows),
    "maxpool2d_grad": Kernel(_POOL, _nothing, lambda a: 2 * _windows(a)),
    "avgpool2d": Kernel(f"{_POOL} variant", _nothing, _windows),
    "avgpool2d_grad": Kernel(f"{_POOL} variant", _nothing, lambda a: 2 * _windows(a)),
    "global_avgpool": Kernel(_X, _nothing, _each(1)),
    "global_avgpool_grad": Kernel(_X, _nothing, _each(1)),
    "add": Kernel(_BROADCAST, _nothing, _each(1)),
    "dropout": Kernel(f"{_X} probability seed key", _nothing, _each(2)),
    "softmax_xent": Kernel("n c", _nothing, lambda a: int(a["n"] * a["c"]) * (EXP_FLOPS + 3)),
    "softmax_xent_grad": Kernel("n c", _nothing, lambda a: int(a["n"] * a["c"]) * (EXP_FLOPS + 5)),
    "mse": Kernel(_X, _nothing, _each(3)),
    "mse_grad": Kernel(_X, _nothing, _each(2)),
    "apply_gradient": Kernel(_X, _nothing, _nothing),
    "momentum_step": Kernel(f"{_X} learning_rate", _nothing, _each(2)),
    "sub": Kernel(_BROADCAST, _nothing, _each(1)),
    "mul": Kernel(_BROADCAST, _nothing, _each(1)),
    "scale": Kernel(_SUM, _nothing, _each(1)),
    "reduce": Kernel(_SUM, _nothing, _each(1)),
    "reduce_product": Kernel(_SUM, _nothing, _each(2)),
    "clip": Kernel(f"{_X} lower_bound upper_bound", _nothing, _each(2)),
    "clip_grad": Kernel(f"{_X} lower_bound upper_bound", _nothing, _each(2)),
    "sigmoid": Kernel(_X, _nothing, _each(EXP_FLOPS + 3)),
    "sigmoid_grad": Kernel(_X, _nothing, _each(3)),
    "tanh": Kernel(_X, _nothing, _each(EXP_FLOPS + 4)),
    "tanh_grad": Kernel(_X, _nothing, _each(3)),
    "gelu": Kernel(_BROADCAST, _nothing, _each(EXP_FLOPS + 12)),
    "gelu_grad": Kernel(_BROADCAST, _nothing, _each(2 * EXP_FLOPS + 16)),
    "transpose": Kernel(_BROADCAST, _nothing, _nothing),
    "concat": Kernel(f"{_X} k", _nothing, _nothing),
    "slice": Kernel(
        _SLICE, _nothing, _nothing, lambda a: 4 * int(a["n"] * a["k"] * a["h"] * a["w"])
    ),
    "slice_grad": Kernel(_SLICE, _nothing, _nothing),
    "matmul": Kernel("n h w k groups variant factor", _matmul_macs, _nothing),
    "softmax": Kernel(_BROADCAST, _nothing, _each(EXP_FLOPS + 4)),
    "softmax_grad": Kernel(_X, _nothing, _each(4)),
    "layernorm_stats": Kernel("n c epsilon", _nothing, lambda a: 4 * int(a["n"] * a["c"])),
    "layernorm": Kernel("n c", _nothing, lambda a: 4 * int(a["n"] * a["c"])),
    "layernorm_grad_input": Kernel("n c", _nothing, lambda a: 12 * int(a["n"] * a["c"])),
    "layernorm_grad_weight": Kernel("n c", _nothing, lambda a: 4 * int(a["n"] * a["c"])),
    "embedding": Kernel("n c k", _nothing, _nothing, lambda a: 4 * int(a["n"] * (a["c"] + 1))),
    "embedding_grad": Kernel("n c k", _nothing, lambda a: int(a["n"] * (a["c"] + a["k"]))),
    "average": Kernel(f"{_X} beta weight_decay", _nothing, _each(3)),
    "average_square": Kernel(f"{_X} beta weight_decay", _nothing, _each(4)),
    "adam_step": Kernel(f"{_X} learning_rate epsilon", _nothing, _each(4 + EXP_FLOPS)),
}

SINK_FIELDS = {
    "none": "",
    "store": "",
    "accumulate": "",
    "sgd": "learning_rate weight_decay",
    "momentum": "momentum weight_decay",
}
_SINK_FLOPS = {"none": 0, "store": 0, "accumulate": 1, "sgd": 2, "momentum": 2}


def attributes(op: str, sink: str) -> tuple[str, ...]:
    """Fields of `struct poet_op` that the operator of a node reads, with those of its sink."""
    return (*KERNELS[op].fields.split(), *SINK_FIELDS[sink].split())


def work(node: Node, graph: Graph) -> Work:
    """What computing `node` once takes; a stored node takes nothing, a field not given is 0.

    Inputs, or what a kernel reads of them, are counted as read once and the output as written
    once, whatever its loops do. The addition of a bias is left out.
    """
    if node.stored:
        return Work(0, 0, 0, 0)
    kernel = KERNELS[node.op]
    attrs = dict.fromkeys(kernel.fields.split(), 0) | dict(node.attrs)
    macs = kernel.macs(attrs)
    sink_flops = _SINK_FLOPS[node.sink] + (2 if attrs.get("weight_decay") else 0)
    whole = sum(graph[name].size_bytes for name in dict.fromkeys(node.inputs))
    return Work(
        macs=macs,
        flops=2 * macs + kernel.flops(attrs) + sink_flops * prod(node.shape),
        read_bytes=kernel.read_bytes(attrs) if kernel.read_bytes else whole,
        written_bytes=node.size_bytes,
    )
