"""Cuts: parts, pieces and their places, against NumPy slices."""

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from poet_host.errors import BadInput, PoetError
from poet_host.graph.cuts import Cut
from poet_host.schedule.encode import encode
from poet_host.schedule.layout import model_of_graph
from poet_host.schedule.model import PAGE, Tensor, model_bytes, read_model
from poet_host.schedule.slots import pieces
from support import toy
from support.memory_board import library
from support.schedule_copy import MODEL_BLOCK, copy_of

AXIS = st.integers(1, 40).flatmap(lambda size: st.tuples(st.just(size), st.integers(1, size)))
CUTS = st.builds(
    lambda axes, unit, count: Cut(
        4 * unit, tuple(size for size, _ in axes), tuple(part for _, part in axes), count
    ),
    st.lists(AXIS, min_size=3, max_size=3),
    st.integers(1, 9),
    st.integers(1, 7),
)


def parts_of(cut: Cut) -> list[bytes]:
    """The parts of a tensor whose words count from 0, in order."""
    whole = np.arange(cut.size_bytes // 4, dtype="<u4").reshape(*cut.size, -1)
    starts = [range(0, size, part) for size, part in zip(cut.size, cut.part, strict=True)]
    return [
        whole[
            tuple(slice(at, at + part) for at, part in zip(first, cut.part, strict=True))
        ].tobytes()
        for first in product(*starts)
    ]


@settings(max_examples=200, deadline=None)
@given(CUTS)
def test_a_tensor_is_its_parts_one_after_another(cut: Cut) -> None:
    parts = parts_of(cut)
    row_major = np.arange(cut.size_bytes // 4, dtype="<u4").tobytes()
    assert cut.in_order(row_major) == b"".join(parts)
    assert cut.row_major(b"".join(parts)) == row_major
    assert cut.is_row_major == (b"".join(parts) == row_major)
    groups = [parts[i : i + cut.piece_parts] for i in range(0, len(parts), cut.piece_parts)]
    assert cut.piece_sizes == tuple(sum(map(len, group)) for group in groups)
    assert max(cut.piece_sizes) == cut.piece_sizes[0]


@settings(max_examples=200, deadline=None)
@given(CUTS, st.integers(0, 1000))
def test_pieces_and_trailers_lie_apart_in_the_blocks_of_a_tensor(cut: Cut, block: int) -> None:
    tensor = Tensor(cut.size_bytes, PAGE, 0, block, cut)
    taken = []
    for piece in pieces(tensor):
        start = piece.block * 512
        taken += [(start, start + piece.size_bytes), (piece.trailer, piece.trailer + 8)]
    taken.sort()
    assert all(end <= start for (_, end), (start, _) in pairwise(taken))
    assert taken[0][0] == block * 512
    assert (block + tensor.blocks - 1) * 512 < taken[-1][1] <= (block + tensor.blocks) * 512


@settings(max_examples=200, deadline=None)
@given(CUTS, st.data())
def test_the_board_finds_the_same_pieces(cut: Cut, data: Any) -> None:
    ffi, lib = library()
    tensor = Tensor(cut.size_bytes, PAGE, 0, 0, cut)
    expected = pieces(tensor)
    record = ffi.new("struct poet_tensor *", {"size_bytes": cut.size_bytes, "cut": 1})
    board = ffi.new("struct poet *")
    cache = ffi.new("struct poet_cache[1]")
    board.model.cut_count = 1
    board.memory.cache, board.memory.cache_blocks = cache, 1
    port = ffi.new("struct poet_port *")
    board.port = port
    cache[0].block = copy_of(MODEL_BLOCK, 0)[0]  # the table of cuts follows the header
    board.unsettled = 2**32 - 1
    size = ffi.sizeof("struct poet_model")
    fields = {"unit_bytes": cut.unit_bytes, "size": cut.size, "part": cut.part}
    one = ffi.new("struct poet_cut *", {**fields, "piece_parts": cut.piece_parts})
    ffi.memmove(ffi.cast("char *", cache[0].words) + size, one, ffi.sizeof("struct poet_cut"))
    found, piece = ffi.new("struct poet_pieces *"), ffi.new("struct poet_piece *")
    assert lib.poet_read_pieces(board, record, found) == 0
    assert (found.count, found.blocks) == (len(expected), tensor.blocks)
    assert lib.poet_is_row_major(ffi.addressof(found.cut)) == cut.is_row_major
    offset = 0
    for number, wanted in enumerate(expected):
        lib.poet_piece_in_slot(found, number, piece)
        trailer = piece.trailer_block * 512 + piece.trailer_offset
        assert (piece.block, piece.size_bytes, trailer, piece.at) == wanted
        assert piece.offset == offset
        inside = data.draw(st.integers(offset, offset + wanted.size_bytes - 1))
        assert lib.poet_piece_at(found, inside) == number
        offset += wanted.size_bytes


@pytest.mark.parametrize(
    "numbers",
    [
        (4, (1, 2, 3), (1, 2, 4)),
        (4, (1, 2, 3), (1, 0, 3)),
        (6, (1, 2, 3), (1, 1, 1)),
        (4, (1, 2), (1, 2)),
        (4, (1, 2, 70_000), (1, 1, 1)),
        (4, (1, 2, 3), (1, 1, 1), 0),
        (4, (60_000, 60_000, 60_000), (1, 1, 1)),
    ],
)
def test_wrong_numbers_are_refused(numbers: tuple[Any, ...]) -> None:
    with pytest.raises(BadInput, match="cut"):
        Cut(*numbers)


def test_a_cut_must_be_for_the_tensor_and_fit_its_kernels() -> None:
    graph = toy.graph()
    with pytest.raises(BadInput, match=r"node w.*has 900"):
        model_of_graph(graph, {"w": Cut(4, (1, 3, 70), (1, 1, 7))})
    with pytest.raises(PoetError, match="only a nest"):
        encode(graph, toy.lavish(), cuts={"w": Cut(4, (1, 3, 75), (1, 2, 25))})


def test_cuts_are_in_the_model_part() -> None:
    model = toy.schedule("cut").model
    assert set(model.cuts) == set(toy.CUTS.values())
    names = [node.name for node in toy.graph()]
    cuts = dict(zip(names, (tensor.cut for tensor in model.tensors), strict=True))
    assert cuts == {"loss": None, **toy.CUTS, "w1": toy.CUTS["w"], "v1": toy.CUTS["v"]}
    assert read_model(model_bytes(model), "x").tensors == model.tensors
