"""The calls of kernels that `make bench-kernels` measures."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from poet_host import isa
from poet_host.graph.work import count

Fields = Mapping[str, int | float]

CONVOLUTIONS = ("conv2d", "conv2d_grad_input", "conv2d_grad_weight")
LINEAR = ("linear", "linear_grad_input", "linear_grad_weight")
BATCHNORM = ("batchnorm_stats", "batchnorm", "batchnorm_sums", "batchnorm_grad_input",
             "batchnorm_grad_input_frozen")  # fmt: skip
LAYERNORM = ("layernorm_stats", "layernorm", "layernorm_grad_input", "layernorm_grad_weight")
POOLING = ("maxpool2d", "maxpool2d_grad", "avgpool2d", "avgpool2d_grad")
SOFTMAX = ("softmax", "softmax_grad")
ELEMENTWISE = ("gelu", "gelu_grad", "relu", "relu_grad", "add", "momentum_step", "global_avgpool")

_KINDS = {"stats": "stats", "running": "stats", "v": "squares"}  # of operands, by their names


@dataclass(frozen=True)
class Row:
    """A call of a kernel on a board."""

    board: str
    op: str
    shape: str  # for people
    fields: Fields
    sink: str = "none"
    half_zeros: bool = False  # x and dy, as after a relu

    @property
    def name(self) -> str:
        """Its key in kernels.toml."""
        after = ", half zeros" if self.half_zeros else ""
        return f"{self.op} {self.shape}{after}"

    @property
    def unit(self) -> str:
        """What `work` counts."""
        if "macs" in isa.kernels()[self.op].work:
            return "MAC"
        return "tap" if self.op in POOLING else "element"

    @property
    def work(self) -> int:
        """The number of multiply-adds, of elements in windows, or of elements."""
        if self.unit == "MAC":
            return count(self.op, self.fields, "macs")
        if self.unit == "tap":
            return count("avgpool2d", self.fields, "flops")
        kernel = isa.kernels()[self.op]
        letters = {*kernel.letters, kernel.output}
        return max(prod(isa.shape(letter, self.fields)) for letter in letters if letter.isupper())

    @property
    def job(self) -> dict[str, Any]:
        """The job of bench.kernel_probe."""
        kernel = isa.kernels()[self.op]
        output = prod(isa.shape(kernel.output, self.fields))
        inputs: list[tuple[int, str]] = []
        for name, letter in zip(kernel.inputs, kernel.letters, strict=False):
            if name.endswith("?"):
                continue
            zeros = self.half_zeros and name in ("x", "dy")
            kind = "half zeros" if zeros else _KINDS.get(name, "normal")
            if letter in isa.INTEGERS:
                kind = f"below {self.fields['c' if name == 'labels' else 'k']}"
            inputs.append((prod(isa.shape(letter, self.fields)), kind))
        overwrites = kernel.in_place
        if self.sink == "sgd":
            overwrites = len(inputs)
            inputs.append((output, "normal"))
        used = set(isa.attributes(self.op, self.sink))
        # A factor lies where epsilon lies; commit 13d07bf has no other name for it.
        called = {"factor": "epsilon"}
        fields = {called.get(name, name): self.fields[name] for name in self.fields if name in used}
        fields |= {"learning_rate": 0.01} if "learning_rate" in used else {}
        return {"op": self.op, "sink": self.sink, "fields": fields, "inputs": inputs,
                "output": output, "overwrites": overwrites}  # fmt: skip


def sink_of(op: str) -> str:
    return "store" if isa.kernels()[op].has_sink else "none"


def windows(size: Fields, kernel: int, stride: int = 1, pad: int | None = None) -> dict[str, Any]:
    """Add a square window to n, c, h, w (and k, groups), and the size of the output."""
    pad = kernel // 2 if pad is None else pad
    found: dict[str, Any] = dict(size)
    for axis in "hw":
        out = (int(size[axis]) + 2 * pad - kernel) // stride + 1
        found |= {f"o{axis}": out, f"kernel_{axis}": kernel}
        found |= {f"stride_{axis}": stride, f"pad_{axis}": pad}
    return found


def _plane(n: int, c: int, h: int, k: int, groups: int = 1) -> dict[str, int]:
    return {"n": n, "c": c, "h": h, "w": h, "k": k, "groups": groups}


def _convolutions(board: str, size: dict[str, int], kernel: int, stride: int = 1) -> Iterator[Row]:
    n, c, h, k, groups = (size[name] for name in ("n", "c", "h", "k", "groups"))
    words = [f"depthwise {kernel}x{kernel}" if groups > 1 else f"{kernel}x{kernel}"]
    words += [f"stride {stride}"] if stride > 1 else []
    words += [f"{n}x{c}x{h}x{h} to {k}"]
    for op in CONVOLUTIONS:
        yield Row(board, op, " ".join(words), windows(size, kernel, stride), sink_of(op))


def _linear(board: str, n: int, c: int, k: int, sink: str = "store") -> Iterator[Row]:
    fields = {"n": n, "c": c, "h": 1, "w": 1, "k": k}
    for op in LINEAR:
        own = sink if isa.kernels()[op].has_sink else "none"
        shape = f"batch {n}, {c} to {k}" + (", SGD" if own == "sgd" else "")
        yield Row(board, op, shape, fields, own)


def _product(board: str, shape: str, heads: int, h: int, k: int, w: int, variant: int = 0) -> Row:
    fields = {"n": 1, "groups": heads, "h": h, "k": k, "w": w, "variant": variant, "factor": 1.0}
    return Row(board, "matmul", shape, fields, "store")


def _products(board: str, size: int) -> Iterator[Row]:
    for variant, shape in enumerate(("a b", "a^T b", "a b^T", "a^T b^T")):
        yield _product(board, f"{shape}, {size}x{size}x{size}", 1, size, size, size, variant)


def _elements(board: str, plane: Fields, heads: Fields, lines: Fields) -> Iterator[Row]:
    """The kernels without multiply-adds. `heads`: of attention; `lines`: of layernorm."""
    for ops, size in (
        ((*BATCHNORM, *ELEMENTWISE), plane),
        (SOFTMAX, heads),
        (LAYERNORM, lines),
    ):
        for op in ops:
            shape = "x".join(map(str, size.values()))
            yield Row(board, op, shape, {**size, "epsilon": 1e-5}, sink_of(op))
    shape = "2x2 stride 2 " + "x".join(map(str, plane.values()))
    for op in POOLING:
        yield Row(board, op, shape, windows(plane, 2, 2, pad=0))


def _recurrent(board: str, steps: int, units: int) -> Iterator[Row]:
    for op, states, gates in (
        ("gru", 2, 3),
        ("gru_grad", 2, 3),
        ("lstm", 3, 4),
        ("lstm_grad", 3, 4),
    ):
        fields = {"n": steps, "c": 1, "h": states, "w": units, "k": gates * units}
        fields |= {"oh": 4 * units, "variant": 0x54, "groups": 0}
        yield Row(board, op, f"{steps} steps of {units} units", fields)


def _dilated(board: str, c: int, h: int) -> Iterator[Row]:
    """A convolution with dilation 2: one without it of the four phases, moved by transposes."""
    for row in _convolutions(board, _plane(4, c, h // 2, c), 3):
        yield replace(row, shape=f"3x3 with dilation 2, 1x{c}x{h}x{h} to {c}")
    fields = {"n": c, "c": h // 2, "h": 2, "w": h, "variant": 0b11_00_01_10}
    yield Row(board, "transpose", f"for dilation 2, {c}x{h}x{h}", fields)


def _elementary(board: str, size: Fields) -> Iterator[Row]:
    for kind, variant in (("exp", 3), ("softplus", 1)):
        for op in ("elementary", "elementary_grad"):
            shape = f"{kind} {'x'.join(map(str, size.values()))}"
            yield Row(board, op, shape, {**size, "variant": variant, "factor": 1.0})


def _rows_m4f() -> Iterator[Row]:
    board = "nrf52840_dk"
    yield from _convolutions(board, _plane(1, 16, 32, 16), 3)
    yield from _convolutions(board, _plane(1, 64, 8, 64), 3)
    yield from _convolutions(board, _plane(1, 32, 16, 32), 1)
    yield from _convolutions(board, _plane(1, 16, 32, 32), 3, 2)
    yield from _convolutions(board, _plane(1, 16, 32, 32), 1, 2)
    yield from _convolutions(board, _plane(2, 6, 14, 16), 5)
    yield from _convolutions(board, _plane(1, 16, 16, 16, 16), 3)
    yield from _products(board, 64)
    yield _product(board, "attention scores, 2 heads of 64x32x64", 2, 64, 32, 64, 2 + 4 + 8)
    yield _product(board, "attention values, 2 heads of 64x64x32", 2, 64, 64, 32, 8 + 16)
    yield from _linear(board, 8, 256, 64)
    yield from _linear(board, 1, 784, 32, "sgd")
    plane, heads = ({"n": 1, "c": c, "h": h, "w": h} for c, h in ((16, 32), (2, 64)))
    yield from _elements(board, plane, heads, {"n": 64, "c": 64})
    yield from _dilated(board, 16, 32)
    yield from _recurrent(board, 16, 64)
    yield from _elementary(board, plane)


def _rows_m0plus() -> Iterator[Row]:
    board = "mkr1000"
    for size in (_plane(4, 4, 8, 4), _plane(1, 16, 8, 16)):
        for row in _convolutions(board, size, 3):
            yield row
            yield Row(board, row.op, row.shape, row.fields, row.sink, half_zeros=True)
    # Nine terms in each sum.
    for op, size in zip(
        CONVOLUTIONS, (_plane(4, 1, 8, 4), _plane(4, 4, 8, 1), _plane(1, 4, 3, 4)), strict=True
    ):
        yield from (row for row in _convolutions(board, size, 3) if row.op == op)
    yield from _convolutions(board, _plane(1, 8, 8, 8, 8), 3)
    yield from _products(board, 32)
    yield from _linear(board, 4, 256, 10)
    plane, heads = ({"n": n, "c": c, "h": h, "w": h} for n, c, h in ((4, 4, 8), (1, 2, 16)))
    yield from _elements(board, plane, heads, {"n": 16, "c": 64})
    yield from _dilated(board, 4, 8)
    yield from _recurrent(board, 8, 16)
    yield from _elementary(board, plane)


def rows() -> list[Row]:
    return [*_rows_m4f(), *_rows_m0plus()]
