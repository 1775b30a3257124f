"""The command `flash`."""

from pathlib import Path

import click

from .. import api
from ..errors import BadInput
from . import completion
from .console import emit, say
from .options import json_option

NATIVE = "native"


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
