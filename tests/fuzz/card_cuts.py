"""Power cuts at random writes of a step on a simulated chip, and training that goes on.

    python -m fuzz.card_cuts BOARD [--model M] [--ram SIZE] [--data D] [--cuts N]
        [--same-board N] [--seed N] [--output FILE]

The chip trains step 1, and then step 2. At the chosen writes of step 2, the process is forked, and
the child cuts the power: half of the cuts also lose the erase group of the write. The card of each
child trains on, to the end of step 3: on the same chip (`--same-board` of the children), and else
on a native board, which reads the same cards and is faster. All must end with the weights of a run
without power cuts.
"""

import argparse
import ctypes
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import poet_host as poet
from poet_host.device import link as link_module
from poet_host.run.run import weights_sha256
from poet_host.schedule.schedule import Schedule
from poet_host.sim.simulated_chip import CardFault
from rich.progress import Progress

from bench.commits import commit
from fuzz.card_walk import (
    EQUAL,
    IMAGE_BYTES,
    SILENT,
    Walk,
    connected,
    create_storage,
    open_port,
)

LAST_STEP = 3
SOLVE_S = 60.0


@dataclass
class Cuts(Walk):
    """A run whose power is cut in children of its process."""

    chosen: dict[int, int] = field(default_factory=dict)  # write in step 2: is its group lost?
    same_board: frozenset[int] = frozenset()  # writes after which the same chip goes on
    schedule: Schedule | None = None
    data: str = ""
    expected: str = ""  # hash of the weights

    def _fork_all(self) -> None:
        if self.blocks in self.chosen:
            lose_group, here = self.chosen[self.blocks], self.blocks in self.same_board
            fault = CardFault("power_cut", self.chip.meter.card_writes + 1, 1, lose_group)
            what = f"{'the group lost' if lose_group else 'the write torn'}, "
            self._is_parent((fault,), what + ("then the same chip" if here else "then native"))

    def ended(self, result: str) -> None:
        """In a child: go on with the card as the power cut left it, and report the outcome."""
        if not self.is_child:
            super().ended(result)
        outcome = result
        try:
            if result == "power cut":
                outcome = self.gone_on()
        except Exception as error:  # noqa: BLE001  # a child must not go on where its parent is
            outcome = f"{type(error).__name__}: {error}"
        finally:
            os.write(self.report, outcome.encode())
            os._exit(0)

    def gone_on(self) -> str:
        link_module._open = open_port  # not the chip of this process, which has no power
        copy = self.image.with_name(f"cut-{os.getpid()}.img")
        copy.write_bytes(b"".join(ctypes.string_at(at, size) for at, size in self.own_ranges))
        port = f"sim:{self.board}" if self.blocks in self.same_board else "native"
        try:
            return EQUAL if self.finished(port, copy) == self.expected else SILENT
        finally:
            copy.unlink()

    def finished(self, port: str, image: Path) -> str:
        assert self.schedule is not None
        with poet.connect(port, storage=image) as connection:
            run = poet.train(
                self.schedule, connection, self.data, steps=LAST_STEP, resume=True
            )  # fmt: skip
        return weights_sha256(run.weights)


def planned(model: str, board: str, ram: str) -> Schedule:
    graph = poet.load(model)
    assert isinstance(graph, poet.Graph)
    problem = poet.problem(graph, board, ram=ram)
    return poet.encode(graph, poet.solve(problem, time_limit_s=SOLVE_S))


def cut(
    board: str, schedule: Schedule, data: str, cuts: int, same_board: int, seed: int
) -> tuple[Cuts, int]:
    """Cut the power at this many writes of step 2. Return the walk, and the writes of step 2."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, Progress() as shown:
        image = Path(folder) / "card.img"
        create_storage(image, IMAGE_BYTES)
        walk = Cuts(board, image, seed, schedule=schedule, data=data)
        with connected(walk) as connection:
            poet.train(schedule, connection, data, steps=1, erase_card=True)
            before = walk.chip.meter.card_writes
            kept = image.read_bytes()
            poet.train(schedule, connection, data, steps=2, resume=True)
            writes = walk.chip.meter.card_writes - before
        walk.expected = walk.finished("native", image)
        image.write_bytes(kept)
        chosen = chance.sample(range(1, writes), min(cuts, writes - 1))
        walk = Cuts(
            board, image, seed, every=1, schedule=schedule, data=data, expected=walk.expected,
            chosen={write: i % 2 for i, write in enumerate(chosen)},
            same_board=frozenset(chosen[:same_board]),
        )  # fmt: skip
        bar = shown.add_task(board, total=writes)
        walk.progress = lambda done: shown.update(bar, completed=done)
        with connected(walk) as connection:
            walk.active = True
            poet.train(schedule, connection, data, steps=2, resume=True)
            walk.active = False
        assert sum(walk.counts.values()) == len(chosen)
        walk.defects += [what for what in walk.counts if not what.endswith(f": {EQUAL}")]
        if walk.finished("native", image) != walk.expected:
            walk.defects.append("the run without power cuts")
        return walk, writes


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="fuzz.card_cuts", description=__doc__)
    parser.add_argument("board")
    parser.add_argument("--model", default="resnet8-cifar")
    parser.add_argument("--ram", default="24KiB")
    parser.add_argument("--data", default="synthetic:3x32x32:10")
    parser.add_argument("--cuts", type=int, default=500)
    parser.add_argument("--same-board", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    begin = time.monotonic()
    schedule = planned(options.model, options.board, options.ram)
    found, writes = cut(
        options.board, schedule, options.data, options.cuts, options.same_board, options.seed
    )
    lines = [
        f"python -m fuzz.card_cuts {options.board} --model {options.model} --ram {options.ram} "
        f"--data {options.data} "
        f"--cuts {options.cuts} --same-board {options.same_board} --seed {options.seed}",
        f"{date.today()}, commit {commit()}: {writes:,} written blocks in step 2, "
        f"{(time.monotonic() - begin) / 60:.0f} minutes",
        "",
        *(f"{count:8,}  {outcome}" for outcome, count in sorted(found.counts.items())),
        "",
        *(found.defects or ["All ended with the weights of a run without power cuts."]),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    return 1 if found.defects else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
