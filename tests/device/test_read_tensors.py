"""Tensors that are read while the card returns a wrong bit: right bytes or an error."""

import zlib
from collections.abc import Iterator
from typing import Any, cast

import pytest
from poet_host.card.card import read_weights
from poet_host.device.device import TENSOR, Device, connect
from poet_host.device.link import Link
from poet_host.errors import BoardError, PoetError
from support import toy
from support.card_image import CardImage
from support.fake_board import FakeBoard
from support.memory_board import FalseWrite, MemoryBoard, card
from support.serial_server import Server, ServerLink
from support.toy_boards import load, trained


def device_of(image: CardImage, kind: str) -> tuple[Device, ServerLink, MemoryBoard]:
    """Return a board that has just started, with this card and the toy loaded.

    Its cache has one block, so that it reads tensors from the card again and again.
    """
    board = MemoryBoard(image.copy(), cache=1, is_flash=kind == "in RAM")
    link = ServerLink(Server(board))
    device = Device(cast(Link, link))
    load(device, kind)
    link.asked.clear()
    return device, link, board


def read(device: Device, kind: str) -> dict[str, bytes]:
    found = read_weights(device, toy.schedule(kind))
    return {name: values.tobytes() for name, values in found.items()}


@pytest.mark.parametrize(
    ("kind", "bit"),
    [("frugal", 13), ("frugal", 380 * 8 + 3), ("small frugal", 13), ("cut", 13), ("in RAM", 13)],
)
def test_one_wrong_bit(kind: str, bit: int) -> None:
    """Each read of a block in turn returns it. The board checks a tensor before it sends it."""
    image = trained(card(), 1, kind).storage
    device, link, board = device_of(image, kind)
    before = board.reads
    right, usual = read(device, kind), link.asked.count("read")
    refused = repeated = 0
    for at in range(before, board.reads):
        device, link, board = device_of(image, kind)
        board.false_reads = {at: bit}
        try:
            assert read(device, kind) == right, f"read {at}"
            repeated += link.asked.count("read") > usual
        except PoetError:
            refused += 1
    assert refused
    assert repeated or "small" in kind  # its block is still in the cache


@pytest.fixture
def board() -> Iterator[FakeBoard]:
    with FakeBoard.trainable() as found:
        found.store[TENSOR, 1] = bytearray(range(256)) * 400
        found.frame_bytes = 5000
        yield found


def spoil_reads(board: FakeBoard, *numbers: int) -> list[int]:
    """Invert a bit of these replies to `read`. Return a list that counts the replies."""
    seen: list[int] = []

    def read_one(**fields: int) -> dict[str, Any]:
        data = bytearray(board._read(**fields)["bytes"])  # type: ignore[index]
        data[-1] ^= 8 if len(seen) in numbers else 0
        seen.append(len(data))
        return {"bytes": bytes(data)}

    board.handlers["read"] = read_one
    return seen


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_tensor_is_read_again_once(board: FakeBoard, wrong: int) -> None:
    right = bytes(board.store[TENSOR, 1])
    seen = spoil_reads(board, wrong)
    with connect(board.port) as device:
        assert device.read(TENSOR, 1, len(right)) == right
        assert sum(seen) == 2 * len(right)
        assert device.read(TENSOR, 1, len(right)) == right
        assert sum(seen) == 3 * len(right)
    assert board.names().count("checksum") == 2  # one for each call


def test_a_tensor_that_stays_wrong_is_an_error_with_its_name(board: FakeBoard) -> None:
    seen = spoil_reads(board, *range(1000))
    with connect(board.port) as device:
        for names, shown in (((), "tensor 1"), (("x", "conv1"), "tensor conv1")):
            device.tensor_names = names
            with pytest.raises(PoetError, match=shown) as caught:
                device.read(TENSOR, 1, 1000)
            assert caught.value.exit_code == 1
            assert not isinstance(caught.value, BoardError)
    assert sum(seen) == 2 * 2 * 1000


def test_a_wrong_checksum_is_an_error(board: FakeBoard) -> None:
    board.handlers["checksum"] = lambda **_: {"crc": zlib.crc32(b"other")}
    with connect(board.port) as device, pytest.raises(PoetError, match="tensor 1"):
        device.read(TENSOR, 1, 1000)


def test_a_batch_that_the_card_has_not_written_is_sent_again() -> None:
    device, _, board = device_of(trained(card(), 2).storage, "frugal")
    batch = toy.values(2)[toy.X]
    board.false_writes = dict.fromkeys(range(board.writes, board.writes + 2), FalseWrite(kept=0))
    device.write(TENSOR, toy.X, batch)
    assert device.read(TENSOR, toy.X, len(batch)) == batch
    board.false_writes = dict.fromkeys(range(board.writes, board.writes + 9), FalseWrite(kept=0))
    with pytest.raises(BoardError) as caught:
        device.write(TENSOR, toy.X, toy.values(3)[toy.X])
    assert caught.value.name == "page_damaged"
