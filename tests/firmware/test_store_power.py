"""Power cuts: after any write as the last one, the store has a whole step."""

import zlib
from contextlib import suppress
from typing import Any

import pytest
from poet_host import isa
from support import toy
from support.card_image import COMMIT_BLOCKS, CardImage
from support.memory_board import NO_STEP, SURVIVE, MemoryBoard, Refused, card
from support.toy_boards import in_partition, load, trained, truth, weights

RECORD = isa.record_size("poet_commit")
SLOTS = isa.constants()["POET_SLOTS"]
KINDS = ("frugal", "cut", "small")  # of toy.schedule

# Commit records.


def test_commits_alternate_between_two_erase_groups() -> None:
    board = trained(card())
    for step in range(1, 5):
        before = [bytes(board.storage[in_partition(block)]) for block in COMMIT_BLOCKS]
        board.step(step)
        after = [bytes(board.storage[in_partition(block)]) for block in COMMIT_BLOCKS]
        changed = [a != b for a, b in zip(before, after, strict=True)]
        assert changed == [step % 2 == 0, step % 2 == 1]
        newest = isa.unpack("poet_commit", after[changed.index(True)][:RECORD])
        assert (newest["now"]["step"], newest["prior"]["step"]) == (step, step - 1)
        assert newest["slot"] == step % SLOTS


def step_2_is_found(storage: CardImage) -> None:
    """A board with this card has the weights of step 2, and goes on from them."""
    again = MemoryBoard(storage)
    assert again.hello()["committed_step"] == 2
    load(again)
    assert weights(again) == truth()[2]
    again.step(3)
    assert weights(again) == truth()[3]
    assert not again.strayed


@pytest.mark.parametrize("at", range(0, RECORD, 4))
def test_a_torn_commit_record_leaves_the_step_before(at: int) -> None:
    board = trained(card(), 3)
    newest = in_partition(COMMIT_BLOCKS[1]).start  # begin has made the first two commits
    board.storage[newest + at] ^= 0x10
    step_2_is_found(board.storage)


@pytest.mark.parametrize("slot", [4, 0x7F, 0xFF])
def test_a_commit_record_that_names_no_slot_is_not_followed(slot: int) -> None:
    """Its CRC is right, but the slots with this number are outside of the partition."""
    board = trained(card(), 3)
    newest = in_partition(COMMIT_BLOCKS[1]).start
    record = isa.unpack("poet_commit", bytes(board.storage[newest : newest + RECORD]))
    record |= {"slot": slot}
    record["crc"] = zlib.crc32(isa.pack("poet_commit", **record)[:-4])
    board.storage[newest : newest + RECORD] = isa.pack("poet_commit", **record)
    step_2_is_found(board.storage)


# Power cuts.


def run_until_cut(
    storage: CardImage, cut_at: int, survive: str, steps: int, kind: str
) -> CardImage:
    """Continue training on this card until the power cut; return the card."""
    board = MemoryBoard(storage, cut_at=cut_at, survive=SURVIVE[survive])
    try:
        load(board, kind)
        for _ in range(steps):
            board.step(board.state.committed.now.step + 1)
    except Refused:
        pass
    return board.after_the_cut()


def come_up(
    image: CardImage, expected: Any, cut_at: int, kind: str = "frugal"
) -> tuple[MemoryBoard, int]:
    """Start a board with this card, and check the weights of its committed step."""
    board = MemoryBoard(image)
    step = board.hello()["committed_step"]
    load(board, kind)
    assert weights(board, kind) == expected[step], f"cut at write {cut_at}"
    return board, step


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("survive", SURVIVE)
def test_power_cut_at_every_write_of_a_run(survive: str, kind: str) -> None:
    start = trained(card(), kind=kind).storage.copy()
    probe = MemoryBoard(start.copy())
    load(probe, kind)
    loaded = probe.writes
    for step in (1, 2, 3):
        probe.step(step)
    seen = set()
    for cut_at in range(loaded, probe.writes + 2):  # the last one is never reached
        image = run_until_cut(start.copy(), cut_at, survive, 3, kind)
        again, step = come_up(image, truth(kind), cut_at, kind)
        seen.add(step)
        again.step(step + 1)  # training continues without a difference
        assert weights(again, kind) == truth(kind)[step + 1], f"cut at write {cut_at}"
    assert seen == {0, 1, 2, 3}


@pytest.mark.parametrize("survive", SURVIVE)
def test_power_cut_while_the_next_batch_is_written_during_a_step(survive: str) -> None:
    start = trained(card(), 1).storage.copy()
    batch = toy.values(2)[: toy.W]

    def steps(board: MemoryBoard) -> None:
        load(board)

        def next_batch(_: object) -> int:
            if board.state.status.statement == 5 and board.state.status.step == 2:
                with suppress(Refused):
                    for number, data in enumerate(batch):
                        board.write(2, number, 0, data)
            return 0

        poll = board.ffi.callback("int(void *)", next_batch)
        board.state.poll = poll
        for step in (2, 3):
            board.step(step)

    whole = MemoryBoard(start.copy())
    steps(whole)
    after = {1: truth()[1], 2: truth()[2], 3: weights(whole)}
    assert after[3] != truth()[3]  # of another batch
    seen = set()
    for cut_at in range(whole.writes + 2):  # the last one is never reached
        board = MemoryBoard(start.copy(), cut_at=cut_at, survive=SURVIVE[survive])
        with suppress(Refused):
            steps(board)
        again, step = come_up(board.after_the_cut(), after, cut_at)
        seen.add(step)
        for number, data in enumerate(toy.values(1)[: toy.W] if step < 2 else batch):
            again.write(2, number, 0, data)  # as a host does that continues
        again.step(step + 1)
        assert step == 3 or weights(again) == after[step + 1], f"cut at write {cut_at}"
    assert seen == {1, 2, 3}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("survive", SURVIVE)
def test_power_cut_at_every_write_of_an_upload(survive: str, kind: str) -> None:
    start = trained(card(), 2, kind).storage.copy()
    new = toy.values(2, kind)

    def upload(board: MemoryBoard) -> None:
        load(board, kind)
        for number in (toy.W, toy.V):
            for at in range(0, len(new[number]), 400):
                board.write(2, number, at, new[number][at : at + 400])
        board.begin(0)

    probe = MemoryBoard(start.copy())
    upload(probe)
    expected = {2: truth(kind)[2], 0: (new[toy.W], new[toy.V])}
    seen = set()
    for cut_at in range(probe.writes + 1):
        board = MemoryBoard(start.copy(), cut_at=cut_at, survive=SURVIVE[survive])
        if cut_at == probe.writes:
            board.cut_at = None
            upload(board)
        else:
            with pytest.raises(Refused):
                upload(board)
        seen.add(come_up(board.after_the_cut(), expected, cut_at, kind)[1])
    assert seen == {0, 2}


def test_power_cut_while_formatting_leaves_the_old_store_or_none() -> None:
    start = trained(card(), 2).storage.copy()
    probe = MemoryBoard(start.copy())
    probe.format()
    for cut_at in range(probe.writes):
        for survive in SURVIVE.values():
            board = MemoryBoard(start.copy(), cut_at=cut_at, survive=survive)
            with pytest.raises(Refused):
                board.format()
            hello = MemoryBoard(board.after_the_cut()).hello()
            assert hello["committed_step"] in (1, 2, NO_STEP)
            assert hello["storage_status"] in (0, -5)
