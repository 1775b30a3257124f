"""The store in a chip's own flash (flash.c), with power cuts at every erase and write."""

import subprocess
from functools import cache, partial
from pathlib import Path
from typing import Any

import cffi
import pytest
from poet_host import isa
from poet_host.resources import resource
from poet_host.schedule.slots import COMMIT_BLOCKS, DATA_BLOCK, MODEL_BLOCK, PLAN_BLOCK
from support import toy
from support.card_image import BLOCK, CardImage
from support.memory_board import MemoryBoard, Refused, refusal
from support.toy_boards import begin, load, run_in_ram, truth, weights

CHIPS = {"samd21": (168 << 10, 256), "nrf52840": (832 << 10, 4096)}  # bytes of store, of an erase
pytestmark = pytest.mark.parametrize("chip", CHIPS)
KIND = "in RAM"
STEPS, EVERY = 4, 2
run = partial(run_in_ram, last=STEPS, every=EVERY)
NOTE_BLOCK = MODEL_BLOCK + isa.constants()["POET_NOTE_OFFSET"] // BLOCK


@cache
def compiled(chip: str, folder: Path) -> tuple[cffi.FFI, Any]:
    size_bytes, erase_bytes = CHIPS[chip]
    firmware = resource("firmware")
    built = folder / f"flash-{chip}.so"
    sources = [Path(__file__).parent / "flash" / "driver.c", firmware / "port/common/flash.c"]
    command = ["cc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command += [f"-DFLASH_BYTES={size_bytes}", f'-DFLASH_TEXT="{size_bytes}"']
    command += [f"-DERASE_BYTES={erase_bytes}", f"-I{firmware / 'include'}"]
    command += [f"-I{firmware / 'port' / folder}" for folder in ("common", chip)]
    command += [str(path) for path in sources] + [str(firmware / "src/crc32.c"), "-o", str(built)]
    subprocess.run(command, check=True)
    ffi = cffi.FFI()
    ffi.cdef(
        "extern uint32_t flash[], operations, cut_at; extern bool is_off;"
        "uint32_t flash_blocks(void); uint32_t flash_erases(void);"
        "int flash_read(uint32_t block, void *data, uint32_t count);"
        "int flash_write(uint32_t block, const void *data, uint32_t count);"
        "int flash_erase(uint32_t block, uint32_t count);"
    )
    return ffi, ffi.dlopen(str(built))


class FlashBoard(MemoryBoard):
    """A board whose storage is the flash of a chip. `cut_at`: see driver.c."""

    def __init__(self, chip: str, folder: Path, content: bytes | None = None, cut_at: int = 0):
        self.flash_ffi, self.flash = compiled(chip, folder)
        self.size_bytes = CHIPS[chip][0]
        blank = b"\xff" * self.size_bytes if content is None else content
        self.flash_ffi.memmove(self.flash.flash, blank, self.size_bytes)
        self.flash.is_off, self.flash.operations, self.flash.cut_at = False, 0, cut_at
        super().__init__(CardImage(BLOCK), is_flash=True)

    @property
    def content(self) -> bytes:
        return bytes(self.flash_ffi.buffer(self.flash.flash, self.size_bytes))

    def call(self, name: str, *arguments: Any) -> None:
        super().call(name, *arguments)
        if self.flash.is_off:
            raise PowerCut

    def _usage(self, _: Any, usage: Any) -> None:
        super()._usage(_, usage)
        usage.erases = self.flash.flash_erases()

    def _storage_blocks(self, _: Any) -> int:
        return int(self.flash.flash_blocks())

    def _moved(self, data: Any) -> Any:
        return self.flash_ffi.cast("void *", int(self.ffi.cast("uintptr_t", data)))

    def _read(self, _: Any, block: int, data: Any, count: int) -> int:
        return int(self.flash.flash_read(block, self._moved(data), count))

    def _write(self, _: Any, block: int, data: Any, count: int) -> int:
        self.writes += count
        return int(self.flash.flash_write(block, self._moved(data), count))

    def _erase(self, _: Any, block: int, count: int) -> int:
        return int(self.flash.flash_erase(block, count))


class PowerCut(Exception):
    """The power has failed."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("flash")


def begun(chip: str, folder: Path) -> FlashBoard:
    found = FlashBoard(chip, folder)
    load(found, KIND)
    begin(found)
    return found


def test_blank_flash_is_formatted_and_trains(chip: str, folder: Path) -> None:
    found = begun(chip, folder)
    assert found.hello()["storage_status"] == 0
    run(found, 1)
    assert weights(found) == truth()[STEPS]
    identity = found.state.store.identity
    again = FlashBoard(chip, folder, found.content)
    assert again.hello()["committed_step"] == STEPS
    assert again.state.store.identity == identity
    assert again.flash.operations == 0


@pytest.mark.slow
def test_power_cut_at_every_erase_and_write(chip: str, folder: Path) -> None:
    start = begun(chip, folder).content
    probe = FlashBoard(chip, folder, start)
    load(probe, KIND)
    loaded = probe.flash.operations
    run(probe, 1)
    seen = set()
    for cut_at in range(loaded + 1, probe.flash.operations + 1):
        cut = FlashBoard(chip, folder, start, cut_at)
        committed = 0
        try:
            load(cut, KIND)
            committed = cut.state.committed.now.step
            run(cut, 1)
        except (PowerCut, Refused):
            committed = cut.state.committed.now.step
        assert cut.flash.is_off
        after = FlashBoard(chip, folder, cut.content)
        step = after.hello()["committed_step"]
        assert step in (committed - EVERY, committed, committed + EVERY), cut_at
        load(after, KIND)
        assert weights(after) == truth()[step], f"cut at operation {cut_at}"
        seen.add(step)
        run(after, step + 1)
        assert weights(after) == truth()[STEPS], f"cut at operation {cut_at}"
    assert seen >= {0, 2}


@pytest.mark.slow
def test_power_cut_during_the_first_use(chip: str, folder: Path) -> None:
    last = begun(chip, folder).flash.operations
    for cut_at in range(1, last + 1, 7):
        cut = FlashBoard(chip, folder, cut_at=cut_at)
        try:
            load(cut, KIND)
            begin(cut)
        except (PowerCut, Refused):
            pass
        after = FlashBoard(chip, folder, cut.content)
        after.hello()
        assert after.state.storage_status == 0  # mounted
        load(after, KIND)
        begin(after)
        run(after, 1)
        assert weights(after) == truth()[STEPS]


def test_each_area_is_apart(chip: str, folder: Path) -> None:
    """What is written to one object never changes another one, and all else reads as zeros."""
    found = begun(chip, folder)
    run(found, 1)
    found.write(0, 0, isa.constants()["POET_NOTE_OFFSET"], b"a note")
    second = isa.constants()["POET_NOTE_OFFSET"] + isa.constants()["POET_NOTE_BYTES"]
    found.write(0, 0, second, b"another")
    load(found, KIND)
    assert weights(found) == truth()[STEPS]
    assert found.read(0, 0, second, 7) == b"another"
    assert found.read(0, 0, second - isa.constants()["POET_NOTE_BYTES"], 6) == b"a note"
    ffi, flash = found.flash_ffi, found.flash
    block = ffi.new("uint8_t[]", BLOCK)
    for gap in (64, COMMIT_BLOCKS[0] - 100, COMMIT_BLOCKS[1] + 8, flash.flash_blocks() - 1):
        assert flash.flash_read(1 + gap, block, 1) == 0
        if gap != 64 and gap < DATA_BLOCK:
            assert bytes(block) == bytes(BLOCK)
            assert flash.flash_write(1 + gap, block, 1) == -1
    assert flash.flash_write(flash.flash_blocks(), block, 1) == -1
    assert flash.flash_write(1 + PLAN_BLOCK, b"\xff" * BLOCK, 1) == -1  # it is not erased
    for area in (0, *COMMIT_BLOCKS, MODEL_BLOCK, PLAN_BLOCK, NOTE_BLOCK, DATA_BLOCK):
        before = found.content
        flash.flash_erase(1 + area, 1)
        changed = [i for i, (a, b) in enumerate(zip(before, found.content, strict=True)) if a != b]
        assert changed
        assert changed[-1] - changed[0] < max(BLOCK, CHIPS[chip][1])


def test_what_does_not_fit_is_refused(chip: str, folder: Path) -> None:
    found = begun(chip, folder)
    large = toy.schedule(KIND).model_part
    assert refusal(found.write, 0, 0, 250 * BLOCK, large[:BLOCK]).name == "storage_failed"
