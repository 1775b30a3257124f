"""Steps and saves in slices: the bits of whole steps, for each budget and after each power cut."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import fuzz.commit_cuts
import pytest
from fuzz.commit_cuts import EQUAL, OPTIMISERS, cuts, training
from fuzz.sliced_lives import Life
from poet_host import isa
from support import toy
from support.card_image import CardImage
from support.memory_board import SURVIVE, MemoryBoard, Refused, card, refusal
from support.sliced import BUSY, SlicedBoard
from support.toy_boards import give_batch, load, truth, weights

KINDS = ("frugal", "lavish", "cut", "small returning", "stays xwv every 3", "in RAM")
STEPS = 4
EVERY = 2  # steps from one save to the next, without storage in a step


def started(kind: str, seed: int = 1, **named: Any) -> SlicedBoard:
    """A board at step 0."""
    board = SlicedBoard(card(), seed=seed, **named)
    board.format()
    load(board, kind)
    for number, data in enumerate(toy.values(1, kind)):
        board.write(2, number, 0, data)
    board.begin(0)
    return board


def train(board: MemoryBoard, kind: str, first: int = 1) -> None:
    for step in range(first, STEPS + 1):
        if kind == "in RAM":
            give_batch(board)
        board.step(step)
        if step % EVERY == 0:
            board.save()


@pytest.mark.parametrize("left_out", [(), ("submit",), ("submit", "ticks")], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_slices_have_the_bits_of_whole_steps(kind: str, left_out: tuple[str, ...]) -> None:
    for seed in range(6):
        queue, cache = 4 + seed, 1 + seed % 3
        board = started(kind, seed, left_out=left_out, queue=queue, cache=cache)
        train(board, kind)
        assert weights(board, kind) == truth(kind)[STEPS]
        assert board.slices > 10 * STEPS


def test_with_budget_0_a_call_runs_one_slice() -> None:
    board = started("lavish")
    board.budgets = (0,)
    board.step(1)
    names = [name for name, _ in board.statements()]
    assert board.slices > len(names) >= 15


@pytest.mark.parametrize("is_flash", [False, True])
def test_a_slice_of_a_save_writes_or_erases_one_block(is_flash: bool) -> None:
    board = started("in RAM", is_flash=is_flash)
    give_batch(board)
    board.step(1)
    found: list[tuple[int, int, int]] = []
    board.between = lambda it: found.append((it.writes, it.erases, it.reads))
    board.between(board)
    board.save()
    steps = [tuple(b - a for a, b in zip(*two, strict=True)) for two in pairwise(found)]
    assert max(erases for _, erases, _ in steps) == is_flash
    assert max(writes - erases for writes, erases, _ in steps) == 1
    assert max(reads for *_, reads in steps) <= 2
    assert board.save()["erases"] == 0  # nothing to save
    assert weights(board) == truth()[1]


def after_a_cut(board: SlicedBoard, kind: str, image: CardImage) -> None:
    """The next power-up finds the weights of a committed step, and training goes on."""
    next_board = SlicedBoard(image, seed=board.slices, is_flash=board.is_flash)
    load(next_board, kind)
    step = next_board.lib.poet_last_step(next_board.state)
    assert weights(next_board, kind) == truth(kind)[step]
    train(next_board, kind, step + 1)
    assert weights(next_board, kind) == truth(kind)[STEPS]


@pytest.mark.parametrize("survive", SURVIVE)
@pytest.mark.parametrize("kind", KINDS)
def test_a_power_cut_in_a_slice_leaves_a_committed_step(kind: str, survive: str) -> None:
    is_flash = kind == "in RAM"
    whole = started(kind, is_flash=is_flash)
    first = whole.writes
    train(whole, kind)
    random = Random(survive)
    for cut_at in random.sample(range(first, whole.writes), 8):
        board = started(kind, cut_at, is_flash=is_flash, survive=SURVIVE[survive])
        board.cut_at = cut_at
        with pytest.raises(Refused):
            train(board, kind)
        after_a_cut(board, kind, board.after_the_cut())


@pytest.mark.parametrize("name", OPTIMISERS)
def test_nests_and_commits_in_slices_survive_power_cuts(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = training(name)
    assert whole.expected
    monkeypatch.setattr(fuzz.commit_cuts, "MemoryBoard", SlicedBoard)
    found = cuts(name, 6, seed=2)
    assert all(it.endswith(EQUAL) for it in found), found


@pytest.mark.parametrize("kind", ["frugal", "stays xwv every 3", "in RAM"])
def test_an_abandoned_step_has_failed(kind: str) -> None:
    """Training goes on from the newest commit."""
    result = None
    for slices in range(1, 80, 6):
        board = started(kind)
        result = result or board.ffi.new("struct poet_step_result *")
        give_batch(board) if kind == "in RAM" else board.send_batch()
        board.call("step_begin", 1)
        codes = {board.lib.poet_step_poll(board.state, 0, result) for _ in range(slices)}
        if codes != {BUSY}:
            break
        assert weights(board, kind) == truth(kind)[0]
        assert refusal(board.poll, "step", "poet_step_result", 0).name == "wrong_step"
        train(board, kind)
        assert weights(board, kind) == truth(kind)[STEPS]
    assert slices > 12


def test_random_lives_have_the_bits_of_whole_steps() -> None:
    found = sum((Life(seed).run() for seed in range(60)), Counter[str]())
    wanted = {"slices", "inferences", "refused inferences", "saves", "abandoned saves", "cuts"}
    assert {*found} == wanted
    assert found["cuts"] > 10


def test_an_abandoned_save_has_committed_nothing() -> None:
    board = started("in RAM", is_flash=True)
    give_batch(board)
    board.step(1)
    saved = board.ffi.new("struct poet_saved *")
    for slices in (1, 3, 6, 9):
        board.call("save_begin")
        assert {board.lib.poet_save_poll(board.state, saved) for _ in range(slices)} == {BUSY}
        give_batch(board)  # abandons it
        assert refusal(board.poll, "save", "poet_saved").name == "wrong_step"
        assert board.state.committed.now.step == 0
    board.save()
    assert weights(board) == truth()[1]


def measure(board: MemoryBoard) -> None:
    """Run an operator in the arena."""
    op, ticks = board.ffi.new("struct poet_op *"), board.ffi.new("uint32_t *")
    op.kernel, op.input_count, op.overwrites = isa.kernels()["relu"].code, 1, 0xFFFF
    op.n = op.c = op.h = 1
    op.w = 64
    board.call("probe_op", 1, 1, op, [0, 256, 0], ticks)


def write_arena(board: MemoryBoard) -> None:
    board.write(3, 0, 2000, bytes(8))


@pytest.mark.parametrize("kind", ["frugal", "stays xwv every 3", "in RAM"])
def test_an_operator_that_is_measured_abandons_a_step(kind: str) -> None:
    board = started(kind)
    give_batch(board) if kind == "in RAM" else board.send_batch()
    board.call("step_begin", 1)
    result = board.ffi.new("struct poet_step_result *")
    assert {board.lib.poet_step_poll(board.state, 0, result) for _ in range(5)} == {BUSY}
    assert refusal(write_arena, board).name == "busy"
    measure(board)
    assert refusal(board.poll, "step", "poet_step_result", 0).name == "wrong_step"
    train(board, kind)
    assert weights(board, kind) == truth(kind)[STEPS]


@pytest.mark.parametrize("work", [measure, write_arena])
@pytest.mark.parametrize("kind", ["stays xwv every 3", "in RAM"])
def test_work_in_the_arena_abandons_a_save(kind: str, work: Callable[[MemoryBoard], None]) -> None:
    saved = None
    for slices in (1, 3, 6, 9):
        board = started(kind, is_flash=kind == "in RAM")
        saved = saved or board.ffi.new("struct poet_saved *")
        give_batch(board)
        board.step(1)
        board.call("save_begin")
        assert {board.lib.poet_save_poll(board.state, saved) for _ in range(slices)} == {BUSY}
        work(board)
        assert refusal(board.poll, "save", "poet_saved").name == "wrong_step"
        assert weights(board, kind) == truth(kind)[0]
        train(board, kind)
        assert weights(board, kind) == truth(kind)[STEPS]


def test_nothing_is_measured_while_a_step_runs() -> None:
    board, names = started("stays xwv every 3"), set()

    def poll(_: Any) -> int:
        names.add(refusal(measure, board).name)
        names.add(refusal(board.call, "probe_commit", 1, board.ffi.new("uint32_t *")).name)
        return 0

    board.state.poll = callback = board.ffi.callback("int(void *)", poll)
    board.step(1)
    board.state.poll = board.ffi.NULL
    assert callback
    assert names == {"busy"}
    assert weights(board) == truth()[1]


def test_a_batch_may_arrive_between_slices() -> None:
    """It is that of the step after the running one."""
    found = []
    for board in (started("frugal"), started("frugal")):
        names: list[str] = []

        def send(board: MemoryBoard, names: list[str] = names) -> None:
            try:
                for tensor in (toy.X, toy.T):
                    board.call("write", 2, tensor, 0, toy.values(2)[tensor], toy.SIZES[tensor])
            except Refused as error:
                names.append(error.name)

        board.send_batch()
        if not found:
            board.between = send
        board.call("step_begin", 1)
        board.poll("step", "poet_step_result", 0)
        assert weights(board) == truth()[1]
        assert set(names) <= {"busy"}  # a commit must not be disturbed
        board.between = lambda it: None
        if found:
            send(board)
        board.call("step_begin", 2)
        board.poll("step", "poet_step_result", 0)
        found.append(weights(board))
    assert found[0] == found[1] != truth()[2]
