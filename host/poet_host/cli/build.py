"""The command `build`."""

from pathlib import Path

import click

from .. import api
from ..files import write_whole
from . import completion
from .console import Answer, say
from .declared import argument, takes
from .options import KERNELS_OF, kernels_of
from .written import check_writable, output_file


@click.command()
@takes
def build(
    board: str = argument(shell_complete=completion.boards),
    file: Path = output_file("--output"),
    model: Path | None = KERNELS_OF,
) -> Answer:
    """Write the firmware of BOARD to a file.

    The file is an ELF image, which `poet-host flash` and other tools can upload. For a board that
    runs Linux, the file is an executable program.

    --output, -o FILE  Write the firmware to this file.
    """
    check_writable(file, read=(model,))
    program = api.build(board, kernels_of(model))
    image = program.read_bytes()
    write_whole(file, image, program.stat().st_mode & 0o777)
    say(f"wrote {file}: {len(image):,} bytes")
    return Answer({"board": board, "file": str(file), "bytes": len(image)})
