"""Load a firmware image into a simulated chip."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..firmware_build.image import Image, read_elf
from .chip_library import chips


def load_elf(machine: Any, path: Path) -> Image:
    """Load an image into the memory of a struct machine (chip/api.h), and return the image.

    The simulation stops if the stack grows below the symbol `__stack_limit`. At a reset, the chip
    reads the vector table at the image's lowest address, as if a boot loader started the image.
    """
    _, lib = chips()
    image = read_elf(path)
    for address, data in image.segments:
        if not lib.machine_load(machine, address, data, len(data)):
            raise BadInput(
                f"{path}: the segment at 0x{address:08x} ({len(data)} bytes) lies outside the "
                "chip's memory: use an image that is built for this board"
            )
    lib.machine_set_stack_limit(machine, image.symbols.get("__stack_limit", 0))
    lib.machine_set_start(machine, min(address for address, _ in image.segments))
    return image


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
