"""`make bench-kernels OPTIONS=--shapes`: no shape may be slower than at the base commit.

Runs each kernel with random shapes at the base commit and now, on both simulated chips.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import numpy as np

from .commits import commit
from .kernel_board import BASE, TREE, KernelBoard, base_tree
from .kernel_rows import (
    BATCHNORM,
    CONVOLUTIONS,
    LAYERNORM,
    LINEAR,
    POOLING,
    SOFTMAX,
    Fields,
    Row,
    rows,
    sink_of,
    windows,
)
from .report import command, filled, number, table

SEED, SHAPES = 1, 100  # of each kernel
MAX_SIZE, MAX_KERNEL, MAX_STRIDE = 33, 7, 3
# Bounds of one call: MKR1000's arena, and some tenths of a second at the base commit.
MAX_FLOATS, MAX_MACS, MAX_ELEMENTS = 6_000, 30_000, 2_000
SLOWER = 1.01  # ratio of times from which a shape counts; the clock resolves 0.0004


@dataclass(frozen=True)
class Overhead:
    """The cycles that a call may take in addition to its work."""

    call: int
    element: int  # for each element of its inputs and its output
    weight: int  # for each weight of a convolution
    row: int  # for each row of outputs that a weight of a convolution meets, of the shorter axis

    def cycles(self, row: Row) -> float:
        """Return the overhead of a call."""
        job, fields = row.job, row.fields
        elements = int(job["output"]) + sum(int(size) for size, _ in job["inputs"])
        weights = 0.0
        if row.op in CONVOLUTIONS:
            weights = fields["k"] * fields["c"] / fields["groups"]
            weights *= fields["kernel_h"] * fields["kernel_w"]
        met = weights * fields["n"] * min(fields["oh"], fields["ow"]) if weights else 0
        return self.call + self.element * elements + self.weight * weights + self.row * met

    def __str__(self) -> str:
        return (
            f"{self.call:,} cycles, {self.element} for each element of inputs and output and, in "
            f"a convolution, {self.weight} for each weight and {self.row} for each row of outputs "
            "(along the shorter axis) that the weight meets"
        )


OVERHEADS = {"nrf52840_dk": Overhead(600, 75, 210, 40), "mkr1000": Overhead(20_000, 500, 150, 60)}
LISTED = 5  # slower shapes of a kernel in the results

_Random = np.random.Generator


def _size(rng: _Random, most: int = MAX_SIZE) -> int:
    """Return 1 to `most`: half of the numbers are uniform, half of the magnitudes are."""
    return int(rng.integers(1, most + 1) if rng.integers(2) else (most + 1) ** rng.random())


def _sizes(rng: _Random, *names: str) -> dict[str, int]:
    return {name: _size(rng) for name in names}


def _window(rng: _Random, fields: Fields, *, pool: bool) -> dict[str, int | float]:
    kernel = {axis: _size(rng, MAX_KERNEL) for axis in "hw"}
    found = dict(fields)
    for axis, size in kernel.items():
        pad = int(rng.integers(0, size + (not pool)))
        one = windows(fields, size, int(rng.integers(1, MAX_STRIDE + 1)), pad)
        names = (f"o{axis}", f"kernel_{axis}", f"stride_{axis}", f"pad_{axis}")
        found |= {name: one[name] for name in names}
    return found


def _convolution(rng: _Random) -> Fields:
    sizes, groups = _sizes(rng, "n", "h", "w"), _size(rng, 4)
    channels = {name: groups * _size(rng, MAX_SIZE // groups) for name in "ck"}
    return _window(rng, sizes | channels | {"groups": groups}, pool=False)


def _depthwise(rng: _Random) -> Fields:
    sizes, c = _sizes(rng, "n", "h", "w"), 1 + _size(rng, MAX_SIZE - 1)
    return _window(rng, sizes | {"c": c, "k": c, "groups": c}, pool=False)


def _pool(rng: _Random) -> Fields:
    fields = _sizes(rng, "n", "c", "h", "w") | {"variant": int(rng.integers(2))}
    return _window(rng, fields, pool=True)


def _plane(rng: _Random) -> Fields:
    return _sizes(rng, "n", "c", "h", "w") | {"epsilon": 1e-5, "variant": int(rng.integers(2))}


def _rows(rng: _Random) -> Fields:
    return _sizes(rng, "n", "c") | {"epsilon": 1e-5}


def _linear(rng: _Random) -> Fields:
    sizes = _sizes(rng, "n", "c", "k")
    return sizes | (_sizes(rng, "h", "w") if rng.integers(2) else {"h": 1, "w": 1})


def _product(rng: _Random) -> Fields:
    variant = int(rng.integers(32))
    return _sizes(rng, "n", "groups", "h", "k", "w") | {"variant": variant, "factor": 1.0}


KINDS: dict[str, tuple[Sequence[str], Callable[[_Random], Fields]]] = {
    "": (CONVOLUTIONS, _convolution),
    "depthwise": (CONVOLUTIONS, _depthwise),
    "of vectors": (LINEAR, _linear),
    "of matrices": (("matmul",), _product),
    "of planes": ((*BATCHNORM, *SOFTMAX, "global_avgpool", "gelu", "gelu_grad"), _plane),
    "of rows": (LAYERNORM, _rows),
    "of windows": (POOLING, _pool),
}  # fmt: skip


def kernel_of(row: Row) -> str:
    """What is compared: the kernel. Depthwise convolutions are kernels of their own."""
    depthwise = 1 < row.fields.get("groups", 0) == row.fields.get("c") == row.fields.get("k")
    return row.op + (" depthwise" if depthwise else "")


def _is_small(row: Row) -> bool:
    if min(row.fields.get("oh", 1), row.fields.get("ow", 1)) < 1:
        return False
    job = row.job
    floats = sum(size for size, _ in job["inputs"]) + job["output"]
    most = MAX_MACS if row.unit == "MAC" else MAX_ELEMENTS
    return bool(floats <= MAX_FLOATS and 0 < row.work <= most)


def shapes(count: int = SHAPES, only: str = "") -> dict[str, list[Row]]:
    """Return random calls of each kernel whose name contains `only`. They have no board."""
    found: dict[str, list[Row]] = {}
    for kind, (ops, draw) in KINDS.items():
        for op in ops:
            rng = np.random.default_rng([SEED, *kind.encode(), *op.encode()])
            name = f"{op} depthwise" if kind == "depthwise" else op
            if only not in name:
                continue
            found[name] = []
            while len(found[name]) < count:
                row = Row("", op, "", draw(rng), sink_of(op))
                if _is_small(row) and (kind != "" or kernel_of(row) == op):
                    found[name].append(row)
    return found


def _text(row: Row) -> str:
    """Return the fields of a row as text."""
    used = row.job["fields"]
    return " ".join(f"{name}={value}" for name, value in used.items() if name != "epsilon")


def measure(
    name: str, tree: Path, calls: dict[str, list[Row]], about: str
) -> dict[str, list[float]]:
    """Return the cycles of all calls on a board with the firmware in a folder."""
    found = {}
    with KernelBoard(name, tree) as board:
        for kernel, found_rows in calls.items():
            found[kernel] = [board.ask(kernel=row.job) for row in found_rows]
            print(f"{name}, {about}: {kernel}", flush=True)
    return found


@dataclass(frozen=True)
class Compared:
    """One kernel on one board: cycles of each call, at the base commit and now."""

    calls: Sequence[Row]
    base: Sequence[float]
    now: Sequence[float]
    per_unit: float  # the largest of the table's figures for this kernel
    overhead: Overhead

    @property
    def ratios(self) -> list[float]:
        return [now / base for now, base in zip(self.now, self.base, strict=True)]

    @property
    def slower(self) -> list[int]:
        """The numbers of the calls that became slower, the worst first."""
        ratios = self.ratios
        found = (i for i, ratio in enumerate(ratios) if ratio > SLOWER)
        return sorted(found, key=lambda i: -ratios[i])

    @property
    def to_limits(self) -> list[float]:
        """The cycles of each call / the limit: twice the table's figure, and an overhead."""
        return [
            now / (2 * self.per_unit * row.work + self.overhead.cycles(row))
            for now, row in zip(self.now, self.calls, strict=True)
        ]

    def line(self, kernel: str) -> list[str]:
        ratios, limits = self.ratios, self.to_limits
        worst = max(range(len(limits)), key=limits.__getitem__)
        per_unit = self.now[worst] / self.calls[worst].work
        return [kernel, number(median(ratios)), number(max(ratios)), str(len(self.slower)),
                str(sum(limit > 1 for limit in limits)), number(limits[worst]),
                f"{number(per_unit)} / {self.calls[worst].unit}"]  # fmt: skip

    def losses(self, kernel: str, most: int | None) -> list[str]:
        return [
            f"- {kernel}, {number(self.ratios[i])} ({self.base[i]:,.0f} to {self.now[i]:,.0f} "
            f"cycles): {_text(self.calls[i])}"
            for i in self.slower[:most]
        ]


