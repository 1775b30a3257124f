"""What an operator's operands move through buffers, for many nests at once, in NumPy.

Loops are given as levels: an array has an element for each choice of tile sizes. The walk of
nests.py is the definition; tests/plan/test_nest_search.py compares both.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ..graph.cuts import Cut
from ..graph.operands import Operator
from .nests import parts_of

Array = NDArray[np.float64]
Sizes = NDArray[np.int64]


@dataclass(frozen=True)
class Prices:
    """What the operator's kernel and its transfers cost.

    `load` and `store` take sizes of transfers in bytes. They return rows: time of the transfer
    lane (us), time of the processor (us), energy (uJ).
    """

    load: Callable[[Sizes], Array]
    store: Callable[[Sizes], Array]
    kernel_us: float  # of all cells, with the time between cells
    kernel_uj: float


@dataclass(frozen=True)
class Level:
    """A loop of all tile sizes at once."""

    axis: str
    outer: bool
    step: Sizes
    trips: Sizes


@dataclass(frozen=True)
class Option:
    """A ring of one operand at one depth, for all tile sizes at once."""

    depth: int
    allowed: NDArray[np.bool_]
    slab_bytes: Sizes
    slab_us: Array  # of the transfers of the first slab, in and out
    costs: Array  # rows: lane us, processor us, uJ, bytes moved in, bytes moved out


class NestTraffic:
    """The operands of an operator. `cuts`: of the inputs, then of the output."""

    cells: Mapping[str, int]  # the steps of the innermost loops

    def __init__(self, operator: Operator, cuts: Sequence[Cut | None], prices: Prices) -> None:
        self.operator = operator
        self.prices = prices
        self.count = operator.input_count
        self.axes = [operator.operand(i) for i in range(self.count + 1)]
        self.parts = [parts_of(*pair) for pair in zip(self.axes, cuts, strict=True)]
        self.streamable = [
            cut is not None and len(cut.piece_sizes) > 1 and cut.piece_parts == 1 for cut in cuts
        ]
        self.sizes = {
            axis: operator.size(axis)
            for axis in (*operator.free_axes, *operator.summed)
            if operator.size(axis) > 1
        }

    def extents(self, index: int, levels: Sequence[Level], count: int) -> list[Sizes]:
        """Return the largest extents that loops leave of an operand, by axis."""
        found = []
        for axis in self.axes[index]:
            extent = np.full(count, axis.size, np.int64)
            for level in levels:
                if level.axis == axis.cut_by:
                    extent = np.minimum(extent, level.step * axis.per)
            found.append(extent)
        return found

    def rings_of(
        self,
        index: int,
        levels: list[Level],
        tile: Mapping[str, Sizes],
        count: int,
        *,
        are_free: bool = False,
    ) -> list[Option]:
        """Return the rings of an operand at each depth that matters.

        `are_free`: the transfers cost nothing.
        """
        own = {a.cut_by for a in self.axes[index] if a.size > 1}
        depths = [0, *(d for d in range(1, len(levels) + 1) if levels[d - 1].axis in own)]
        found = []
        for depth in depths:
            inside = levels[:depth]
            allowed = np.ones(count, bool)
            for a, part in zip(self.axes[index], self.parts[index], strict=True):
                for level in inside:
                    if level.axis == a.cut_by:
                        whole = (level.step * a.per) % part == 0 if part < a.size else False
                        allowed &= (level.trips == 1) | whole
            if not allowed.any():
                continue
            extents = self.extents(index, inside, count)
            slab_bytes = 4 * np.prod(extents, axis=0)
            if are_free:
                zero = np.zeros((5, count))
                found.append(Option(depth, allowed, slab_bytes, zero[0], zero))
                continue
            first = self._region(
                index,
                [parts_within(e, p) for e, p in zip(extents, self.parts[index], strict=True)],
                count,
            )
            costs = self._moved(index, levels, depth, tile, count)
            found.append(Option(depth, allowed, slab_bytes, first[0], costs))
        return found

    def _moved(
        self, index: int, levels: list[Level], depth: int, tile: Mapping[str, Sizes], count: int
    ) -> Array:
        """Return the costs of all transfers of an operand: see `Option.costs`."""
        inside = levels[:depth]
        regions: list[list[tuple[tuple[Sizes, Sizes], dict[str, Sizes]]]] = []
        for a, part in zip(self.axes[index], self.parts[index], strict=True):
            whole = (parts_within(np.full(count, a.size, np.int64), part), dict[str, Sizes]())
            both = {level.outer for level in inside if level.axis == a.cut_by}
            if both != {True, False} or a.size == 1:
                regions.append([whole])
                continue
            step = tile[str(a.cut_by)] * a.per
            last = a.size - (-(-a.size // step) - 1) * step
            cell = self.cells[str(a.cut_by)] * a.per
            others_full, others_edge = parts_within(a.size - last, part)
            regions.append([
                ((others_full, others_edge), {str(a.cut_by): -(-step // cell)}),
                (parts_within(last, part), {str(a.cut_by): -(-last // cell)}),
            ])  # fmt: skip
        total = np.zeros((5, count))
        moved = total[4 if index == self.count else 3]
        for combination in product(*regions):
            trips = {axis: t for _, more in combination for axis, t in more.items()}
            times = self._repeats(index, inside, trips, count)
            cost = self._region(index, [parts for parts, _ in combination], count)
            total[:3] += times * cost[:3]
            moved += times * cost[3]
        return total

    def _repeats(
        self, index: int, inside: Sequence[Level], trips: Mapping[str, Sizes], count: int
    ) -> Sizes:
        """Return how often the loops of other axes load the operand's slabs again."""
        own = {a.cut_by for a in self.axes[index] if a.size > 1}
        times = np.ones(count, np.int64)
        changes = np.zeros(count, bool)  # loops further inside move to another slab
        counted: dict[str, Sizes] = {}
        for level in reversed(inside):
            if level.axis in own:
                here = level.trips if level.outer else trips.get(level.axis, level.trips)
                changes = changes | (here > 1)
            else:
                all_trips = (
                    level.trips
                    if level.outer
                    else np.full(
                        count, -(-self.sizes[level.axis] // self.cells[level.axis]), np.int64
                    )
                )
                known = counted.get(level.axis, np.ones(count, np.int64))
                # An inner loop that repeats counts the iterations of its outer loop, too.
                counted[level.axis] = np.where(changes & (known == 1), all_trips, known)
        for factor in counted.values():
            times = times * factor
        return times

    def _region(self, index: int, parts: Sequence[tuple[Sizes, Sizes]], count: int) -> Array:
        """Return the costs of the transfer of some parts: loads of an input, stores of the output.

        `parts`: for each axis the number of whole parts, and the size of a smaller one or 0. Rows:
        lane, processor, energy, bytes.
        """
        total = np.zeros((4, count))
        price = self.prices.store if index == self.count else self.prices.load
        sides = [
            ((np.full(count, whole, np.int64), number), (edge, (edge > 0).astype(np.int64)))
            for (number, edge), whole in zip(parts, self.parts[index], strict=True)
        ]
        for combination in product(*sides):
            size = 4 * np.prod([extent for extent, _ in combination], axis=0)
            number = np.prod([many for _, many in combination], axis=0)
            if not np.any(number):
                continue
            total[:3] += number * price(size)
            total[3] += number * size
        return total


def parts_within(extent: Sizes, part: int) -> tuple[Sizes, Sizes]:
    return extent // part, extent % part
