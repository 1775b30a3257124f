"""The command `simulate`."""

import time
from dataclasses import dataclass
from pathlib import Path

import click

from .. import api
from ..errors import BadInput, PoetError
from ..sim.board import SimulatedBoard
from ..sim.chipfile import DEFAULT_CARD, load_cards
from ..sim.running import POWER_CUT
from ..sim.simulated_chip import FAULT_KINDS
from ..sizes import size_bytes
from . import completion
from .console import emit, say, show_text
from .declared import argument, option, takes
from .options import STORAGE
from .signals import stop_requests


@dataclass(frozen=True, kw_only=True)
class SimulateOptions:
    """The options of the command.

    --arena SIZE  RAM for tensors: bytes, or a size such as 24KiB. Only for native and boards that
        run Linux. [default: the arena of the board]
    --listen [ADDRESS:]PORT  Listen at a TCP port, for hosts on other computers. Without an ADDRESS,
        only this computer can connect. Hosts need the token in the printed URL. The environment
        variable POET_TOKEN sets the token; if it is not set, the token is random. A host that has
        sent no request for 60 s is disconnected if another host waits. Only for native and boards
        that run Linux. [default: a serial port]
    --no-card  Simulate a chip without a card. --storage names the file that keeps the content of
        its flash: it need not exist.
    --image APP.elf  Run your own program on the simulated chip. --for ends it. [default: the
        firmware]
    --sensor FILE.csv  Move the board's accelerometer: columns time_s (seconds since power-on), ax,
        ay and az (g). Each row holds until the next one, and the last one for ever. [default: it
        lies still]
    --button TIME:DURATION  Press the board's button, such as 3.5s:200ms: 3.5 s after power-on, for
        200 ms. [default: none]
    --for TIME  Stop after this simulated time, such as 10s. [default: until Ctrl-C]
    --usb  Connect to the chip by USB, not by UART.
    """

    board: str = argument(shell_complete=completion.boards)
    arena: str | None = None
    listen: str | None = None
    faults: tuple[str, ...] = option(
        "--card-fault", multiple=True, metavar="KIND:FIRST[:TIMES[:ARGUMENT]]", show_default="none",
        help="Let the simulated card fail at block FIRST, or at TIMES blocks from block FIRST "
        "on. Blocks are counted from 1, in the order in which the board accesses them: read "
        "blocks for slow_read, read_error and read_crc, written blocks for all other kinds. For "
        "flash_power_cut, the erases and writes of the chip's own flash are counted. KIND: "
        f"{', '.join(FAULT_KINDS)}. ARGUMENT depends on KIND: the delay in microseconds "
        "(slow_read, slow_write), the number of bytes that are stored (torn_write), how many "
        "blocks too far the block is stored (misdirected_write), the number of the bit that is "
        "inverted (flipped_write), how many blocks later the error is reported (late_error; 0: "
        "only in the card's status), or 1 to destroy the whole erase group too (power_cut).",
    )  # fmt: skip
    card: str | None = option(
        metavar="NAME", show_default=f"that of the board, {DEFAULT_CARD}",
        help=f"Simulate one of these cards: {', '.join(load_cards())}.",
    )  # fmt: skip
    no_card: bool = False
    image: Path | None = None
    sensor: Path | None = None
    buttons: tuple[str, ...] = option("--button")
    run_for: str | None = option("--for")
    usb: bool = False
    storage: Path | None = STORAGE
    as_json: bool


@click.command()
@takes
def simulate(given: SimulateOptions) -> int:
    """Start BOARD on this computer and print its serial port.

    BOARD is `native`, a board with a simulated chip (such as mkr1000), or a board that runs Linux
    in QEMU (such as rpi4b). The board runs until Ctrl-C.

    With --image, --sensor, --button or --for, simulated time goes on without a host. Changes of
    the LED of a board with a sensor are then printed, with their time since power-on.
    """
    size = None if given.arena is None else size_bytes(given.arena, "--arena")
    with (
        stop_requests("stopping the board") as signal_received,
        api.start_board(
            given.board,
            given.storage,
            size,
            given.faults,
            given.listen,
            alone=True,
            usb=given.usb,
            card_name=given.card,
            card=not given.no_card,
            program=given.image,
            sensor=given.sensor,
            button=given.buttons,
            run_for=given.run_for,
        ) as running,
    ):
        if given.no_card and not isinstance(running, SimulatedBoard):
            raise BadInput(f"--no-card: {given.board} is not a simulated chip: omit --no-card")
        if given.as_json:
            emit({"port": running.port})
        else:
            show_text(running.port)
        say(f"the board runs {f'for {given.run_for}' if given.run_for else 'until Ctrl-C'}")
        is_running = True
        while is_running:
            is_running = not signal_received() and running.process.poll() is None
            if isinstance(running, SimulatedBoard) and (changes := running.led_changes()):
                (say if given.as_json else show_text)(changes.rstrip())
            time.sleep(0.1 * is_running)
        if signal_received() or running.process.poll() == 0:
            if isinstance(running, SimulatedBoard) and given.run_for:
                say(_energy_text(running))
            return 0
        reason = running.ended
    if reason == POWER_CUT:
        kept = (
            f"Its committed steps are on {given.storage}"
            if given.storage
            else "Its temporary storage is deleted: use --storage to keep one"
        )
        message = f"--card-fault cut the power of {given.board}. {kept}"
    else:
        message = f"the board {given.board} stopped: {reason}"
    say(f"poet-host: {message}")  # on stderr, since with --json, stdout may have only one object
    return PoetError.exit_code


def _energy_text(board: SimulatedBoard) -> str:
    energy, ms = board.energy, board.meter.time_us / 1e3
    processor_uj = energy.processor_active_uj + energy.processor_asleep_uj
    return (
        f"{ms:,.0f} ms simulated: {energy.total_uj:,.0f} uJ, of which the processor "
        f"{processor_uj:,.0f} uJ and the sensor {energy.sensor_uj:,.0f} uJ"
    )
