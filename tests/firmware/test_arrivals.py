"""What arrives at a board, and what it reads later: never other bytes without an error."""

from math import ceil

import pytest
from support import toy
from support.memory_board import PARTITION, MemoryBoard, Refused, card, refusal
from support.schedule_copy import COPIED, MODEL_BLOCK, PLAN_BLOCK, copy_of, put_in_copy
from support.toy_boards import in_partition, load, trained, truth, weights


def test_a_repeated_request_does_not_hide_a_lost_write() -> None:
    """The last bytes of w come twice, and the card makes no write: w is not what was sent."""
    board, sent = trained(card()), toy.values(2)[toy.W]
    board.write(2, toy.W, 0, sent[:600])
    writes = board.writes
    board.port.write = callback = board.ffi.callback(
        "int(void *, uint32_t, const void *, uint32_t)", lambda *_: 0
    )
    assert refusal(board.write, 2, toy.W, 600, sent[600:]).name == "page_damaged"
    assert refusal(board.write, 2, toy.W, 600, sent[600:]).name == "page_damaged"
    board.port.write = board._callbacks["write"]
    assert board.writes == writes
    assert callback
    assert refusal(board.begin, 0).name == "page_damaged"
    board.write(2, toy.W, 0, sent)
    board.begin(0)
    assert weights(board)[0] == sent


def test_bytes_of_a_tensor_come_in_order_or_again() -> None:
    board, sent = trained(card(), kind="cut"), toy.values(2, "cut")[toy.W]
    assert refusal(board.write, 2, toy.W, 400, sent[400:]) == ("out_of_order", toy.W)
    board.write(2, toy.W, 0, sent[:400])
    assert refusal(board.write, 2, toy.W, 404, sent[404:]).name == "out_of_order"
    assert refusal(board.write, 2, toy.W, 396, sent[396:]).name == "out_of_order"
    board.write(2, toy.W, 0, sent[:400])
    board.write(2, toy.W, 0, sent[:400])
    board.write(2, toy.W, 400, sent[400:])
    writes = board.writes
    board.write(2, toy.W, 400, sent[400:])  # repeated: nothing is written
    board.write(2, toy.W, 400, sent[400:800])
    assert board.writes == writes
    board.begin(0)
    assert weights(board, "cut")[0] == sent


def test_a_step_does_not_begin_with_a_part_of_a_batch() -> None:
    """The slot held a whole batch before the first bytes of another one came."""
    board, other = trained(card()), toy.values(2)[toy.X]
    load(board)
    board.send_batch()
    board.batch = {}
    board.write(2, toy.X, 0, other[:100])
    assert refusal(board.step, 1) == ("page_damaged", toy.X)


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("part_block", [MODEL_BLOCK, PLAN_BLOCK])
def test_a_schedule_that_changes_after_the_load_trains_nothing_else(
    part_block: int, sealed: bool
) -> None:
    """Each byte is changed, in the part or in the copy that steps read."""
    schedule = toy.schedule()
    part = schedule.model_part if part_block == MODEL_BLOCK else schedule.plan_part
    storage = trained(card()).storage
    names = set()
    for offset in range(len(part)):
        board = MemoryBoard(storage.copy())
        board.hello()
        load(board)
        block, at = copy_of(part_block, offset) if sealed else divmod(offset, 512)
        at += in_partition(block if sealed else part_block + block).start
        board.storage[at : at + 1] = bytes([board.storage[at : at + 1][0] ^ 0x40])
        board.lib.poet_forget(board.state, 0)
        try:
            board.step(1)
            assert weights(board) == truth()[1]
        except Refused as error:
            names.add(error.name)
        load(board)  # writes the copy again
        board.step(1)
        assert weights(board) == truth()[1]
    assert names == ({"bad_crc"} if sealed else set())


def test_a_load_writes_a_copy_only_if_it_differs() -> None:
    board = trained(card())
    again = MemoryBoard(board.storage)
    schedule = toy.schedule()
    facts = again.ffi.new("struct poet_facts *")
    again.call("load", len(schedule.model_part), len(schedule.plan_part), facts)
    assert again.writes == 0
    put_in_copy(board.storage, PARTITION, schedule.model_part, MODEL_BLOCK, 100, b"\x55")
    again.call("load", len(schedule.model_part), len(schedule.plan_part), facts)
    blocks = ceil(len(schedule.model_part) / COPIED)
    assert again.writes == blocks + 1  # and the new number of the copy


def test_a_copy_of_a_load_that_failed_never_counts() -> None:
    """A block of it becomes current again, with the check that the board gave it."""
    board = trained(card())
    schedule = toy.schedule()
    at = (PARTITION + MODEL_BLOCK) * 512 + 100
    block, _ = copy_of(MODEL_BLOCK, 100)
    facts = board.ffi.new("struct poet_facts *")
    parts = len(schedule.model_part), len(schedule.plan_part)
    board.storage[at] ^= 1
    with pytest.raises(Refused, match="bad_crc"):
        board.call("load", *parts, facts)
    wrong = bytes(board.storage[in_partition(block)])
    board.storage[at] ^= 1
    board.call("load", *parts, facts)
    assert wrong != bytes(board.storage[in_partition(block)])
    board.storage[in_partition(block)] = wrong
    board.lib.poet_forget(board.state, 0)
    with pytest.raises(Refused, match="bad_crc"):
        board.step(1)
