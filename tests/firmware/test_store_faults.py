"""Cards that acknowledge a write and store something else: no run ends with other weights."""

import random
from itertools import count

import pytest
from support import toy
from support.card_image import DATA_BLOCK, CardImage
from support.memory_board import FalseWrite, MemoryBoard, Refused, card, refusal
from support.toy_boards import in_partition, load, trained, truth, weights

STEPS = 4
KINDS = ("frugal", "cut", "small", "stays wv every 1")  # of toy.schedule
STRIDE = toy.schedule().model.slot_stride
FAULTS = {
    "dropped": FalseWrite(kept=0),
    **{f"torn after {kept} bytes": FalseWrite(kept=kept) for kept in (24, 100, 256, 508)},
    "one block too far": FalseWrite(distance=1),
    "one slot too far": FalseWrite(distance=STRIDE),
    "one bit flipped": FalseWrite(flipped=1234),
}
MOST_RUNS = 4  # until training is done


def writes_of_a_run(kind: str, *, of_batches: bool = False) -> list[int]:
    """The numbers of all writes of steps, or of all writes of their batches."""
    board = trained(card(), kind=kind)
    batches: list[int] = []
    steps: list[int] = []
    for step in range(1, STEPS + 1):
        begin = board.writes
        board.send_batch()
        batches += range(begin, board.writes)
        begin = board.writes
        board.step(step)
        steps += range(begin, board.writes)
    return batches if of_batches else steps


def run(board: MemoryBoard, kind: str) -> bool:
    """Train up to STEPS. Return True if the board reported no error."""
    try:
        for step in range(board.hello()["committed_step"] + 1, STEPS + 1):
            board.step(step)
        same = weights(board, kind) == truth(kind)[STEPS]
        return same or pytest.fail("other weights, and no error")
    except Refused:
        return False


def resume(storage: CardImage, kind: str) -> None:
    """Continue as a host does: with the schedule and the batch sent again, until a run ends."""
    for runs in count(1):
        assert runs <= MOST_RUNS
        board = MemoryBoard(storage)
        board.hello()
        load(board, kind)
        for number, data in enumerate(toy.values(1, kind)[: toy.W]):
            board.write(2, number, 0, data)
        if run(board, kind):
            return


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_false_write_is_never_silent(fault: str, kind: str) -> None:
    for number in writes_of_a_run(kind):
        board = trained(card(), kind=kind)
        board.false_writes = {number: FAULTS[fault]}
        if not run(board, kind):
            board.false_writes = {}
            resume(board.storage, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_write_to_the_committed_slot_is_never_silent(kind: str) -> None:
    """It destroys weights from which the step would be repeated."""
    for number in writes_of_a_run(kind):
        board = trained(card(), kind=kind)
        board.false_writes = {number: FalseWrite(distance=-STRIDE)}
        run(board, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_false_write_of_a_batch_is_never_silent(fault: str, kind: str) -> None:
    """Where it replaces the weights of the first commit, training is lost, with an error."""
    for number in writes_of_a_run(kind, of_batches=True):
        board = trained(card(), kind=kind)
        board.false_writes = {number: FAULTS[fault]}
        run(board, kind)


def test_a_batch_that_a_card_has_not_written_is_not_the_one_before() -> None:
    """Both steps of a slot have other batches, and no write of the second one is made."""
    for kind in KINDS:
        board = trained(card(), 2, kind=kind)
        board.batch = dict(zip((toy.X, toy.T), toy.values(2, kind), strict=False))
        board.false_writes = dict.fromkeys(
            range(board.writes, board.writes + 99), FAULTS["dropped"]
        )
        with pytest.raises(Refused, match="page_damaged"):
            board.send_batch()


@pytest.mark.slow
def test_two_false_writes_are_never_silent() -> None:
    """4,000 random pairs. Training may be lost, but only with an error."""
    rng = random.Random(14)
    faults = list(FAULTS.values())
    numbers = {kind: writes_of_a_run(kind) for kind in KINDS}
    for _ in range(4_000):
        kind = rng.choice(list(numbers))
        board = trained(card(), kind=kind)
        board.false_writes = {rng.choice(numbers[kind]): rng.choice(faults) for _ in range(2)}
        run(board, kind)


def begun(storage: CardImage, kind: str) -> MemoryBoard:
    """Begin the toy's training on a card that is formatted."""
    board = MemoryBoard(storage)
    load(board, kind)
    for number, data in enumerate(toy.values(1, kind)):
        board.write(2, number, 0, data)
    board.begin(0)
    return board


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_from_before_a_format_never_match(kind: str) -> None:
    """The identity is not written, and later another write is dropped."""
    old = trained(card(), 1, kind, seed=2).storage
    for number in range(12):
        storage = old.copy()
        board = MemoryBoard(storage)
        board.false_writes = {2: FAULTS["dropped"]}  # after both commit records
        board.format()
        board = begun(storage, kind)
        board.false_writes = {board.writes + number: FAULTS["dropped"]}
        run(board, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_of_a_commit_with_another_digest_are_damaged(kind: str) -> None:
    """The card returns an old identity and an old tensor, which match each other."""
    storage = trained(card(), 0, kind, seed=2).storage
    old = storage.copy()
    MemoryBoard(storage).format()
    begun(storage, kind)
    first = DATA_BLOCK + toy.schedule(kind).model.tensors[toy.W].block
    last = DATA_BLOCK + toy.schedule(kind).model.tensors[toy.V].block
    for block in (0, *range(first, max(last, first + 1))):
        storage[in_partition(block)] = old[in_partition(block)]
    board = MemoryBoard(storage)
    load(board, kind)
    assert refusal(board.tensor, toy.W, toy.sizes(kind)[toy.W]).name == "page_damaged"
    assert refusal(board.step, 1).name == "page_damaged"
