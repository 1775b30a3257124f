"""`make bench-tiny`: the four reference models of MLPerf Tiny train on both microcontrollers.

Each step is planned for the arena of the board. The trained weights are compared with those of a
native board that keeps everything in RAM. Prints a table and writes RESULTS-tiny.md. Times and
energies are simulated, so other processes do not change them.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import poet_host as poet
from poet_host.data.datasets import Dataset
from poet_host.plan.plan import Plan, moved_bytes

from .report import about, filled, number, percent, table
from .streaming import HIDDEN, IMAGES, Case, Measured, hidden, run_cases

RESULTS = Path(__file__).with_name("RESULTS-tiny.md")
STEPS = 2


def spectra() -> Dataset:
    """Return samples for the autoencoder. Each label is the sample itself."""
    samples = poet.load_data("synthetic:640:10").x
    return Dataset("spectra", samples, samples)


MODELS: dict[str, str | Dataset] = {
    "autoencoder-toyadmos": spectra(),
    "resnet8-cifar": IMAGES,
    "dscnn-speech": "synthetic:1x49x10:12",
    "mobilenet-vww": "synthetic:3x96x96:2",
}
# N of the rows of each model, by board. Long steps run only for N = 1.
COMMIT_EVERY: dict[str, dict[str, tuple[int, ...]]] = {
    "mkr1000": {
        "autoencoder-toyadmos": (1, 10), "resnet8-cifar": (1,), "dscnn-speech": (1, 10),
        "mobilenet-vww": (1,),
    },
    "nrf52840_dk": {
        "autoencoder-toyadmos": (1, 10), "resnet8-cifar": (1, 10), "dscnn-speech": (1, 10, 100),
        "mobilenet-vww": (1,),
    },
}  # fmt: skip
CASES = [
    Case(model, MODELS[model], board, poet.load_board(board).arena_bytes, commit_every=every)
    for board, rows in COMMIT_EVERY.items()
    for model, intervals in rows.items()
    for every in intervals
]


def report_of(template: str, steps: int) -> Callable[[Sequence[tuple[Case, Measured | Plan]]], str]:
    """Return the function that fills a template with a table of cases."""
    head = ["model on board", "RAM bytes", "largest operator, bytes", "high-water mark",
            "N", "step s", "predicted s", "step J", "predicted J", "plan bytes", "gap %",
            "bytes moved in", "bytes moved out", "hidden %", "weights"]  # fmt: skip
    return lambda found: filled(
        template,
        about=about("highspy", "numpy"),
        steps=steps,
        hidden=HIDDEN,
        table=table(head, [_row(case, mine) for case, mine in found]),
    )


def _row(case: Case, mine: Measured | Plan) -> list[str]:
    row = [f"{case.model_name} on {case.board}", f"{case.ram_bytes:,}"]
    if isinstance(mine, Plan):
        needs = f"no plan: {mine.smallest_ram_bytes:,} bytes needed"
        return [*row, needs, "-", str(case.commit_every), *["-"] * 10]
    plan, run = mine.plan, mine.run
    assert plan.problem is not None
    assert plan.time_us is not None
    assert plan.total_energy_uj is not None
    assert run.time_us is not None
    assert run.total_energy_uj is not None
    moved_in, moved_out = moved_bytes(plan.problem.graph, plan)
    return [
        *row,
        f"{mine.largest_bytes:,}",
        f"{run.peak_bytes:,}",
        str(case.commit_every),
        number(run.time_us / 1e6),
        number(plan.time_us / 1e6),
        number(run.total_energy_uj / 1e6, 3),
        number(plan.total_energy_uj / 1e6, 3),
        f"{run.schedule_bytes:,}",
        percent(plan.gap),
        f"{moved_in:,}",
        f"{moved_out:,}",
        hidden(run),
        "equal" if mine.is_same else "DIFFERENT",
    ]


if __name__ == "__main__":
    run_cases("bench.tiny", __doc__, CASES, STEPS, report_of("tiny", STEPS), RESULTS)
