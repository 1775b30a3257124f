"""The C runtime as a library, on a port in Python: storage in RAM, with power cuts."""

import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any, NamedTuple

import cffi
import pytest
from poet_host import isa
from poet_host.firmware_build.native import build_library
from poet_host.resources import resource
from poet_host.sim.native import PARTITION_TYPE
from support.card_image import BLOCK, CardImage

PARTITION = 8  # first block of the partition on these cards
NO_STEP = 0xFFFFFFFF
ERASE_BLOCKS = isa.constants()["POET_ERASE_BLOCKS"]
IN_RAM = isa.constants()["POET_MODEL_IN_RAM"]
GUARD = 0x5AFE5AFE  # the word after the arena


def declarations(path: str) -> str:
    """Return a header as cffi can read it: without comments, directives and macros."""
    text = (resource("firmware") / path).read_text(encoding="utf-8")
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r"^#ifdef __cplusplus.*?^#endif", "", text, flags=re.M | re.S)
    text = re.sub(r"^#(?:.*\\\n)*.*$", "", text, flags=re.M)
    text = re.sub(r"^enum \w+ \{\s*\};", "", text, flags=re.M)
    text = re.sub(r"^static inline .*?^}", "", text, flags=re.M | re.S)
    text = re.sub(r"^(?:POET_LAYOUT|_Static_assert)\(.*?\);", "", text, flags=re.M | re.S)
    for name, value in isa.constants().items():
        text = re.sub(rf"\b{name}\b", str(value), text)
    return text.replace("POET_CHECKED", "")


@cache
def library() -> tuple[cffi.FFI, Any]:
    """Return all declarations of the runtime, internal ones too, and the compiled library.

    With POET_SANITIZE it is built with sanitizers, whose library the process then needs preloaded.
    """
    ffi = cffi.FFI()
    headers = ("records.h", "answers.h", "port.h", "program.h", "slices.h", "poet.h", "server.h")
    inner = ("storage.h", "runtime.h", "plan.h", "samples.h")
    for header in [f"include/poet/{h}" for h in headers] + [f"src/{h}" for h in inner]:
        ffi.cdef(declarations(header))
    return ffi, ffi.dlopen(str(build_library(bool(os.environ.get("POET_SANITIZE")))))


class Refused(Exception):
    """A negative result; `name` is its row in wire.def."""

    def __init__(self, code: int, detail: int) -> None:
        self.name = isa.by_code("ERROR")[code].name
        self.detail = detail
        super().__init__(f"{self.name} ({detail})")


class Refusal(NamedTuple):
    name: str
    detail: int


def refusal(call: Callable[..., object], *arguments: object, **named: object) -> Refusal:
    """Return the error with which a board must refuse a call."""
    with pytest.raises(Refused) as found:
        call(*arguments, **named)
    return Refusal(found.value.name, found.value.detail)


def card(blocks: int = 1 << 18, partition_type: int = PARTITION_TYPE) -> CardImage:
    """A card with one partition that fills it, as a partitioning tool writes it."""
    image = CardImage(blocks * BLOCK)
    entry = struct.pack("<BxxxBxxxII", 0, partition_type, PARTITION, blocks - PARTITION)
    image[446 : 446 + len(entry)] = entry
    image[510:512] = b"\x55\xaa"
    return image


