"""Starting a board on this computer, and making the card that it has."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from shutil import disk_usage
from tempfile import TemporaryDirectory

from ..device import device as devices
from ..device.board import load_board
from ..errors import BadInput
from ..files import rename_whole
from ..firmware_build.bare_metal import build_firmware
from ..firmware_build.native import check_system, linux_boards
from ..sizes import as_bytes
from .board import SimulatedBoard
from .native import NativeBoard, create_storage
from .simulated_chip import CardFault, simulated_boards

TEMPORARY_STORAGE_BYTES = 1 << 30  # of a sparse file: it takes what is written


class start_board:  # noqa: N801 (a verb: used as a function)
    """A context manager that runs a board on this computer: `native`, one that runs Linux (its
    program, under QEMU where this computer is of another kind), or a simulated one.

    `storage` is its card's file, made by `prepare_storage`; None: a temporary one.
    `arena_bytes`, as 65536 or "64KiB", and `listen`, [ADDRESS:]PORT of a socket to speak at, are
    not for simulated chips, which have the RAM and the port that they have; `faults`, of the card,
    only for them.
    `alone`: as at power-up without a host, train by the job on the card, if there is one; else it
    waits for a host.
    `usb`: the port is that of a simulated chip's USB.
    """

    def __init__(
        self,
        board: str = "native",
        storage: Path | str | None = None,
        arena_bytes: int | str | None = None,
        faults: Sequence[CardFault] = (),
        listen: str | None = None,
        *,
        alone: bool = False,
        usb: bool = False,
    ) -> None:
        facts = load_board(board)
        check_system()
        programs = ("native", *linux_boards())
        known = (*programs, *simulated_boards())
        if board not in known:
            raise BadInput(f"{board} cannot be simulated: choose {' or '.join(known)}")
        if board not in programs and arena_bytes is not None:
            raise BadInput(
                f"{board} has the RAM of its chip: an arena size is for the board "
                f"{' or '.join(programs)}"
            )
        if board not in programs and listen is not None:
            raise BadInput(
                f"{board} has the serial port of its chip: a socket is for the board "
                f"{' or '.join(programs)}"
            )
        if board in programs and faults:
            raise BadInput(
                f"the card of the board {board} is a file and has no faults: choose "
                f"{' or '.join(simulated_boards())}"
            )
        if board in programs and usb:
            raise BadInput(
                f"the board {board} has no USB of its own: choose {' or '.join(simulated_boards())}"
            )
        self.board = board
        self.storage = storage
        self.faults = faults
        self.listen = listen
        self.usb = usb
        self.alone = alone
        self.arena_bytes = (
            facts.arena_bytes if arena_bytes is None else as_bytes(arena_bytes, "an arena of")
        )
        if not 4 <= self.arena_bytes < 2**32:
            raise BadInput(
                f"an arena of {self.arena_bytes:,} bytes: give it 4 bytes at least, and less than "
                "4 GiB"
            )

    def __enter__(self) -> NativeBoard | SimulatedBoard:
        with ExitStack() as stack:
            if self.storage is None:
                folder = stack.enter_context(
                    TemporaryDirectory(prefix="poet-", dir=_temporary_folder())
                )
                storage = Path(folder) / "card.img"
                prepare_storage(storage, TEMPORARY_STORAGE_BYTES)
            elif not (storage := Path(self.storage)).is_file():
                raise BadInput(
                    f"there is no storage file {storage}: make one with "
                    f"`poet-host storage prepare {storage}`"
                )
            board: NativeBoard | SimulatedBoard
            if self.board in simulated_boards():
                firmware = build_firmware(self.board)
                board = SimulatedBoard(
                    self.board,
                    firmware,
                    storage,
                    faults=self.faults,
                    alone=self.alone,
                    usb=self.usb,
                )
            else:
                board = NativeBoard(
                    storage, self.arena_bytes, board=self.board, listen=self.listen,
                    alone=self.alone,
                )  # fmt: skip
            stack.enter_context(board)
            self._stack = stack.pop_all()
            return board

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _temporary_folder() -> Path | None:
    """RAM, where there is enough: a card that is thrown away need not survive a power cut, and
    what a disk takes for a commit would drown every other time of a small step."""
    memory = Path("/dev/shm")
    if os.access(memory, os.W_OK) and disk_usage(memory).free >= TEMPORARY_STORAGE_BYTES:
        return memory
    return None


def prepare_storage(path: Path | str, size_bytes: int | str) -> None:
    """A card image with an empty store in a partition of its own; replaces the file, once it is
    whole. `size_bytes` may be text, as "64MiB".

    Raises BoardError if it is too small for a store.
    """
    check_system()
    whole = Path(os.path.realpath(path))
    with TemporaryDirectory(prefix=".poet-", dir=_existing(whole.parent)) as folder:
        image = Path(folder) / "card.img"
        create_storage(image, as_bytes(size_bytes, "a card of"))
        with NativeBoard(image) as board, devices.connect(board.port) as device:
            device.format()
        rename_whole(image, whole)


def _existing(folder: Path) -> Path:
    if not os.access(folder, os.W_OK | os.X_OK):
        raise BadInput(
            f"{folder} is no folder that can be written to: choose another one for the card's image"
        )
    return folder
