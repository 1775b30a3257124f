"""ring.h: bytes that a UART's interrupt stores reach the server once, in order, or are dropped.

The interrupt comes between calls, and wherever ring_take locks interrupts out or lets them in.
"""

import random
import subprocess
from collections import deque
from typing import Any

import cffi
import pytest
from poet_host.resources import resource

FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
FLAGS += ["-fsanitize=undefined", "-fno-sanitize-recover=all"]
CALLS = """
    void start(void (*interrupt)(void));
    void put(uint8_t byte);
    bool would_drop(void);
    bool holds(void);
    uint32_t take(uint32_t from, uint32_t size);
    void drop(void);
    extern uint8_t frame[48];
"""
PROGRAM = """
#include "ring.h"

static struct ring ring;
static void (*arrive)(void);
uint8_t frame[48];

uint32_t chip_lock(void) { arrive(); return 0; }
void chip_unlock(uint32_t was) { (void)was; arrive(); }
void start(void (*interrupt)(void)) { ring = (struct ring){0}; arrive = interrupt; }
void put(uint8_t byte) { ring_put(&ring, byte); }
bool would_drop(void) { return !ring.room && (ring.head + 1) % RING == ring.tail; }
bool holds(void) { return ring_holds(&ring); }
uint32_t take(uint32_t from, uint32_t size) { return ring_take(&ring, frame + from, size); }
void drop(void) { ring_drop(&ring); }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> tuple[cffi.FFI, Any]:
    folder = tmp_path_factory.mktemp("ring")
    (folder / "ring.c").write_text(PROGRAM)
    include = f"-I{resource('firmware') / 'port' / 'common'}"
    command = ["cc", *FLAGS, include, str(folder / "ring.c"), "-o", str(folder / "ring.so")]
    subprocess.run(command, check=True)
    ffi = cffi.FFI()
    ffi.cdef(CALLS)
    return ffi, ffi.dlopen(str(folder / "ring.so"))


class Line:
    """A host that sends `frames`, the interrupt, and a server that takes what has arrived."""

    def __init__(
        self, library: tuple[cffi.FFI, Any], frames: list[bytes], chance: random.Random
    ) -> None:
        self.ffi, self.lib = library
        self.pending = deque(b"".join(frames))
        self.chance = chance
        self.bursts = (0,) * chance.choice((2, 10, 30)) + (1, 3, 60)  # bytes of an interrupt
        self.taken = 0
        self.overlong = False
        self._callback = self.ffi.callback("void(void)", self.interrupt)
        self.lib.start(self._callback)

    def interrupt(self) -> None:
        for _ in range(self.chance.choice(self.bursts)):
            if self.pending and not self.lib.would_drop():
                self.lib.put(self.pending.popleft())

    def receive(self) -> bytes | None:
        """Take bytes as poet_serve does; return a frame that has ended."""
        if self.taken == len(self.lib.frame):
            self.taken, self.overlong = 0, True
        held = self.lib.holds()
        got = self.lib.take(self.taken, len(self.lib.frame) - self.taken)
        assert got or not held
        self.taken += got
        found = bytes(self.ffi.buffer(self.lib.frame)[: self.taken])
        if not got or found[-1]:
            return None
        whole = not self.overlong
        self.taken, self.overlong = 0, False
        return found if whole else b"too long"

    def frames(self) -> list[bytes]:
        found = []
        idle = 0
        while idle < 20:
            self.interrupt()
            frame = self.receive()
            found += [frame] if frame else []
            idle = 0 if self.pending or self.lib.holds() else idle + 1
        return found


def frame_of(chance: random.Random, size: int) -> bytes:
    return bytes(chance.randrange(1, 256) for _ in range(size)) + b"\0"


@pytest.mark.parametrize("seed", range(100))
def test_frames_arrive_once_in_order_and_without_empty_ones(
    library: tuple[cffi.FFI, Any], seed: int
) -> None:
    chance = random.Random(seed)
    sent = [frame_of(chance, chance.choice((1, 2, 10, 40, 47, 48, 70, 130))) for _ in range(30)]
    line = Line(library, [frame + b"\0" * chance.choice((0, 0, 1, 2)) for frame in sent], chance)
    assert line.frames() == [frame if len(frame) <= 48 else b"too long" for frame in sent]


def test_what_does_not_fit_is_dropped_and_the_next_frame_is_whole(
    library: tuple[cffi.FFI, Any],
) -> None:
    line = Line(library, [], random.Random(0))
    for byte in frame_of(line.chance, 100):  # nothing is lent: a server that computes
        library[1].put(byte)
    assert line.receive() is None  # 48 bytes fill the frame
    after = [frame_of(line.chance, 5), frame_of(line.chance, 40)]
    line.pending.extend(b"\0" + b"".join(after))
    assert line.frames() == [b"too long", *after]


def test_a_dropped_line_is_empty_and_lends_nothing(library: tuple[cffi.FFI, Any]) -> None:
    line = Line(library, [], random.Random(0))  # it owns the interrupt, which `take` calls
    lib = line.lib
    assert lib.take(0, 48) == 0  # the whole buffer is lent
    for byte in (7, 0, 7):  # the last one waits elsewhere, for nothing is lent
        lib.put(byte)
    assert lib.holds()
    lib.drop()
    assert not lib.holds()
    lib.put(8)
    lib.put(0)
    assert lib.take(0, 48) == 2
    assert bytes(library[0].buffer(lib.frame)[:2]) == b"\x08\0"
    assert not lib.holds()