@dataclass(frozen=True)
class FalseWrite:
    """What a card stores in place of the block that it acknowledges."""

    kept: int = BLOCK  # so many of the new bytes; the others stay as they were
    distance: int = 0  # so many blocks further on
    flipped: int | None = None  # with this bit inverted

    def content(self, old: bytes, new: bytes) -> bytes:
        stored = bytearray(new[: self.kept] + old[self.kept :])
        if self.flipped is not None:
            stored[self.flipped // 8] ^= 1 << self.flipped % 8
        return bytes(stored)


# For `survive` of a MemoryBoard.
SURVIVE: dict[str, Callable[[int], list[int]]] = {
    "all": lambda count: list(range(count)),
    "none": lambda count: [],
    "last torn": lambda count: [*range(count - 1), -count] if count else [],
    "only last": lambda count: [count - 1] if count else [],
    "every other": lambda count: list(range(0, count, 2)),
}


class MemoryBoard:
    """A board whose card is in memory, where other boards can use after it.

    `cut_at`: number of writes before a power cut. Later writes are lost. `survive` selects the
    writes since the last flush that reach the card: it gets their number and returns their indices.
    A negative index -1 - i is write i, torn in the middle. With `is_flash`, the storage is the
    flash of a chip: it must be erased before a write, in units, and an erase counts as a write.
    `left_out`: functions and texts of the port that are NULL. `unit`: blocks of an erase unit of
    storage that the board lays out. After an erase, a block of such flash is written once.
    """

    def __init__(
        self,
        storage: CardImage,
        arena_bytes: int = 4096,
        residents: int = 64,
        tensors: int = 128,
        queue: int = 8,
        trace: int = 256,
        cache: int = 3,
        cut_at: int | None = None,
        survive: Callable[[int], list[int]] = lambda count: list(range(count)),
        is_flash: bool = False,
        slabs: int | None = 64,
        left_out: Iterable[str] = (),
        unit: int = 0,
    ) -> None:
        ffi, self.lib = library()
        self.ffi = ffi
        self.storage, self.is_flash = storage, is_flash
        self.erases = 0
        self.cut_at = cut_at
        self.survive = survive
        self.reads = self.writes = 0
        self.strayed: list[int] = []  # requested blocks outside of the partition
        self.failing = False  # True: reads and writes fail
        self.bad_blocks = range(0)  # only writes to these blocks of the card fail
        self.false_writes: dict[int, FalseWrite] = {}  # by the number of the write, from 0
        self.false_reads: dict[int, int] = {}  # the bit that is inverted, by the read's number
        self.unflushed: list[tuple[int, bytes, bytes]] = []  # offset, bytes before, bytes after
        self.allocation_mib = 0
        self.now, self.ticks_per_call = 0, 1
        self.state = ffi.new("struct poet *")
        self.arena = ffi.new("uint32_t[]", arena_bytes // 4 + 1)  # and a GUARD
        self.arena[arena_bytes // 4] = GUARD
        self._keep = (
            ffi.new("struct poet_resident[]", residents),
            ffi.new("uint32_t[]", (tensors + 31) // 32),
            ffi.new("struct poet_transfer[]", queue),
            ffi.new("struct poet_trace[]", trace),
            ffi.new("char[]", b"memory"),
            ffi.new("uint8_t[]", BLOCK),
            ffi.new("struct poet_cache[]", cache),
            ffi.new("uint8_t[]", (slabs or 0) // 4 + 1),
        )
        rows = {"steps": self._keep[7], "capacity": slabs or 0}
        self.rows = ffi.NULL if slabs is None else ffi.new("struct poet_rows *", rows)
        self.memory = ffi.new("struct poet_memory *", {
            "arena": ffi.cast("uint8_t *", self.arena), "arena_bytes": arena_bytes,
            "residents": self._keep[0], "resident_capacity": residents,
            "bitmap": self._keep[1], "tensor_capacity": tensors,
            "queue": self._keep[2], "queue_capacity": queue,
            "trace": self._keep[3], "trace_capacity": trace,
            "cache": self._keep[6], "cache_blocks": cache,
            "rows": self.rows,
        })  # fmt: skip
        self.trace = self._keep[3]
        functions: dict[str, tuple[str, Callable[..., Any]]] = {
            "ticks": ("uint32_t(void *)", self._ticks),
            "idle": ("void(void *)", lambda _: None),
            "storage_blocks": ("uint32_t(void *)", self._storage_blocks),
            "allocation_mib": ("uint32_t(void *)", lambda _: self.allocation_mib),
            "read": ("int(void *, uint32_t, void *, uint32_t)", self._read),
            "write": ("int(void *, uint32_t, const void *, uint32_t)", self._write),
            "flush": ("int(void *)", self._flush),
            "submit": ("void(void *, struct poet_transfer *)", self._submit),
            "receive": ("size_t(void *, uint8_t *, size_t, uint32_t)", self._receive),
            "send": ("void(void *, const uint8_t *, size_t)", self._send),
            "usage": ("void(void *, struct poet_usage *)", self._usage),
            "is_flash": ("bool(void *)", lambda _: self.is_flash),
            "erase": ("int(void *, uint32_t, uint32_t)", self._erase),
        }
        self._callbacks = {name: ffi.callback(*pair) for name, pair in functions.items()}
        self.port = ffi.new("struct poet_port *", self._callbacks)
        self.port.board = self.port.unique_id = self._keep[4]
        self.port.tick_hz = 1000
        for name in left_out:
            setattr(self.port, name, ffi.NULL)
        self.port.blocks = len(storage) // BLOCK
        self.unit = self.port.erase_blocks = unit
        self.line_in, self.line_out = bytearray(), bytearray()
        self.sends = 0  # calls of the port's `send`
        self.batch: dict[int, bytes] = {}  # INPUT tensors that each new step is given
        self.sent_after: tuple[int, int] | None = None  # `_last` when the batch was sent
        self.lib.poet_init(self.state, self.port, self.memory)

    # The port.

    def _ticks(self, _: Any) -> int:
        self.now += self.ticks_per_call
        return self.now & 0xFFFFFFFF

    def _storage_blocks(self, _: Any) -> int:
        return len(self.storage) // BLOCK

    def _usage(self, _: Any, usage: Any) -> None:
        """A board that never sleeps, and whose card takes a tick for each block."""
        usage.asleep = usage.retries = 0
        usage.erases = self.erases
        usage.reading, usage.writing = self.reads, self.writes

    def _stray(self, block: int, count: int) -> None:
        first, blocks = self.state.partition, self.state.partition_blocks
        if blocks and not first <= block <= block + count <= first + blocks:
            self.strayed.append(block)

    def _read(self, _: Any, block: int, data: Any, count: int) -> int:
        self._stray(block, count)
        if self.failing or (block + count) * BLOCK > len(self.storage):
            return -1
        content = bytearray(self.storage[block * BLOCK : (block + count) * BLOCK])
        for i in range(count):
            if (bit := self.false_reads.get(self.reads)) is not None:
                content[i * BLOCK + bit // 8] ^= 1 << bit % 8
            self.reads += 1
        self.ffi.memmove(data, bytes(content), count * BLOCK)
        return 0

    def _write(self, _: Any, block: int, data: Any, count: int) -> int:
        self._stray(block, count)
        if self.failing or (block + count) * BLOCK > len(self.storage):
            return -1
        for i in range(count):
            if self.writes == self.cut_at or block + i in self.bad_blocks:
                return -1  # the power is off, or the block is worn
            at = (block + i) * BLOCK
            new = bytes(self.ffi.buffer(data, count * BLOCK)[i * BLOCK : (i + 1) * BLOCK])
            if false := self.false_writes.get(self.writes):
                at += false.distance * BLOCK
                new = false.content(self.storage[at : at + BLOCK], new)
            self.writes += 1
            if self.is_flash:
                old = self.storage[at : at + BLOCK]
                spoilt = self.unit and old != b"\xff" * BLOCK
                if spoilt or any(a & ~b for b, a in zip(old, new, strict=True)):
                    raise AssertionError(f"block {block + i} is written without an erase")
            self.unflushed.append((at, bytes(self.storage[at : at + BLOCK]), new))
            self.storage[at : at + BLOCK] = new
        return 0

    def _erase(self, _: Any, block: int, count: int) -> int:
        start, length = (0, self.unit) if self.unit else (PARTITION, ERASE_BLOCKS)
        assert not self.unit or (block % self.unit, count) == (0, self.unit)
        first = (block - start) // length
        last = (block + count - 1 - start) // length
        for unit in range(first, last + 1):
            at = (start + unit * length) * BLOCK
            is_cut = self.writes == self.cut_at
            size = length * BLOCK // (1 + is_cut)
            self.storage[at : at + size] = b"\xff" * size
            if is_cut:
                return -1
            self.writes += 1
            self.erases += 1
        return 0

    def _flush(self, _: Any) -> int:
        if self.failing or self.writes == self.cut_at:
            return -1
        self.unflushed.clear()
        return 0

    def _submit(self, _: Any, transfer: Any) -> None:
        self.lib.poet_transfer_run(self.port, transfer, self._keep[5])

    def _receive(self, _: Any, data: Any, size: int, wait_ms: int) -> int:
        end = self.line_in.find(0) + 1 or size
        piece = bytes(self.line_in[: min(size, end)])
        del self.line_in[: len(piece)]
        self.ffi.memmove(data, piece, len(piece))
        return len(piece)

    def _send(self, _: Any, data: Any, size: int) -> None:
        self.sends += 1
        self.line_out += self.ffi.buffer(data, size)

    def after_the_cut(self) -> CardImage:
        """Return the card as the next board finds it."""
        image = self.storage.copy()
        for at, before, _ in reversed(self.unflushed):
            image[at : at + BLOCK] = before
        for i in self.survive(len(self.unflushed)):
            at, _, new = self.unflushed[i if i >= 0 else -1 - i]
            image[at : at + BLOCK] = new if i >= 0 else new[:24] + image[at + 24 : at + BLOCK]
        return image

    # The library.

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.lib, f"poet_{name}")(self.state, *arguments)
        if code:
            raise Refused(code, self.state.detail)

    def format(self, blocks: int = 0) -> None:
        self.call("format", blocks)

    def hello(self) -> dict[str, Any]:
        hello = self.ffi.new("struct poet_hello *")
        self.lib.poet_describe(self.state, hello)
        return isa.unpack("poet_hello", bytes(self.ffi.buffer(hello)))

    def write(self, object: int, tensor: int, offset: int, data: bytes) -> None:
        if object == 2 and len(self.batch.get(tensor, b"")) == len(data):
            self.batch[tensor] = data
        self.call("write", object, tensor, offset, data, len(data))

    def read(self, object: int, tensor: int, offset: int, size: int) -> bytes:
        data = self.ffi.new("uint8_t[]", max(size, 1))
        self.call("read", object, tensor, offset, data, size)
        return bytes(self.ffi.buffer(data, size))

    def tensor(self, number: int, size: int) -> bytes:
        return self.read(2, number, 0, size)

    def load(self, model: bytes, plan: bytes) -> dict[str, Any]:
        self.write(0, 0, 0, model)
        self.write(1, 0, 0, plan)
        facts = self.ffi.new("struct poet_facts *")
        self.call("load", len(model), len(plan), facts)
        return isa.unpack("poet_facts", bytes(self.ffi.buffer(facts)))

    def load_program(self, model: bytes, plan: bytes) -> dict[str, Any]:
        """Load a schedule in memory. Nothing follows its bytes."""
        self.keep_program(model, plan)
        facts = self.ffi.new("struct poet_facts *")
        self.call("load_program", self.program, facts)
        return isa.unpack("poet_facts", bytes(self.ffi.buffer(facts)))

    def keep_program(self, model: bytes, plan: bytes) -> None:
        self._parts, self.program = self._in_memory(model, plan)

    def _in_memory(self, *both: bytes) -> tuple[list[Any], Any]:
        parts = [self.ffi.new("uint8_t[]", list(part)) for part in both]
        return parts, self.ffi.new("struct poet_program *", [*parts, *map(len, parts)])

    def load_forward(self, model: bytes, plan: bytes) -> None:
        """Load a forward program in memory. Nothing follows its bytes."""
        forward = self._in_memory(model, plan)
        self.call("load_forward", forward[1])
        self._forward = forward  # a call that is refused may leave the one before

    def infer(self, data: bytes, size_bytes: int) -> bytes:
        """Return the outputs, of `size_bytes` bytes."""
        outputs = self.ffi.new("const uint8_t **")
        self.call("infer", data, outputs)
        return bytes(self.ffi.buffer(outputs[0], size_bytes))

    def statements(self) -> Iterator[tuple[str, Any]]:
        """Name and struct of each statement of the loaded plan but `end`, by its decoder."""
        self.lib.poet_decode_start(self.state)
        for index in count():
            statement = self.ffi.new("struct poet_statement *")
            self.call("decode", statement)
            assert statement.index == index
            name = isa.by_code("STATEMENT")[statement.code].name
            if name == "end":
                return
            yield name, statement

    def save(self) -> dict[str, Any]:
        saved = self.ffi.new("struct poet_saved *")
        self.call("save", saved)
        return isa.unpack("poet_saved", bytes(self.ffi.buffer(saved)))

    def begin(self, step: int) -> None:
        self.call("begin", step)

    def send_batch(self) -> None:
        """Send the batch of the next step, if a card holds the tensors of the loaded schedule."""
        if self.state.loaded and not self.state.model.flags & IN_RAM:
            for tensor, data in self.batch.items():
                self.call("write", 2, tensor, 0, data, len(data))
            self.sent_after = self._last()

    def _last(self) -> tuple[int, int]:
        """The commit and the step that the next step follows."""
        return self.state.committed.now.generation, self.lib.poet_last_step(self.state)

    def step(self, step: int, first: int = 0, count: int = 0) -> dict[str, Any]:
        """Run a step. A new one is given its batch first, unless `send_batch` has sent it."""
        result = self.ffi.new("struct poet_step_result *")
        last = self._last()
        if step == last[1] + 1 and (self.sent_after != last or self.state.holds_batch):
            self.send_batch()
        self.call("step", step, first, count, result)
        return isa.unpack("poet_step_result", bytes(self.ffi.buffer(result)))
