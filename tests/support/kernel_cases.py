"""Random operands for every kernel of isa.def, and the comparison of C with NumPy."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
from poet_host import isa
from poet_host.graph.kernels import attributes
from poet_host.isa import by_name
from poet_host.reference.step import run_kernel
from support import clib

Attrs = Mapping[str, int | float]

# Operands of each kernel, then its output, in letters of `_letters`; k: may be missing.
OPERANDS = {
    "conv2d": "XWkY",
    "conv2d_grad_input": "YWX",
    "conv2d_grad_weight": "XYW",
    "linear": "XVkF",
    "linear_grad_input": "FVX",
    "linear_grad_weight": "XFV",
    "grad_bias": "YK",
    "batchnorm_stats": "XQ",
    "batchnorm": "XQCCX",
    "batchnorm_running": "QQQ",
    "batchnorm_sums": "XQXQ",
    "batchnorm_grad_input": "XQCXQX",
    "batchnorm_grad_input_frozen": "QCXX",
    "batchnorm_grad_param": "QC",
    "relu": "XX",
    "relu_grad": "XXX",
    "relu6": "XX",
    "relu6_grad": "XXX",
    "maxpool2d": "XP",
    "maxpool2d_grad": "XPX",
    "avgpool2d": "XP",
    "avgpool2d_grad": "PX",
    "global_avgpool": "XG",
    "global_avgpool_grad": "GX",
    "add": "ABX",
    "dropout": "XX",
    "softmax_xent": "GLS",
    "softmax_xent_grad": "GLG",
    "mse": "XXS",
    "mse_grad": "XXX",
    "apply_gradient": "XX",
    "momentum_step": "XXX",
    "sub": "ABX",
    "mul": "ABX",
    "scale": "AX",
    "reduce": "XR",
    "reduce_product": "XBR",
    "clip": "XX",
    "clip_grad": "XXX",
    "sigmoid": "XX",
    "sigmoid_grad": "XXX",
    "tanh": "XX",
    "tanh_grad": "XXX",
    "gelu": "XX",
    "gelu_grad": "XXX",
    "transpose": "XX",
    "concat": "XZT",
    "slice": "XZ",
    "slice_grad": "ZX",
    "matmul": "MNO",
    "softmax": "XjX",
    "softmax_grad": "XXX",
    "layernorm_stats": "GD",
    "layernorm": "GDCCG",
    "layernorm_grad_input": "GDCGG",
    "layernorm_grad_weight": "GDGC",
    "embedding": "LEG",
    "embedding_grad": "LGE",
    "average": "XXxX",
    "average_square": "XXxX",
    "adam_step": "XXXX",
}
OVERWRITES = {
    "batchnorm_running": 1, "momentum_step": 0, "average": 1, "average_square": 1, "adam_step": 0,
}  # fmt: skip
# Fields without which some kernels have no meaning: axes in their own order, the first channel.
NEEDED = {
    "transpose": {"variant": 0b11100100},
    "slice": {"k": 1, "oh": 0},
    "slice_grad": {"k": 1, "oh": 0},
}
SINKS = (
    ("store", 0.0),
    ("accumulate", 0.0),
    ("sgd", 0.0),
    ("sgd", 0.01),
    ("momentum", 0.0),
    ("momentum", 0.01),
)


def _letters(a: Attrs) -> dict[str, tuple[int, ...]]:
    full = dict.fromkeys(["n", "c", "h", "w", "k", "oh", "ow", "kernel_h", "kernel_w", "groups"], 1)
    variant = int(a.get("variant", 0))
    a = full | {name: int(a[name]) for name in full if name in a}
    x = (a["n"], a["c"], a["h"], a["w"])
    return {
        "A": _without(x, variant),
        "B": _without(x, variant >> 4),
        "R": _without(x, variant),
        "D": (2, a["n"]),
        "Z": (a["n"], a["k"], a["h"], a["w"]),
        "T": (a["n"], a["c"] + a["k"], a["h"], a["w"]),
        "E": (a["k"], a["c"]),
        "J": (a["n"], a["w"]),
        "M": (a["n"], a["groups"], a["h"], a["k"]),
        "N": (a["n"], a["groups"], a["k"], a["w"]),
        "O": (a["n"], a["groups"], a["h"], a["w"]),
        "X": x,
        "Y": (a["n"], a["k"], a["oh"], a["ow"]),
        "W": (a["k"], a["c"] // a["groups"], a["kernel_h"], a["kernel_w"]),
        "V": (a["k"], a["c"] * a["h"] * a["w"]),
        "F": (a["n"], a["k"]),
        "K": (a["k"],),
        "C": (a["c"],),
        "Q": (2, a["c"]),
        "P": (a["n"], a["c"], a["oh"], a["ow"]),
        "G": (a["n"], a["c"]),
        "L": (a["n"],),
        "S": (1,),
    }


def _without(x: tuple[int, ...], axes: int) -> tuple[int, ...]:
    return tuple(1 if axes >> i & 1 else size for i, size in enumerate(x))


def values(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Mostly normally distributed; some ties, zeros of both signs and subnormals."""
    found = rng.standard_normal(shape).astype(np.float32)
    kind = rng.integers(0, 12, shape)
    found = np.where(kind == 0, np.round(found), found)
    found = np.where(kind == 1, np.copysign(np.float32(0), found), found)
    return np.where(kind == 2, found * np.float32(1e-39), found).astype(np.float32)


