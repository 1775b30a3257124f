"""The command `simulate`."""

import time
from pathlib import Path

import click

from .. import api
from ..errors import PoetError
from ..sim.board import POWER_CUT
from ..sim.simulated_chip import FAULT_KINDS, CardFault
from ..sizes import size_bytes
from . import completion
from .console import emit, say, show_text
from .options import json_option, storage_option
from .signals import interrupts


@click.command()
@click.argument("board", shell_complete=completion.boards)
@click.option(
    "--arena", metavar="SIZE",
    help="RAM for tensors, as 24KiB; of native and of boards that run Linux.",
)  # fmt: skip
@click.option(
    "--listen", metavar="[ADDRESS:]PORT",
    help="Speak at a socket, for hosts on other computers, in place of a serial port; without an "
    "ADDRESS only to this computer. Whoever reaches it can use the board. Of native and of boards "
    "that run Linux.",
)  # fmt: skip
@click.option(
    "--card-fault", "faults", multiple=True, metavar="KIND:FIRST[:TIMES[:ARGUMENT]]",
    help=f"From its FIRST block on the card misbehaves for TIMES blocks: {', '.join(FAULT_KINDS)}; "
    "ARGUMENT: microseconds of a slow block, bytes that a torn write keeps, 1 if a power cut takes "
    "the erase group along. Reads and writes count from 1 since the start, each on their own.",
)  # fmt: skip
@click.option("--usb", is_flag=True, help="The port is that of the chip's USB, not of its UART.")
@storage_option
@json_option
def simulate(
    board: str,
    arena: str | None,
    listen: str | None,
    faults: tuple[str, ...],
    usb: bool,
    storage: Path | None,
    as_json: bool,
) -> int:
    """Start a board on this computer, print its port, run until interrupted.

    BOARD: native, a board that runs Linux (rpi4b; QEMU executes its program), or one whose chip is
    simulated (mkr1000).
    """
    size = None if arena is None else size_bytes(arena, "--arena")
    wanted = [CardFault.parse(text) for text in faults]
    with (
        interrupts("stopping the board") as asked,
        api.start_board(board, storage, size, wanted, listen, alone=True, usb=usb) as running,
    ):
        if as_json:
            emit({"port": running.port})
        else:
            show_text(running.port)
        say("the board runs until Ctrl-C")
        while not asked() and running.process.poll() is None:
            time.sleep(0.1)
        if asked():
            return 0
        reason = running.ended
    what = f"the board {board} ended by itself: {reason}"
    if reason == POWER_CUT:
        what = f"the power of {board} was cut, as asked: what it had committed is on the card" + (
            f" {storage}" if storage else ", which is gone too: keep one with --storage"
        )
    say(f"poet-host: {what}")  # as errors are, but stdout has its one object: the port
    return PoetError.exit_code
