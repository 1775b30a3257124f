"""The serial ports of this computer, and which board a port's USB ids belong to."""

import os
import re
import stat
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from serial.tools import list_ports

from ..files import read_text
from ..resources import resource
from .board import Board, load_board, names

try:
    import grp
except ImportError:  # not a Unix: there are no groups of a port either
    grp = None  # type: ignore[assignment]

RULES = "/etc/udev/rules.d/60-poet.rules"  # below 73, where `uaccess` is acted upon


@dataclass(frozen=True)
class SerialPort:
    """One port. `usb` is vendor and product id of what is behind it, as `2341:804e`, or empty;
    `maker` and `product` are the names that it gives itself there."""

    path: str
    usb: str
    serial_number: str
    description: str
    maker: str = ""
    product: str = ""


def serial_ports() -> list[SerialPort]:
    """What is there now: ports of poet's firmware first, then others on USB, then by path."""
    found = [
        SerialPort(
            one.device,
            "" if one.vid is None else f"{one.vid:04x}:{one.pid:04x}",
            one.serial_number or "",
            "" if one.description in (None, "n/a") else one.description,
            one.manufacturer or "",
            one.product or "",
        )
        for one in list_ports.comports()
    ]
    return sorted(found, key=lambda port: (not runs_firmware(port), not port.usb, port.path))


@cache
def firmware_usb() -> tuple[str, str]:
    """USB ids and maker's name of poet's firmware on any board (firmware/port/common/usb.h)."""
    text = read_text(resource("firmware") / "port" / "common" / "usb.h")
    facts = dict(re.findall(r"#define USB_(\w+) (?:0x)?\"?([\w-]+)", text))
    return f"{facts['VENDOR_ID']}:{facts['PRODUCT_ID']}", facts["MANUFACTURER"]


def runs_firmware(port: SerialPort) -> bool:
    """Is it the USB port of a board that runs poet's firmware? Others may have the same ids, so
    that the maker decides, but on Windows, which does not tell what a device says of itself."""
    usb, maker = firmware_usb()
    return port.usb == usb and (port.maker == maker or not port.product)


def find_port(path: str) -> SerialPort | None:
    """The port of that name, or of the name that it is a link to (as in /dev/serial/by-id)."""
    real = os.path.realpath(path)
    return next((one for one in serial_ports() if one.path in (path, real)), None)


def is_there(path: str) -> bool:
    """Does the port exist? A URL is only known by opening it."""
    return "://" in path or os.path.exists(path) or find_port(path) is not None


def board_of(port: SerialPort) -> Board | None:
    """The board that has these USB ids, or whose firmware says so there."""
    if runs_firmware(port):
        return load_board(port.product) if port.product in names() else None
    boards = (load_board(name) for name in names())
    return next((one for one in boards if one.loading and port.usb in one.loading.usb), None)


def udev_rule(usb: str, subsystem: str = "tty") -> str:
    """A line that lets whoever sits at the computer use a device."""
    vendor, _, product = usb.partition(":")
    return (
        f'SUBSYSTEM=="{subsystem}", ATTRS{{idVendor}}=="{vendor}", '
        f'ATTRS{{idProduct}}=="{product}", TAG+="uaccess"'
    )


def group_advice() -> str | None:
    """How to be allowed to open the serial ports that will come, if this user is not yet in the
    group that they belong to (dialout; uucp on some systems); else None."""
    if grp is None or os.geteuid() == 0:
        return None
    for name in ("dialout", "uucp"):
        try:
            group = grp.getgrnam(name)
        except KeyError:
            continue
        if group.gr_gid in os.getgroups():
            return None
        return (
            f"this user is not in the group {name}, to which they belong: `sudo usermod -aG {name} "
            "$USER`, and log in again"
        )
    return None


def permission_advice(path: str) -> str:
    """How to be allowed to open a port: its group, and a udev rule if it is on USB."""
    advice = []
    try:
        about = Path(path).stat()
        if grp is not None and about.st_gid and about.st_mode & stat.S_IWGRP:
            group = grp.getgrgid(about.st_gid).gr_name
            advice.append(
                f"add yourself to its group with `sudo usermod -aG {group} $USER` and log in again"
            )
    except (OSError, KeyError):
        pass
    port = find_port(path)
    if port is not None and port.usb:
        advice.append(
            f"put the line {udev_rule(port.usb)} into {RULES}, run `sudo udevadm control "
            "--reload`, and plug it in again"
        )
    if not advice:
        advice.append(
            "add yourself to its group (`sudo usermod -aG dialout $USER`, or uucp) and log in "
            "again, or add a udev rule"
        )
    return f"{path} may not be opened by this user: {'; or '.join(advice)}"