def largest_figures(board: str, now: dict[str, float]) -> dict[str, float]:
    """Return the largest of the table's figures for each kernel. `now`: figures by row."""
    found: dict[str, float] = {}
    for row in (row for row in rows() if row.board == board and row.name in now):
        found[kernel_of(row)] = max(found.get(kernel_of(row), 0), now[row.name])
    return found


def report(
    compared: dict[str, dict[str, Compared]], count: int, listed: int | None = LISTED
) -> str:
    """Return the tables as Markdown.

    `compared`: by board and kernel. `listed`: slower shapes of a kernel that are listed at most.
    """
    parts = []
    head = ["kernel", f"median of now / {BASE}", "largest", "slower", "over the limit",
            "worst / limit", "its cycles"]  # fmt: skip
    for board, kernels in compared.items():
        slower = sum(len(found.slower) for found in kernels.values())
        lines = [found.line(kernel) for kernel, found in kernels.items()]
        parts += [f"## {board}", f"{slower} shapes are slower.", table(head, lines)]
        losses = [
            line for kernel, found in kernels.items() for line in found.losses(kernel, listed)
        ]
        if losses:
            most = "" if listed is None else f", at most {listed} of each kernel"
            parts += [f"Slower shapes{most}:", "\n".join(losses)]
    return filled(
        "kernel_shapes",
        now=datetime.now(UTC),
        command=command(),
        commit=commit(),
        count=count,
        seed=SEED,
        most_size=MAX_SIZE,
        most_stride=MAX_STRIDE,
        most_macs=MAX_MACS,
        most_elements=MAX_ELEMENTS,
        base=BASE,
        slower=SLOWER,
        overheads="; ".join(f"on {name}, {overhead}" for name, overhead in OVERHEADS.items()),
        boards="\n\n".join(parts),
    )


def compare(now: dict[str, dict[str, float]], only: str = "") -> str:
    """Run the shapes and return the report.

    `now`: the table's figures by board and row. `only`: text in the names of the kernels; then all
    slower shapes are listed.
    """
    calls, boards = shapes(only=only), list(OVERHEADS)
    with base_tree() as tree, ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = [
            pool.submit(measure, board, folder, calls, about)
            for board in boards
            for folder, about in ((tree, BASE), (TREE, "now"))
        ]
        found = [run.result() for run in runs]
    compared: dict[str, dict[str, Compared]] = {}
    for board, base, new in zip(boards, found[::2], found[1::2], strict=True):
        largest = largest_figures(board, now[board])
        compared[board] = {
            kernel: Compared(
                calls[kernel], base[kernel], new[kernel], largest[kernel], OVERHEADS[board]
            )
            for kernel in calls
        }
    return report(compared, SHAPES, None if only else LISTED)
