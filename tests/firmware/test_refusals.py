"""Errors that a board must report: of a card that fails, of requests, and of what a card says."""

import struct
import zlib
from typing import Any

import pytest
from poet_host import isa
from support import toy
from support.card_image import COMMIT_BLOCKS
from support.memory_board import PARTITION, MemoryBoard, card, refusal
from support.serial_server import Server
from support.toy_boards import in_partition, load, trained, truth, weights

SMALL = "small"  # w and v share a block


def probe_commit(board: MemoryBoard) -> None:
    board.call("probe_commit", 2, board.ffi.new("uint32_t *"))


def probe_transfer(board: MemoryBoard) -> None:
    ticks = board.ffi.new("uint32_t[]", 2)
    board.call("probe_transfer", True, 512, 2, ticks, ticks + 1)


PROBES = pytest.mark.parametrize("probe", [probe_commit, probe_transfer])


def next_board(before: MemoryBoard, kind: str = "frugal") -> MemoryBoard:
    """Another board, with the same card."""
    board = MemoryBoard(before.storage)
    load(board, kind)
    return board


@PROBES
def test_a_probe_of_a_card_that_fails_is_an_error(probe: Any) -> None:
    board = trained(card(), 1)
    board.failing = True
    assert refusal(probe, board).name == "storage_failed"
    board.failing = False
    assert weights(next_board(board)) == truth()[1]


@PROBES
def test_the_flash_of_a_chip_is_not_probed(probe: Any) -> None:
    """Each write of it wears."""
    board = MemoryBoard(card(), is_flash=True)
    board.format()
    writes = board.writes
    assert refusal(probe, board).name == "no_storage"
    assert board.writes == writes


@pytest.mark.parametrize("workspace", [4092, 2, 0])  # after the arena, between words, in it
def test_a_probe_names_a_workspace_that_leaves_the_arena(workspace: int) -> None:
    """It counts after the output."""
    board = MemoryBoard(card())
    operator = board.ffi.new("struct poet_op *", {"input_count": 2, "overwrites": 0xFFFF})
    operator.kernel = isa.by_name("KERNEL")["add"].code
    operator.n = operator.h = operator.w = 1
    operator.c, operator.workspace_bytes = 3, 12
    places = board.ffi.new("uint32_t[]", [8, 20, 40, workspace])
    call = ("probe_op", 1, 1, operator, places, board.ffi.new("uint32_t *"))
    if workspace:
        assert refusal(board.call, *call) == ("bad_table", 3)
    else:
        board.call(*call)


@pytest.mark.parametrize("record", ["health", "card"])
def test_a_port_may_know_its_health_and_its_card(record: str) -> None:
    server = Server(MemoryBoard(card()))
    size = isa.record_size(f"poet_{record}")
    assert server.ask(record) == ("ok", 0, bytes(size))
    ffi = server.board.ffi
    fill = ffi.callback(
        f"void(void *, struct poet_{record} *)", lambda _, to: ffi.memmove(to, b"\1" * size, size)
    )
    setattr(server.board.port, record, fill)
    assert server.ask(record) == ("ok", 0, b"\1" * size)


@pytest.mark.parametrize("change", [1, 1 << 31])
def test_a_store_that_exceeds_its_partition_is_foreign(change: int) -> None:
    storage = trained(card(), 1).storage
    place, size = in_partition(0), isa.record_size("poet_store")
    fields = isa.unpack("poet_store", bytes(storage[place][:size]))
    raw = isa.pack("poet_store", **fields | {"total_blocks": fields["total_blocks"] + change})
    raw = raw[:-4] + struct.pack("<I", zlib.crc32(raw[:-4]))
    storage[place.start : place.start + size] = raw
    before = storage.copy()
    board = MemoryBoard(storage)
    foreign = isa.by_name("ERROR")["foreign_storage"].code
    assert board.hello()["storage_status"] == foreign
    assert storage == before


class CommitsLost(MemoryBoard):
    """A board whose card acknowledges commit records, and does not write them."""

    def _write(self, context: Any, block: int, data: Any, count: int) -> int:
        lost = block - PARTITION in COMMIT_BLOCKS
        return 0 if lost else super()._write(context, block, data, count)


def test_a_commit_that_the_card_never_writes_is_an_error() -> None:
    board = CommitsLost(trained(card(), 1).storage)
    load(board)
    assert refusal(board.step, 2).name == "storage_failed"
    after = next_board(board)
    assert after.hello()["committed_step"] == 1
    assert weights(after) == truth()[1]


@pytest.mark.parametrize("number", [toy.W, toy.V])
def test_a_host_may_replace_one_of_two_weights_in_a_block(number: int) -> None:
    board = trained(card(), 1, SMALL)
    expected = list(weights(board, SMALL))
    new = toy.values(2, SMALL)[number]
    board.write(2, number, 0, new)
    board.begin(5)
    expected[number == toy.V] = new
    for found in (board, next_board(board, SMALL)):
        assert found.hello()["committed_step"] == 5
        assert list(weights(found, SMALL)) == expected
