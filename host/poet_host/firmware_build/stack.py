"""How deep the stack of a firmware image can get: a bound that holds for every run.

The frames and calls of all functions, the C library's included, are read from their instructions
(ARMv6-M and ARMv7-M Architecture Reference Manuals, chapter A5), so nothing that is linked is
missed; what pointers may call, and which interrupts nest, is said in firmware/calls.toml, and
checked for gaps against the image. Standard library only, as recipe.py.
"""

import struct
import tomllib
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

from ..errors import BadInput
from ..resources import resource
from .image import Image

# Eight words, 17 more and one unused with a floating-point context, and one to align to eight
# bytes (ARMv7-M ARM, B1.5.6 and B1.5.7).
FRAME_BYTES, FRAME_FPU_BYTES = 36, 108


@dataclass
class Function:
    """Bytes of stack that a function takes, at most, and what it may go to."""

    name: str
    frame_bytes: int = 0
    calls: set[int] = field(default_factory=set)  # addresses, tail calls among them
    pointers: bool = False  # it calls through one
    anew: bool = False  # it goes back to where the stack begins, for good


def stack_bound(image: Image, *, fpu: bool) -> int:
    """Bytes of stack that the program can use, interrupts and a fault at the worst moment included.

    `fpu`: exceptions save its registers too. Raises BadInput, with the function's name, for
    recursion, a stack pointer that is set in a way not known here, and a call through a pointer
    that firmware/calls.toml does not explain.
    """
    return _Bound(image).total(FRAME_FPU_BYTES if fpu else FRAME_BYTES)


class _Bound:
    def __init__(self, image: Image) -> None:
        self.rules = tomllib.loads((resource("firmware") / "calls.toml").read_text("utf-8"))
        self.functions = functions(image)
        self.vectors = _vectors(image)
        self.taken = _addresses_taken(image, self.functions)
        self.groups = {
            name: self._members(image, group) for name, group in self.rules["group"].items()
        }
        self.rule_of = {name: rule for rule in self.rules["calls"] for name in rule["from"]}
        self._check()
        self.again: dict[str, int] = self.rules["again"]
        self.known: dict[tuple[int, tuple[str, ...]], int] = {}
        self.path: list[tuple[int, tuple[str, ...]]] = []

    def _members(self, image: Image, group: dict[str, Any]) -> frozenset[int]:
        """Functions of a group that the image has: by pattern, or stored in a table."""
        found = {
            address
            for address in self.taken
            for pattern in group.get("functions", ())
            if fnmatchcase(self.functions[address].name, pattern)
        }
        for name in group.get("tables", ()):
            if name in image.objects:
                at, size = image.objects[name]
                found |= {word & ~1 for word in _words(image, at, size)} & set(self.functions)
        return frozenset(found)

    def _check(self) -> None:
        """The file explains every function whose address is taken, and every caller of one."""
        explained = frozenset[int]().union(*self.groups.values())
        called = {self.functions[address].name for address in self.taken - explained}
        callers = {one.name for one in self.functions.values() if one.pointers} - set(self.rule_of)
        if called:
            raise BadInput(
                f"firmware/calls.toml does not say who may call {', '.join(sorted(called))} "
                "through a pointer: add it to a group"
            )
        if callers:
            raise BadInput(
                f"firmware/calls.toml does not say what {', '.join(sorted(callers))} may call "
                "through a pointer: add it to a rule"
            )

    def _targets(self, name: str, entered: tuple[str, ...]) -> set[int]:
        """What a function's pointers may hold."""
        rule = self.rule_of[name]
        inside = (groups for outer, groups in rule.get("inside", {}).items() if outer in entered)
        groups = next(inside, rule["to"])
        return {address for group in groups for address in self.groups[group]}

    def deepest(self, address: int, entered: tuple[str, ...] = ()) -> int:
        """Bytes from a function's entry on; `entered`: functions of `again` on the way there."""
        function = self.functions[address]
        if function.name in self.again:
            if entered.count(function.name) == self.again[function.name]:
                return 0
            entered = tuple(sorted((*entered, function.name)))
        key = (address, entered)
        if key in self.path:
            way = [self.functions[at].name for at, _ in self.path[self.path.index(key) :]]
            raise BadInput(
                f"the stack has no bound: {' calls '.join((*way, function.name))}; a loop in which "
                "one of them is entered a few times at most goes into firmware/calls.toml"
            )
        if key not in self.known:
            self.path.append(key)
            targets = set(function.calls)
            if function.pointers:
                targets |= self._targets(function.name, entered)
            below = max((self.deepest(target, entered) for target in sorted(targets)), default=0)
            self.known[key] = function.frame_bytes + below
            self.path.pop()
        return self.known[key]

    def total(self, exception_bytes: int) -> int:
        nesting = [set(level) for level in self.rules["interrupts"]["levels"]]
        faults = set(self.rules["interrupts"]["faults"])
        known = faults.union(*nesting)
        handlers: dict[str, int] = {}
        for address in self.vectors[1:]:
            name = self.functions[address].name
            if name not in known:
                raise BadInput(f"firmware/calls.toml does not say at which level {name} runs")
            handlers[name] = self.deepest(address)
        bytes_used = self.deepest(self.vectors[0])
        for level in nesting:
            depths = [depth for name, depth in handlers.items() if name in level]
            if depths:
                bytes_used += exception_bytes + max(depths)
        for fault in faults & set(handlers):
            depth = handlers[fault]
            anew = any(one.anew for one in self.functions.values() if one.name == fault)
            bytes_used = max(bytes_used + exception_bytes + (0 if anew else depth), depth)
        return bytes_used


