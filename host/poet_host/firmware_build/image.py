"""Read a firmware image from its ELF file.

This module reads the parts of ELF32 that a linked image for a microcontroller has (System V ABI,
chapters 4 and 5): program headers, sections and the symbol table. It needs the standard library
only, because PlatformIO's builder imports it too.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput
from ..files import read_bytes

EM_ARM = 40
PT_LOAD = 1
SHT_SYMTAB = 2
SHT_REL = 9
R_ARM_ABS32, R_ARM_THM_MOVW = 2, 47
SHF_ALLOC = 2
SHF_EXECINSTR = 4
STT_OBJECT = 1
STT_FUNC = 2


@dataclass(frozen=True)
class Image:
    """The content of an ELF file."""

    path: Path
    segments: tuple[tuple[int, bytes], ...]  # load address and bytes
    symbols: dict[str, int]  # name: address
    objects: dict[str, tuple[int, int]]  # address and size of each variable, by name
    functions: tuple[tuple[int, str], ...]  # address and name of each function, sorted
    sections: dict[str, tuple[int, int]]  # address and size of each section in memory
    code: tuple[tuple[int, bytes], ...]  # address and bytes of each section with instructions
    marks: tuple[tuple[int, str], ...]  # address of each mapping symbol, "t" (code) or "d" (data)
    pointers: tuple[int, ...]  # addresses of words that contain an address (--emit-relocs)
    split_pointers: bool  # True: MOVW and MOVT instructions contain addresses too

    def flash(self) -> tuple[int, bytes]:
        """Return start address and bytes of the flash memory. Gaps are 0xff, as after erasing."""
        start = min(address for address, _ in self.segments)
        end = max(address + len(data) for address, data in self.segments)
        content = bytearray(b"\xff" * (end - start))
        for address, data in self.segments:
            content[address - start : address - start + len(data)] = data
        return start, bytes(content)


def _text(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode()


def read_elf(path: Path) -> Image:
    """Read an ELF image. Raises BadInput for any other file."""
    data = read_bytes(path)
    if len(data) < 52 or data[:7] != b"\x7fELF\x01\x01\x01":
        raise BadInput(f"{path} is not a 32-bit little-endian ELF image: try another file")
    if int.from_bytes(data[18:20], "little") != EM_ARM:
        raise BadInput(f"{path} is an ELF image for another processor: use an image for Arm")
    try:
        image = _parse(path, data)
    except (struct.error, IndexError, ValueError) as error:
        raise BadInput(f"{path} is a damaged ELF image: build it again") from error
    if not image.segments:
        raise BadInput(f"{path} has no segments to load into memory: use the output of the linker")
    return image


def _parse(path: Path, data: bytes) -> Image:
    (ph_at, sh_at, _, _, ph_size, ph_count, sh_size, sh_count, names_at) = struct.unpack_from(
        "<IIIHHHHHH", data, 28
    )
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
    symbols, objects, functions, marks = {}, {}, [], []
    for _, kind, _, _, offset, size, link, _, _, entry in sections:
        if kind != SHT_SYMTAB:
            continue
        names = data[sections[link][4] : sections[link][4] + sections[link][5]]
        for at in range(offset, offset + size, entry):
            name_at, value, bytes_of, info, _, home = struct.unpack_from("<IIIBBH", data, at)
            name = _text(names, name_at)
            if name.startswith("$"):  # a mapping symbol; symbols of debug sections are skipped
                if home < len(sections) and sections[home][2] & SHF_ALLOC:
                    marks.append((value, name[1:2]))
            elif name:
                symbols[name] = value
                if info & 15 == STT_OBJECT:
                    objects[name] = (value, bytes_of)
                elif info & 15 == STT_FUNC:
                    functions.append((value & ~1, name))
    relocations = [
        (place, relocation & 0xFF)
        for _, kind, _, _, offset, size, _, info, *_ in sections
        if kind == SHT_REL and sections[info][2] & SHF_ALLOC
        for place, relocation in struct.iter_unpack("<II", data[offset : offset + size])
    ]
    code = tuple(
        (address, data[offset : offset + size])
        for _, kind, flags, address, offset, size, *_ in sections
        if kind == 1 and flags & SHF_EXECINSTR
    )
    names = data[sections[names_at][4] : sections[names_at][4] + sections[names_at][5]]
    occupied = {
        _text(names, name): (address, size)
        for name, _, flags, address, _, size, *_ in sections
        if flags & SHF_ALLOC and size
    }
    return Image(
        path,
        tuple(segments),
        symbols,
        objects,
        tuple(sorted(functions)),
        occupied,
        code,
        tuple(sorted(marks)),
        tuple(sorted(place for place, kind in relocations if kind == R_ARM_ABS32)),
        any(kind == R_ARM_THM_MOVW for _, kind in relocations),
    )