@dataclass(frozen=True)
class Case:
    """One call of a kernel: in C by `c()`, in NumPy by `numpy()`."""

    op: str
    attrs: Attrs
    inputs: list[np.ndarray]
    shape: tuple[int, ...]
    sink: str = "none"
    overwrites: int | None = None
    step: int = 7

    def c(self) -> np.ndarray:
        return clib.run(
            self.op,
            self.sink,
            self.attrs,
            self.inputs,
            self.step,
            self.shape,
            overwrites=self.overwrites,
        )

    def numpy(self) -> np.ndarray:
        return run_kernel(self.op, self.sink, self.attrs, self.inputs, self.step, shape=self.shape)


def make(
    op: str, attrs: Attrs, seed: int, *, sink: str = "none", decay: float = 0.0, bias: bool = True
) -> Case:
    """A call of `op` on random operands; `decay` is the weight decay of the sink."""
    rng = np.random.default_rng(seed)
    letters = _letters(attrs)
    names = by_name("KERNEL")[op].inputs
    inputs = []
    for name, letter in zip((n for n in names if n != "+"), OPERANDS[op], strict=False):
        if name.endswith("?") and not bias:
            continue
        words = {"labels": "c", "tokens": "k", "mask?": ""}
        if name in words:
            end = int(attrs.get(words[name], 3))
            inputs.append(rng.integers(0, end, letters[letter.upper()], dtype=np.int32))
            continue
        array = values(rng, letters[letter.upper()])
        if name in ("stats", "running"):
            array[1] = np.abs(array[1])
        array = np.abs(array) if name == "v" else array  # squares
        inputs.append(array)
    shape = letters[OPERANDS[op][-1]]
    overwrites = OVERWRITES.get(op)
    if sink != "none":
        overwrites = None if sink == "store" else len(inputs)
        count = {"store": 0, "momentum": 1 + (decay != 0)}.get(sink, 1)
        inputs += [values(rng, shape) for _ in range(count)]
        attrs = {**attrs, "learning_rate": 0.03, "momentum": 0.9, "weight_decay": decay}
    read = {name: value for name, value in attrs.items() if name in attributes(op, sink)}
    return Case(op, read, inputs, shape, sink, overwrites)


# Small enough for a hundred calls in the flash of a microcontroller. The second is depthwise.
GEOMETRIES = (
    {"n": 2, "c": 4, "h": 3, "w": 2, "k": 2, "oh": 2, "ow": 2, "groups": 2, "variant": 0,
     "kernel_h": 3, "kernel_w": 1, "stride_h": 2, "stride_w": 1, "pad_h": 1, "pad_w": 0,
     "epsilon": 0.1, "probability": 0.1, "factor": 0.1, "lower_bound": 0.1, "upper_bound": 0.9,
     "beta": 0.9, "update_rate": 0.9, "learning_rate": 0.03, "weight_decay": 0.01, "seed": 5},
    {"n": 1, "c": 3, "h": 4, "w": 5, "k": 3, "oh": 2, "ow": 3, "groups": 3, "variant": 1,
     "kernel_h": 3, "kernel_w": 3, "stride_h": 2, "stride_w": 2, "pad_h": 1, "pad_w": 1,
     "epsilon": 1e-5, "probability": 1e-5, "factor": 1e-5, "lower_bound": 1e-5, "upper_bound": 0.5,
     "beta": 0.5, "update_rate": 0.5, "learning_rate": 0.3, "weight_decay": 0.0, "seed": 6},
)  # fmt: skip


def samples() -> list[Case]:
    """Small calls of every kernel: two geometries, with and without what may be missing, and
    every sink."""
    found = []
    for row in isa.rows("KERNEL"):
        if row.name == "none":
            continue
        sinks = SINKS if "+" in row.inputs else (("none", 0.0),)
        for seed, geometry in enumerate(GEOMETRIES):
            attrs = geometry | NEEDED.get(row.name, {})
            for sink, decay in sinks:
                found.append(make(row.name, attrs, seed, sink=sink, decay=decay))
            if "b?" in row.inputs or "mask?" in row.inputs:
                found.append(make(row.name, attrs, seed, bias=False))
    return found


def check(case: Case) -> None:
    """C and NumPy give the same finite bits."""
    wanted = case.numpy()
    assert wanted.dtype == np.float32
    assert prod(wanted.shape) == prod(case.shape)
    assert np.isfinite(wanted).all()
    got = case.c()
    assert clib.same_bits(got, wanted), f"{case.op} {case.attrs}: {got} in C, {wanted} in NumPy"
