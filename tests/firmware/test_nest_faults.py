"""Stops, faults and power cuts inside a nest: the committed generation stays whole."""

from typing import Any

import numpy as np
import pytest
from poet_host.plan.nests import NestedOperator
from poet_host.schedule.schedule import Schedule
from support import clib
from support.card_image import CardImage
from support.memory_board import SURVIVE, Refused
from support.nest_cases import RENEW, UPDATE, W, X, Y
from support.nest_runs import TENSOR, LateBoard, board_of, schedule_of
from support.nests import operator_of

WEIGHT = 2  # number of the tensor that the nest renews, in six pieces
NEST = NestedOperator(operator_of(UPDATE), (X, Y, W, W), RENEW)
OLD = UPDATE.inputs[WEIGHT]
NEW = UPDATE.c()


class FaultyBoard(LateBoard):
    """A board whose card fails once, or returns a wrong bit once, `faults_in` accesses from now."""

    faults_in = 0
    flips = False

    def _read(self, context: Any, block: int, data: Any, count: int) -> int:
        self.faults_in -= 1
        if self.faults_in == 0 and not self.flips:
            return -1
        result = super()._read(context, block, data, count)
        if self.faults_in == 0:
            self.ffi.buffer(data, 1)[0] = bytes([self.ffi.buffer(data, 1)[0][0] ^ 1])
        return result

    def _write(self, context: Any, block: int, data: Any, count: int) -> int:
        self.faults_in -= not self.flips
        return -1 if self.faults_in == 0 else super()._write(context, block, data, count)


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    return schedule_of(UPDATE, NEST, queue=3)


@pytest.fixture(scope="module")
def storage(schedule: Schedule) -> CardImage:
    """A card on which step 0 is committed."""
    return board_of(UPDATE, schedule, queue=3).storage


def board_on(storage: CardImage, schedule: Schedule, kind: type[LateBoard] = LateBoard) -> Any:
    board = kind(storage, arena_bytes=schedule.header.arena_bytes, queue=3, cache=2)
    board.load(schedule.model_part, schedule.plan_part)
    return board


def weights(board: LateBoard, schedule: Schedule) -> np.ndarray:
    tensor = schedule.model.tensors[WEIGHT]
    data = tensor.row_major(board.read(TENSOR, WEIGHT, 0, tensor.size_bytes))
    return np.frombuffer(data, np.float32).reshape(OLD.shape)


def outcome(board: LateBoard) -> str:
    """Run step 1. Return the name of its error, or an empty text."""
    try:
        board.step(1)
    except Refused as error:
        return error.name
    return ""


def check_whole(board: LateBoard, schedule: Schedule) -> int:
    """Check that the card has step 0 or step 1, then finish step 1. Return the step that it had."""
    step = board.hello()["committed_step"]
    assert clib.same_bits(weights(board, schedule), (OLD, NEW)[step])
    board.step(1)
    assert clib.same_bits(weights(board, schedule), NEW)
    return step


def test_the_port_knows_that_every_part_of_a_nest_goes_on(
    storage: CardImage, schedule: Schedule
) -> None:
    board, calls = board_on(storage.copy(), schedule), list[int]()
    alive = board.ffi.callback("void(void *, uint32_t)", lambda _, at: calls.append(at))
    board.port.alive = alive
    board.step(1)
    assert calls == [0] * (1 + len([*NEST.cells()])) + [1]  # statements: stream, end
    assert board.state.status.cell == len([*NEST.cells()])


def test_a_nest_stops_at_each_request(storage: CardImage, schedule: Schedule) -> None:
    for polls in range(1000):
        board, seen = board_on(storage.copy(), schedule), list[int]()
        poll = board.ffi.callback(
            "int(void *)", lambda _, n=polls, s=seen: s.append(0) or len(s) > n
        )
        board.state.poll = poll
        if not (error := outcome(board)):
            break
        assert error == "stopped"
        assert len(seen) == polls + 1  # no part was computed after the request
        assert board.state.retired == board.state.submitted
        board.state.poll = board.ffi.NULL
        assert check_whole(board, schedule) == 0
    assert polls > len([*NEST.cells()])


@pytest.mark.parametrize("survive", SURVIVE)
def test_a_power_cut_in_a_nest_leaves_a_whole_generation(
    survive: str, storage: CardImage, schedule: Schedule
) -> None:
    found = []
    for writes in range(100):
        board = board_on(storage.copy(), schedule)
        board.survive, board.cut_at = SURVIVE[survive], board.writes + writes
        board.unflushed.clear()
        if not (error := outcome(board)):
            break
        assert error == "storage_failed"
        found.append(check_whole(board_on(board.after_the_cut(), schedule), schedule))
    assert len(found) > 6  # pieces, trailers and the commit
    assert found == sorted(found)
    assert found[0] == 0


@pytest.mark.parametrize("flips", [False, True])
def test_a_fault_of_the_card_in_a_nest_commits_nothing(
    flips: bool, storage: CardImage, schedule: Schedule
) -> None:
    names, found = set(), []
    for accesses in range(1, 120):
        board = board_on(storage.copy(), schedule, FaultyBoard)
        board.flips, board.faults_in = flips, accesses
        error = outcome(board)
        names.add(error)
        assert board.state.retired == board.state.submitted
        assert not board.strayed
        found.append(check_whole(board_on(board.storage, schedule), schedule))
        assert error or found[-1] == 1
    # After a wrong bit in the commit, what the card has is not what was written.
    assert {*found} == {0, 1}
    assert flips or found == sorted(found)
    wrong = {"page_damaged", "bad_crc"}  # a tensor, or the schedule
    assert names == {"", "storage_failed"} | (wrong if flips else set())
