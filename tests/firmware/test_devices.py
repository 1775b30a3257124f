"""Storage of any size and erase unit, which the board lays out for a schedule in memory."""

import struct
from collections.abc import Callable
from typing import Any

import pytest
from poet_host.sim.native import PARTITION_TYPE
from support import toy
from support.card_image import BLOCK, CardImage
from support.memory_board import SURVIVE, MemoryBoard, Refused, card, refusal
from support.toy_boards import give_batch, truth, weights

RAM = "in RAM"
PAGING = ("frugal", "cut", "small returning", "stays xwv every 3")
STEPS = 4
FLASH_UNITS = (1, 8, 32, 256)


def parts(kind: str) -> tuple[bytes, bytes]:
    schedule = toy.schedule(kind)
    return schedule.model_part, schedule.plan_part


def least(kind: str, unit: int) -> int:
    board = MemoryBoard(CardImage(BLOCK))
    board.keep_program(*parts(kind))
    return int(board.lib.poet_least_blocks(board.program, unit))


def blank(blocks: int, byte: bytes = b"\xff") -> CardImage:
    image = CardImage(blocks * BLOCK)
    if byte != b"\x00":
        image.blocks = dict.fromkeys(range(blocks), byte * BLOCK)
    return image


def device(image: CardImage, unit: int = 0, flash: bool = False, **how: Any) -> MemoryBoard:
    """A board whose application brings read, write and flush, and for flash an erase."""
    left_out = ["storage_blocks", "submit", "usage", "idle", "ticks", "is_flash"]
    left_out += [] if flash else ["erase"]
    return MemoryBoard(image, is_flash=flash, unit=unit, left_out=left_out, trace=0, **how)


def load(board: MemoryBoard, kind: str) -> None:
    board.batch = dict(zip((toy.X, toy.T), toy.values(1, kind), strict=False))
    board.load_program(*parts(kind))


def begin(board: MemoryBoard, kind: str) -> None:
    for number, data in enumerate(toy.values(1, kind)):
        board.write(2, number, 0, data)
    board.begin(0)


def run(board: MemoryBoard, kind: str, last: int = STEPS) -> None:
    """Train from the committed step on. Weights in RAM are committed after each step."""
    for step in range(board.state.committed.now.step + 1, last + 1):
        if kind == RAM:
            give_batch(board)
        board.step(step)
        if kind == RAM:
            board.save()


def trains(board: MemoryBoard, kind: str) -> None:
    load(board, kind)
    begin(board, kind)
    run(board, kind)
    board.save()
    assert weights(board, kind) == truth(kind)[STEPS]


def highest(image: CardImage, byte: bytes) -> int:
    return max(n for n, block in image.blocks.items() if block != byte * BLOCK) + 1


@pytest.mark.parametrize(("spare", "byte"), [(0, b"\xff"), (500, b"\x00")])
@pytest.mark.parametrize(
    ("kind", "unit", "flash"),
    [
        *((RAM, unit, True) for unit in FLASH_UNITS),
        *((kind, unit, False) for kind in (RAM, *PAGING) for unit in (0, 1, 8)),
    ],
)
def test_a_blank_device_trains(kind: str, unit: int, flash: bool, spare: int, byte: bytes) -> None:
    needed = least(kind, unit)
    board = device(blank(needed + spare, byte), unit, flash, cache=1)
    trains(board, kind)
    assert not board.strayed
    if unit:
        assert highest(board.storage, byte) <= needed
    again = device(board.storage, unit, flash, cut_at=0)  # no write is possible
    load(again, kind)
    assert weights(again, kind) == truth(kind)[STEPS]


def test_few_blocks_are_needed() -> None:
    assert least(RAM, 1) < 20
    assert least(RAM, 8) == 48
    for kind in PAGING:
        assert least(kind, 1) < 80
        assert least(kind, 8192) > least(kind, 8)


def test_objects_lie_far_apart_where_there_is_room() -> None:
    blocks = least("frugal", 8192)
    boards = [device(blank(size, b"\x00")) for size in (blocks, blocks - 1, 1000)]
    for board in boards:
        trains(board, "frugal")
    assert [board.state.store.unit_blocks for board in boards] == [8192, 4096, 64]


@pytest.mark.parametrize("flash", [False, True])
@pytest.mark.parametrize("unit", [1, 8, 256])
def test_a_device_that_is_too_small_stays_blank(unit: int, flash: bool) -> None:
    needed = least(RAM, unit)
    for blocks in (1, 2, unit, 3 * unit, needed - 1):
        board = device(blank(blocks), unit, flash)
        assert refusal(load, board, RAM) == ("storage_small", needed)
        assert board.storage == blank(blocks)


