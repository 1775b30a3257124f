"""FIXED tensors: those of another training are never used without an error."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from poet_host import isa
from poet_host.schedule import slots
from poet_host.schedule.model import BLOCK, CURRENT, FIXED, INPUT
from support.kernel_parts_cases import random_case
from support.memory_board import PARTITION, MemoryBoard, refusal
from support.nest_runs import TENSOR, LateBoard, board_of, schedule_of
from support.nests import operator_of, random_nest
from support.toy_boards import in_partition

CASE = replace(random_case("layernorm_grad_weight", np.random.default_rng(0)), step=1)
SCHEDULE = schedule_of(CASE, random_nest(Random(0), operator_of(CASE)))
TENSORS = SCHEDULE.model.tensors
(X,) = (i for i, tensor in enumerate(TENSORS) if tensor.place == INPUT)
A, B = (i for i, tensor in enumerate(TENSORS) if tensor.place == FIXED)
(W,) = (i for i, tensor in enumerate(TENSORS) if tensor.place == CURRENT)


def values(number: int, seed: int) -> bytes:
    floats = np.random.default_rng(seed).random(TENSORS[number].size_bytes // 4, np.float32)
    return TENSORS[number].in_order(floats.tobytes())


def send(board: MemoryBoard, seed: int, *numbers: int) -> None:
    for number in numbers:
        board.write(TENSOR, number, 0, values(number, seed))


def read(board: MemoryBoard, number: int) -> bytes:
    return board.read(TENSOR, number, 0, TENSORS[number].size_bytes)


def loaded(board: MemoryBoard) -> MemoryBoard:
    board.load(SCHEDULE.model_part, SCHEDULE.plan_part)
    board.batch = {X: values(X, 1)}
    return board


def switched_on(board: MemoryBoard) -> MemoryBoard:
    return loaded(LateBoard(board.storage, arena_bytes=SCHEDULE.header.arena_bytes))


def blocks_of(number: int) -> slice:
    first = PARTITION + slots.DATA_BLOCK + TENSORS[number].block
    return slice(first * BLOCK, (first + TENSORS[number].blocks) * BLOCK)


@pytest.fixture
def board() -> MemoryBoard:
    """A board with step 0 of one training."""
    board = loaded(board_of(CASE, SCHEDULE))
    send(board, 1, A, B, W)
    board.begin(0)
    return board


@pytest.mark.parametrize("steps", [0, 1])
def test_a_frozen_tensor_of_the_training_before_is_found(board: MemoryBoard, steps: int) -> None:
    old = bytes(board.storage[blocks_of(A)])
    send(board, 2, A, B, W)
    board.begin(0)
    for step in range(1, 1 + steps):
        board.step(step)
    board.storage[blocks_of(A)] = old
    assert refusal(board.step, 1 + steps) == ("page_damaged", A)
    assert refusal(read, switched_on(board), A) == ("page_damaged", A)


def test_frozen_tensors_of_an_upload_that_did_not_end_are_found(board: MemoryBoard) -> None:
    board.step(1)
    send(board, 2, A)
    again = switched_on(board)
    assert again.hello()["committed_step"] == 1
    assert refusal(again.step, 2) == ("page_damaged", A)
    send(again, 2, A, B, W)
    again.begin(0)
    again.step(1)
    assert read(again, A) == values(A, 2)


def test_frozen_tensors_that_were_not_written_keep_their_values(board: MemoryBoard) -> None:
    for written in ((W,), (A,), (B, W)):
        before = {number: read(board, number) for number in (A, B, W)}
        send(board, 2, *written)
        board.begin(0)
        board = switched_on(board)
        for number in (A, B, W):
            wanted = values(number, 2) if number in written else before[number]
            assert read(board, number) == wanted
        board.step(1)


def test_frozen_tensors_of_poet_host_0_2_0_are_read(board: MemoryBoard) -> None:
    """They have the model's CRC as generation, and their commit has no number for them."""
    for number in (A, B):
        tensor, (piece,) = TENSORS[number], slots.pieces(TENSORS[number])
        assert piece.size_bytes == tensor.size_bytes
        crc = slots.crc_of(board.storage[blocks_of(number)][-slots.TRAILER_BYTES :])
        trailer = slots.trailer_of(piece, crc, SCHEDULE.model.crc)
        end = blocks_of(number).stop
        board.storage[end - slots.TRAILER_BYTES : end] = trailer
    assert refusal(read, switched_on(board), A).name == "page_damaged"
    size = isa.record_size("poet_commit")
    for block in slots.COMMIT_BLOCKS:
        at = in_partition(block).start
        commit = slots.commit_from_bytes(bytes(board.storage[at : at + size]))
        assert commit
        old = replace(commit, now=replace(commit.now, fixed=0))
        board.storage[at : at + size] = old.to_bytes()
    again = switched_on(board)
    assert read(again, A) == values(A, 1)
    again.step(1)
    send(again, 2, B)
    again.begin(1)
    assert (read(again, A), read(again, B)) == (values(A, 1), values(B, 2))
    again.step(2)
