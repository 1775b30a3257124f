"""The command `build`."""

from pathlib import Path

import click

from ..files import write_whole
from ..firmware_build.flash import build as built
from . import completion
from .console import emit, say
from .options import json_option, output, writable


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
