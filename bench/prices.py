"""`make bench-prices`: simulated times of every kernel next to the estimates of board.toml.

Prints a table and writes RESULTS-prices.md. `--fit` prints instead the factors that fit best.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path

import poet_host as poet
from poet_host import isa
from poet_host.device.device import connect
from poet_host.files import write_whole
from poet_host.firmware_build.bare_metal import build_firmware
from poet_host.graph.graph import Node
from poet_host.graph.work import Work, work_of_part
from poet_host.profile.fit import family
from poet_host.profile.profile import Profile, signature
from poet_host.sim.board import SimulatedBoard

from .kernel_probe import Probe
from .kernel_rows import CONVOLUTIONS, Fields, Row, windows
from .report import about, filled, table

RESULTS = Path(__file__).with_name("RESULTS-prices.md")
BOARDS = ("mkr1000", "nrf52840_dk")


def _sizes(n: int = 1, c: int = 1, h: int = 1, w: int = 1, **others: int) -> dict[str, int]:
    return {"n": n, "c": c, "h": h, "w": w, **others}


def _along(steps: int, kernel: int, **others: int) -> dict[str, int]:
    """A window along one axis."""
    found = {"oh": steps - kernel + 1, "ow": 1, "kernel_h": kernel, "kernel_w": 1}
    found |= {"stride_h": 1, "stride_w": 1, "pad_h": 0, "pad_w": 0}
    return _sizes(h=steps, **others) | found


PLANE = _sizes(1, 8, 8, 8)
OVER_TIME = _sizes(32, 24)  # steps and features
ELEMENTS = (PLANE, OVER_TIME, _sizes(1, 64))
REPEATED = (_sizes(4, 8, 4, 4, variant=0xD0), _sizes(32, 24, variant=0x10))
BATCHNORM = (_sizes(4, 4, 8, 8), _sizes(1, 16, 4, 4), OVER_TIME)
CONVOLUTION = (
    windows(_sizes(1, 8, 8, 8, k=8, groups=1), 3),
    windows(_sizes(1, 16, 8, 8, k=16, groups=1), 1),
    windows(_sizes(2, 8, 8, 8, k=8, groups=8), 3),
    windows(_sizes(1, 8, 8, 8, k=16, groups=1), 3, 2),
    _along(24, 5, c=9, k=16, groups=1),
)
LINEAR = (_sizes(4, 64, k=10), _sizes(1, 64, k=12), _sizes(32, 9, k=24), _sizes(24, 16, k=64))
POOL = (windows(PLANE, 2, 2, 0), windows(PLANE, 3, 2, 1), windows(_sizes(1, 8, 8, 8), 2, 2, 0))
REDUCED = (
    _sizes(4, 8, 4, 4, variant=13),
    _sizes(32, 24, variant=1),
    _sizes(1, 8, 8, 8, variant=12),
)
CHANNELS = (_sizes(1, 8, 8, 8, k=4, oh=2), _sizes(32, 24, k=8, oh=8), _sizes(64, 4, k=1, oh=1))
LINES = (_sizes(16, 64), _sizes(4, 10), _sizes(32, 8))
CLASSES = (_sizes(4, 10), _sizes(1, 4), _sizes(32, 12))
TABLE = (_sizes(16, 16, k=32), _sizes(32, 8, k=64))
PRODUCT = tuple(
    {"n": 1, "groups": groups, "h": h, "k": k, "w": w, "variant": variant, "factor": 1.0}
    for groups, h, k, w, variant in ((1, 16, 16, 16, 0), (2, 16, 8, 16, 14), (1, 32, 9, 48, 0))
)
ORDERS = tuple(PLANE | {"variant": variant} for variant in (0b11_01_10_00, 0b01_11_10_00))
SHAPES: dict[tuple[str, ...], Sequence[Fields]] = {
    CONVOLUTIONS: CONVOLUTION,
    ("linear", "linear_grad_input", "linear_grad_weight"): LINEAR,
    ("grad_bias",): ({"n": 4, "k": 4, "oh": 8, "ow": 8}, {"n": 32, "k": 24, "oh": 1, "ow": 1}),
    ("batchnorm_stats", "batchnorm", "batchnorm_sums", "batchnorm_grad_input"): BATCHNORM,
    ("batchnorm_grad_input_frozen", "batchnorm_running", "batchnorm_grad_param"): BATCHNORM,
    ("maxpool2d", "maxpool2d_grad", "avgpool2d", "avgpool2d_grad"): POOL,
    ("global_avgpool", "global_avgpool_grad"): BATCHNORM[:2],
    ("add", "sub", "mul"): (*ELEMENTS, *REPEATED),
    ("scale",): (*ELEMENTS, _sizes(4, 8, 4, 4, variant=13)),
    ("reduce", "reduce_product"): REDUCED,
    ("softmax_xent", "softmax_xent_grad", "weighted_xent", "weighted_xent_grad"): CLASSES,
    ("transpose",): (*ORDERS, _sizes(16, 24, variant=0b11_10_00_01)),
    ("concat",): (PLANE | {"k": 8}, _sizes(32, 8, k=16)),
    ("slice", "slice_grad"): CHANNELS,
    ("matmul",): PRODUCT,
    ("softmax", "softmax_grad"): (_sizes(1, 2, 16, 16), _sizes(8, w=10)),
    ("layernorm_stats", "layernorm", "layernorm_grad_input", "layernorm_grad_weight"): LINES,
    ("embedding", "embedding_grad"): TABLE,
    ("gru", "gru_grad"): tuple(
        {"n": n, "c": 1, "h": 2, "w": w, "k": 3 * w, "oh": 4 * w, "variant": 0x54}
        for n, w in ((8, 16), (16, 8))
    ),
    ("lstm", "lstm_grad"): tuple(
        {"n": n, "c": 1, "h": 3, "w": w, "k": 4 * w, "oh": 4 * w, "variant": 0x54}
        for n, w in ((8, 16), (16, 8))
    ),
    ("elementary", "elementary_grad"): tuple(PLANE | {"variant": it} for it in range(7)),
    ("gelu", "gelu_grad"): tuple(PLANE | {"variant": variant} for variant in (0, 1)),
}
# Of what has no size; each kernel reads some of them.
OTHERS: Fields = {"epsilon": 1e-5, "factor": 0.5, "probability": 0.25, "update_rate": 0.1,
                  "beta": 0.9, "lower_bound": 0.1, "upper_bound": 0.5, "period": 1}  # fmt: skip


@dataclass(frozen=True)
class Price:
    """A call of a kernel: its work, and its time on the simulated chip and by the estimate."""

    call: str  # kernel, sink and sizes
    kind: str  # whose factor its estimate has: see `family`
    work: Work
    simulated_us: float
    estimated_us: float

    @property
    def ratio(self) -> float:
        return self.simulated_us / self.estimated_us


def calls(op: str) -> Iterator[Row]:
    """Yield calls of a kernel with small shapes. They have no board."""
    found = next((found for ops, found in SHAPES.items() if op in ops), ELEMENTS)
    for sizes in found:
        sinks: tuple[str, ...] = ("none",)
        if isa.kernels()[op].has_sink:
            sinks = ("store", "sgd") if sizes is found[0] else ("sgd",)
        for sink in sinks:
            yield Row("", op, "", {**OTHERS, **sizes}, sink, half_zeros=op in CONVOLUTIONS)


def measured(board: str, profile: Profile) -> Iterator[Price]:
    """Yield the prices of all kernels by `profile`, on a simulated board."""
    kernels = [name for name in isa.kernels() if name != "none"]
    half = len(kernels) // 2
    for ops in (kernels[:half], kernels[half:]):  # the MKR1000 has no room for all together
        elf = build_firmware(board, ops)
        with SimulatedBoard(board, elf, None) as running, connect(running.port) as device:
            probe = Probe(device, board)
            for row in (row for op in ops for row in calls(op)):
                yield _price(row, probe, profile)


def _price(row: Row, probe: Probe, profile: Profile) -> Price:
    inputs = tuple(f"x{i}" for i in range(len(row.job["inputs"])))
    node = Node("y", (1,), op=row.op, inputs=inputs, attrs=row.fields, sink=row.sink)
    work, call = work_of_part(node), signature(node)
    time_us = probe.cycles(row.job) / probe.clock_mhz
    return Price(call, family(call), work, time_us, profile.kernel_us(node, lambda: work))


def factor(prices: Sequence[Price], old: float, base_us: float) -> float:
    """Return the factor by which the largest ratio is as far from 1 as the smallest one.

    Estimates are 5 % above the times then. `base_us` counts as known: it is of short calls.
    """
    ratios = [(it.simulated_us + base_us) / (it.estimated_us + base_us) for it in prices]
    return old * 1.05 * exp((log(max(ratios)) + log(min(ratios))) / 2)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.prices", description=__doc__)
    parser.add_argument("--fit", action="store_true", help="print factors of board.toml")
    wanted = parser.parse_args()
    lines: dict[str, list[str]] = {}
    for board in BOARDS:
        profile = poet.estimate_profile(board)
        kinds: dict[str, list[Price]] = {}
        for price in measured(board, profile):
            kinds.setdefault(price.kind, []).append(price)
        for kind, prices in kinds.items():
            if wanted.fit:
                best = factor(prices, profile.kernels.get(kind, 1.0), profile.rates.base_us)
                print(f"{board}: {kind} = {best:.2f}", flush=True)
            lines.setdefault(kind, []).append("  ".join(f"{it.ratio:.2f}" for it in prices))
    if wanted.fit:
        return
    ratios = table(["kernel", *BOARDS], [[kind, *found] for kind, found in lines.items()])
    text = filled("prices", about=about("numpy"), ratios=ratios)
    print(text)
    write_whole(RESULTS, text)


if __name__ == "__main__":
    main()
