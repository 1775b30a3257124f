"""Whole images are scanned for instructions that their core lacks; objdump is the judge."""

import re
import struct
import subprocess
from dataclasses import replace
from itertools import pairwise

import pytest
from poet_host.firmware_build.bare_metal import build_firmware
from poet_host.firmware_build.image import Image, read_elf
from support.instructions import illegal_instructions, instructions
from support.sim_helper import needs_compiler

pytestmark = needs_compiler
BOARDS = {"mkr1000": False, "nrf52840_dk": True}  # True: Cortex-M4F
boards = pytest.mark.parametrize("name", BOARDS)

# Instructions of ARMv7-M and ARMv8-M: those that only the Cortex-M0+ lacks, then those of neither.
ONLY_M0PLUS = {
    "cbz r0": (0xB100,),
    "it eq": (0xBF08,),
    "movw r0, #0": (0xF240, 0x0000),
    "udiv r0, r0, r0": (0xFBB0, 0xF0F0),
    "ldrd r0, r1, [r0]": (0xE9D0, 0x0100),
    "b.w": (0xF000, 0xB800),
    "beq.w": (0xF000, 0x8000),
    "ldrex r0, [r0]": (0xE850, 0x0F00),
    "vadd.f32 s0, s0, s0": (0xEE30, 0x0A00),
    "clrex": (0xF3BF, 0x8F2F),
    "mrs r0, basepri": (0xF3EF, 0x8011),
    "cpsid f": (0xB671,),
}
NEITHER = {
    "setend be": (0xB658,),
    "hlt 0": (0xBA80,),
    "blxns r0": (0x4784,),
    "vadd.f64 d0, d0, d0": (0xEE30, 0x0B00),
    "vrinta.f32 s0, s0": (0xFEB8, 0x0A40),
    "mcr p15": (0xEE00, 0x0F10),
    "sg": (0xE97F, 0xE97F),
    "lda r0, [r0]": (0xE8D0, 0x0FAF),
    "tt r0, r0": (0xE840, 0xF000),
    "vadd.i8 d0, d0, d0": (0xEF00, 0x0800),
    "vld1.8 {d0}, [r0]": (0xF920, 0x070F),
    "crc32b r0, r0, r0": (0xFAC0, 0xF080),
}


def planted(image: Image, address: int, halves: tuple[int, ...]) -> Image:
    """The image with these halfwords, and NOPs up to a word, at an address."""
    data = struct.pack("<2H", *(*halves, 0xBF00)[:2])
    code = []
    for start, found in image.code:
        at = address - start
        if 0 <= at < len(found):
            found = found[:at] + data + found[at + 4 :]
        code.append((start, found))
    return replace(image, code=tuple(code))


def word_at_a_time(image: Image, *, m4: bool) -> int:
    """Return the aligned address of two 16-bit instructions in a row, inside a function."""
    begin = image.symbols["poet_serve"] & ~1
    found = [(a, d.size_bytes) for a, _, d in instructions(image, m4=m4) if a >= begin]
    pairs = pairwise(found)
    return next(a for (a, size), (_, other) in pairs if size == other == 2 and a % 4 == 0)


@boards
def test_it_sees_every_instruction_that_objdump_sees(name: str) -> None:
    path = build_firmware(name)
    command = ["arm-none-eabi-objdump", "-d", "-z", str(path)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    instruction = r"^ *([0-9a-f]+):\t([0-9a-f]{4})( [0-9a-f]{4})? *\t[^.]"  # and not .short
    lines = re.findall(instruction, text, re.MULTILINE)
    theirs = [(int(at, 16), int(half, 16), 4 if more else 2) for at, half, more in lines]
    image = read_elf(path)
    ours = [(at, half, d.size_bytes) for at, half, d in instructions(image, m4=BOARDS[name])]
    assert sorted(ours) == sorted(theirs)
    assert len(ours) > 10_000
    seen = {address for address, _, _ in ours}
    assert [f for a, f in image.functions if a & ~1 not in seen] == []
    names = {f for _, f in image.functions}
    assert {"poet_conv2d", "reset_handler", "memcpy"} <= names
    if name == "mkr1000":  # libgcc's, written in assembly
        assert {"__aeabi_fadd", "__aeabi_fmul", "__aeabi_fdiv", "__udivsi3"} <= names


@boards
def test_nothing_that_the_core_lacks_is_in_the_firmware(name: str) -> None:
    assert illegal_instructions(read_elf(build_firmware(name)), m4=BOARDS[name]) == []


@boards
@pytest.mark.parametrize("what", [*ONLY_M0PLUS, *NEITHER])
def test_a_planted_instruction_is_found_where_the_core_lacks_it(name: str, what: str) -> None:
    image, m4 = read_elf(build_firmware(name)), BOARDS[name]
    address = word_at_a_time(image, m4=m4)
    halves = (ONLY_M0PLUS | NEITHER)[what]
    found = illegal_instructions(planted(image, address, halves), m4=m4)
    assert found == ([] if m4 and what in ONLY_M0PLUS else [(address, halves[0])])
