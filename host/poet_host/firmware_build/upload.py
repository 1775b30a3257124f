"""Write a firmware image to a board, with an upload program (upload_tools)."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import serial

from ..device.board import Board, Loading
from ..device.device import connect
from ..device.ports import (
    SerialPort,
    board_of,
    find_port,
    is_there,
    permission_advice,
    runs_firmware,
    serial_ports,
)
from ..errors import BadInput, BoardError, NoDevice, PoetError
from ..temporary import temporary_folder
from .upload_tools import check_bossac, find_tool, loading_of, run_tool, upload_command

TOUCH_BAUD = 1200
TOUCH_WAIT_S = 5.0  # time to wait for the boot loader's port to appear
RETURN_WAIT_S = 20.0  # time to wait for the board's own port to appear, and for its answer
POLL_S = 0.1

Report = Callable[[str], None]


@dataclass(frozen=True)
class Flashed:
    """The result of writing an image."""

    flash_bytes: int
    tool: str  # name of the upload program
    upload_port: str  # the loader's port
    port: str  # port at which the firmware answers
    info: Any  # the board's poet_hello; None: the program does not answer


def write_image(
    board: Board,
    start: int,
    image: bytes,
    port: str,
    *,
    upload_port: str | None = None,
    tool: str | None = None,
    recover: bool = False,
    answers: bool = True,
    report: Report = lambda message: None,
) -> Flashed:
    """Write an image to flash address `start`, wait for the board, and check its answer.

    `port`: where the firmware will answer, or `auto` for the board's only USB port. If this USB
    port has another name after the upload, the new name is used. `upload_port`: the port of the
    boot loader or debugger; None: the board's own USB port if exactly one is found, else `port`.
    `tool`: a program of board.loading.tools; None: the first of these programs that is installed.
    `recover`: erase the whole chip first, which opens a debug port that is closed. `answers`: False
    for a program that does not answer a host; the board is then not waited for.

    Raises BadInput for a board without an image, for a wrong tool, and for `recover` with a board
    that has no debug port. Raises NoDevice if a port is missing or does not appear again. Raises
    PoetError if the program is missing, too old or fails. Raises BoardError if the firmware that
    answers is not the one that was written.
    """
    loading = loading_of(board)
    if start != loading.start:
        raise BadInput(
            f"the image begins at address 0x{start:x}, but {board.name} needs an image that begins "
            f"at 0x{loading.start:x}: use an image for {board.name}"
        )
    name, program = find_tool(board, tool)
    if port == "auto":
        port = upload_port or _only_port(board)
    if not is_there(port):
        raise NoDevice(
            f"there is no port {port} ({ports_here()}): plug the board in. Its firmware answers on "
            f"{loading.serial}"
        )
    loader = upload_port or _loader_of(board, port)
    before = _usb_ports(board)
    if recover and name == "bossac":
        raise BadInput(f"{board.name} has no debug port that could be closed: omit --recover")
    if name == "bossac":
        check_bossac(program)
        loader = enter_boot_loader(loader, loading, report)
    report(f"{name} writes {len(image):,} bytes at 0x{start:x}")
    with temporary_folder(Path(gettempdir()), "poet-flash-") as folder:
        (file := folder / "firmware.bin").write_bytes(image)
        found = find_port(loader)
        number = found.serial_number if found and loading.has(found.usb) else ""
        if recover:
            report(f"{name} erases the whole chip")
        for erases in (True, False) if recover else (False,):
            command = upload_command(name, program, loading, file, loader, number, recover=erases)
            run_tool(name, command, loading)
    if not answers:
        return Flashed(len(image), name, loader, port, None)
    report(f"written; waiting for the board at {port}")
    port, info = _await_board(board, port, before)
    return Flashed(len(image), name, loader, port, info)


def enter_boot_loader(port: str, loading: Loading, report: Report) -> str:
    """Start the boot loader by opening `port` at 1200 baud; return the boot loader's port."""
    found = find_port(port)
    if not is_there(port):
        raise NoDevice(
            f"there is no port {port} ({ports_here()}): plug the board in, or name its port with "
            "--upload-port"
        )
    if os.path.exists(port) and not os.access(port, os.R_OK | os.W_OK):
        raise NoDevice(permission_advice(port))
    if found is not None and found.usb == loading.boot_loader:
        return port
    before = {other.path for other in serial_ports()}
    report(f"starting the boot loader at {port}")
    touch(port)
    vanished = False
    give_up = time.monotonic() + TOUCH_WAIT_S
    while time.monotonic() < give_up:
        time.sleep(POLL_S)
        for other in serial_ports():
            is_new = other.path == port or other.path not in before
            if other.usb == loading.boot_loader and is_new:
                return other.path
        if not is_there(port):
            vanished = True
        elif vanished:
            return port
    if vanished:
        raise NoDevice(
            f"the port {port} disappeared, but the port of the boot loader did not appear within "
            f"{TOUCH_WAIT_S:g} s ({ports_here()}). Press the board's reset button twice, quickly. "
            "A new port appears: run this command again, with the new port as --upload-port"
        )
    return port  # this may be a boot loader whose USB ids are not known


