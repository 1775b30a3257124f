"""Commands about boards themselves: boards, build, flash."""

from pathlib import Path
from typing import Any

import click

from .. import api
from ..device.board import load_board
from ..device.board import names as board_names
from ..device.device import connect
from ..device.ports import SerialPort, board_of, find_port, runs_firmware, serial_ports
from ..errors import BadInput, PoetError
from ..files import write_whole
from ..firmware_build.flash import build as built
from ..firmware_build.native import linux_boards
from ..firmware_build.recipe import simulated_boards
from . import completion
from .console import emit, say, show_table
from .options import json_option, output, writable

NATIVE = "native"
ASK_PATIENCE_S = 2.0  # of a board that answers pings while it works


@click.command()
@click.option(
    "--port", "-p", metavar="PORT", shell_complete=completion.ports,
    help="Ask this port too, whatever is behind it.",
)  # fmt: skip
@json_option
def boards(port: str | None, as_json: bool) -> None:
    """List the boards that are known, and the serial ports with what is behind them.

    Only a port with the USB ids of a known board is asked who is there, and the one that is named.
    """
    ports = serial_ports()
    named = None if port is None else find_port(port) or SerialPort(port, "", "", "")
    if named is not None and named not in ports:
        ports.append(named)
    seen = [_port_facts(one, ask=one == named) for one in ports]
    known = [load_board(name) for name in board_names()]
    if as_json:
        found = [
            {
                "name": board.name,
                "title": board.title,
                "arena_bytes": board.arena_bytes,
                "processor_active_uw": board.processor_active_uw,
                "storage_read_uw": board.storage_read_uw,
                "storage_write_uw": board.storage_write_uw,
                "runs_here": board.name == NATIVE,
            }
            for board in known
        ]
        emit({"boards": found, "ports": seen})
        return
    show_table(
        ("board", ">arena, KiB", ">processor, mW", ">storage write, mW", "what it is"),
        [
            (
                board.name,
                f"{board.arena_bytes / 1024:,.0f}",
                f"{board.processor_active_uw / 1e3:,.1f}",
                f"{board.storage_write_uw / 1e3:,.1f}",
                board.title,
            )
            for board in known
        ],
    )
    if seen:
        show_table(
            ("port", "USB", "board", "answer", "what it is"),
            [
                (one["port"], one["usb"], one["board"] or "", one["answer"], one["description"])
                for one in seen
            ],
        )
    run_here = ", ".join(f"`sim:{name}`" for name in (*simulated_boards(), *linux_boards()))
    say(f"`native`, {run_here} run on this computer; schedules can be solved for all of them.")


def _port_facts(port: SerialPort, *, ask: bool) -> dict[str, Any]:
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
    if board is None and not runs_firmware(port) and not ask:
        return facts
    if board is not None and board.loading is not None and port.usb == board.loading.boot_loader:
        facts["answer"] = "its boot loader waits for `poet-host flash`"
        return facts
    try:
        with connect(port.path, timeout_s=0.5, patience_s=ASK_PATIENCE_S) as device:
            info = device.info
            facts["answer"] = f"{info.board} {info.unique_id}"
            facts["hello"] = {
                "board": info.board,
                "unique_id": info.unique_id,
                "arena_bytes": info.arena_bytes,
            }
    except PoetError as error:
        facts["answer"] = str(error)
    return facts


@click.command()
@click.argument("board", shell_complete=completion.boards)
@output("--output", "-o", "file", required=True, help="Where to write it.")
@json_option
def build(board: str, file: Path, as_json: bool) -> None:
    """Build the firmware of BOARD into a file: an ELF image to upload by other means than `flash`,
    or, for a board that runs Linux, the program that is its firmware."""
    writable(file)
    program = built(board)
    write_whole(file, program.read_bytes())
    file.chmod(program.stat().st_mode)
    say(f"wrote {file}: {file.stat().st_size:,} bytes")
    if as_json:
        emit({"board": board, "file": str(file), "bytes": file.stat().st_size})


@click.command()
@click.option(
    "--board", required=True, metavar="BOARD", shell_complete=completion.boards,
    help="The board's name, of `poet-host boards`.",
)  # fmt: skip
@click.option(
    "--port", "-p", default="auto", show_default=True, metavar="PORT",
    shell_complete=completion.ports,
    help="Where the board's firmware will answer; auto: the one port with the board's USB ids.",
)  # fmt: skip
@click.option("--upload-port", metavar="PORT", help="Where its loader is, if elsewhere.")
@click.option("--tool", metavar="PROGRAM", help="Upload with this one, not the first installed.")
@click.option(
    "--image",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Upload this ELF image; without it the firmware is built.",
)
@json_option
def flash(
    board: str,
    port: str,
    upload_port: str | None,
    tool: str | None,
    image: Path | None,
    as_json: bool,
) -> None:
    """Build the firmware, write it to a board, and check that the board answers."""
    if port == NATIVE or port.startswith("sim:"):
        raise BadInput(
            f"{port} runs on this computer and has its firmware already: name the port of a real "
            "board"
        )
    done = api.flash(board, port, upload_port=upload_port, tool=tool, image=image, report=say)
    say(f"{board} {done.info.unique_id} answers at {done.port}")
    if as_json:
        emit(
            {
                "board": board,
                "tool": done.tool,
                "port": done.port,
                "upload_port": done.upload_port,
                "flash_bytes": done.flash_bytes,
                "unique_id": done.info.unique_id,
                "arena_bytes": done.info.arena_bytes,
            }
        )
