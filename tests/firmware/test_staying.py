"""Weights that stay in RAM from step to step: every power cut and fault leaves a committed step."""

from itertools import product

import pytest
from support import toy
from support.memory_board import SURVIVE, MemoryBoard, Refused, card, refusal
from support.toy_boards import load, trained, truth, weights

STEPS = 7
# What stays, and after how many steps the board commits. Without w or v, a fourth slot is needed.
KINDS = (
    "stays wv every 1", "stays wv every 3", "stays xwv every 3", "stays v every 3",
    "small stays v every 3", "small stays wv every 2", "cut stays w every 3", "stays x every 3",
    "stays xtwv every 100",
)  # fmt: skip


def every(kind: str) -> int:
    return int(kind.split()[-1])


def expected(kind: str) -> list[tuple[bytes, bytes]]:
    return truth("small" if kind.startswith("small") else "frugal", steps=STEPS + 100)


def is_whole(board: MemoryBoard, kind: str, step: int) -> bool:
    """Has the board the weights of this step? Differences of bytes take long to show."""
    return weights(board, kind) == expected(kind)[step]


def train(board: MemoryBoard, kind: str, last: int) -> None:
    """Train to step `last`, as a host does that goes back to the committed step after an error."""
    load(board, kind)
    for step in range(board.hello()["committed_step"] + 1, last + 1):
        board.step(step)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_do_not_depend_on_what_stays(kind: str) -> None:
    board = trained(card(), kind=kind)
    for step in range(1, STEPS + 1):
        board.step(step)
        assert board.hello()["committed_step"] == step - step % every(kind)
    board.save()
    assert board.hello()["committed_step"] == STEPS
    assert is_whole(board, kind, STEPS)
    again = MemoryBoard(board.storage)
    train(again, kind, STEPS + 2)
    assert is_whole(again, kind, STEPS + 2)
    assert not again.strayed


def test_reading_commits_first() -> None:
    board = trained(card(), 4, kind="stays wv every 3")
    assert board.hello()["committed_step"] == 3
    assert is_whole(board, "", 4)
    assert board.hello()["committed_step"] == 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("survive", SURVIVE)
def test_power_cut_at_every_write(kind: str, survive: str) -> None:
    start = trained(card(), kind=kind).storage.copy()
    probe = MemoryBoard(start.copy())
    train(probe, kind, STEPS)
    probe.save()
    seen = set()
    for cut_at in range(probe.writes + 2):
        board = MemoryBoard(start.copy(), cut_at=cut_at, survive=SURVIVE[survive])
        try:
            train(board, kind, STEPS)
            board.save()
        except Refused:
            pass
        again = MemoryBoard(board.after_the_cut())
        load(again, kind)
        step = again.hello()["committed_step"]
        seen.add(step)
        assert is_whole(again, kind, step), f"cut at write {cut_at}"
        train(again, kind, step + 2)
        assert is_whole(again, kind, step + 2), f"cut at write {cut_at}"
    assert seen == {0, *range(every(kind), STEPS, every(kind)), STEPS}


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_a_wrong_bit_of_a_read_never_reaches_the_weights(kind: str) -> None:
    start = trained(card(), every(kind), kind=kind).storage
    probe = MemoryBoard(start.copy())
    train(probe, kind, every(kind) + 1)
    refused = 0
    for read in range(probe.reads):
        board = MemoryBoard(start.copy())
        board.false_reads = {read: 77}
        try:
            train(board, kind, every(kind) + 1)
        except Refused:
            refused += 1
        else:
            assert is_whole(board, kind, every(kind) + 1), f"read {read}"
    assert refused > 0


