"""Loads a firmware image, as it would be flashed, into a simulated chip.

Reads the few parts of ELF32 that a linked image for a microcontroller has
(System V ABI, chapters 4 and 5): program headers and the symbol table.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BadInput
from .library import chips

EM_ARM = 40
PT_LOAD = 1
SHT_SYMTAB = 2
SHF_ALLOC = 2
SHF_EXECINSTR = 4
STT_OBJECT = 1


@dataclass(frozen=True)
class Image:
    """Segments (load address, bytes), symbols (name -> address), what lies in memory."""

    segments: tuple[tuple[int, bytes], ...]
    symbols: dict[str, int]
    objects: dict[str, tuple[int, int]]  # variables: address and size
    sections: dict[str, tuple[int, int]]  # those that take up memory: address and size
    code: tuple[tuple[int, bytes], ...]  # sections that hold instructions
    marks: tuple[tuple[int, str], ...]  # mapping symbols: "t" code, "d" data


def _text(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode()


def read_elf(path: Path) -> Image:
    """Read an ELF image; raises BadInput for a file that is not one."""
    data = path.read_bytes()
    if len(data) < 52 or data[:7] != b"\x7fELF\x01\x01\x01":
        raise BadInput(f"{path} is not a 32-bit little-endian ELF image: try another file")
    (_, machine, _, _, ph_at, sh_at, _, _, ph_size, ph_count, sh_size, sh_count, names_at) = (
        struct.unpack_from("<HHIIIIIHHHHHH", data, 16)
    )
    if machine != EM_ARM:
        raise BadInput(f"{path} is an ELF image for another processor: try a build for Arm")
    segments = []
    for k in range(ph_count):
        kind, offset, _, physical, size, *_ = struct.unpack_from(
            "<IIIIIIII", data, ph_at + k * ph_size
        )
        if kind == PT_LOAD and size:
            segments.append((physical, data[offset : offset + size]))
    sections = [
        struct.unpack_from("<IIIIIIIIII", data, sh_at + k * sh_size) for k in range(sh_count)
    ]
    symbols, objects, marks = {}, {}, []
    for _, kind, _, _, offset, size, link, _, _, entry in sections:
        if kind != SHT_SYMTAB:
            continue
        names = data[sections[link][4] : sections[link][4] + sections[link][5]]
        for at in range(offset, offset + size, entry):
            name_at, value, bytes_of, info, _, _ = struct.unpack_from("<IIIBBH", data, at)
            name = _text(names, name_at)
            if name.startswith("$"):
                marks.append((value, name[1:2]))
            elif name:
                symbols[name] = value
                if info & 15 == STT_OBJECT:
                    objects[name] = (value, bytes_of)
    code = tuple(
        (address, data[offset : offset + size])
        for _, kind, flags, address, offset, size, *_ in sections
        if kind == 1 and flags & SHF_EXECINSTR
    )
    names = data[sections[names_at][4] : sections[names_at][4] + sections[names_at][5]]
    taken = {
        _text(names, name): (address, size)
        for name, _, flags, address, _, size, *_ in sections
        if flags & SHF_ALLOC and size
    }
    return Image(tuple(segments), symbols, objects, taken, code, tuple(sorted(marks)))


def load_elf(machine: Any, path: Path) -> Image:
    """Put an image into a machine's memory; its stack limit becomes `__stack_limit`.

    Reset takes the vectors from the image's lowest address, as a boot loader below it would.
    """
    _, lib = chips()
    image = read_elf(path)
    for address, data in image.segments:
        if not lib.machine_load(machine, address, data, len(data)):
            raise BadInput(
                f"{path}: the part at 0x{address:08x} ({len(data)} bytes) lies outside the "
                "chip's memory: try a build for this board"
            )
    lib.machine_set_stack_limit(machine, image.symbols.get("__stack_limit", 0))
    lib.machine_set_start(machine, min(address for address, _ in image.segments))
    return image


def illegal_instructions(image: Image, *, m4: bool) -> list[tuple[int, int]]:
    """(address, first halfword) of instructions that the core does not have."""
    _, lib = chips()
    found = []
    for start, code in image.code:
        marks = [(a, k) for a, k in image.marks if start <= a < start + len(code)]
        ends = [a for a, _ in marks[1:]] + [start + len(code)]
        for (address, kind), end in zip(marks, ends, strict=True):
            while kind == "t" and address < end:
                first, second = struct.unpack_from("<HH", code + b"\0\0", address - start)
                decoded = lib.machine_decode(m4, first, second)
                if decoded.illegal:
                    found.append((address, first))
                address += decoded.size_bytes
    return found
