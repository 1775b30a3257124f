"""The command `simulate`."""

import time
from pathlib import Path

import click

from .. import api
from ..errors import PoetError
from ..sim.board import POWER_CUT
from ..sim.chipfile import DEFAULT_CARD, load_cards
from ..sim.simulated_chip import FAULT_KINDS, CardFault
from ..sizes import size_bytes
from . import completion
from .console import emit, say, show_text
from .options import json_option, storage_option
from .signals import stop_requests


@click.command()
@click.argument("board", shell_complete=completion.boards)
@click.option(
    "--arena", metavar="SIZE", show_default="the arena of the board",
    help="RAM for tensors: bytes, or a size such as 24KiB. Only for native and boards that run "
    "Linux.",
)  # fmt: skip
@click.option(
    "--listen", metavar="[ADDRESS:]PORT", show_default="a serial port",
    help="Listen at a TCP port, for hosts on other computers. Without an ADDRESS, only this "
    "computer can connect. Hosts need the token in the printed URL. The variable POET_TOKEN sets "
    "it; else it is random. A host without a request for 60 s is disconnected when another one "
    "waits. Only for native and boards that run Linux.",
)  # fmt: skip
@click.option(
    "--card-fault", "faults", multiple=True, metavar="KIND:FIRST[:TIMES[:ARGUMENT]]",
    show_default="none",
    help="Make TIMES accesses of the card fail, from access number FIRST on. Each block that is "
    "read or written is one access; the first one has number 1. KIND: "
    f"{', '.join(FAULT_KINDS)}. ARGUMENT depends on KIND: the delay in microseconds of a slow "
    "block, the number of bytes that a torn write keeps, the number of blocks that a misdirected "
    "write is too far, the bit that a flipped write inverts, the number of blocks until a late "
    "error is reported (0: only in the status), or 1 if a power cut destroys the erase group.",
)  # fmt: skip
@click.option(
    "--card", metavar="NAME", show_default=f"that of the board, {DEFAULT_CARD}",
    help="Simulate this card. NAME: " + ", ".join(load_cards()) + ".",
)  # fmt: skip
@click.option("--usb", is_flag=True, help="Connect to the USB of the chip, not to its UART.")
@storage_option
@json_option
def simulate(
    board: str,
    arena: str | None,
    listen: str | None,
    faults: tuple[str, ...],
    card: str | None,
    usb: bool,
    storage: Path | None,
    as_json: bool,
) -> int:
    """Start BOARD on this computer and print its serial port.

    BOARD is one of: `native`; a board whose chip is simulated (mkr1000); a Linux board, which QEMU
    runs (rpi4b). The board runs until Ctrl-C.
    """
    size = None if arena is None else size_bytes(arena, "--arena")
    card_faults = [CardFault.parse(text) for text in faults]
    with (
        stop_requests("stopping the board") as signal_received,
        api.start_board(
            board, storage, size, card_faults, listen, alone=True, usb=usb, card_name=card
        ) as running,
    ):
        if as_json:
            emit({"port": running.port})
        else:
            show_text(running.port)
        say("the board runs until Ctrl-C")
        while not signal_received() and running.process.poll() is None:
            time.sleep(0.1)
        if signal_received():
            return 0
        reason = running.ended
    if reason == POWER_CUT:
        kept = (
            f"Its committed steps are on {storage}"
            if storage
            else "Its temporary card is deleted: use --storage to keep one"
        )
        message = f"--card-fault cut the power of {board}. {kept}"
    else:
        message = f"the board {board} stopped: {reason}"
    say(f"poet-host: {message}")  # no JSON: stdout already has its one object, the port
    return PoetError.exit_code
