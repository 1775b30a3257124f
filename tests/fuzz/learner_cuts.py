"""Cut the power of a learner at each write and erase of a life, and compare with the replay rule.

    PYTHONPATH=tests python -m fuzz.learner_cuts --output bench/cuts-learner.txt

A life teaches a sample before each step. After the cut, the next start must find the weights of a
committed step, and go on to the last one with the bits of the samples that were taught.
"""

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from pathlib import Path

from support.learner_bench import Kind, forget_replays
from support.learner_life import cut

from bench.commits import commit

LIVES = {
    "weights in RAM, storage without erases": (Kind(), 0),
    "weights in RAM, flash with erase units of 8 blocks": (Kind(), 8),
    "weights in RAM, flash with erase units of 1 block": (Kind(), 1),
    "weights on a card, paged in": (Kind(pages=True), 0),
    "weights on a card, some of which stay in RAM for 3 steps": (Kind(pages=True, every=3), 0),
}


def cuts(name: str, steps: int) -> int:
    """Return how many writes and erases a life has. Raises AssertionError if weights differ."""
    found = 0
    while cut(*LIVES[name], found + 1, steps=steps):
        found += 1
        if found % 50 == 0:
            forget_replays()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    begin = time.monotonic()
    with ProcessPoolExecutor(2) as pool:
        counts = [*pool.map(cuts, LIVES, [given.steps] * len(LIVES))]
    minutes = (time.monotonic() - begin) / 60
    lines = [
        f"python -m fuzz.learner_cuts --steps {given.steps}",
        f"{date.today()}, commit {commit()}: {minutes:.0f} minutes", "",
        *(f"{name}: {n:,} writes and erases" for name, n in zip(LIVES, counts, strict=True)),
        "", "At each cut, all weights were those of the replay rule.",
    ]  # fmt: skip
    given.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
