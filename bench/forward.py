"""`make bench-forward`: every built-in model infers in the RAM in which it trains.

Each schedule runs on a native board with an arena of that RAM. Its outputs must have the bits of
the reference kernels on the host. Writes RESULTS-forward.md.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import poet_host as poet
from poet_host.data.fitted import example
from poet_host.errors import PoetError
from poet_host.files import write_whole
from poet_host.graph.models import MODELS
from poet_host.graph.weights import start_values
from poet_host.reference.inference import logits

from .report import about, filled, number, table
from .streaming import native

RESULTS = Path(__file__).with_name("RESULTS-forward.md")
BOARDS = {"mkr1000": "24KiB", "nrf52840_dk": "220KiB", "native": "24KiB"}
SOLVE_WORK = 10_000  # any plan is good enough here
LARGEST_BYTES = 200 << 20  # of weights; the reference takes minutes with more


def rows(models: list[str]) -> Iterator[list[str]]:
    for board, ram in BOARDS.items():
        for model in models:
            graph = poet.load(model)
            assert isinstance(graph, poet.Graph)
            plan = poet.solve(poet.problem(graph, board, ram=ram), work_limit=SOLVE_WORK, gap=0.5)
            if not plan.statements:
                yield [model, board, ram, "does not train", *(["-"] * 4)]
                continue
            schedule = poet.encode(graph, plan)
            forward = schedule.forward
            if forward is None:
                raise PoetError(f"{model} on {board}: no inference fits in {ram}")
            costs = forward.meta["plan"]
            yield [
                model, board, ram, f"{plan.peak_bytes:,}", f"{forward.header.arena_bytes:,}",
                number(costs["time_us"] / 1e3, 1), number(costs["total_energy_uj"] / 1e3, 1),
                same_bits(schedule, plan.ram_bytes),
            ]  # fmt: skip


def same_bits(schedule: poet.Schedule, ram_bytes: int) -> str:
    """Say whether a native board and the host compute the same outputs for a batch of samples."""
    graph = schedule.graph
    weights = start_values(graph, seed=0)
    x, y = example(graph)
    if sum(array.nbytes for array in weights.values()) > LARGEST_BYTES:
        return "not compared"
    with native(ram_bytes) as board:
        found = poet.predict(schedule, (x, y), weights=weights, connection=board).outputs
    wanted = logits(graph, weights, x)
    if not np.array_equal(found.reshape(-1), wanted.reshape(-1)):
        raise PoetError(f"{graph.name}: the board computes other outputs than the host")
    return "yes"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS, metavar="FILE")
    given = parser.parse_args()
    found = []
    for row in rows(given.models):
        print("  ".join(row), flush=True)
        found.append(row)
    head = [
        "model", "board", "RAM", "training, bytes", "inference, bytes", "ms", "mJ", "same bits",
    ]  # fmt: skip
    write_whole(
        given.output, filled("forward", about=about("numpy", "highspy"), table=table(head, found))
    )


if __name__ == "__main__":
    main()
