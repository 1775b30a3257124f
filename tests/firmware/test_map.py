"""Where blocks lie on storage that a board lays out, for models of many kinds (map.c)."""

import random

import pytest
from poet_host.graph.cuts import Cut
from poet_host.schedule.layout import lay_out
from poet_host.schedule.model import (
    CURRENT,
    FIXED,
    INPUT,
    NEXT,
    PAGE,
    SHARED,
    STORED,
    Model,
    Operator,
    Tensor,
    model_bytes,
)
from poet_host.schedule.slots import COMMIT_BLOCKS, DATA_BLOCK, slots_of
from support.card_image import BLOCK, CardImage
from support.memory_board import MemoryBoard

NO_BLOCK = 0xFFFFFFFF
CUT = Cut(4, (1, 5, 600), (1, 1, 200), 2)


def random_model(rng: random.Random) -> Model:
    """A model whose frozen, input and renewed tensors alternate, some cut and some small."""
    tensors, renews = [], {}
    for place in rng.choices((FIXED, INPUT, CURRENT, CURRENT), k=rng.randint(1, 30)):
        cut = CUT if rng.random() < 0.2 else None
        size = CUT.size_bytes if cut else 4 * rng.choice((1, 10, 60, 126, 128, 2000))
        tensors.append(Tensor(size, place, STORED, cut=cut))
    renewed = [i for i, tensor in enumerate(tensors) if tensor.place == CURRENT]
    rng.shuffle(renewed)
    computed = [*renewed, *([None] * rng.randint(0, 9))]
    for number, old in enumerate(computed, len(tensors)):
        if old is None:
            tensors.append(Tensor(4 * rng.randint(1, 3000), PAGE, 0))
        else:
            renews[number] = old
            tensors.append(Tensor(tensors[old].size_bytes, NEXT, 0, cut=tensors[old].cut))
    return lay_out(tensors, [Operator(0, ())] * len(computed), renews, rng.choice((3, 4)))


def slots(model: Model) -> list[tuple[tuple[int, int], range]]:
    """Of each slot and page: what a unit may hold alone, and its blocks."""
    found = []
    for tensor in model.tensors:
        size = 1 if tensor.flags & SHARED else tensor.blocks
        for slot in range(1 if tensor.place == PAGE else slots_of(model, tensor)):
            first = DATA_BLOCK + tensor.block + slot * model.slot_stride
            found.append(((tensor.place, slot), range(first, first + size)))
    return found


@pytest.mark.parametrize("unit", [1, 8, 256])
@pytest.mark.parametrize("seed", range(20))
def test_areas_follow_one_another(seed: int, unit: int) -> None:
    model = random_model(random.Random(seed))
    board = MemoryBoard(CardImage(BLOCK), left_out=["submit"])
    part = model_bytes(model)
    board.keep_program(part, b"")
    board.ffi.memmove(board.ffi.addressof(board.state.model), part, 32)
    board.state.program = board.program
    board.state.store.unit_blocks, board.state.partition = unit, 1000
    needed = board.lib.poet_least_blocks(board.program, unit)
    place = board.lib.poet_storage_block
    assert [place(board.state, block) for block in (0, *COMMIT_BLOCKS)] == [
        1000 + i * unit for i in range(3)
    ]
    found: dict[int, int] = {}
    owners: dict[int, set[tuple[int, int]]] = {}
    for owner, blocks in random.Random(seed).sample(slots(model), len(slots(model))):
        at = place(board.state, blocks[0])
        for i, block in enumerate(blocks):
            assert place(board.state, block) == at + i  # a transfer is in one piece
            assert found.setdefault(at + i, block) == block  # no two blocks lie in one place
            owners.setdefault((at + i - 1000) // unit, set()).add(owner)
    assert all(len(several) == 1 for several in owners.values())
    assert sorted(owners) == list(range(3, needed // unit))
    assert needed % unit == 0
    assert place(board.state, DATA_BLOCK + model.data_blocks) == NO_BLOCK
