"""The command `flash`."""

from pathlib import Path

import click

from .. import api
from ..errors import BadInput
from . import completion
from .console import emit, say
from .options import json_option


@click.command()
@click.option(
    "--board", required=True, metavar="BOARD", shell_complete=completion.boards,
    help="Name of the board. `poet-host boards` lists all boards.",
)  # fmt: skip
@click.option(
    "--port", "-p", default="auto", show_default=True, metavar="PORT",
    shell_complete=completion.ports,
    help="Serial port at which the firmware answers after the upload. `auto` chooses the port that "
    "has the USB ids of the board, if there is exactly one.",
)  # fmt: skip
@click.option(
    "--upload-port", metavar="PORT", show_default="same as --port",
    help="Serial port of the boot loader, which receives the firmware.",
)  # fmt: skip
@click.option(
    "--tool", metavar="PROGRAM", show_default="the first one installed",
    help="Upload the firmware with this program.",
)  # fmt: skip
@click.option(
    "--image", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    show_default="build the firmware", help="Upload this ELF image instead of a new build.",
)  # fmt: skip
@click.option(
    "--recover", is_flag=True,
    help="Erase the whole chip first. This opens the debug port of an nRF52840 that is closed.",
)  # fmt: skip
@json_option
def flash(
    board: str,
    port: str,
    upload_port: str | None,
    tool: str | None,
    image: Path | None,
    recover: bool,
    as_json: bool,
) -> None:
    """Build the firmware, upload it, and check that the board answers."""
    if api.runs_here(port):
        raise BadInput(
            f"the board {port} runs on this computer and needs no upload. Name the port of a real "
            "board"
        )
    done = api.flash(
        board, port, upload_port=upload_port, tool=tool, image=image, recover=recover, report=say
    )
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
