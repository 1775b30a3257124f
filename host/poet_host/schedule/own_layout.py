"""Where tensors lie on storage that a board has laid out itself (firmware/src/map.c).

Areas follow one another, each in units of its own: three records, then the slots of each run of
stored tensors with the same place, then pages. Blocks of a schedule count as on a card (slots.py).
"""

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from .model import CURRENT, INPUT, PAGE, PLACE_NONE, SHARED, Model, Tensor
from .slots import DATA_BLOCK, UNIT_BLOCKS, slot_block


class Area(NamedTuple):
    """One slot of a run of tensors, or a record. `first`: as on a card. `at`: in the storage."""

    first: int
    blocks: int
    at: int


def areas(model: Model, unit: int) -> tuple[list[Area], int]:
    """Return the areas of a model in units of so many blocks, and the blocks of all of them."""
    found = [
        Area(first, 1, first // UNIT_BLOCKS * unit) for first in range(0, DATA_BLOCK, UNIT_BLOCKS)
    ]
    end = 3 * unit
    for place, run in groupby(_in_order(model), lambda tensor: tensor.place):
        tensors = [*run]
        first = min(tensor.block for tensor in tensors)
        count = max(tensor.block + tensor.blocks for tensor in tensors) - first
        for slot in range({CURRENT: model.slots, INPUT: 2}.get(place, 1)):
            found.append(Area(slot_block(model, slot) + first, count, end))
            end += -(-count // unit) * unit
    return found, end


def _in_order(model: Model) -> Iterator[Tensor]:
    """Yield the tensors that have blocks, in the order in which a board lays them out."""
    stored, computed = model.tensors[: model.stored_count], model.tensors[model.stored_count :]
    for again in (False, True):
        for tensor in stored:
            given = tensor.place == INPUT and not model.storage
            is_shared = bool(tensor.flags & SHARED)
            if is_shared == again and tensor.place != PLACE_NONE and not given:
                yield tensor
    yield from (tensor for tensor in computed if tensor.place == PAGE)
