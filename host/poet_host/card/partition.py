"""Where the store of a card lies: in the partition table, or found by its record."""

import struct
import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from .. import isa
from ..schedule.model import BLOCK

_C = isa.constants()
_ENTRIES = range(446, 510, 16)  # offsets of the partitions' entries in an MBR
# Where `stores` looks, in blocks: at multiples of an allocation unit (storage prepare, cards of the
# factory) in the first 32 GiB, of 1 MiB (fdisk) in the first GiB, and at each block of 8 MiB.
_STARTS = (range(0, 1 << 26, _C["POET_UNIT_BLOCKS"]), range(0, 1 << 21, 2048), range(1 << 14))


def in_table(mbr: bytes) -> tuple[int, int] | None:
    """Return first block and length of the poet partition in an MBR, or None if it has none."""
    if mbr[510:] == b"\x55\xaa":
        for at in _ENTRIES:
            kind, first, blocks = struct.unpack_from("<4xB3xII", mbr, at)
            if kind == _C["POET_PARTITION_TYPE"] and blocks:
                return first, blocks
    return None


def store_of(raw: bytes) -> dict[str, Any] | None:
    """Return the record `poet_store` in the first bytes of a partition, or None if not whole."""
    row = isa.unpack("poet_store", raw)
    is_whole = row["magic"] == _C["POET_STORE_MAGIC"] and row["crc"] == zlib.crc32(raw[:-4])
    return row if is_whole else None


def stores(read: Callable[[int, int], bytes], end: int) -> Iterator[tuple[int, int]]:
    """Yield first block and length of the stores on a card of `end` blocks, without its table.

    `read` returns bytes from an offset on, or fewer if they cannot be read.
    """
    size = isa.record_size("poet_store")
    for first in dict.fromkeys(chain(*_STARTS)):
        if first < end and len(raw := read(first * BLOCK, size)) == size:
            store = store_of(raw)
            if store:
                yield first, store["total_blocks"]
