"""Every written block of a training run on a simulated chip, with every false write of its card.

    python -m fuzz.card_walk BOARD [--steps N] [--pairs N] [--every N] [--first N]
        [--part BEGIN:END] [--output FILE]

The chip runs in this process. After each written block, the process is forked for each fault. The
child adds the fault to its card for the next block, and goes on with the run and, after an error,
continues it as a user does (train --resume). So no time is spent on what was before the fault.
Every run must end with the weights of an undisturbed run, or report an error.
"""

import argparse
import ctypes
import math
import mmap
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import serial
from poet_host import api, isa
from poet_host.device import link as link_module
from poet_host.device.device import Device
from poet_host.errors import PoetError
from poet_host.firmware_build.bare_metal import build_firmware
from poet_host.schedule.schedule import Schedule
from poet_host.sim.native import create_storage
from poet_host.sim.simulated_chip import CardFault, SimulatedChip
from rich.progress import Progress

from bench.commits import commit

STRIDE = isa.constants()["POET_UNIT_BLOCKS"]
FAULTS = (
    ("dropped_write", 0),
    *(("torn_write", kept_bytes) for kept_bytes in (24, 100, 256, 508)),
    ("misdirected_write", 1),
    ("misdirected_write", STRIDE),
    ("flipped_write", 1234),
    ("late_error", 8),
)
SLICE_US = 50
MOST_RUNS = 4  # until training is done
IMAGE_BYTES = 64 << 20
LATER_STEPS = 2  # in which damage is found
NEVER_S = 1e9  # a chip that sleeps is silent; else it is only slow
EQUAL, SILENT, ENDED = "equal", "other weights", "the process ended"
AGAIN = ", after an error and a new start"
ALL_BLOCKS = range(sys.maxsize)
open_port = link_module._open
NUMBERS = {1: "one fault", 2: "two faults"}


class ChipSerial:
    """A serial port whose other end is a chip in this process."""

    in_waiting = 4096

    def __init__(self, walk: "Walk") -> None:
        self.walk = walk

    def write(self, data: bytes) -> None:
        while data:
            data = data[self.walk.chip.give(data) :]
            self.walk.advance()

    def read(self, size_bytes: int) -> bytes:
        awake = True
        while not (data := self.walk.chip.take()):
            if not awake:
                raise serial.SerialException("the board sleeps and does not answer")
            awake = self.walk.advance()
        return data

    def close(self) -> None:
        pass


