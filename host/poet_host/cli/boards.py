"""The command `boards`."""

from collections.abc import Sequence
from typing import Any

import click

from .. import api
from ..device.board import Board
from ..device.device import connect
from ..device.health import is_unwanted, reset_text
from ..device.ports import SerialPort, board_of, find_port, runs_firmware, serial_ports
from ..errors import PoetError
from ..firmware_build.native import linux_boards
from ..firmware_build.recipe import simulated_boards
from . import completion
from .console import emit, say, show_table
from .declared import option, takes
from .options import JSON

NATIVE = "native"
REPLY_PATIENCE_S = 2.0  # longest wait for a reply: a board replies late while it computes


@click.command()
@takes
def boards(
    port: str | None = option(
        "--port", "-p", metavar="PORT", shell_complete=completion.ports,
        show_default="ports with known USB ids",
        help="Query this port in addition to the ports with known USB ids.",
    ),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """List the known boards and the serial ports.

    Queries the port that --port names, and each port that has the USB ids of a known board. Sends
    nothing to other ports.
    """
    ports = serial_ports()
    named = None if port is None else find_port(port) or SerialPort(port, "", "", "")
    if named is not None and named not in ports:
        ports.append(named)
    port_rows = [_port_facts(found, query=found == named) for found in ports]
    known = [api.load_board(name) for name in api.board_names()]
    if as_json:
        board_rows = [
            {
                "name": board.name,
                "title": board.title,
                "arena_bytes": board.arena_bytes,
                "processor_active_uw": board.power.processor_active_uw,
                "storage_read_uw": board.power.storage_read_uw,
                "storage_write_uw": board.power.storage_write_uw,
                "runs_here": board.name == NATIVE,
            }
            for board in known
        ]
        emit({"boards": board_rows, "ports": port_rows})
        return
    _show(known, port_rows)


def _show(known: Sequence[Board], port_rows: Sequence[dict[str, Any]]) -> None:
    """Print a table of the boards, and one of the ports."""
    show_table(
        ("board", ">arena, KiB", ">processor, mW", ">storage write, mW", "description"),
        [
            (
                board.name,
                f"{board.arena_bytes / 1024:,.0f}",
                f"{board.power.processor_active_uw / 1e3:,.1f}",
                f"{board.power.storage_write_uw / 1e3:,.1f}",
                board.title,
            )
            for board in known
        ],
    )
    if port_rows:
        show_table(
            ("port", "USB", "board", "answer", "description"),
            [
                (row["port"], row["usb"], row["board"] or "", row["answer"], row["description"])
                for row in port_rows
            ],
        )
    run_here = ", ".join(f"`sim:{name}`" for name in (*simulated_boards(), *linux_boards()))
    say(
        f"These boards run on this computer: `native`, {run_here}. `solve` makes schedules for all "
        "boards."
    )


def _port_facts(port: SerialPort, *, query: bool) -> dict[str, Any]:
    """Return the known facts about a port, as a map from JSON keys to values.

    A port without known USB ids is queried only if `query` is True.
    """
    board = board_of(port)
    facts: dict[str, Any] = {
        "port": port.path,
        "usb": port.usb,
        "serial_number": port.serial_number,
        "description": port.description,
        "board": board.name if board else None,
        "answer": "not asked",
        "hello": None,
    }
    if board is None and not runs_firmware(port) and not query:
        return facts
    if board is not None and board.loading is not None and port.usb == board.loading.boot_loader:
        facts["answer"] = "its boot loader waits for `poet-host flash`"
        return facts
    try:
        with connect(port.path, timeout_s=0.5, patience_s=REPLY_PATIENCE_S) as device:
            info = device.info
            facts["answer"] = f"{info.board} {info.unique_id}"
            if is_unwanted(health := device.health()):
                facts["answer"] += f". {reset_text(health)}"
            facts["hello"] = {
                "board": info.board,
                "unique_id": info.unique_id,
                "arena_bytes": info.arena_bytes,
            }
    except PoetError as error:
        facts["answer"] = str(error)
    return facts
