"""The native board: the firmware as a process on this computer, with a file as its card."""

import errno
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from .. import isa
from ..device.board import load_board
from ..errors import BadInput, PoetError
from ..firmware_build.native import build_native, runner
from ..temporary import locked
from .running import RunningBoard

DEFAULT_ARENA_BYTES = 24 * 1024
BLOCK_BYTES = isa.constants()["POET_BLOCK"]
PARTITION_TYPE = isa.constants()["POET_PARTITION_TYPE"]
# First block of the partition: it begins an allocation unit of the card.
PARTITION_START = isa.constants()["POET_UNIT_BLOCKS"]
MOST_BLOCKS = 0xFFFFFFFF  # an MBR counts blocks with 32 bits
_COPY_BYTES = 1 << 16  # bytes of a card image that are copied at a time


def create_storage(path: Path, size_bytes: int) -> None:
    """Write an empty card image: an MBR, and one poet partition in the rest of it.

    The file is sparse. Device.format writes a store to the partition. Raises BadInput if the size
    is too small or too large, OSError if the file cannot be written.
    """
    blocks = size_bytes // BLOCK_BYTES - PARTITION_START
    if size_bytes // BLOCK_BYTES > MOST_BLOCKS:
        raise BadInput(
            f"a storage file of {size_bytes:,} bytes is too large: use at most "
            f"{MOST_BLOCKS * BLOCK_BYTES:,} bytes, the limit of an MBR"
        )
    if blocks < 1:
        raise BadInput(
            f"a storage file of {size_bytes:,} bytes has no room for a partition: "
            f"use more than {(PARTITION_START + 1) * BLOCK_BYTES:,} bytes"
        )
    entry = struct.pack("<BxxxBxxxII", 0, PARTITION_TYPE, PARTITION_START, blocks)
    mbr = bytes(446) + entry + bytes(48) + b"\x55\xaa"
    with path.open("wb") as file:
        file.write(mbr)
        file.truncate(size_bytes // BLOCK_BYTES * BLOCK_BYTES)


@contextmanager
def unused_storage(path: Path) -> Iterator[FileIO]:
    """Open a card image. No board can use the image until the end of the `with` block.

    Raises PoetError if a board uses the image, OSError if it cannot be opened.
    """
    with path.open("rb+", buffering=0) as image:
        if not locked(image.fileno()):
            raise PoetError(
                f"another board uses the card image {path}: stop that board, or name another image"
            )
        yield image


def copy_storage(image: FileIO, copy: Path) -> None:
    """Copy a card image. Blocks of zeros need no space in the copy.

    Raises OSError if a file cannot be read or written.
    """
    zeros = bytes(_COPY_BYTES)
    with copy.open("wb") as file:
        file.truncate(image.seek(0, os.SEEK_END))
        for begin, end in _written_ranges(image):
            image.seek(begin)
            while data := image.read(min(_COPY_BYTES, end - begin)):
                if data != zeros:
                    file.seek(begin)
                    file.write(data)
                begin += len(data)


def _written_ranges(file: FileIO) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a file that are not holes, which contain only zeros."""
    end = 0
    while True:
        try:
            begin = file.seek(end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # no data follows
                return
            raise
        end = file.seek(begin, os.SEEK_HOLE)
        yield begin, end


class NativeBoard(RunningBoard):
    """A running native board.

    `board` is `native`, or one of `linux_boards`, whose program then runs. If the storage file is
    missing, too small or has no poet partition, `storage_status` in poet_hello reports this.
    `listen`: [ADDRESS:]PORT of a socket that replaces the serial port; then `port` is its URL, with
    the token that hosts need. `idle_s`: seconds after which the socket disconnects a silent host if
    another host waits. `alone`: execute the training job on the card, if there is one, before the
    first request of a host.
    """

    def __init__(
        self,
        storage: Path,
        arena_bytes: int = DEFAULT_ARENA_BYTES,
        sanitize: bool = False,
        unique_id: str = "native",
        board: str = "native",
        listen: str | None = None,
        alone: bool = False,
        idle_s: int = 60,
    ) -> None:
        target = load_board(board).target
        program = build_native(sanitize, target)
        launcher = runner(target)
        self.is_emulated = bool(launcher)
        command = [*launcher, str(program), "--storage", str(storage)]
        command += ["--arena", str(arena_bytes), "--board", board, "--id", unique_id]
        command += ["--alone"] if alone else []
        command += [] if listen is None else ["--listen", listen, "--idle", str(idle_s)]
        super().__init__(command)
        if not self.port:
            message = self.ended or ""
            if "cannot listen there" in message:
                raise BadInput(
                    f"{listen}: {message}: name a free port of this computer, such as 3333"
                )
            if "POET_TOKEN must" in message:
                raise BadInput(
                    f"{message.splitlines()[0]}: change POET_TOKEN, or unset it for a random token"
                )
            raise PoetError(f"the native board did not start: {message}")