@dataclass
class Walk:
    """One board with one card, and the place in its run."""

    board: str
    image: Path
    seed: int
    pairs: float = 0.0  # number of pairs of faults at each block
    every: int = 1  # try faults only at every N-th written block
    has_two_states: bool = False  # after the first step
    active: bool = False  # True: fork at written blocks
    is_child: bool = False
    fault: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    defects: list[str] = field(default_factory=list)
    part: range = ALL_BLOCKS  # numbers of the written blocks at which faults are tried
    blocks: int = 0  # written blocks
    progress: Callable[[int], None] = lambda blocks: None
    own_ranges: list[tuple[int, int]] = field(default_factory=list)  # of a child's card, in memory

    def __post_init__(self) -> None:
        self.chip = SimulatedChip(self.board, build_firmware(self.board), self.image)
        self.slice_ticks = SLICE_US * self.chip.meter.tick_hz // 1_000_000
        self.random = random.Random(self.seed)
        while self.advance():
            pass  # the board starts, and then waits for a host

    @property
    def when(self) -> str:
        return "" if self.has_two_states else " before the end of step 1"

    def advance(self) -> bool:
        """Run for a slice, or until the chip sleeps. Return False if it sleeps."""
        before = self.chip.meter.card_writes
        result = self.chip.run(self.slice_ticks if self.active else self.slice_ticks * 1000)
        if result not in ("slice", "idle"):
            self.ended(result)
        if self.active and self.chip.meter.card_writes != before:
            self.blocks += 1
            if self.every and self.blocks % self.every == 0 and self.blocks in self.part:
                self._fork_all()
            self.progress(self.blocks)
        return result == "slice"

    def ended(self, result: str) -> None:
        """End the process: the chip has stopped."""
        raise SystemExit(f"{self.fault}: {result}: {self.chip.message}")

    def _fork_all(self) -> None:
        number = self.chip.meter.card_writes + 1
        count = math.ceil(self.pairs)
        pairs = [
            tuple(
                CardFault(kind, at, 1, argument)
                for at, (kind, argument) in zip(
                    (number, number + self.random.randrange(1, 300)),
                    self.random.choices(FAULTS, k=2),
                    strict=True,
                )
            )
            for _ in range(count if self.has_two_states else 0)
        ]
        ones = [(CardFault(kind, number, 1, argument),) for kind, argument in FAULTS]
        for faults in (*ones, *pairs):
            if not self._is_parent(faults, NUMBERS[len(faults)] + self.when):
                return

    def _is_parent(self, faults: tuple[CardFault, ...], what: str) -> bool:
        """Fork. Return True in the parent, after the child's end, and False in the child."""
        reading, writing = os.pipe()
        child = os.fork()
        if child:
            os.close(writing)
            with os.fdopen(reading) as file:
                outcome = file.read().strip() or ENDED
            os.waitpid(child, 0)
            self.counts[f"{what}: {outcome}"] += 1
            if outcome.removesuffix(AGAIN) in (SILENT, ENDED):
                self.defects.append(f"{outcome}: {faults}")
            return True
        self.is_child, self.active, self.fault = True, False, str(faults)
        self.report = writing
        os.close(reading)
        self._own_card()
        for fault in faults:
            code = getattr(self.chip.lib, f"CARD_{fault.kind.upper()}")
            self.chip.lib.sdcard_add_fault(
                self.chip.card, code, fault.first, fault.times, fault.argument
            )
        return False

    def _own_card(self) -> None:
        """Replace the shared mapping of the image by a private one, at the same address."""
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [
            ctypes.c_long
        ]  # fmt: skip
        file = os.open(self.image, os.O_RDWR)
        with open("/proc/self/maps", encoding="utf-8") as maps:
            ranges = [line.split()[0] for line in maps if line.rstrip().endswith(str(self.image))]
        self.own_ranges = []
        for text in ranges:
            start, end = (int(number, 16) for number in text.split("-"))
            self.own_ranges.append((start, end - start))
            flags = mmap.MAP_PRIVATE | 0x10  # MAP_FIXED
            found = libc.mmap(start, end - start, mmap.PROT_READ | mmap.PROT_WRITE, flags, file, 0)
            assert found == start
        assert ranges


@contextmanager
def connected(walk: Walk) -> Iterator[api.Connection]:
    link_module._open = lambda port, patience_s: ChipSerial(walk)  # type: ignore[assignment,return-value]
    try:
        with Device(link_module.Link("chip", timeout_s=NEVER_S, patience_s=NEVER_S)) as device:
            yield api.Connection(device, ExitStack())
    finally:
        link_module._open = open_port


def train(connection: api.Connection, schedule: Schedule, steps: int, *, resume: bool) -> Any:
    return api.train(schedule, connection, "digits", steps=steps, resume=resume).weights


def walk(
    board: str,
    schedule: Schedule,
    steps: int,
    pairs: int,
    seed: int,
    every: int = 1,
    first: int = 0,
    part: range = ALL_BLOCKS,
) -> Walk:
    """Try all faults at every N-th block that is written in the steps 2 to `steps`.

    `every` is N. `first` is the same for the blocks before; 0: none of them. `part`: the numbers of
    the blocks to try, for a long walk in several runs.
    """
    with tempfile.TemporaryDirectory() as folder, Progress() as shown:
        image = Path(folder) / "card.img"
        expected, blocks = undisturbed(board, image, schedule, steps)
        bar = shown.add_task(board, total=blocks)
        found = started(board, image, seed)
        found.pairs, found.every = pairs * every / blocks, first
        found.part = part
        found.progress = lambda done: shown.update(bar, completed=done)
        with connected(found) as connection:
            found.active = bool(first)
            again = started_again(found, connection, schedule)
            if not found.is_child:
                found.active, found.has_two_states, found.every = True, True, every
            outcome = finish(found, connection, schedule, steps, expected)
            if again:
                outcome += AGAIN
            if found.is_child:
                os.write(found.report, outcome.encode())
                os._exit(0)
        if outcome != EQUAL:
            found.defects.append(f"the run without faults: {outcome}")
        return found


