"""The command `boards`."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from .. import api
from ..errors import BadInput
from . import completion
from .console import Answer, say, show_table
from .declared import option, takes


@click.command()
@takes
def boards(
    port: str | None = option(shell_complete=completion.ports),
) -> Answer:
    """List the known boards and the serial ports.

    Queries the port that --port names, and each port that has the USB ids of a known board. Sends
    nothing to other ports.

    --port, -p PORT  Query this port in addition to the ports with known USB ids. [default: ports
        with known USB ids]
    """
    if port is not None and api.runs_here(port):
        raise BadInput(
            f"the board {port} runs on this computer only during a command: check it with "
            f"`poet-host doctor --port {port}`"
        )
    ports = api.ports(port)
    known = [api.load_board(name) for name in api.board_names()]
    rows = [
        {
            "name": board.name,
            "title": board.title,
            "arena_bytes": board.arena_bytes,
            "processor_active_uw": board.power.processor_active_uw,
            "storage_read_uw": board.power.storage_read_uw,
            "storage_write_uw": board.power.storage_write_uw,
            "runs_here": board.name == "native",
        }
        for board in known
    ]
    facts = {"boards": rows, "ports": [asdict(found) for found in ports]}
    return Answer(facts, lambda: _show(known, ports))


def _show(known: Sequence[Any], ports: Sequence[Any]) -> None:
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
    if ports:
        show_table(
            ("port", "USB", "board", "answer", "description"),
            [(it.port, it.usb, it.board or "", it.answer, it.description) for it in ports],
        )
    run_here = ", ".join(f"`{name}`" for name in api.ports_here() if not name.endswith(":usb"))
    say(f"These boards run on this computer: {run_here}. `solve` makes schedules for all boards.")
