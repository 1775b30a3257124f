"""The command `flash`."""

from dataclasses import dataclass
from pathlib import Path

import click

from .. import api
from ..errors import BadInput
from . import completion
from .console import Answer, say
from .declared import option, takes
from .options import KERNELS_OF, kernels_of
from .written import WRITTEN_FILE


@dataclass(frozen=True, kw_only=True)
class FlashOptions:
    """The options of the command.

    --board BOARD  Name of the board. `poet-host boards` lists all boards.
    --port, -p PORT  Serial port at which the firmware answers after the upload. `auto` chooses the
        port that has the USB ids of the board, if there is exactly one.
    --upload-port PORT  Serial port of the boot loader, which receives the firmware. [default: same
        as --port]
    --tool PROGRAM  Upload the firmware with this program. [default: the first one installed]
    --image FILE  Upload this ELF image instead of a new build. A program of yours need not answer.
        [default: build the firmware]
    --recover  Erase the whole chip first. This opens the debug port of an nRF52840 that is closed.
    """

    board: str = option(shell_complete=completion.boards)
    port: str = option(default="auto", shell_complete=completion.ports)
    upload_port: str | None = None
    tool: str | None = None
    image: Path | None = option(type=WRITTEN_FILE)
    model: Path | None = KERNELS_OF
    recover: bool = False


@click.command()
@takes
def flash(given: FlashOptions) -> Answer:
    """Build the firmware, upload it, and check that the board answers."""
    if api.runs_here(given.port):
        raise BadInput(
            f"the board {given.port} runs on this computer and needs no upload. Name the port of a "
            "real board"
        )
    if given.image and given.model:
        raise BadInput("--model chooses kernels of a new build: leave it out, or leave out --image")
    done = api.flash(
        given.board, given.port, upload_port=given.upload_port, tool=given.tool,
        image=given.image, recover=given.recover, kernels=kernels_of(given.model), report=say,
    )  # fmt: skip
    info = done.info
    if info:
        say(f"{given.board} {info.unique_id} answers at {done.port}")
    else:
        say(f"written; {given.image} is a program of yours, so no answer is awaited")
    return Answer(
        {
            "board": given.board,
            "tool": done.tool,
            "port": done.port,
            "upload_port": done.upload_port,
            "flash_bytes": done.flash_bytes,
            "unique_id": info.unique_id if info else None,
            "arena_bytes": info.arena_bytes if info else None,
        }
    )