def _vectors(image: Image) -> list[int]:
    """Reset's function, then those of the other exceptions and interrupts, without repetition."""
    at, size = image.objects["vectors"]
    words = [word & ~1 for word in _words(image, at, size)[1:] if word]
    return list(dict.fromkeys(words))


def _words(image: Image, at: int, size: int) -> tuple[int, ...]:
    """What the image holds at an address: of variables, their initial values."""
    data_at, data_size = image.sections.get(".data", (0, 0))
    if data_at <= at < data_at + data_size:
        at += image.symbols["data_load"] - data_at
    for start, data in image.segments:
        if start <= at and at + size <= start + len(data):
            return struct.unpack_from(f"<{size // 4}I", data, at - start)
    return ()


def _addresses_taken(image: Image, known: dict[int, Function]) -> set[int]:
    """Functions whose address stands anywhere as data, but for the vector table."""
    if not image.pointers:
        raise BadInput("the image does not say where addresses are: link with --emit-relocs")
    if image.split_pointers:
        raise BadInput("the image holds addresses in halves (movw): no bound")
    at, size = image.objects["vectors"]
    words = {
        word & ~1
        for place in image.pointers
        if not at <= place < at + size
        for word in _words(image, place, 4)
    }
    return words & set(known)


def _instruction_bytes(image: Image, start: int, size: int) -> bytearray:
    """1 where mapping symbols say that instructions are."""
    code = bytearray(size)
    marks = [*((a, k) for a, k in image.marks if start <= a < start + size), (start + size, "d")]
    for (begin, kind), (end, _) in pairwise(marks):
        if kind == "t":
            code[begin - start : end - start] = b"\1" * (end - begin)
    return code


def functions(image: Image) -> dict[int, Function]:
    """Every function by its address."""
    starts = sorted({address for address, _ in image.functions})
    names = {address: name.partition(".")[0] for address, name in reversed(image.functions)}
    found = {address: Function(names[address]) for address in starts}
    for start, code in image.code:
        is_code = _instruction_bytes(image, start, len(code))
        for address, first, second in _instructions(start, code, is_code):
            position = bisect_right(starts, address) - 1
            if position < 0:
                continue
            here = starts[position]
            function = found[here]
            if _begins_anew(image, address, first, start, code):
                function.anew = True
                continue
            function.frame_bytes += _taken(function.name, address, first, second, start, code)
            if _calls_pointer(first, second):
                function.pointers = True
            target = _branch(address, first, second)
            if target is not None:  # into the middle of a function counts as a call of the whole
                owner = starts[bisect_right(starts, target) - 1]
                if owner != here or target == here:
                    function.calls.add(owner)
    return found


def _begins_anew(image: Image, address: int, first: int, start: int, code: bytes) -> bool:
    """MOV SP, Rm, with where the stack begins in Rm."""
    if first & 0xFF87 != 0x4685:
        return False
    top = image.symbols.get("stack_top", -1)
    return _constant("it", address, first >> 3 & 15, start, code) & 0xFFFFFFFF == top


def _instructions(
    start: int, code: bytes, is_code: bytearray
) -> Iterator[tuple[int, int, int | None]]:
    """(address, first halfword, second or None) of each instruction."""
    at = 0
    while at + 1 < len(code):
        if not is_code[at]:
            at += 2
            continue
        first = int.from_bytes(code[at : at + 2], "little")
        if first >> 11 in (0b11101, 0b11110, 0b11111):
            yield start + at, first, int.from_bytes(code[at + 2 : at + 4], "little")
            at += 4
        else:
            yield start + at, first, None
            at += 2


