"""Start a board on this computer, and prepare the image of its card."""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from shutil import disk_usage
from tempfile import TemporaryFile, gettempdir

from ..device import device as devices
from ..device.board import load_board
from ..errors import BadInput, BoardError, PoetError
from ..files import replacement, target
from ..firmware_build.bare_metal import build_firmware
from ..firmware_build.image import read_elf
from ..firmware_build.native import check_system, linux_boards
from ..firmware_build.recipe import simulated_boards
from ..sizes import size_bytes
from ..temporary import remove_leftovers, temporary_file
from .board import SimulatedBoard
from .chipfile import load_card, load_chip
from .native import NativeBoard, copy_storage, create_storage, unused_storage
from .scene import Scene, in_c, press, seconds
from .simulated_chip import CardFault

TEMPORARY_STORAGE_BYTES = 1 << 30  # size of a sparse file: only written blocks need space
_PROBE_BYTES = 1 << 16  # of a file that shows whether a disk is full
_TEMPORARY_CARD = "poet-card-"  # name prefix of the folders of temporary cards
_RAM = Path("/dev/shm")  # on Linux, the folder of files in RAM


def start_board(
    board: str = "native",
    storage: Path | str | None = None,
    arena_bytes: int | str | None = None,
    faults: Sequence[CardFault | str] = (),
    listen: str | None = None,
    *,
    alone: bool = False,
    usb: bool = False,
    card_name: str | None = None,
    card: bool = True,
    program: Path | None = None,
    sensor: Path | None = None,
    button: Sequence[str] = (),
    run_for: str | None = None,
) -> AbstractContextManager[NativeBoard | SimulatedBoard]:
    """Run a board on this computer until the end of a `with` block.

    `board`: `native`, a board that runs Linux, or a board with a simulated chip. QEMU runs a Linux
    board's program if this computer has another processor. `storage`: the card's file from
    `prepare_storage`; None for a temporary card. `alone`: do not wait for a host, and execute the
    training job on the card if there is one.

    Simulated chips have fixed RAM and ports. All other boards accept `arena_bytes` (RAM for
    tensors, such as 65536 or "64KiB") and `listen` ([ADDRESS:]PORT of a socket that replaces the
    serial port; its URL contains the token that hosts need). Only simulated chips accept `faults`
    of the card, `card_name` (a card of sim/cards.toml; None: the board's usual card), and `usb`
    (connect to the chip's USB, not to its UART). If `card` is False, a simulated chip has no card,
    and `storage` is the file that keeps its flash: it need not exist (None: a temporary one). A
    board without a card slot has a card only if `card_name` names one.

    `program`: ELF file of a program of your own, which runs instead of the firmware. `sensor`: CSV
    file that moves the board's accelerometer (columns time_s, ax, ay, az; seconds and g). `button`:
    presses such as "3.5s:200ms". `run_for`: simulated time after which the board stops, such as
    "10s". With any of these, time passes while the program sleeps.
    """
    failing = [CardFault.parse(it) if isinstance(it, str) else it for it in faults]
    scene = None
    if program or sensor or button or run_for is not None:
        until_s = None if run_for is None else seconds(run_for, "the simulated time")
        if until_s == 0:
            raise BadInput(f"the simulated time {run_for!r} is 0: write, for example, 10s")
        scene = Scene(str(sensor) if sensor else None, tuple(map(press, button)), until_s)
    facts = load_board(board)
    check_system()
    is_chip = _is_chip(
        board,
        ("arena size", False, arena_bytes is not None),
        ("socket", False, listen is not None),
        ("card faults", True, bool(faults)),
        ("card", True, card_name is not None),
        ("USB", True, usb),
        ("program, sensor, button or simulated time", True, scene is not None),
    )
    if card_name is not None:
        load_card(card_name)
    ram_bytes = size_bytes(facts.arena_bytes if arena_bytes is None else arena_bytes, "an arena of")
    if not 4 <= ram_bytes < 2**32:
        raise BadInput(
            f"an arena of {ram_bytes:,} bytes is impossible: use at least 4 bytes, and less than "
            "4 GiB"
        )

    if program is not None:
        read_elf(program)
    if scene is not None:
        in_c(scene, board)  # report errors before a board starts

    def native(image: Path) -> NativeBoard:
        return NativeBoard(image, ram_bytes, board=board, listen=listen, alone=alone)

    def simulated(image: Path | None, flash: Path | None = None) -> SimulatedBoard:
        chosen = {"name": card_name} if card_name else {}
        return SimulatedBoard(
            board, program or build_firmware(board), image, faults=failing, card=chosen,
            alone=alone, usb=usb, flash=flash, scene=scene,
        )  # fmt: skip

    if is_chip and card_name is None:
        card = card and load_chip(board).card is not None
    if card or not is_chip:
        return _running(storage, simulated if is_chip else native)
    if card_name is not None:
        raise BadInput(f"the board {board} has no card now: omit {card_name}")
    return simulated(None, None if storage is None else Path(storage))


