"""Random operands for every kernel of isa.def, and the comparison of C with NumPy."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from poet_host import isa
from poet_host.reference.step import run_kernel
from support import clib

Attrs = Mapping[str, int | float]

EXAMPLES = int(os.environ.get("POET_EXAMPLES", "120"))  # of each test with random operands

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


def suited(op: str, attrs: Attrs) -> Attrs:
    """The fields for a layer that walks along time, whose sizes depend on each other.

    An odd k: plain units instead of gated ones, and an LSTM that gives its cells too.
    """
    if "STEPS" not in isa.kernels()[op].rules:
        return attrs
    w, is_other, is_lstm = int(attrs["w"]), int(attrs.get("k", 0)) % 2, op.startswith("lstm")
    is_plain, has_cells = is_other and not is_lstm, is_other and is_lstm
    sizes = {
        "h": 3 + has_cells if is_lstm else 2,
        "k": (1 if is_plain else 4 if is_lstm else 3) * w,
        "oh": (1 if is_plain else 4 + int(attrs.get("oh", 0)) % 2) * w,
        "variant": 0x50 if has_cells else 0x54,
        "groups": int(attrs.get("groups", 0)) % 4,
    }
    return {**attrs, **sizes}


def make(
    op: str, attrs: Attrs, seed: int, *, sink: str = "none", decay: float = 0.0, bias: bool = True
) -> Case:
    """A call of `op` on random operands; `decay` is the weight decay of the sink."""
    rng = np.random.default_rng(seed)
    kernel, attrs = isa.kernels()[op], suited(op, attrs)
    inputs = []
    for name, letter in zip(kernel.inputs, kernel.letters, strict=False):
        if name.endswith("?") and not bias:
            continue
        shape = isa.shape(letter, attrs)
        if letter in isa.INTEGERS:
            end = int(attrs.get({"labels": "c", "tokens": "k", "rows": "k"}.get(name, ""), 3))
            inputs.append(rng.integers(0, end, shape, dtype=np.int32))
            continue
        array = values(rng, shape)
        if name in ("stats", "running"):
            array[1] = np.abs(array[1])
        array = np.abs(array) if name == "v" else array  # squares
        inputs.append(array)
    shape, overwrites = isa.shape(kernel.output, attrs), kernel.in_place
    if sink != "none":
        overwrites = None if sink == "store" else len(inputs)
        count = {"store": 0, "momentum": 1 + (decay != 0)}.get(sink, 1)
        inputs += [values(rng, shape) for _ in range(count)]
        attrs = {**attrs, "learning_rate": 0.03, "momentum": 0.9, "weight_decay": decay}
    read = {name: value for name, value in attrs.items() if name in isa.attributes(op, sink)}
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
# Depthwise, for rows of y that are not as wide as those of x: its paddings differ.
WIDTHS = {"n": 2, "c": 2, "h": 3, "w": 9, "k": 2, "oh": 3, "groups": 2, "kernel_h": 3,
          "kernel_w": 3, "stride_h": 1, "stride_w": 1, "pad_h": 1, "pad_w": 1}  # fmt: skip


def samples() -> list[Case]:
    """Small calls of every kernel: two geometries, with and without what may be missing, and
    every sink."""
    found = []
    for row in isa.kernels().values():
        sinks = SINKS if row.has_sink else (("none", 0.0),)
        for seed, geometry in enumerate(GEOMETRIES):
            attrs = geometry | NEEDED.get(row.name, {})
            for sink, decay in sinks:
                found.append(make(row.name, attrs, seed, sink=sink, decay=decay))
            if seed and row.in_place is None and row.may_overwrite:
                found[-1] = replace(found[-1], overwrites=row.may_overwrite[-1])
            if "b?" in row.inputs or "mask?" in row.inputs:
                found.append(make(row.name, attrs, seed, bias=False))
        if "CONV" in row.rules:
            sink = "store" if row.has_sink else "none"
            found += [make(row.name, WIDTHS | {"ow": ow}, 1, sink=sink) for ow in (8, 10)]
    return found


def check(case: Case) -> None:
    """C and NumPy give the same finite bits."""
    wanted = case.numpy()
    assert wanted.dtype == np.float32
    assert prod(wanted.shape) == prod(case.shape)
    assert np.isfinite(wanted).all()
    got = case.c()
    assert clib.same_bits(got, wanted), f"{case.op} {case.attrs}: {got} in C, {wanted} in NumPy"
