"""The command `build`."""

from pathlib import Path

import click

from ..files import write_whole
from ..firmware_build.flash import build as build_for
from . import completion
from .console import emit, say
from .options import check_writable, json_option, output


@click.command()
@click.argument("board", shell_complete=completion.boards)
@output("--output", "-o", "file", required=True, help="Write the firmware to this file.")
@json_option
def build(board: str, file: Path, as_json: bool) -> None:
    """Write the firmware of BOARD to a file.

    The file is an ELF image, which `poet-host flash` and other tools can upload. For a board that
    runs Linux, the file is an executable program.
    """
    check_writable(file)
    program = build_for(board)
    image = program.read_bytes()
    write_whole(file, image, program.stat().st_mode & 0o777)
    say(f"wrote {file}: {len(image):,} bytes")
    if as_json:
        emit({"board": board, "file": str(file), "bytes": len(image)})
