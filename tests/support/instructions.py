"""The instructions of a firmware image, as the chip models decode them."""

import struct
from collections.abc import Iterator
from typing import Any

from poet_host.firmware_build.image import Image
from poet_host.sim.chip_library import chips


def instructions(image: Image, *, m4: bool) -> Iterator[tuple[int, int, Any]]:
    """Yield (address, first halfword, struct decoded of chip/api.h) for each instruction.

    Constants between instructions are left out: mapping symbols mark them as data.
    """
    _, lib = chips()
    for start, code in image.code:
        marks = [(a, k) for a, k in image.marks if start <= a < start + len(code)]
        ends = [a for a, _ in marks[1:]] + [start + len(code)]
        for (address, kind), end in zip(marks, ends, strict=True):
            while kind == "t" and address < end:
                first, second = struct.unpack_from("<HH", code + b"\0\0", address - start)
                decoded = lib.machine_decode(m4, first, second)
                yield address, first, decoded
                address += decoded.size_bytes


def illegal_instructions(image: Image, *, m4: bool) -> list[tuple[int, int]]:
    """Return (address, first halfword) of each instruction that the core does not have."""
    return [(a, first) for a, first, found in instructions(image, m4=m4) if found.illegal]
