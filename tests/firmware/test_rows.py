"""A nest that renews a table writes only the slabs of rows that its steps have selected.

The table has 24 pieces of 2 rows. Every step selects three rows.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from poet_host.graph.cuts import Cut
from poet_host.plan.nests import Nest, NestedOperator, Ring
from poet_host.reference.step import run_kernel
from poet_host.schedule.schedule import Schedule
from support import clib
from support.card_image import CardImage
from support.kernel_cases import Case, make
from support.memory_board import SURVIVE, FalseWrite, Refused
from support.nest_runs import DATA_BLOCK, TENSOR, LateBoard, board_of, schedule_of, stored
from support.nests import operator_of
from support.row_nests import NESTS, ROWS, TOKENS, WIDTH, K, N, case, nested

STEPS = 9
PIECE_BLOCKS = 24  # then come the trailers
TABLE = 2  # number of the tensor
BATCHES = np.random.default_rng(1).integers(0, ROWS, (STEPS + 1, TOKENS)).astype(np.int32)
BATCHES[4] = BATCHES[3] = BATCHES[2]
BATCHES[6, 0] = BATCHES[1, 0]


def tables(one: Case, batches: np.ndarray) -> list[np.ndarray]:
    """The table, or its momentum, after 0, 1, ... steps, renewed as a whole by NumPy."""
    found = [one.inputs[TABLE]]
    for batch in batches[1:]:
        inputs = [batch, one.inputs[1], found[-1], *one.inputs[3:]]
        found.append(run_kernel(one.op, one.sink, one.attrs, inputs, 1).reshape(found[-1].shape))
    return found


class CountingBoard(LateBoard):
    """A board that counts accesses to the blocks of the table's pieces."""

    first, stride = 0, 1  # of the table's slots
    read_blocks = written_blocks = 0

    def _is_piece(self, block: int) -> bool:
        is_data = 0 < self.first <= block
        return is_data and (block - self.first) % self.stride < PIECE_BLOCKS

    def _read(self, context: Any, block: int, data: Any, count: int) -> int:
        self.read_blocks += count * self._is_piece(block)
        return super()._read(context, block, data, count)

    def _write(self, context: Any, block: int, data: Any, count: int) -> int:
        self.written_blocks += count * self._is_piece(block)
        return super()._write(context, block, data, count)


class Bench:
    """A case on a card that has committed step 0."""

    def __init__(self, one: Case, cut: Cut, nest: Nest) -> None:
        self.schedule: Schedule = schedule_of(one, nested(one, cut, nest), queue=3)
        self.card = board_of(one, self.schedule, queue=3).storage

    def board(self, card: CardImage, slabs: int | None = 64) -> CountingBoard:
        board = CountingBoard(
            card, arena_bytes=self.schedule.header.arena_bytes, queue=3, cache=3, slabs=slabs
        )
        board.load(self.schedule.model_part, self.schedule.plan_part)
        board.first = board.state.partition + DATA_BLOCK + self.schedule.model.tensors[TABLE].block
        board.stride = self.schedule.model.slot_stride
        return board

    def table(self, board: LateBoard) -> np.ndarray:
        tensor = self.schedule.model.tensors[TABLE]
        data = tensor.row_major(board.read(TENSOR, TABLE, 0, tensor.size_bytes))
        return np.frombuffer(data, np.float32).reshape(ROWS, WIDTH)


def train(board: LateBoard, batches: np.ndarray, steps: int = STEPS) -> None:
    """Run the steps after the committed one."""
    for step in range(board.hello()["committed_step"] + 1, steps + 1):
        board.write(TENSOR, 0, 0, batches[step].tobytes())
        board.step(step)