def with_table(image: CardImage, first: int, count: int) -> CardImage:
    entry = struct.pack("<BxxxBxxxII", 0, PARTITION_TYPE, first, count)
    image[462 : 462 + len(entry)] = entry
    image[510:512] = b"\x55\xaa"
    return image


def foreign(blocks: int) -> list[CardImage]:
    """Devices that are not blank: a byte, a bit, tables of partitions, a file system."""
    images = [with_table(blank(blocks, b"\x00"), 0, blocks)]
    for at, data in ((0, b"\x01"), (511, b"\xfe"), (510, b"\x55\xaa"), (3, b"mkfs.fat")):
        image = blank(blocks, b"\x00" if at else b"\xff")
        image[at : at + len(data)] = data
        images.append(image)
    return images


@pytest.mark.parametrize(("unit", "flash"), [(0, False), (1, False), (8, True)])
def test_other_contents_are_never_touched(unit: int, flash: bool) -> None:
    for image in foreign(200):
        board = device(image, unit, flash)
        before = image.copy()
        for _ in range(2):
            assert refusal(load, board, RAM).name == "not_blank"
            assert refusal(begin, board, RAM).name == "not_blank"
        assert board.storage == before
        assert board.writes == board.erases == 0


@pytest.mark.parametrize(("first", "second"), [(RAM, "frugal"), ("frugal", RAM), ("cut", "lavish")])
def test_weights_of_another_model_are_never_touched(first: str, second: str) -> None:
    for image in (blank(1000), card()):
        board = device(image, 1)
        if image == card():
            board.format()
        trains(board, first)
        writes = board.writes
        for _ in range(2):
            assert refusal(load, board, second).name == "other_model"
            assert refusal(begin, board, second).name == "no_schedule"
        assert board.writes == writes
        load(board, first)
        assert weights(board, first) == truth(first)[STEPS]


def test_a_partition_is_laid_out_alone() -> None:
    image = with_table(blank(400, b"\x00"), 100, 200)
    image[50 * BLOCK : 51 * BLOCK] = b"theirs.." * 64
    before = image.copy()
    board = device(image, 1)
    trains(board, "frugal")
    assert all(image[n * BLOCK : (n + 1) * BLOCK] == before[n * BLOCK : (n + 1) * BLOCK]
               for n in (*range(100), *range(300, 400)))  # fmt: skip


def test_a_partition_between_erase_units_is_refused() -> None:
    board = device(with_table(blank(400, b"\x00"), 100, 300), 8, flash=True)
    assert refusal(load, board, RAM).name == "not_blank"
    board = device(with_table(blank(400, b"\x00"), 104, 296), 8, flash=True)
    trains(board, RAM)


def test_a_host_can_format_what_a_board_has_laid_out() -> None:
    board = device(card(), 1)
    trains(board, "frugal")
    host = MemoryBoard(board.storage)
    host.format()
    assert host.storage[(8 + 1) * BLOCK : (8 + 2) * BLOCK] != bytes(BLOCK)  # not touched
    host.load(*parts("frugal"))
    begin(host, "frugal")
    assert host.hello()["committed_step"] == 0
    assert MemoryBoard(host.storage).hello()["committed_step"] == 0


@pytest.mark.parametrize(("first", "count"), [(100, 0), (100, 301), (500, 1)])
def test_a_partition_that_cannot_be_is_refused(first: int, count: int) -> None:
    for kind in (RAM, "frugal"):
        board = device(with_table(blank(400, b"\x00"), first, count), 1)
        assert refusal(load, board, kind).name == "storage_small"
        assert board.writes == 0


def cuts(kind: str, unit: int, flash: bool, survive: Callable[[int], list[int]]) -> None:
    """Cut the power at each write, from the layout to the last step, and go on."""
    image = blank(least(kind, unit))
    whole = device(image.copy(), unit, flash)
    trains(whole, kind)
    for cut_at in range(whole.writes):
        board = device(image.copy(), unit, flash, cut_at=cut_at, survive=survive)
        with pytest.raises(Refused):
            trains(board, kind)
        after = device(board.after_the_cut(), unit, flash)
        load(after, kind)
        step = after.state.committed.now.step
        if step == 0xFFFFFFFF:
            assert board.state.committed.now.step in (step, 0)
            begin(after, kind)
        else:
            assert weights(after, kind) == truth(kind)[step]
        run(after, kind)
        after.save()
        assert weights(after, kind) == truth(kind)[STEPS], cut_at


