"""Find the serial ports of this computer, and the board that belongs to a port's USB ids."""

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
except ImportError:  # only Unix systems have groups of users
    grp = None  # type: ignore[assignment]

# The number in the name must be below 73: the rules with number 73 apply the tag `uaccess`.
RULES = "/etc/udev/rules.d/60-poet.rules"


@dataclass(frozen=True)
class SerialPort:
    """One serial port. A field is empty if its text is unknown."""

    path: str
    usb: str  # vendor and product id of the port's USB device, such as `2341:804e`
    serial_number: str  # serial number of the port's USB device
    description: str  # description of the port by the operating system
    maker: str = ""  # manufacturer string of the port's USB device
    product: str = ""  # product string of the port's USB device


def serial_ports() -> list[SerialPort]:
    """Return the serial ports in groups: poet's firmware, then other USB ports, then the rest.

    Each group is sorted by path.
    """
    found = [
        SerialPort(
            port.device,
            "" if port.vid is None else f"{port.vid:04x}:{port.pid:04x}",
            port.serial_number or "",
            "" if port.description in (None, "n/a") else port.description,
            port.manufacturer or "",
            port.product or "",
        )
        for port in list_ports.comports()
    ]
    return sorted(found, key=lambda port: (not runs_firmware(port), not port.usb, port.path))


@cache
def firmware_usb() -> tuple[str, str]:
    """Return USB ids and manufacturer string of poet's firmware (firmware/port/common/usb.h)."""
    text = read_text(resource("firmware") / "port" / "common" / "usb.h")
    facts = dict(re.findall(r"#define USB_(\w+) (?:0x)?\"?([\w-]+)", text))
    return f"{facts['VENDOR_ID']}:{facts['PRODUCT_ID']}", facts["MANUFACTURER"]


def runs_firmware(port: SerialPort) -> bool:
    """Return True for the USB port of a board that runs poet's firmware.

    Other devices may have the same ids, so the manufacturer string is checked too. Windows does
    not provide this string, so only the ids are checked on Windows.
    """
    usb, maker = firmware_usb()
    return port.usb == usb and (port.maker == maker or not port.product)


def find_port(path: str) -> SerialPort | None:
    """Return the port with this path. The path may be a link, as in /dev/serial/by-id."""
    real = os.path.realpath(path)
    return next((port for port in serial_ports() if port.path in (path, real)), None)


def is_there(path: str) -> bool:
    """Return True if the port exists or is a URL. The address in a URL is not checked."""
    return "://" in path or os.path.exists(path) or find_port(path) is not None


def board_of(port: SerialPort) -> Board | None:
    """Return the board at a port, from its product string (poet's firmware) or its USB ids."""
    if runs_firmware(port):
        return load_board(port.product) if port.product in names() else None
    boards = (load_board(name) for name in names())
    return next((b for b in boards if b.loading and b.loading.has(port.usb)), None)


def udev_rule(usb: str, subsystem: str = "tty") -> str:
    """Return a udev rule that gives the logged-in user access to a device."""
    vendor, _, product = usb.partition(":")
    return (
        f'SUBSYSTEM=="{subsystem}", ATTRS{{idVendor}}=="{vendor}", '
        f'ATTRS{{idProduct}}=="{product}", TAG+="uaccess"'
    )


def group_advice() -> str | None:
    """Return advice to join the group of the serial ports: dialout, or uucp.

    Returns None if the user is root or in the group, or if the system has neither group.
    """
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
            f"this user is not in the group {name} of the serial ports: run `sudo usermod -aG "
            f"{name} $USER`, and log in again"
        )
    return None


def permission_advice(path: str) -> str:
    """Return the error message for a user without permission to open the port at `path`.

    The message names the group of the port and, if the port is on USB, a udev rule.
    """
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
    return f"no permission to open {path}: {'; or '.join(advice)}"
