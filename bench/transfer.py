"""`make bench-transfer`: how long a native board takes to store weights and to return them.

The first rows are requests to the board through its pseudo-terminal. The last rows are the commands
`card write` and `card read`. Prints a table and writes RESULTS-transfer.md.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import poet_host as poet
from poet_host.card.card import read_weights
from poet_host.device.device import TENSOR
from poet_host.files import write_whole
from poet_host.graph.weights import start_values
from poet_host.run.train import load_schedule

from .report import about, filled, number, table

RESULTS = Path(__file__).with_name("RESULTS-transfer.md")
MODEL, DATA = "bert-base", "tokens:512:30522:10"
CARD_BYTES = 8 << 30  # size of the card image, a sparse file


@dataclass(frozen=True)
class Timed:
    """What was done with all weights of a model, and the time that it took."""

    what: str
    size_bytes: int
    seconds: float


def measure(model: str, data: str, folder: Path) -> list[Timed]:
    """Write and read all weights of a model, request by request and with commands."""
    graph = poet.load(model)
    assert isinstance(graph, poet.Graph)
    profile = poet.estimate_profile(poet.load_board("native"))
    plan = poet.keep_everything(poet.costs_of(graph, profile))
    schedule = poet.encode(graph, profile, plan)
    values = start_values(graph, seed=0)
    size_bytes = sum(value.nbytes for value in values.values())
    card, weights = folder / "card.img", folder / "in.safetensors"
    found = folder / "out.safetensors"
    poet.save_weights(weights, graph, values, 0)
    schedule.save(folder / "model.poet")
    poet.prepare_storage(card, CARD_BYTES)
    timed = []

    def lap(what: str, began: float) -> None:
        timed.append(Timed(what, size_bytes, time.monotonic() - began))
        print(f"{what}: {timed[-1].seconds:.1f} s", flush=True)

    with poet.connect("native", storage=card, arena_bytes=plan.ram_bytes // 4 * 4) as board:
        load_schedule(board.device, schedule)
        began = time.monotonic()
        for index, name in enumerate(schedule.names):
            if name in values:
                board.device.write(TENSOR, index, values[name].tobytes())
        lap("requests `write`", began)
        began = time.monotonic()
        board.device.begin(0)
        lap("request `begin`: the board checks what it stored", began)
        began = time.monotonic()
        back = read_weights(board.device, schedule)
        lap("requests `read`", began)
    if any(back[name].tobytes() != value.tobytes() for name, value in values.items()):
        raise poet.PoetError("the weights that were read differ from those that were written")
    at = ["model.poet", "--port", "native", "--storage", card.name]
    start = ["--data", data, "--steps", "1", "--erase-card", "--load-weights", weights.name]
    commands = {
        "command `card write`": ["write", *at, *start],
        "command `card read`": ["read", *at, "--save-weights", found.name],
    }
    for what, words in commands.items():
        began = time.monotonic()
        command = [sys.executable, "-m", "poet_host", "card", *words]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        lap(what, began)
    if any(
        value.tobytes() != values[name].tobytes()
        for name, value in poet.load_weights(found, graph).items()
    ):
        raise poet.PoetError("the weights in the file differ from those that were written")
    return timed


def report(model: str, timed: Sequence[Timed]) -> str:
    rows = [
        [
            t.what,
            f"{t.size_bytes:,}",
            number(t.seconds, 1),
            number(t.size_bytes / t.seconds / 1e6, 1),
        ]
        for t in timed
    ]
    return filled(
        "transfer",
        about=about("numpy", "pyserial", "cobs"),
        model=model,
        table=table(["what", "bytes", "seconds", "MB/s"], rows),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.transfer", description=__doc__)
    parser.add_argument(
        "--folder",
        metavar="DIR",
        help="for card image and weights (3 GB; default: that of the system)",
    )
    options = parser.parse_args()
    with TemporaryDirectory(dir=options.folder) as folder:
        timed = measure(MODEL, DATA, Path(folder))
    text = report(MODEL, timed)
    print(text)
    write_whole(RESULTS, text)


if __name__ == "__main__":
    main()
