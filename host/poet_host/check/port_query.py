"""Ask the serial ports of this computer which boards answer."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..device.device import connect
from ..device.health import is_unwanted, reset_text
from ..device.ports import SerialPort, board_of, find_port, runs_firmware, serial_ports
from ..errors import PoetError

REPLY_PATIENCE_S = 2.0  # longest wait for a reply: a board replies late while it computes


@dataclass(frozen=True)
class Port:
    """A serial port, and what is known of the board at it. A text is empty if it is unknown."""

    port: str  # path or URL
    usb: str  # vendor and product id of the port's USB device, such as `2341:804e`
    serial_number: str
    description: str  # by the operating system
    board: str | None  # the board that the USB ids belong to
    answer: str = "not asked"
    hello: Mapping[str, str | int] | None = None  # what the board says of itself


def ports(port: str | None = None, *, query: bool = True) -> list[Port]:
    """Return the serial ports of this computer, and which boards answer there.

    Queries the port with the path `port`, and each port that has the USB ids of a known board.
    Sends nothing to other ports; if `query` is False, to no port.
    """
    found = serial_ports()
    named = None if port is None else find_port(port) or SerialPort(port, "", "", "")
    if named is not None and named not in found:
        found.append(named)
    return [_port(each, query, is_named=each == named) for each in found]


def _port(port: SerialPort, query: bool, *, is_named: bool) -> Port:
    board = board_of(port)
    answer: str = "not asked"
    hello: dict[str, str | int] | None = None
    if board and board.loading and port.usb == board.loading.boot_loader:
        answer = "its boot loader waits for `poet-host flash`"
    elif query and (board or runs_firmware(port) or is_named):
        answer, hello = _asked(port.path)
    name = board.name if board else None
    return Port(port.path, port.usb, port.serial_number, port.description, name, answer, hello)


def _asked(path: str) -> tuple[str, dict[str, str | int] | None]:
    """Return what a port answers in words, and what its board says of itself."""
    answer, hello = "", None
    try:
        with connect(path, timeout_s=0.5, patience_s=REPLY_PATIENCE_S) as device:
            info = device.info
            hello = {name: getattr(info, name) for name in ("board", "unique_id", "arena_bytes")}
            answer = f"{info.board} {info.unique_id}"
            if is_unwanted(health := device.health()):
                answer += f". {reset_text(health)}"
    except PoetError as error:
        answer = str(error)
    return answer, hello
