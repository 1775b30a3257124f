"""Upper bound of a firmware image's stack depth, valid for every run.

Frames and calls of all functions are read from their instructions, as the compiler's objdump prints
them. So functions of the C library are included too. firmware/calls.toml
lists which functions may be called through pointers, and which interrupts nest. An image is refused
if calls.toml omits a function that calls through a pointer, or a function whose address is in a
pointer. This module needs the standard library only, because PlatformIO's builder imports it too.
"""

import re
import struct
import subprocess
import tomllib
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from ..errors import BadInput
from ..resources import resource
from .image import Image
from .recipe import compiler_tool

# Patterns for lines of objdump, and for instructions that call or change the stack pointer.
_LINE = re.compile(r"^ *([0-9a-f]+):\t[0-9a-f ]+\t(\w+)(?:\.[nw])?(?:\t([^;@\n]*))?", re.M)
_BRANCH = re.compile(r"(?:b|bl|b(?:eq|ne|cs|cc|mi|pl|vs|vc|hi|ls|ge|lt|gt|le)) ([0-9a-f]+) ")
# Jump tables (MOV PC, TBB, LDR PC) stay inside the function.
_CALL = re.compile(r"blx\w* [a-z]|bx\w* (?!lr)")
_PUSH = re.compile(r"(?:v?push\w*|stmdb\w* sp!,) \{(.*)\}")
_LOWER = re.compile(r"sub\w* sp, (?:sp, )?#(\d+)|strd?\w* .*\[sp, #-(\d+)\]!")
_MOVED = re.compile(r"(add|mov) sp, (?:sp, )?([a-z]\w*)$")
_CHANGE = re.compile(r"\w+ sp\b|.*\bsp!|.*\[sp.*\]!")
_RAISE = re.compile(r"add\w* sp, (?:sp, )?#|v?ldm\w* sp!")
CONSTANT_DISTANCE = 32  # instructions between the last change of a register and its use

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


def _instructions(image: Image) -> Iterator[tuple[int, str]]:
    """Yield address and text of each instruction, such as "sub sp, sp, #8", as objdump says it.

    The suffix of a mnemonic that states the length of the instruction is left out.
    """
    command = [compiler_tool("objdump"), "-d", "-z", str(image.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for address, mnemonic, operands in _LINE.findall(done.stdout):
        yield int(address, 16), f"{mnemonic} {operands.strip()}"


def functions(image: Image) -> dict[int, Function]:
    """Return every function of the image, by address."""
    starts = sorted({address for address, _ in image.functions})
    names = {address: name.partition(".")[0] for address, name in reversed(image.functions)}
    found = {address: Function(names[address]) for address in starts}
    earlier: deque[tuple[int, str]] = deque(maxlen=CONSTANT_DISTANCE)  # the latest is the first
    for address, text in _instructions(image):
        here = starts[max(0, bisect_right(starts, address) - 1)]
        function = found[here]
        if target := _BRANCH.match(text):  # a branch into another function is a call
            owner = starts[bisect_right(starts, int(target[1], 16)) - 1]
            if owner != here or int(target[1], 16) == here:
                function.calls.add(owner)
        elif _CALL.match(text):
            function.calls_pointer = True
        elif moved := _MOVED.match(text):
            constant = _constant(image, function.name, moved[2], earlier)
            if moved[1] == "add":
                function.frame_bytes += max(0, -constant)
            elif constant & 0xFFFFFFFF == image.symbols.get("stack_top"):
                function.resets_stack = True
            else:
                raise _unbounded(function.name, "sets the stack pointer to an unknown value")
        else:
            function.frame_bytes += _pushed(function.name, text)
        earlier.appendleft((address, text))
    return found


def _pushed(name: str, text: str) -> int:
    """Return the bytes by which an instruction lowers the stack pointer.

    Instructions that raise the stack pointer count as 0. So the frame of a function is the sum of
    all pushes.
    """
    if pushed := _PUSH.match(text):
        spans = (item.strip().partition("-") for item in pushed[1].split(","))
        count = sum(int(last[1:]) - int(first[1:]) + 1 if last else 1 for first, _, last in spans)
        return count * (8 if pushed[1].startswith("d") else 4)
    if lowered := _LOWER.match(text):
        return int(lowered[1] or lowered[2])
    if _CHANGE.match(text) and not _RAISE.match(text):
        raise _unbounded(name, f"changes the stack pointer by `{text}`")
    return 0


def _constant(image: Image, name: str, register: str, earlier: Iterable[tuple[int, str]]) -> int:
    """Return the signed constant that `register` holds.

    The last LDR Rt, [PC, #], or MOVS Rd, # and perhaps LSLS Rd, Rd, # have set it.
    """
    shift = 0
    for address, text in earlier:
        if found := re.match(rf"lsls {register}, {register}, #(\d+)", text):
            shift += int(found[1])
        if found := re.match(rf"movs {register}, #(\d+)", text):
            return _signed(int(found[1]) << shift & 0xFFFFFFFF)
        if found := re.match(rf"ldr {register}, \[pc, #(\d+)\]", text):
            (word,) = _words(image, (address + 4 & ~3) + int(found[1]), 4)
            return _signed(word)
    raise _unbounded(name, "changes the stack pointer by a register of unknown value")


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


def _unbounded(name: str, what: str) -> BadInput:
    return BadInput(
        f"the function {name} {what}, so its use of the stack has no known bound: give its local "
        "arrays a fixed size, or load stack_top into the register"
    )
