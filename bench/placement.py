"""`make bench-placement`: whether and how fast the exact search places hard instances.

MiniMalloc's 11 published instances are fetched into build/minimalloc if they are not there. 20
rectangles are cut into blocks, so that a placement exists and leaves no byte free. 29 plans of our
own are in instances/plans.json. Prints a table and writes RESULTS-placement.md.
"""

import argparse
import csv
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from poet_host.files import write_whole
from poet_host.packing.blocks import ALIGNMENT, Block, live_peak
from poet_host.packing.packing import pack
from poet_host.packing.packing_search import search

from .report import about, number, table

RESULTS = Path(__file__).with_name("RESULTS-placement.md")
PLANS = Path(__file__).with_name("instances") / "plans.json"
FETCHED = Path(__file__).parents[1] / "build" / "minimalloc"
# google/minimalloc (Apache-2.0), April 2026
SOURCE = (
    "https://raw.githubusercontent.com/google/minimalloc/"
    "9f5cf810fec4494df473c23cffd0567989e81b69/benchmarks/challenging/"
)
MINIMALLOC = [f"{letter}.1048576.csv" for letter in "ABCDEFGHIJK"]
CAPACITY_BYTES = 1 << 20
RECTANGLES, RECTANGLE_TIMES = 20, 1000
SPARE_BYTES = 4  # above the live peak of a plan
MAX_STEPS = 5_000_000_000  # about 60 s
MAX_PLAN_S = 3.0
FETCH_LIMIT_S = 20.0


@dataclass(frozen=True)
class Placed:
    """The result for one instance. Seconds are processor time."""

    name: str
    blocks: int
    result: str
    seconds: float
    nodes: int | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minimalloc", type=Path, default=FETCHED, help="folder of the CSV files")
    parser.add_argument("--steps", type=int, default=MAX_STEPS, help="limit of the exact search")
    options = parser.parse_args()
    folder, max_steps = options.minimalloc, options.steps
    parts = {
        "MiniMalloc's challenging instances, 1 MiB": list(_minimalloc(folder, max_steps)),
        "Rectangles of 1 MiB cut into blocks": list(_rectangles(max_steps)),
        "Plans at the live peak + 4 bytes": list(_plans()),
    }
    text = [
        "# Placement\n",
        about("cffi"),
        "\nSeconds are processor time. `found`: every block has an offset below the capacity. For",
        "plans, all of `pack` runs: first fit, local search, then the exact search. `nodes` are",
        "those of the exact search. It stops after the given steps, and the result is `unknown`.",
    ]
    for title, rows in parts.items():
        found = [row for row in rows if row.result == "found"]
        worst_s = max((row.seconds for row in rows), default=0.0)
        text.append(f"\n## {title}\n")
        text.append(f"{len(found)} of {len(rows)} found, at most {number(worst_s)} s each.\n")
        cells = [
            (row.name, str(row.blocks), row.result, number(row.seconds), number(row.nodes, 0))
            for row in rows
        ]
        text.append(table(("instance", "blocks", "result", "s", "nodes"), cells))
    write_whole(RESULTS, ("\n".join(text) + "\n").encode())


def _minimalloc(folder: Path, max_steps: int) -> Iterator[Placed]:
    for name in MINIMALLOC:
        path = folder / name
        if not path.exists():
            try:
                with urlopen(SOURCE + name, timeout=FETCH_LIMIT_S) as reply:
                    content = reply.read()
            except OSError as error:
                sys.exit(f"{name} cannot be fetched ({error}): copy it from {SOURCE} to {folder}")
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, content)
        with path.open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        blocks = [Block(int(it["lower"]), int(it["upper"]), int(it["size"])) for it in rows]
        yield _searched(name, blocks, max_steps)


def _rectangles(max_steps: int) -> Iterator[Placed]:
    for seed in range(1, RECTANGLES + 1):
        count = 150 + 15 * seed
        blocks = cut_rectangle(seed, count, RECTANGLE_TIMES, CAPACITY_BYTES)
        yield _searched(f"seed {seed}", blocks, max_steps)


def cut_rectangle(seed: int, count: int, times: int, size_bytes: int) -> list[Block]:
    """Cut a rectangle of time x memory into `count` blocks, which leave no byte free."""
    rng = random.Random(seed)
    parts = [(0, times, 0, size_bytes // ALIGNMENT)]
    while len(parts) < count:
        parts.sort(key=lambda part: (part[1] - part[0]) * (part[3] - part[2]))
        begin, end, low, high = parts.pop(rng.randrange(len(parts) // 2, len(parts)))
        if rng.random() < 0.5 and end - begin > 1:
            cut = rng.randint(begin + 1, end - 1)
            parts += [(begin, cut, low, high), (cut, end, low, high)]
        elif high - low > 1:
            cut = rng.randint(low + 1, high - 1)
            parts += [(begin, end, low, cut), (begin, end, cut, high)]
        else:
            parts.append((begin, end, low, high))
    rng.shuffle(parts)
    return [Block(begin, end, ALIGNMENT * (high - low)) for begin, end, low, high in parts]


def _plans() -> Iterator[Placed]:
    for name, rows in json.loads(PLANS.read_text("utf-8")).items():
        blocks = [Block(*row) for row in rows]
        capacity_bytes = live_peak(blocks) + SPARE_BYTES
        began = time.process_time()
        packing = pack(blocks, capacity_bytes, MAX_PLAN_S)
        seconds = time.process_time() - began
        if packing.height_bytes <= capacity_bytes:
            check(blocks, packing.offsets, capacity_bytes)
            result = "found"
        else:
            result = "none exists" if packing.nothing_fits else "unknown"
        yield _shown(Placed(name, len(blocks), result, seconds))


def _searched(name: str, blocks: Sequence[Block], max_steps: int) -> Placed:
    began = time.process_time()
    found = search(blocks, CAPACITY_BYTES, max_steps)
    seconds = time.process_time() - began
    if found is None:
        raise SystemExit("the exact search needs a C compiler")
    if found.result == "found":
        check(blocks, found.offsets, CAPACITY_BYTES)
    return _shown(Placed(name, len(blocks), found.result, seconds, found.nodes))


def check(blocks: Sequence[Block], offsets: Sequence[int], capacity_bytes: int) -> None:
    """Raise ValueError if the offsets are not a packing below the capacity."""
    for i, (a, low) in enumerate(zip(blocks, offsets, strict=True)):
        if low < 0 or low % ALIGNMENT or low + a.size_bytes > capacity_bytes:
            raise ValueError(f"block {i} does not fit at {low}")
        for j, b in enumerate(blocks[:i]):
            together = a.begin < b.end and b.begin < a.end and a.size_bytes and b.size_bytes
            if together and low < offsets[j] + b.size_bytes and offsets[j] < low + a.size_bytes:
                raise ValueError(f"blocks {i} and {j} overlap")


def _shown(row: Placed) -> Placed:
    print(f"{row.name}: {row.blocks} blocks, {row.result}, {row.seconds:.2f} s", flush=True)
    return row


if __name__ == "__main__":
    main()
