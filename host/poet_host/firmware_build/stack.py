"""Upper bound of a firmware image's stack depth, valid for every run.

Frames and calls of all functions are read from their instructions (ARMv6-M and ARMv7-M Architecture
Reference Manuals, chapter A5). So functions of the C library are included too. firmware/calls.toml
lists which functions may be called through pointers, and which interrupts nest. An image is refused
if calls.toml omits a function that calls through a pointer, or a function whose address is in a
pointer. This module needs the standard library only, because PlatformIO's builder imports it too.
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

# An exception pushes eight words, and one word to align the stack to eight bytes.
# A floating-point context adds 17 words and an unused word (ARMv7-M ARM, B1.5.6 and B1.5.7).
FRAME_BYTES, FRAME_FPU_BYTES = 36, 108


@dataclass
class Function:
    """A function of a firmware image."""

    name: str
    frame_bytes: int = 0  # largest use of the stack by the function itself
    calls: set[int] = field(default_factory=set)  # addresses of called functions, with tail calls
    calls_pointer: bool = False  # True: the function calls through a pointer
    resets_stack: bool = False  # True: the function sets SP to the stack's top, and never returns


def stack_bound(image: Image, *, fpu: bool) -> int:
    """Return the largest number of stack bytes that the program can use.

    Interrupts and a fault at the worst moment are included. `fpu`: exceptions save the registers
    of the floating-point unit too. Raises BadInput, with the function's name, for recursion, for an
    unknown way to set the stack pointer, and for a call through a pointer that firmware/calls.toml
    does not list.
    """
    return _Bound(image).total(FRAME_FPU_BYTES if fpu else FRAME_BYTES)


def deepest_call(image: Image, prefix: str) -> int:
    """Return the largest number of stack bytes of a call of a function with such a name.

    Interrupts are left out. See `stack_bound`.
    """
    bound = _Bound(image)
    named = (at for at, it in bound.functions.items() if it.name.startswith(prefix))
    return max(map(bound.deepest, named))


class _Bound:
    def __init__(self, image: Image) -> None:
        self.rules = tomllib.loads((resource("firmware") / "calls.toml").read_text("utf-8"))
        self.functions = functions(image)
        self.vectors = _vectors(image)
        self.in_pointers = _addresses_in_pointers(image, self.functions)
        self.groups = {
            name: self._members(image, group) for name, group in self.rules["group"].items()
        }
        self.rule_of = {name: rule for rule in self.rules["calls"] for name in rule["from"]}
        names = {function.name for function in self.functions.values()}
        if self.rules["application"]["without"] in names:
            self._check()
        else:
            self._lend(names)
        self.again: dict[str, int] = self.rules["again"]
        self.known: dict[tuple[int, tuple[str, ...]], int] = {}
        self.path: list[tuple[int, tuple[str, ...]]] = []

    def _members(self, image: Image, group: dict[str, Any]) -> frozenset[int]:
        """Return the functions of a group in calls.toml.

        A group lists patterns for the names of functions, or tables that contain functions.
        """
        found = {
            address
            for address in self.in_pointers
            for pattern in group.get("functions", ())
            if fnmatchcase(self.functions[address].name, pattern)
        }
        for name in group.get("tables", ()):
            if name in image.objects:
                at, size = image.objects[name]
                found |= {word & ~1 for word in _words(image, at, size)} & set(self.functions)
        return frozenset(found)

    def _lend(self, names: set[str]) -> None:
        """Let an application's own calls through pointers call all its functions in pointers.

        The library's pointers hold functions of the application too, whatever their names are.
        """
        about = self.rules["application"]
        own = frozenset[int]().union(*(self.groups[name] for name in about["library"]))
        lent = frozenset(self.in_pointers) - own
        for name in about["lent"]:
            self.groups[name] = self.groups[name] | lent
        self.groups["application"] = lent
        self.rule_of = {name: {"to": ["application"]} for name in names} | self.rule_of

    def _check(self) -> None:
        """Raise BadInput if calls.toml omits a function that is part of a call through a pointer.

        The function either calls through a pointer, or its address is in a pointer.
        """
        listed = frozenset[int]().union(*self.groups.values())
        called = {self.functions[address].name for address in self.in_pointers - listed}
        callers = {f.name for f in self.functions.values() if f.calls_pointer} - set(self.rule_of)
        if called:
            raise BadInput(
                f"pointers hold the addresses of {', '.join(sorted(called))}, but no group in "
                "firmware/calls.toml has these functions: add each of them to a group"
            )
        if callers:
            raise BadInput(
                f"{', '.join(sorted(callers))}: these functions call through a pointer, but "
                "firmware/calls.toml has no rule for them: add a rule for each"
            )

    def _targets(self, name: str, entered: tuple[str, ...]) -> set[int]:
        """Return the functions that the function `name` may call through pointers."""
        rule = self.rule_of[name]
        inside = (groups for outer, groups in rule.get("inside", {}).items() if outer in entered)
        groups = next(inside, rule["to"])
        return {address for group in groups for address in self.groups[group]}

    def deepest(self, address: int, entered: tuple[str, ...] = ()) -> int:
        """Return the largest use of the stack by a function and the functions that it calls.

        `entered`: the function's direct and indirect callers that calls.toml lists under `again`.
        """
        function = self.functions[address]
        if function.name in self.again:
            if entered.count(function.name) == self.again[function.name]:
                return 0
            entered = tuple(sorted((*entered, function.name)))
        key = (address, entered)
        if key in self.path:
            way = [self.functions[at].name for at, _ in self.path[self.path.index(key) :]]
            raise BadInput(
                f"the stack has no known bound, because {' calls '.join((*way, function.name))}. "
                "If the depth of this recursion is limited, list one of the functions under "
                "`again` in firmware/calls.toml"
            )
        if key not in self.known:
            self.path.append(key)
            targets = set(function.calls)
            if function.calls_pointer:
                targets |= self._targets(function.name, entered)
            below = max((self.deepest(target, entered) for target in sorted(targets)), default=0)
            self.known[key] = function.frame_bytes + below
            self.path.pop()
        return self.known[key]

    def total(self, exception_bytes: int) -> int:
        """Return the stack bytes of the reset handler, one interrupt of each level, and a fault."""
        nesting = [set(level) for level in self.rules["interrupts"]["levels"]]
        faults = set(self.rules["interrupts"]["faults"])
        known = faults.union(*nesting)
        handlers: dict[str, int] = {}
        for address in self.vectors[1:]:
            name = self.functions[address].name
            if name not in known:
                raise BadInput(
                    f"firmware/calls.toml has no interrupt level for the handler {name}: add the "
                    "handler to `levels` or `faults`"
                )
            handlers[name] = self.deepest(address)
        bytes_used = self.deepest(self.vectors[0])
        for level in nesting:
            depths = [depth for name, depth in handlers.items() if name in level]
            if depths:
                bytes_used += exception_bytes + max(depths)
        for fault in faults & set(handlers):
            depth = handlers[fault]
            resets = any(f.resets_stack for f in self.functions.values() if f.name == fault)
            bytes_used = max(bytes_used + exception_bytes + (0 if resets else depth), depth)
        return bytes_used


def _vectors(image: Image) -> list[int]:
    """Return the functions in the vector table, each once. The first is the reset handler."""
    at, size = image.objects["vectors"]
    words = [word & ~1 for word in _words(image, at, size)[1:] if word]
    return list(dict.fromkeys(words))


def _words(image: Image, at: int, size: int) -> tuple[int, ...]:
    """Return the words at an address of the image. For a variable: its initial value."""
    if image.symbols["data_start"] <= at < image.symbols["data_end"]:
        at += image.symbols["data_load"] - image.symbols["data_start"]
    for start, data in image.segments:
        if start <= at and at + size <= start + len(data):
            return struct.unpack_from(f"<{size // 4}I", data, at - start)
    return ()


def _addresses_in_pointers(image: Image, known: dict[int, Function]) -> set[int]:
    """Return the functions whose address is in a pointer outside the vector table."""
    if not image.pointers:
        raise BadInput("the firmware image has no relocations: link it with --emit-relocs")
    if image.split_pointers:
        raise BadInput(
            "the firmware image loads addresses in two halves (MOVW, MOVT), so the stack has no "
            "known bound: compile so that the image stores each address as one word"
        )
    at, size = image.objects["vectors"]
    words = {
        word & ~1
        for place in image.pointers
        if not at <= place < at + size
        for word in _words(image, place, 4)
    }
    return words & set(known)


def _instruction_bytes(image: Image, start: int, size: int) -> bytearray:
    """Return one byte for each byte of code: 1 if mapping symbols mark an instruction, else 0."""
    code = bytearray(size)
    marks = [*((a, k) for a, k in image.marks if start <= a < start + size), (start + size, "d")]
    for (begin, kind), (end, _) in pairwise(marks):
        if kind == "t":
            code[begin - start : end - start] = b"\1" * (end - begin)
    return code


def functions(image: Image) -> dict[int, Function]:
    """Return every function of the image, by address."""
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
            if _resets_stack(image, address, first, start, code):
                function.resets_stack = True
                continue
            function.frame_bytes += _pushed(function.name, address, first, second, start, code)
            if _calls_pointer(first, second):
                function.calls_pointer = True
            target = _branch(address, first, second)
            if target is not None:  # a branch into another function is a call
                owner = starts[bisect_right(starts, target) - 1]
                if owner != here or target == here:
                    function.calls.add(owner)
    return found


def _resets_stack(image: Image, address: int, first: int, start: int, code: bytes) -> bool:
    """Return True if the instruction is MOV SP, Rm, and Rm points to the top of the stack."""
    if first & 0xFF87 != 0x4685:
        return False
    top = image.symbols.get("stack_top", -1)
    return _constant("it", address, first >> 3 & 15, start, code) & 0xFFFFFFFF == top


def _instructions(
    start: int, code: bytes, is_code: bytearray
) -> Iterator[tuple[int, int, int | None]]:
    """Yield (address, first halfword, second halfword or None) for each instruction."""
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


def _pushed(
    name: str, address: int, first: int, second: int | None, start: int, code: bytes
) -> int:
    """Return the bytes by which an instruction lowers the stack pointer.

    Instructions that raise the stack pointer count as 0. So the frame of a function is the sum of
    all pushes.
    """
    if second is None:
        if first & 0xFE00 == 0xB400:  # PUSH
            return 4 * (first & 0x1FF).bit_count()
        if first & 0xFF80 == 0xB080:  # SUB SP, #
            return 4 * (first & 0x7F)
        if first & 0xFF87 == 0x4485:  # ADD SP, Rm: an earlier LDR has loaded a constant into Rm
            return max(0, -_constant(name, address, first >> 3 & 15, start, code))
        if first & 0xFF87 == 0x4685:  # MOV SP, Rm
            raise BadInput(
                f"the function {name} sets the stack pointer to the value of a register, so its "
                "use of the stack has no known bound: give its local arrays a fixed size, or load "
                "stack_top into the register"
            )
        return 0
    if first == 0xE92D:  # PUSH.W
        return 4 * second.bit_count()
    if first == 0xF84D and second & 0x0FFF == 0x0D04:  # PUSH.W of one register
        return 4
    if first == 0xE96D or first & 0xFFBF == 0xED2D:  # STRD with write-back, VPUSH
        return 4 * (second & 0xFF)
    if first & 0xFBFF == 0xF1AD and second & 0x8F00 == 0x0D00:  # SUB.W SP, SP, #
        return _expanded(first, second)
    if first & 0xFBFF == 0xF2AD and second & 0x8F00 == 0x0D00:  # SUBW SP, SP, #
        return (first >> 10 & 1) << 11 | (second >> 12 & 7) << 8 | second & 0xFF
    if first & 0xFFEF in (0xEBAD, 0xEB0D) and second & 0x0F00 == 0x0D00:
        raise BadInput(
            f"the function {name} changes the stack pointer by the value of a register, so its "
            "use of the stack has no known bound: give its local arrays a fixed size"
        )
    return 0


def _expanded(first: int, second: int) -> int:
    """Return the constant that an instruction encodes: ThumbExpandImm (ARMv7-M ARM, A5.3.2)."""
    value = (first >> 10 & 1) << 11 | (second >> 12 & 7) << 8 | second & 0xFF
    if value >> 10 == 0:
        byte, pattern = value & 0xFF, value >> 8 & 3
        return byte * (1, 0x00010001, 0x01000100, 0x01010101)[pattern]
    return (0x80 | value & 0x7F) << (32 - (value >> 7))


def _constant(name: str, address: int, register: int, start: int, code: bytes) -> int:
    """Return the signed constant that `register` holds.

    The last LDR Rt, [PC, #], or MOVS Rd, # and perhaps LSLS Rd, Rd, # have set it.
    """
    shift = 0
    for at in range(address - 2, max(start, address - 64), -2):
        half = int.from_bytes(code[at - start : at - start + 2], "little")
        if half & 0xF83F == register * 9:  # LSLS
            shift += half >> 6 & 31
        if half & 0xFF00 == 0x2000 | register << 8:
            return _signed((half & 0xFF) << shift & 0xFFFFFFFF, 32)
        if half & 0xFF00 == 0x4800 | register << 8:
            literal = (at + 4 & ~3) + 4 * (half & 0xFF) - start
            return int.from_bytes(code[literal : literal + 4], "little", signed=True)
    raise BadInput(
        f"the function {name} changes the stack pointer by a register of unknown value, so its "
        "use of the stack has no known bound: give its local arrays a fixed size"
    )


def _calls_pointer(first: int, second: int | None) -> bool:
    """Return True for BLX Rm, and for BX Rm unless Rm is LR.

    Jump tables (MOV PC, TBB, LDR PC) do not count: they stay inside the function.
    """
    return second is None and (
        first & 0xFF87 == 0x4780 or (first & 0xFF87 == 0x4700 and first >> 3 & 15 != 14)
    )


def _branch(address: int, first: int, second: int | None) -> int | None:
    """Return the target of B, BL, or a conditional branch; None for other instructions."""
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
            return None  # BLX to Arm code, which these cores cannot execute
        high = sign << 23 | (1 ^ j1 ^ sign) << 22 | (1 ^ j2 ^ sign) << 21
        return address + 4 + 2 * _signed(high | (first & 0x3FF) << 11 | second & 0x7FF, 24)
    if first >> 7 & 7 == 7:
        return None  # MSR, MRS, barriers
    offset = sign << 19 | j2 << 18 | j1 << 17 | (first & 0x3F) << 11 | second & 0x7FF
    return address + 4 + 2 * _signed(offset, 20)


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value