def _taken(name: str, address: int, first: int, second: int | None, start: int, code: bytes) -> int:
    """Bytes by which an instruction lowers the stack pointer. Those that raise it count as 0, so
    that a function with several ways out is taken at the sum of its ways in."""
    if second is None:
        if first & 0xFE00 == 0xB400:  # PUSH
            return 4 * (first & 0x1FF).bit_count()
        if first & 0xFF80 == 0xB080:  # SUB SP, #
            return 4 * (first & 0x7F)
        if first & 0xFF87 == 0x4485:  # ADD SP, Rm: the constant was loaded just before
            return max(0, -_constant(name, address, first >> 3 & 15, start, code))
        if first & 0xFF87 == 0x4685:  # MOV SP, Rm
            raise BadInput(f"{name} sets the stack pointer from a register: no bound")
        return 0
    if first == 0xE92D:  # PUSH.W
        return 4 * second.bit_count()
    if first == 0xF84D and second & 0x0FFF == 0x0D04:  # PUSH.W of one register
        return 4
    if first == 0xE96D:  # STRD with write-back
        return 4 * (second & 0xFF)
    if first & 0xFFBF == 0xED2D:  # VPUSH
        return 4 * (second & 0xFF)
    if first & 0xFBFF == 0xF1AD and second & 0x8F00 == 0x0D00:  # SUB.W SP, SP, #
        return _expanded(first, second)
    if first & 0xFBFF == 0xF2AD and second & 0x8F00 == 0x0D00:  # SUBW SP, SP, #
        return (first >> 10 & 1) << 11 | (second >> 12 & 7) << 8 | second & 0xFF
    if first & 0xFFEF in (0xEBAD, 0xEB0D) and second & 0x0F00 == 0x0D00:
        raise BadInput(f"{name} lowers the stack pointer by a register: no bound")
    return 0


def _expanded(first: int, second: int) -> int:
    """ThumbExpandImm (ARMv7-M ARM, A5.3.2)."""
    value = (first >> 10 & 1) << 11 | (second >> 12 & 7) << 8 | second & 0xFF
    if value >> 10 == 0:
        byte, pattern = value & 0xFF, value >> 8 & 3
        return byte * (1, 0x00010001, 0x01000100, 0x01010101)[pattern]
    return (0x80 | value & 0x7F) << (32 - (value >> 7))


def _constant(name: str, address: int, register: int, start: int, code: bytes) -> int:
    """What the last LDR Rt, [PC, #] before an address has put into a register, signed."""
    for at in range(address - 2, max(start, address - 64), -2):
        half = int.from_bytes(code[at - start : at - start + 2], "little")
        if half & 0xFF00 == 0x4800 | register << 8:
            literal = (at + 4 & ~3) + 4 * (half & 0xFF) - start
            return int.from_bytes(code[literal : literal + 4], "little", signed=True)
    raise BadInput(f"{name} moves the stack pointer by a register: no bound")


def _calls_pointer(first: int, second: int | None) -> bool:
    """BLX Rm, or BX Rm that is no return. Jump tables (MOV PC, TBB, LDR PC) stay inside."""
    return second is None and (
        first & 0xFF87 == 0x4780 or (first & 0xFF87 == 0x4700 and first >> 3 & 15 != 14)
    )


def _branch(address: int, first: int, second: int | None) -> int | None:
    """Where B, BL, or a conditional branch goes."""
    if second is None:
        if first & 0xF000 == 0xD000 and first & 0x0E00 != 0x0E00:
            return address + 4 + 2 * _signed(first & 0xFF, 8)
        if first & 0xF800 == 0xE000:
            return address + 4 + 2 * _signed(first & 0x7FF, 11)
        return None
    if first & 0xF800 != 0xF000 or second & 0x8000 == 0:
        return None
    sign, j1, j2 = first >> 10 & 1, second >> 13 & 1, second >> 11 & 1
    if second & 0x5000:  # B.W and BL
        if second & 0x5000 == 0x4000:
            return None  # BLX to Arm code: not on these cores
        high = sign << 23 | (1 ^ j1 ^ sign) << 22 | (1 ^ j2 ^ sign) << 21
        return address + 4 + 2 * _signed(high | (first & 0x3FF) << 11 | second & 0x7FF, 24)
    if first >> 7 & 7 == 7:
        return None  # MSR, MRS, barriers
    offset = sign << 19 | j2 << 18 | j1 << 17 | (first & 0x3F) << 11 | second & 0x7FF
    return address + 4 + 2 * _signed(offset, 20)


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value
