"""Build the firmware of a board, write it to the board, and check that the board answers."""

from collections.abc import Collection
from pathlib import Path

from ..device.board import load_board
from ..errors import BadInput
from .bare_metal import build_firmware
from .image import read_elf
from .ledger import ledger_text, memory_ledger
from .native import build_native
from .upload import Flashed, Report, write_image
from .upload_tools import find_tool

_ANSWERS = "poet_serve"  # in src/server.c


def build(board: str, kernels: Collection[str] | None = None) -> Path:
    """Return the firmware of a board: an ELF image, or the program of a board that runs Linux.

    `kernels`: the names of the kernels that an ELF image has, such as Graph.kernels; None: all.
    Raises PoetError if the firmware cannot be built, and BadInput if a program for Linux should not
    have all kernels.
    """
    target = load_board(board).target
    if target or board == "native":
        if kernels is not None:
            raise BadInput(
                f"the program of {board} always has all kernels: build it without --model"
            )
        return build_native(target=target)
    return build_firmware(board, kernels)


def flash(
    board: str,
    port: str = "auto",
    *,
    upload_port: str | None = None,
    tool: str | None = None,
    image: Path | None = None,
    recover: bool = False,
    kernels: Collection[str] | None = None,
    report: Report = lambda message: None,
) -> Flashed:
    """Build the firmware of a board, write it, and check that the board answers.

    `image`: an existing ELF file to write; then no firmware is built. If it has not the function
    that answers hosts, it is a program of the user, and no answer is awaited. `kernels`: see build.
    `report` receives the memory ledger and a line for each step. `port`, `upload_port`, `tool`,
    `recover` and the errors are those of upload.write_image. Raises PoetError if the build fails.
    """
    found = load_board(board)
    find_tool(found, tool)  # raises the error for a missing tool before the build
    elf = image or build_firmware(board, kernels)
    written = read_elf(elf)
    start, data = written.flash()
    if image is None:
        report(ledger_text([memory_ledger(board, elf)]))
    return write_image(
        found,
        start,
        data,
        port,
        upload_port=upload_port,
        tool=tool,
        recover=recover,
        answers=_ANSWERS in written.symbols,
        report=report,
    )
