"""The copy of a schedule that a board reads: changed as a card may change it, or an attacker."""

import struct
from typing import Any

from poet_host.schedule.model import BLOCK

MODEL_BLOCK, PLAN_BLOCK = 64, 1088
COPY_BLOCK = 2048
COPY_BLOCKS = 2048  # the last one has the number of the copy
COPIED = BLOCK - 4  # bytes of a part in a block of its copy; its check follows


def mix(check: int, data: bytes) -> int:
    """Continue a check with more bytes, as firmware/src/parts.c does."""
    for (word,) in struct.iter_unpack("<I", data):
        check ^= word
        check = (check << 13 | check >> 19) * 0x9E3779B1 & 0xFFFFFFFF
    return check


def copy_of(part_block: int, offset: int) -> tuple[int, int]:
    """Return the block of the partition, and the byte there, of a byte of a part."""
    number, at = divmod(offset, COPIED)
    return COPY_BLOCK + 2 * (part_block - MODEL_BLOCK) + number, at


def put_in_copy(
    storage: Any, first: int, part: bytes, part_block: int, offset: int, data: bytes
) -> None:
    """Replace bytes of the copy of `part`, with the check that a board would give them.

    `storage`: a card, as slices of bytes. `first`: the first block of its partition.
    """
    (crc,) = struct.unpack_from("<I", part, 4)
    last = (first + copy_of(part_block, 0)[0] + COPY_BLOCKS - 1) * BLOCK
    number = struct.unpack("<I", bytes(storage[last : last + 4]))[0]
    while data:
        block, at = copy_of(part_block, offset)
        begin = (first + block) * BLOCK
        bytes_there = bytearray(storage[begin : begin + COPIED])
        piece = data[: COPIED - at]
        bytes_there[at : at + len(piece)] = piece
        check = mix(mix(0, struct.pack("<III", crc, number, block)), bytes_there)
        storage[begin : begin + BLOCK] = bytes(bytes_there) + struct.pack("<I", check)
        offset += len(piece)
        data = data[len(piece) :]
