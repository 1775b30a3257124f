"""The host's knowledge of slots, trailers and commits, judged by cards that the C runtime wrote."""

import zlib
from collections.abc import Iterator

import pytest
from hypothesis import given, strategies as st
from poet_host import isa
from poet_host.schedule import slots
from poet_host.schedule.model import BLOCK, CURRENT, FIXED, INPUT, Tensor
from support import toy
from support.card_image import CardImage
from support.memory_board import PARTITION, card, library
from support.toy_boards import trained

MODEL = toy.schedule().model
STEPS = 4


@pytest.fixture(scope="module")
def storage() -> CardImage:
    return trained(card(), STEPS).storage


def taken(storage: CardImage, at: int, size: int) -> bytes:
    return storage[at : at + size]


def block(storage: CardImage, number: int, size: int) -> bytes:
    return taken(storage, (PARTITION + number) * BLOCK, size)


def commit(storage: CardImage) -> slots.Commit:
    size = isa.record_size("poet_commit")
    records = [block(storage, number, size) for number in slots.COMMIT_BLOCKS]
    found = slots.newest(slots.commit_from_bytes(raw) for raw in records)
    assert found is not None
    assert found.to_bytes() in records
    return found


def trailers(storage: CardImage, slot: int, generation: int) -> Iterator[tuple[bytes, bytes]]:
    """The trailers of all CURRENT tensors: as they must be, and as they are."""
    at = (PARTITION + slots.slot_block(MODEL, slot)) * BLOCK
    for tensor in MODEL.tensors:
        for piece in slots.pieces(tensor) if tensor.place == CURRENT else ():
            data = taken(storage, at + piece.block * BLOCK, piece.size_bytes)
            found = taken(storage, at + piece.trailer, slots.TRAILER_BYTES)
            yield slots.trailer_of(piece, zlib.crc32(data), generation), found


def test_areas_are_those_of_the_firmware() -> None:
    _, lib = library()
    for name in ("MODEL_BLOCK", "MODEL_BLOCKS", "PLAN_BLOCK", "PLAN_BLOCKS", "DATA_BLOCK"):
        assert getattr(slots, name) == getattr(lib, f"POET_{name}"), name
    assert slots.COMMIT_BLOCKS[0] == lib.POET_COMMIT_BLOCK
    for blocks in (0, 1, 8191, 8192, 8193):
        assert slots.job_block(blocks) == lib.poet_job_block(blocks)


@pytest.mark.parametrize("when", ["now", "prior"])
def test_states_of_a_trained_card(storage: CardImage, when: str) -> None:
    found = commit(storage)
    state = getattr(found, when)
    slot = (found.slot - (when == "prior")) % slots.SLOTS
    assert state.step == STEPS - (when == "prior")
    store = isa.unpack("poet_store", block(storage, 0, isa.record_size("poet_store")))
    generation = slots.generation_of(store["identity"], state.generation)
    pairs = list(trailers(storage, slot, generation))
    assert len(pairs) == 2
    assert all(wanted == there for wanted, there in pairs)
    assert slots.digest_of(there for _, there in pairs) == state.digest


def test_inputs_have_the_generation_of_the_commit_before_their_step(storage: CardImage) -> None:
    found = commit(storage)
    store = isa.unpack("poet_store", block(storage, 0, isa.record_size("poet_store")))
    generation = slots.generation_of(store["identity"], found.prior.generation)
    for number in (toy.X, toy.T):
        tensor = MODEL.tensors[number]
        assert tensor.place == INPUT
        (piece,) = slots.pieces(tensor)
        slot = slots.slot_block(MODEL, (found.now.step - 1) % 2)
        there = taken(storage, (PARTITION + slot) * BLOCK + piece.trailer, slots.TRAILER_BYTES)
        crc = zlib.crc32(toy.values(1)[number])
        assert there == slots.trailer_of(piece, crc, generation)


@pytest.mark.parametrize("size", [4, 504, 508, 512, 1016, 1020])
def test_pieces_hold_all_bytes_and_end_with_a_trailer(size: int) -> None:
    tensor = Tensor(size, FIXED, 0, 7)
    found = slots.pieces(tensor)
    assert sum(piece.size_bytes for piece in found) == size
    assert found[0].block == 7
    assert found[-1].trailer + slots.TRAILER_BYTES == (7 + tensor.blocks) * BLOCK
    assert all(piece.trailer >= piece.block * BLOCK + piece.size_bytes for piece in found)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_a_generation_and_its_sequence_number_identify_the_card(identity: int, number: int) -> None:
    assert slots.identity_of(slots.generation_of(identity, number), number) == identity


def test_only_whole_commit_records_count(storage: CardImage) -> None:
    found = commit(storage)
    raw = found.to_bytes()
    assert slots.commit_from_bytes(raw) == found
    for at in range(len(raw)):
        damaged = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
        assert slots.commit_from_bytes(damaged) is None
    assert slots.newest([None, None]) is None