def started(board: str, image: Path, seed: int) -> Walk:
    create_storage(image, IMAGE_BYTES)
    return Walk(board, image, seed)


def prepare(connection: api.Connection, schedule: Schedule) -> None:
    """Train the first step, after which a card has two states."""
    connection.device.format()
    train(connection, schedule, 1, resume=False)


def started_again(found: Walk, connection: api.Connection, schedule: Schedule) -> bool:
    """Prepare a card. Return True if an error was reported, and the card was prepared again."""
    try:
        prepare(connection, schedule)
    except PoetError:
        if not found.is_child:
            raise
        with suppress(PoetError):
            connection.device.reset()
        prepare(connection, schedule)
        return True
    return False


def undisturbed(board: str, image: Path, schedule: Schedule, steps: int) -> tuple[Any, int]:
    """Return the weights at the end, and the number of blocks that are written in the walk."""
    whole = started(board, image, 0)
    with connected(whole) as connection:
        prepare(connection, schedule)
        before = whole.chip.meter.card_writes
        train(connection, schedule, steps, resume=True)
        blocks = whole.chip.meter.card_writes - before
        expected = train(connection, schedule, steps + LATER_STEPS, resume=True)
    image.unlink()
    return expected, blocks


def finish(
    found: Walk,
    connection: api.Connection,
    schedule: Schedule,
    steps: int,
    expected: Mapping[str, Any],
) -> str:
    """Train to the end. Return the outcome."""
    failed = False
    for _ in range(MOST_RUNS):
        try:
            if not found.is_child:
                train(connection, schedule, steps, resume=True)
                found.active = False
            weights = train(connection, schedule, steps + LATER_STEPS, resume=True)
        except PoetError:
            failed = True
            with suppress(PoetError):
                connection.device.reset()
            continue
        if any(weights[name].tobytes() != expected[name].tobytes() for name in expected):
            return SILENT
        return "an error, then equal after --resume" if failed else EQUAL
    return "an error, and training cannot continue"


def report(found: Walk, options: argparse.Namespace, minutes: float) -> str:
    """Return the text of a result file."""
    lines = [
        f"python -m fuzz.card_walk {options.board} --steps {options.steps} "
        f"--pairs {options.pairs} --every {options.every} --first {options.first} "
        f"--seed {options.seed}" + (f" --part {options.part}" if options.part else ""),
        f"{date.today()}, commit {commit()}, {options.schedule}: {found.blocks} written blocks, "
        f"{minutes:.0f} minutes",
        "",
        *(f"{count:8,}  {outcome}" for outcome, count in sorted(found.counts.items())),
        "",
        *(found.defects or ["No run ended with other weights and no error."]),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("board")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--schedule", default="schedules/resnet-digits-mkr1000.poet")
    parser.add_argument("--part", help="try only these written blocks; 1:20 is 1 to 19")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    begin = time.monotonic()
    schedule = Schedule.load(options.schedule)
    found = walk(
        options.board,
        schedule,
        options.steps,
        options.pairs,
        options.seed,
        options.every,
        options.first,
        range(*map(int, options.part.split(":"))) if options.part else ALL_BLOCKS,
    )
    text = report(found, options, (time.monotonic() - begin) / 60)
    print(text)
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    return 1 if found.defects else 0


if __name__ == "__main__":
    sys.exit(main())
