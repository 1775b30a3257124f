"""An application may leave out most functions of the port."""

from typing import Any

import pytest
from support import toy
from support.memory_board import MemoryBoard, card, refusal
from support.toy_boards import begin, load, run_in_ram, truth, weights

OPTIONAL = [
    *("board", "unique_id", "ticks", "usage", "idle", "storage_blocks", "allocation_mib", "flush"),
    *("is_flash", "submit"),
]
KINDS = ("frugal", "cut", "small returning", "stays xwv every 3")
STEPS = 4


def trained(kind: str, **how: Any) -> MemoryBoard:
    board = MemoryBoard(card(), **how)
    board.format()
    load(board, kind)
    for number, data in enumerate(toy.values(1, kind)):
        board.write(2, number, 0, data)
    board.begin(0)
    for step in range(1, STEPS + 1):
        board.step(step)
    return board


@pytest.mark.parametrize("name", OPTIONAL)
def test_each_function_may_be_left_out(name: str) -> None:
    board = trained("frugal", left_out=[name, "erase"])
    assert weights(board) == truth()[STEPS]


@pytest.mark.parametrize("cache", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_all_may_be_left_out(kind: str, cache: int) -> None:
    board = trained(kind, left_out=[*OPTIONAL, "erase"], cache=cache, trace=0)
    assert weights(board, kind) == truth(kind)[STEPS]
    assert board.step(STEPS)["ticks"] == 0
    hello = board.hello()
    assert (hello["board"], hello["unique_id"], hello["allocation_mib"]) == ("", "", 0)


def test_an_erase_makes_the_storage_flash() -> None:
    board = MemoryBoard(card(), is_flash=True, left_out=OPTIONAL, cache=1)
    board.format()
    load(board, "in RAM")
    begin(board)
    run_in_ram(board, 1, STEPS, every=1)
    assert weights(board) == truth()[STEPS]
    assert board.erases
    assert refusal(load, board).name == "no_storage"  # a schedule that pages


def test_a_transfer_without_a_lane_fails_with_its_card() -> None:
    board = trained("frugal", left_out=[*OPTIONAL, "erase"], cache=1)
    board.failing = True
    assert refusal(board.step, STEPS + 1).name == "storage_failed"
    board.failing = False
    load(board)
    board.step(STEPS + 1)


@pytest.mark.parametrize("missing", ["read", "write"])
def test_without_read_or_write_there_is_no_storage(missing: str) -> None:
    board = MemoryBoard(card(), left_out=[missing])
    assert refusal(board.format).name == "no_storage"
