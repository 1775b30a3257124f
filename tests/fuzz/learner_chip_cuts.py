"""Cut the power of simulated chips while a learner teaches and trains, and replay what it did.

    PYTHONPATH=tests python -m fuzz.learner_chip_cuts --output bench/cuts-learner-chips.txt

Inferences come between slices with random budgets. Each life is cut at a write or erase of the
chip's flash, then a second one ends the training. The weights that it sends must be those that
`poet-host replay` computes.
"""

import argparse
import random
import subprocess
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from poet_host import api
from poet_host.package.folder import write
from poet_host.resources import resource
from poet_host.sim.simulated_chip import CardFault, SimulatedChip
from support.learner_bench import Kind, packaged
from support.sim_helper import CORES

from bench.commits import commit

BOARDS = {"nano_33_iot": ("samd21", "m0plus"), "nrf52840_dk": ("nrf52840", "m4f")}
PROGRAM = Path(__file__).with_suffix("").with_name("learner_chip.c")
LOG = resource("examples") / "nano_33_iot" / "log.c"  # log.py, next to it, reads what it prints
MOST_SECONDS = 60


def build(board: str, folder: Path, *options: str) -> Path:
    """Return the image of the program for a board, in `folder` next to its package."""
    chip, core = BOARDS[board]
    write(packaged(Kind()), "c", folder / "package")
    port, source, elf = resource("firmware") / "port", folder / "package" / "src", folder / "a.elf"
    own = [it for it in (port / "common").glob("*.c") if it.name != "main.c"]
    subprocess.run(
        ["arm-none-eabi-gcc", "-mthumb", *CORES[core], "-std=c11", "-Os", "-ffunction-sections",
         "-fdata-sections", "-Wall", "-Wextra", "-Werror", f"-DPOET_BOARD={board}", f"-I{source}",
         f"-I{port / 'common'}", f"-I{port / chip}", f"-I{LOG.parent}", "-nostartfiles",
         "--specs=nano.specs", "--specs=nosys.specs", "-Wl,--gc-sections", "-Wl,--emit-relocs",
         "-Wl,--no-warn-rwx-segments",
         f"-L{port / 'common'}", f"-T{port / chip / f'{chip}.ld'}", PROGRAM, LOG,
         *source.glob("*.c"), *own, *(port / chip).glob("*.c"), "-lm", *options, "-o", elf],
        check=True,
    )  # fmt: skip
    return elf


def live(board: str, elf: Path, flash: Path, cut_at: int | None = None) -> list[str]:
    """Return the lines that a board sends until the flash operation `cut_at`, or to the end."""
    faults = [CardFault("flash_power_cut", cut_at)] if cut_at else []
    chip = SimulatedChip(board, elf, None, faults=faults, flash=flash)
    log, end = "", "slice"
    while end == "slice" and "operations" not in log:
        assert chip.meter.time_us < MOST_SECONDS * 1e6
        end = chip.run(chip.meter.tick_hz // 10)
        log += chip.take().decode()
    assert end == ("power cut" if cut_at else "slice"), (end, chip.message, log)
    return log.splitlines()


def replayed(lines: Sequence[str], folder: Path) -> None:
    """Raise an error unless `replay` computes the weights that the lines end with."""
    (folder / "log").write_text("\n".join(lines))
    names = ("log", "package", "trace.npz", "device.safetensors")
    log, package, trace, weights = (folder / name for name in names)
    subprocess.run(
        [sys.executable, LOG.with_suffix(".py"), log, package, "--trace", trace,
         "--weights", weights],
        check=True, capture_output=True,
    )  # fmt: skip
    step = api.step_of_weights(weights)
    device = api.load_weights(weights, packaged(Kind()).schedule.graph)
    host = api.replay(package, trace, steps=step)
    assert all(np.array_equal(host[name], device[name]) for name in device)


def cuts(board: str, count: int, seed: int) -> int:
    """Cut the power `count` times, and return how many flash operations a life has."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        elf = build(board, folder)
        whole = live(board, elf, folder / "flash")
        replayed(whole, folder)
        operations = int(whole[-1].split()[1])
        for cut_at in sorted(random.Random(seed).sample(range(1, operations), count)):
            (folder / "flash").unlink()
            first = live(board, elf, folder / "flash", cut_at)
            replayed([*first, *live(board, elf, folder / "flash")], folder)
    return operations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cuts", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    rows = [
        f"{board}: {given.cuts} cuts, at {cuts(board, given.cuts, given.seed):,} writes and erases"
        for board in BOARDS
    ]
    given.output.write_text(
        f"python -m fuzz.learner_chip_cuts --cuts {given.cuts} --seed {given.seed}\n"
        f"{date.today()}, commit {commit()}\n\n" + "\n".join(rows) + "\n\n"
        "Slices had budgets of 0 to 10 ms, with inferences between them, inside steps and saves. "
        "After\neach cut, the weights at the end of the training were those of `replay`.\n"
    )


if __name__ == "__main__":
    main()