class FaultyBoard(MemoryBoard):
    """A board whose card fails once, at access number `fails_at`."""

    fails_at = -1
    accesses = 0

    def _fails(self) -> bool:
        self.accesses += 1
        return self.accesses == self.fails_at

    def _read(self, context: object, block: int, data: object, count: int) -> int:
        return -1 if self._fails() else super()._read(context, block, data, count)

    def _write(self, context: object, block: int, data: object, count: int) -> int:
        return -1 if self._fails() else super()._write(context, block, data, count)


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_failed_access_the_board_goes_back(kind: str) -> None:
    start = trained(card(), kind=kind).storage.copy()
    probe = FaultyBoard(start.copy())
    train(probe, kind, STEPS)
    for fails_at in range(1, probe.accesses + 1, 3):
        board = FaultyBoard(start.copy())
        board.fails_at = fails_at
        tries = 0
        while board.hello()["committed_step"] != STEPS:
            tries += 1
            assert tries <= STEPS
            try:
                train(board, kind, STEPS)
                board.save()
            except Refused:
                pass
        load(board, kind)
        assert is_whole(board, kind, STEPS), f"failed at access {fails_at}"


def test_a_step_after_an_error_follows_the_commit() -> None:
    board = trained(card(), 5, kind="stays wv every 3")
    board.state.poll = stop = board.ffi.callback("int(void *)", lambda _: 1)
    assert refusal(board.step, 6).name == "stopped"
    board.state.poll = board.ffi.NULL
    assert stop
    assert refusal(board.step, 6) == ("wrong_step", 3)
    board.step(4)
    board.step(5)
    assert is_whole(board, "", 5)


def test_a_batch_in_ram_is_for_one_step() -> None:
    board = trained(card(), 1, kind="stays xwv every 3")
    board.batch = {toy.T: board.batch[toy.T]}
    assert refusal(board.step, 2) == ("page_damaged", toy.X)
    load(board, "stays xwv every 3")
    train(board, "stays xwv every 3", 2)
    assert is_whole(board, "", 2)


@pytest.mark.parametrize("kind", ["stays xwv every 3", "stays v every 3"])
def test_other_work_in_the_arena_does_not_change_weights(kind: str) -> None:
    board = trained(card(), 3, kind=kind)
    board.write(3, 0, 0, bytes(4096))
    board.step(4)
    assert is_whole(board, "", 4)
    assert board.hello()["committed_step"] == 4


@pytest.mark.parametrize("begins", [False, True])
def test_a_batch_in_ram_does_not_outlive_other_work_in_the_arena(begins: bool) -> None:
    kind = "stays xwv every 3"
    board = trained(card(), 3, kind=kind)
    if begins:
        board.write(2, toy.W, 0, toy.values(2)[toy.W])
    board.send_batch()
    board.write(3, 0, 0, bytes(4096))
    board.batch = {}
    wanted = "no_schedule" if begins else "page_damaged"
    assert refusal(board.step, 4).name == wanted
    train(board, kind, 4)
    assert is_whole(board, "", 4)


def test_writing_weights_drops_steps_that_are_not_committed() -> None:
    board = trained(card(), 5, kind="stays wv every 3")
    other = toy.values(2)
    board.write(2, toy.W, 0, other[toy.W])
    board.write(2, toy.V, 0, other[toy.V])
    board.begin(0)
    board.step(1)
    wanted = trained(card(), 0, kind="lavish")
    wanted.write(2, toy.W, 0, other[toy.W])
    wanted.write(2, toy.V, 0, other[toy.V])
    wanted.begin(0)
    wanted.step(1)
    same = weights(board) == weights(wanted)
    assert same


@pytest.mark.parametrize(("first", "second"), list(product(KINDS[1:5:2], ("frugal", KINDS[2]))))
def test_plans_of_a_model_may_take_turns(first: str, second: str) -> None:
    board = trained(card(), 3, kind=first)
    if toy.schedule(first).model.crc != toy.schedule(second).model.crc:
        return
    train(board, second, 5)
    board.save()
    train(board, first, 6)
    assert is_whole(board, "", 6)


def test_stale_images_of_uncommitted_steps_do_not_pass() -> None:
    """A card that lost all writes of a step is found by the next one."""
    board = trained(card(), 4, kind="stays v every 3")
    before = dict(board.storage.blocks)
    board.step(5)
    board.storage.blocks = before
    assert refusal(board.step, 6).name == "page_damaged"
    assert board.hello()["committed_step"] == 3
    train(board, "stays v every 3", 6)
    assert is_whole(board, "", 6)
