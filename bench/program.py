"""`make bench-program OPTIONS="BOARD FILE ..."`: measure other programs on a simulated chip.

Each FILE is a linked ELF image for the board's chip, at addresses that the board's linker script
allows. The program starts at its reset vector and ends with a BKPT instruction. It sets up the chip
by itself: without flash wait states (SAMD21) or with the instruction cache off (nRF52840), its
cycles are not those of the firmware. Two programs that call a function once and twice show the
cycles of a call as their difference. Prints a table, and writes no file.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from poet_host.errors import PoetError
from poet_host.firmware_build.ledger import RAM_START
from poet_host.firmware_build.recipe import simulated_boards
from poet_host.sim.simulated_chip import SimulatedChip

from .report import table

LIMIT_S = 100  # simulated


@dataclass(frozen=True)
class Measured:
    """What a program takes from reset to its breakpoint."""

    name: str
    cycles: int  # flash wait states included
    flash_bytes: int
    ram_bytes: int  # of all sections in RAM but the stack
    # Used, as seen where an instruction pushes or lowers the stack pointer by a constant. None: the
    # image has no symbol __stack_limit.
    stack_bytes: int | None


def measure(board: str, path: Path) -> Measured:
    """Run the image at `path` on the board's chip, without a card.

    Raises BadInput if the file is not an image for the chip; PoetError if the program faults,
    sleeps for ever or has no breakpoint within LIMIT_S simulated seconds.
    """
    chip = SimulatedChip(board, path, None)
    result = chip.run(LIMIT_S * chip.meter.tick_hz)
    if result != "breakpoint":
        why = chip.message or f"it ended with: {result}"
        raise PoetError(
            f"{path} reached no breakpoint within {LIMIT_S} simulated seconds ({why}): end the "
            "program with a BKPT instruction"
        )
    image, meter = chip.image, chip.meter
    limit = image.symbols.get("__stack_limit")
    top = int.from_bytes(image.flash()[1][:4], "little")
    return Measured(
        path.name,
        meter.cycles,
        sum(len(data) for _, data in image.segments),
        sum(size for at, size in image.sections.values() if at >= RAM_START and at != limit),
        None if limit is None else top - limit - meter.stack_free_bytes,
    )


def report(found: Sequence[Measured]) -> str:
    head = ["program", "cycles", "flash bytes", "RAM bytes without stack", "stack bytes used"]
    rows = [
        [
            each.name,
            f"{each.cycles:,}",
            f"{each.flash_bytes:,}",
            f"{each.ram_bytes:,}",
            "-" if each.stack_bytes is None else f"{each.stack_bytes:,}",
        ]
        for each in found
    ]
    return table(head, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench.program", description=__doc__)
    parser.add_argument("board", choices=simulated_boards(), help="the board with the chip")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a linked ELF image")
    options = parser.parse_args(arguments)
    try:
        print(report([measure(options.board, path) for path in options.files]))
    except PoetError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
