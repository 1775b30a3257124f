"""Event files as TensorBoard reads them: records that each hold an Event message.

A record is its length (u64), the masked CRC-32C of that, the bytes, and their masked CRC-32C
(TensorFlow, core/lib/io/record_writer.h). Event and Summary are protocol buffers
(core/util/event.proto, core/framework/summary.proto), of which five fields are written here.
"""

import os
import socket
import struct
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import BinaryIO

from ..files import write_all

_MASK = 0xA282EAD8


class EventFile:
    """A new event file in `folder`; scalars are on disk when `add` returns. Raises OSError."""

    def __init__(self, folder: Path) -> None:
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        number = 0
        while (path := folder / f"{name}.{number}").exists():
            number += 1
        self._file: BinaryIO = path.open("xb", buffering=0)
        self._append(_event(_bytes(3, b"brain.Event:2")))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Scalars of a step, by name."""
        pairs = (_bytes(1, name.encode()) + _float(2, value) for name, value in values.items())
        summary = b"".join(_bytes(1, pair) for pair in pairs)
        self._append(_event(_int(2, step) + _bytes(5, summary)))

    def close(self) -> None:
        self._file.close()

    def _append(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        write_all(self._file, length + _checked(length) + event + _checked(event))


def _event(rest: bytes) -> bytes:
    return b"\x09" + struct.pack("<d", time.time()) + rest  # field 1, wall_time: a double


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _int(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _float(field: int, value: float) -> bytes:
    return _varint(field << 3 | 5) + struct.pack("<f", value)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _checked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF)


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli)."""
    crc, table = 0xFFFFFFFF, _table()
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


@cache
def _table() -> tuple[int, ...]:
    rows = []
    for row in range(256):
        for _ in range(8):
            row = row >> 1 ^ (0x82F63B78 if row & 1 else 0)
        rows.append(row)
    return tuple(rows)