def touch(port: str) -> None:
    """Open a port at 1200 baud and close it, which starts Arduino's boot loader."""
    try:
        with serial.Serial(port, TOUCH_BAUD) as opened, suppress(OSError):
            opened.dtr = False  # not every port has a DTR line
    except (OSError, serial.SerialException, ValueError) as error:
        raise NoDevice(f"the port {port} cannot be opened ({error}): name another port") from error


def ports_here() -> str:
    """Return a text that lists the serial ports with their boards, for error messages."""
    found = [f"{port.path} ({_device_at(port)})" for port in serial_ports()]
    return f"serial ports here: {', '.join(found)}" if found else "there is no serial port here"


def _device_at(port: SerialPort) -> str:
    board = board_of(port)
    if board is not None:
        return board.name
    return f"USB {port.usb}" if port.usb else "no USB"


def _only_port(board: Board) -> str:
    """Return the only USB port at which the board's firmware runs.

    If there is none, return the only port with the board's USB ids (board.toml).
    """
    running = _usb_ports(board)
    matching = list(running) or [
        port.path for port in serial_ports() if loading_of(board).has(port.usb)
    ]
    if len(matching) == 1:
        return matching[0]
    which = f"{len(matching)} ports have" if matching else "no port has"
    raise NoDevice(
        f"{which} the USB ids of {board.name} ({ports_here()}): name the board's port with --port"
    )


def _usb_ports(board: Board) -> dict[str, str]:
    """Return the serial number of each USB port at which this board's firmware runs, by path."""
    return {
        port.path: port.serial_number
        for port in serial_ports()
        if runs_firmware(port) and port.product in (board.name, "")  # "": on Windows
    }


def _loader_of(board: Board, port: str) -> str:
    """Return the port of the boot loader or debugger, through which the image is written.

    This is `port` if it is a USB port at which the firmware of a board with a boot loader runs.
    Otherwise it is the board's only USB port, or `port` if the board has none or several. So the
    firmware may answer at a different port than the result.
    """
    loading, found = loading_of(board), find_port(port)
    running = _usb_ports(board) if loading.boot_loader else {}
    if found is not None and found.path in running:
        return port
    own = [*running, *(other.path for other in serial_ports() if loading.has(other.usb))]
    return own[0] if len(own) == 1 else port


def _await_board(board: Board, port: str, before: dict[str, str]) -> tuple[str, Any]:
    """Wait until the board answers; return its port and its poet_hello.

    `before`: the return value of _usb_ports before the upload.
    """
    give_up = time.monotonic() + RETURN_WAIT_S
    serial_at = loading_of(board).serial
    while True:
        back = _back_at(board, port, before)
        try:
            if not is_there(back):
                raise NoDevice(f"the port {port} has not appeared again within {RETURN_WAIT_S:g} s")
            with connect(back) as device:
                info = device.info
                break
        except BoardError as error:
            raise BoardError(
                f"the image was written, but the firmware that answers at {back} is another one "
                f"({error}): check that --port and --upload-port belong to the same board",
                error.name,
                error.detail,
            ) from error
        except NoDevice as error:
            if time.monotonic() >= give_up:
                raise NoDevice(
                    f"the image was written, but {error}. The firmware of {board.name} answers on "
                    f"{serial_at}: set --port to this port"
                ) from error
            time.sleep(POLL_S)
    if info.board != board.name:
        raise PoetError(
            f"the image was written, but {info.board} answers at {back}, not {board.name}: use "
            "--port to name the port of the board that was flashed"
        )
    return back, info


def _back_at(board: Board, port: str, before: dict[str, str]) -> str:
    """Return the port where the board has appeared again: `port`, or another USB port."""
    now = _usb_ports(board)
    if is_there(port) and port not in before:
        return port
    number = before.get(port)
    same = [path for path, other in now.items() if other == number]
    new = [path for path in now if path not in before]
    found = same or new
    return found[0] if len(found) == 1 else port