def _is_chip(board: str, *options: tuple[str, bool, bool]) -> bool:
    """Return True if the board is a simulated chip, and False if it is a program.

    `options`: of each, whether chips have it (and programs have not), and whether it is given.
    Raises BadInput if the board is neither, or has not an option that is given.
    """
    programs, chips = ("native", *linux_boards()), simulated_boards()
    if board not in (*programs, *chips):
        raise BadInput(
            f"the board {board} cannot be simulated: choose one of {', '.join((*programs, *chips))}"
        )
    for option, of_chips, is_given in options:
        if is_given and of_chips != (board in chips):
            raise BadInput(
                f"the board {board} has no option {option}: remove the option, or choose one of "
                f"{', '.join(chips if of_chips else programs)}"
            )
    return board in chips


@contextmanager
def _running(
    storage: Path | str | None, start: Callable[[Path], NativeBoard | SimulatedBoard]
) -> Iterator[NativeBoard | SimulatedBoard]:
    _remove_temporary_cards()
    with ExitStack() as stack:
        if storage is None:
            card = stack.enter_context(_temporary_card())
        elif not (card := Path(storage)).is_file():
            raise BadInput(
                f"there is no storage file {card}: make one with `poet-host storage prepare {card}`"
            )
        running = start(card)
        stack.enter_context(running)
        with _full_disk_reported(card):
            yield running


def _remove_temporary_cards() -> None:
    """Remove the temporary cards of hosts that were killed."""
    for folder in (_RAM, Path(gettempdir())):
        remove_leftovers(folder, _TEMPORARY_CARD)


@contextmanager
def _temporary_card() -> Iterator[Path]:
    """Yield a temporary card image, in RAM if there is room, else on a disk.

    RAM is faster: on a disk, the writes that save the result of a small step would take longer than
    the rest of the step. A power cut may destroy the image, which is acceptable: the image is
    deleted after the `with` block anyway.
    """
    in_memory = os.access(_RAM, os.W_OK) and disk_usage(_RAM).free >= TEMPORARY_STORAGE_BYTES
    folder = _RAM if in_memory else Path(gettempdir())
    with ExitStack() as stack:
        try:
            card = stack.enter_context(temporary_file(folder, _TEMPORARY_CARD))
            _prepare(card, TEMPORARY_STORAGE_BYTES)
        except OSError as error:
            raise PoetError(
                f"a temporary card cannot be written to {folder} ({error.strerror}): free some "
                "space in this folder, or name a card image with --storage"
            ) from error
        yield card


def prepare_storage(path: Path | str, size_bytes: int | str) -> None:
    """Write a card image with a partition, formatted for a board and still empty.

    `size_bytes`: a number, or a text such as "64MiB". A file at `path` is replaced when the image
    is complete. Raises BoardError if the image is too small to be formatted.
    """
    with new_storage(Path(path), size_bytes):
        pass


@contextmanager
def new_storage(
    path: Path, size_bytes: int | str | None, lay_out: Callable[[Path], object] | None = None
) -> Iterator[Path]:
    """Yield the path of a new card image, which is renamed to `path` after the `with` block.

    If the block fails, or the process is killed, a file at `path` stays as it was. The new image is
    empty and has `size_bytes`, or has what `lay_out` writes. Otherwise it is a copy of the one at
    `path`. No board can use a file at `path` during the block. Raises PoetError if one does.
    """
    check_system()
    folder = target(path).parent
    if not os.access(folder, os.W_OK | os.X_OK):
        raise BadInput(
            f"{folder} is not a folder with write permission: choose another folder for the card "
            "image"
        )
    try:
        with ExitStack() as stack:
            is_copy = lay_out is None and size_bytes is None
            if (is_copy or path.exists()) and not path.is_dir():
                before = stack.enter_context(unused_storage(path))  # until after the renaming
            image = stack.enter_context(replacement(path))
            if lay_out:
                lay_out(image)
            elif size_bytes is not None:
                _prepare(image, size_bytes)
            else:
                copy_storage(before, image)
            yield image
    except OSError as error:
        raise PoetError(
            f"the card image {path} cannot be written ({error.strerror}): free some space, or "
            "choose another folder"
        ) from error


def _prepare(image: Path, image_size: int | str) -> None:
    _remove_temporary_cards()
    create_storage(image, size_bytes(image_size, "a card of"))
    with (
        _full_disk_reported(image),
        NativeBoard(image) as board,
        devices.connect(board.port) as device,
    ):
        device.format()


@contextmanager
def _full_disk_reported(image: Path) -> Iterator[None]:
    """Raise PoetError if a board cannot write its card image because the disk is full.

    The board does not know why a write fails. So another file is written to find out.
    """
    try:
        yield
    except BoardError as error:
        if error.name == "storage_failed":
            try:
                with TemporaryFile(dir=image.parent) as file:
                    file.write(bytes(_PROBE_BYTES))
            except OSError as full:
                if full.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise PoetError(
                        f"the board cannot write its card image ({full.strerror}): free some "
                        "space on the disk of the image, then run again"
                    ) from error
        raise