def written(board: CountingBoard, batches: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield the blocks of pieces that each step reads and writes."""
    for step in range(1, STEPS + 1):
        board.read_blocks = board.written_blocks = 0
        train(board, batches, step)
        yield board.read_blocks, board.written_blocks


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(case(), *NESTS["columns last"])


@pytest.mark.parametrize("name", NESTS)
def test_a_step_writes_the_slabs_of_the_rows_of_three_steps(name: str) -> None:
    bench, loops = Bench(case(), *NESTS[name]), NESTS[name][1].loops
    rows = next(loop.step for loop in loops if loop.axis == "k")
    board = bench.board(bench.card.copy())
    counts = [*written(board, BATCHES)]
    slabs = [{*(batch // rows).tolist()} for batch in BATCHES[1:]]
    # The board does not know yet what the other slots hold.
    assert counts[:2] == [(PIECE_BLOCKS, PIECE_BLOCKS)] * 2
    for i in range(2, STEPS):
        blocks = rows * len(slabs[i - 2] | slabs[i - 1] | slabs[i])
        assert counts[i] == (blocks, blocks)
    assert min(counts)[1] <= PIECE_BLOCKS / 2
    assert clib.same_bits(bench.table(board), tables(case(), BATCHES)[-1])


@pytest.mark.parametrize(("sink", "decay"), [("sgd", 0.01), ("momentum", 0.0), ("sgd", 0.0)])
def test_other_optimisers_and_boards_write_the_whole_table(sink: str, decay: float) -> None:
    one = case(sink, decay)
    bench = Bench(one, *NESTS["rows"])
    is_plain = (sink, decay) == ("sgd", 0.0)
    for slabs in (None, 11) if is_plain else (64,):  # the table has 12
        board = bench.board(bench.card.copy(), slabs)
        assert {*written(board, BATCHES)} == {(PIECE_BLOCKS, PIECE_BLOCKS)}
        assert clib.same_bits(bench.table(board), tables(one, BATCHES)[-1])


@pytest.mark.parametrize("survive", SURVIVE)
def test_a_power_cut_at_each_write_of_each_step_changes_no_bits(survive: str, bench: Bench) -> None:
    """After the cut the host may train with another batch, of which other rows are selected."""
    others = (BATCHES + 7) % ROWS
    steps = set()
    board = bench.board(bench.card.copy())
    begun, before = board.writes, 0
    train(board, BATCHES, 6)
    for writes in range(0, board.writes - begun, 3 if survive == "all" else 5):
        board = bench.board(bench.card.copy())
        board.survive, board.cut_at = SURVIVE[survive], board.writes + writes
        board.unflushed.clear()
        with pytest.raises(Refused):
            train(board, BATCHES, 6)
        again = bench.board(board.after_the_cut())
        step = again.hello()["committed_step"]
        assert before <= step <= 6
        before = step
        steps.add(step)
        batches = np.concatenate([BATCHES[: step + 1], others[step + 1 :]])
        wanted = tables(case(), batches)
        assert clib.same_bits(bench.table(again), wanted[step])
        train(again, batches)
        assert clib.same_bits(bench.table(again), wanted[-1])
    assert len(steps) >= 6


def test_a_write_that_the_card_did_not_make_is_found_while_the_step_before_is_whole(
    bench: Bench,
) -> None:
    board = bench.board(bench.card.copy())
    begun = board.writes
    train(board, BATCHES, 6)
    wanted, names, errors = tables(case(), BATCHES), set[str](), 0
    for write in range(board.writes - begun):
        board = bench.board(bench.card.copy())
        board.false_writes = {board.writes + write: FalseWrite(kept=0)}
        for _ in range(3):
            step = board.hello()["committed_step"]
            try:
                train(board, BATCHES)
                found = bench.table(board)
                break
            except Refused as error:
                names.add(error.name)
                errors += 1
            assert board.hello()["committed_step"] >= step - 1
        assert clib.same_bits(found, wanted[-1])
    assert names == {"page_damaged"}
    assert errors > 10


def test_after_an_upload_the_next_steps_write_all_slabs(bench: Bench) -> None:
    """Also after one that no `begin` has ended: it has written to the next slot."""
    wanted = tables(case(), BATCHES)
    tensor = bench.schedule.model.tensors[TABLE]
    for value, begins in ((wanted[4], True), (wanted[0], False)):
        board = bench.board(bench.card.copy())
        train(board, BATCHES, 4)
        board.write(TENSOR, TABLE, 0, tensor.in_order(value.tobytes()))
        if begins:
            board.begin(4)
        board.written_blocks = 0
        train(board, BATCHES, 6)
        assert board.written_blocks == 2 * PIECE_BLOCKS
        train(board, BATCHES)
        assert clib.same_bits(bench.table(board), wanted[-1])


def test_after_a_stopped_step_the_next_steps_write_all_slabs(bench: Bench) -> None:
    others = np.concatenate([BATCHES[:6], (BATCHES[6:] + 5) % ROWS])
    for polls in range(3, 30, 3):
        board, seen = bench.board(bench.card.copy()), list[int]()
        train(board, BATCHES, 5)
        poll = board.ffi.callback(
            "int(void *)", lambda _, n=polls, s=seen: s.append(0) or len(s) > n
        )
        board.state.poll = poll
        board.write(TENSOR, 0, 0, BATCHES[6].tobytes())
        with pytest.raises(Refused):
            board.step(6)
        board.state.poll = board.ffi.NULL
        train(board, others)
        assert clib.same_bits(bench.table(board), tables(case(), others)[-1])


@pytest.mark.parametrize("first", ["n", "k"])
def test_a_nest_reads_only_slabs_of_which_a_token_selects_rows(first: str) -> None:
    one = make("embedding", {"n": TOKENS, "k": ROWS, "c": WIDTH}, 5)
    loops = (N, K) if first == "n" else (K, N)
    depth = 1 + loops.index(K)
    cuts = (None, Cut(4 * WIDTH, (1, 1, ROWS), (1, 1, 2)), None)
    nest = Nest(loops, (None, Ring(2, depth), None))
    schedule = schedule_of(one, NestedOperator(operator_of(one), cuts, nest), queue=3)
    for tokens in ([4, 5, 20], [0, 9, 23], [13, 13, 12], [2, ROWS, 7]):
        case = replace(one, inputs=[np.array(tokens, np.int32), one.inputs[1]])
        board = CountingBoard(
            board_of(case, schedule, queue=3).storage,
            arena_bytes=schedule.header.arena_bytes, queue=3, slabs=None,
        )  # fmt: skip
        board.load(schedule.model_part, schedule.plan_part)
        board.first = board.state.partition + DATA_BLOCK + schedule.model.tensors[1].block
        board.stride = schedule.model.slot_stride
        board.step(1)
        found = np.frombuffer(stored(board, schedule, 2), np.float32).reshape(one.shape)
        assert clib.same_bits(found[np.isfinite(found)], case.c()[np.isfinite(found)])
        assert np.isnan(found[:, 0]).tolist() == [token == ROWS for token in tokens]
        slabs = [{0, token // 2} if token < ROWS else {0} for token in tokens]
        times = sum(map(len, slabs)) if first == "n" else len(set[int]().union(*slabs))
        assert board.read_blocks == 2 * times