@pytest.mark.parametrize("survive", SURVIVE)
@pytest.mark.parametrize("unit", [0, 1])
def test_a_power_cut_at_any_write(unit: int, survive: str) -> None:
    cuts("frugal", unit, False, SURVIVE[survive])


@pytest.mark.parametrize(
    ("unit", "survive"),
    [*((unit, "last torn") for unit in FLASH_UNITS), *((8, survive) for survive in SURVIVE)],
)
def test_a_power_cut_at_any_erase_or_write(unit: int, survive: str) -> None:
    cuts(RAM, unit, True, SURVIVE[survive])


def laid_out(unit: int, flash: bool) -> CardImage:
    board = device(blank(least(RAM, unit)), unit, flash)
    load(board, RAM)
    return board.storage


@pytest.mark.parametrize(("unit", "flash"), [(1, False), (8, True)])
def test_a_first_block_that_was_written_in_part_is_written_again(unit: int, flash: bool) -> None:
    whole = laid_out(unit, flash)
    for size in (1, 4, 5, 19):
        torn = whole.copy()
        torn.blocks[0] = whole[:size] + b"\xff" * (BLOCK - size)
        board = device(torn.copy(), unit, flash)
        trains(board, RAM)
        for commit in (unit, 2 * unit):
            other = torn.copy()
            other[commit * BLOCK : commit * BLOCK + 1] = b"\x00"
            board = device(other.copy(), unit, flash)
            assert refusal(load, board, RAM).name == "not_blank"
            assert board.storage == other
    board = device(whole, unit, flash)
    trains(board, RAM)
    whole.blocks[0] = b"\x00" + whole[1:BLOCK]  # damaged, and there are weights
    assert refusal(load, device(whole, unit, flash), RAM).name == "not_blank"


@pytest.mark.parametrize(("unit", "flash"), [(1, False), (8, True)])
def test_an_erased_first_block_gives_the_storage_to_another_model(unit: int, flash: bool) -> None:
    board = device(blank(1000), unit, flash)
    trains(board, RAM)
    number = board.state.committed.sequence
    board.storage.blocks[0] = b"\xff" * BLOCK
    again = device(board.storage, unit, flash)
    load(again, RAM)
    assert again.state.committed.now.step == 0xFFFFFFFF
    assert again.state.committed.sequence > number  # old slots do not match
    trains(again, RAM)


def test_without_storage_weights_stay_in_ram() -> None:
    for how in ({"left_out": ["read"]}, {"left_out": ["write"]}, {}):
        board = MemoryBoard(CardImage(0), cache=0, trace=0, **how)
        assert refusal(load, board, "frugal").name == "no_storage"
        load(board, RAM)
        assert refusal(board.tensor, toy.W, toy.SIZES[toy.W]).name == "no_storage"
        assert refusal(board.step, 1).name == "wrong_step"
        begin(board, RAM)
        for step in range(1, STEPS + 1):
            give_batch(board)
            board.step(step)
            assert weights(board) == truth()[step]
        assert refusal(board.save).name == "no_storage"
        load(board, RAM)  # forgets the weights
        assert refusal(board.step, 1).name == "wrong_step"
        begin(board, RAM)
        assert weights(board) == truth()[0]


def test_a_failed_step_without_storage_loses_the_weights() -> None:
    board = MemoryBoard(CardImage(0), cache=0, left_out=["read", "write"])
    load(board, RAM)
    begin(board, RAM)
    give_batch(board)
    board.write(2, toy.X, 0, struct.pack("<f", float("nan")) * (toy.SIZES[toy.X] // 4))
    assert refusal(board.step, 1).name == "not_finite"
    assert refusal(board.step, 1).name == "no_storage"
    assert refusal(board.tensor, toy.W, toy.SIZES[toy.W]).name == "no_storage"
    begin(board, RAM)
    give_batch(board)
    board.step(1)
    assert weights(board) == truth()[1]


def test_a_device_is_not_a_card() -> None:
    board = device(blank(1000), 1)
    trains(board, "frugal")
    before = board.storage.copy()
    for number in (0, 1, 4):  # parts of a schedule, a job
        assert refusal(board.write, number, 0, 0, b"1234").name == "bad_object"
        assert refusal(board.read, number, 0, 0, 4).name == "bad_object"
    host = MemoryBoard(before.copy())
    assert refusal(host.load, *parts("frugal")).name == "foreign_storage"
    assert host.storage == before
