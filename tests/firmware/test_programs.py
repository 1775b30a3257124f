"""Schedules in memory are read where they are, and two struct poet share nothing."""

import re
import subprocess
from typing import Any

import pytest
from poet_host.firmware_build.native import build_library
from support import toy
from support.card_image import CardImage
from support.memory_board import PARTITION, MemoryBoard, Refusal, card, refusal
from support.toy_boards import give_batch, load, run_in_ram, trained, truth, weights

PARTS = range(64, 8192)  # blocks of the partition that hold schedules and their copies
KINDS = ("frugal", "lavish", "cut", "small returning", "stays xwv every 3")
STEPS = 4


class Watched(MemoryBoard):
    """It notes which blocks are read and written."""

    def __init__(self, storage: CardImage, **how: Any) -> None:
        self.touched: set[int] = set()
        super().__init__(storage, **how)

    def _read(self, context: Any, block: int, data: Any, count: int) -> int:
        self.touched |= {*range(block - PARTITION, block - PARTITION + count)}
        return super()._read(context, block, data, count)

    def _write(self, context: Any, block: int, data: Any, count: int) -> int:
        self.touched |= {*range(block - PARTITION, block - PARTITION + count)}
        return super()._write(context, block, data, count)


def begun(kind: str = "frugal", storage: CardImage | None = None, **how: Any) -> Watched:
    """A board with a program in memory and the toy's tensors of seed 1."""
    board = Watched(card() if storage is None else storage, **how)
    board.format()
    load_program(board, kind)
    for number, data in enumerate(toy.values(1, kind)):
        board.write(2, number, 0, data)
    board.begin(0)
    return board


def load_program(board: MemoryBoard, kind: str) -> dict[str, Any]:
    schedule = toy.schedule(kind)
    board.batch = dict(zip((toy.X, toy.T), toy.values(1, kind), strict=False))
    return board.load_program(schedule.model_part, schedule.plan_part)


@pytest.mark.parametrize("cache", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_program_trains_the_same_bits_and_touches_no_schedule(kind: str, cache: int) -> None:
    board, stored = begun(kind, cache=cache), trained(card(), kind=kind)
    for step in range(1, STEPS + 1):
        assert board.step(step)["loss"] == stored.step(step)["loss"]
    assert weights(board, kind) == weights(stored, kind)
    assert board.touched
    assert not board.touched & {*PARTS}
    again = Watched(board.storage)
    load_program(again, kind)
    assert weights(again, kind) == weights(board, kind)
    assert not again.touched & {*PARTS}


@pytest.mark.parametrize("is_flash", [False, True])
def test_weights_in_ram_are_trained_by_a_program(is_flash: bool) -> None:
    board = begun("in RAM", is_flash=is_flash, cache=1)
    for step in range(1, STEPS + 1):
        run_in_ram(board, step, step, every=2)
    assert weights(board) == truth()[STEPS]
    assert not board.touched & {*PARTS}


def test_the_facts_are_those_of_a_schedule_on_storage() -> None:
    schedule, stored = toy.schedule(), trained(card())
    assert load_program(stored, "frugal") == stored.load(schedule.model_part, schedule.plan_part)


def test_a_schedule_on_storage_replaces_a_program_and_back() -> None:
    board = begun()
    for step, how in enumerate((load, load_program, load), start=1):
        how(board, "frugal")
        board.step(step)
    assert weights(board) == truth()[3]


@pytest.mark.parametrize("part", [0, 1])
def test_a_damaged_program_is_refused(part: int) -> None:
    board = begun()
    schedule = toy.schedule()
    whole = [schedule.model_part, schedule.plan_part]
    found = set()
    for at in range(len(whole[part])):
        changed = bytearray(whole[part])
        changed[at] ^= 0x10
        parts = [*whole]
        parts[part] = bytes(changed)
        found.add(refusal(board.load_program, *parts).name)
    assert {"bad_magic", "bad_crc"} <= found
    for size in range(len(whole[part])):
        parts = [*whole]
        parts[part] = whole[part][:size]
        assert refusal(board.load_program, *parts).name in ("bad_crc", "bad_table", "bad_plan")
    load_program(board, "frugal")
    board.step(1)
    assert weights(board) == truth()[1]


def sharing(first: MemoryBoard, entries: int) -> MemoryBoard:
    """A board whose cache is the last entries of that of another one."""
    second = MemoryBoard(card())
    second.memory.cache = first.memory.cache + (first.memory.cache_blocks - entries)
    second.memory.cache_blocks = entries
    second.lib.poet_init(second.state, second.port, second.memory)
    return second


@pytest.mark.parametrize("entries", [1, 3])
def test_two_boards_do_not_share_a_cache(entries: int) -> None:
    first = begun()
    second = sharing(first, entries)
    second.format()
    load(second)
    for call in (lambda: first.step(1), lambda: weights(first), first.format, lambda: load(first)):
        assert refusal(call) == Refusal("shared", first.state.detail)
    for number, data in enumerate(toy.values(1)):
        second.write(2, number, 0, data)
    second.begin(0)
    second.step(1)
    assert weights(second) == truth()[1]
    first.lib.poet_init(first.state, first.port, first.memory)  # takes the cache back
    load_program(first, "frugal")
    first.step(1)
    assert weights(first) == truth()[1]
    assert refusal(second.step, 2).name == "shared"


def test_two_boards_with_memory_of_their_own_take_turns() -> None:
    boards = [begun(), trained(card(), kind="lavish"), begun("in RAM")]
    for step in range(1, STEPS + 1):
        for board in boards[:2]:
            board.step(step)
        give_batch(boards[2])
        boards[2].step(step)
    assert all(weights(board) == truth()[STEPS] for board in boards[:2])
    boards[2].save()
    assert weights(boards[2]) == truth()[STEPS]


def test_the_library_has_no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)  # `make check` counts lines, which takes variables
    command = ["objdump", "-t", build_library()]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    variables = re.findall(r" O \.(?:data|bss|tdata|tbss)\t\w+ +(\S+)$", listed, re.M)
    ours = [name for name in variables if not name.startswith(("__", "completed."))]
    assert ours == []
    assert re.search(r" O \.rodata\t\w+ +poet_rows$", listed, re.M)
