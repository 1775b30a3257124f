"""What an operator's operands move through buffers, for many nests at once, in NumPy.

A number of a nest is an array here, with an element for each choice of tile sizes. The walk of
nests.py is the definition; tests/stream/test_nest_search.py compares both.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ..graph.cuts import Cut
from ..graph.kept_slabs import ROWS, table_of
from ..graph.operands import OperandAxis, Operator, Sizes
from ..plan.parts import parts_of
from .nest_orders import LoopOf, Order, Position

Array = NDArray[np.float64]
Parts = tuple[Sizes, Sizes, Sizes]
"""Along an axis: how many whole parts, the size of a smaller last part, and how many of these."""


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
    # Processor time to find a piece, submit its transfer and check its trailer.
    piece_us: float = 0.0
    # Like `store`, for the input gradient of a pair.
    store_also: Callable[[Sizes], Array] | None = None
    # Lane time (us) and energy (uJ) to change the erase group: added once if the output streams,
    # and once (second pair) if the input gradient of a pair streams.
    turns: tuple[tuple[float, float], ...] = ((0.0, 0.0), (0.0, 0.0))


@dataclass(frozen=True)
class Level:
    """A loop, for all tile sizes at once."""

    axis: str
    outer: bool
    step: Sizes
    trips: Sizes  # iterations


@dataclass(frozen=True)
class Option:
    """A ring of one operand, for all tile sizes at once."""

    allowed: NDArray[np.bool_]  # whether a nest may have the ring
    slab_bytes: Sizes
    slab_us: Array  # of the transfers of the first slab, in and out
    costs: Array  # rows: lane us, processor us, uJ, bytes moved in, bytes moved out, transfers


@dataclass(frozen=True)
class Slabs:
    """The slabs that some loops cut out of one operand, for all tile sizes at once."""

    allowed: NDArray[np.bool_]
    slab_bytes: Sizes
    slab_us: Array
    # For each region of the operand: costs to transfer it once (rows: lane, processor, energy,
    # bytes, transfers), and by axis the iterations of inner loops, if the region has fewer.
    regions: Sequence[tuple[Array, Mapping[str, Sizes]]]


@dataclass(frozen=True)
class Columns:
    """All options of one operand, a row each: see Option. In the first, it is whole in RAM."""

    allowed: NDArray[np.bool_]
    slab_bytes: Sizes
    slab_us: Array
    costs: Array  # the rows of Option, with a row of each option

    @staticmethod
    def of(options: Sequence[Option | None], count: int) -> "Columns":
        """Return the options as rows. None: the ring is not allowed, or (first) there is none."""
        zero = np.zeros(count, np.int64)
        whole = Option(np.ones(count, bool), zero, zero.astype(float), np.zeros((6, count)))
        absent = replace(whole, allowed=np.zeros(count, bool))
        rings = [options[0] or whole, *(ring or absent for ring in options[1:])]
        return Columns(
            np.stack([ring.allowed for ring in rings]),
            np.stack([ring.slab_bytes for ring in rings]),
            np.stack([ring.slab_us for ring in rings]),
            np.stack([ring.costs for ring in rings], axis=1),
        )


class NestTraffic:
    """What the operands of an operator move in its nests.

    `cuts`: a cut for each input, then for the output, then for the input gradient if the nests are
    pairs. `statistics`: the nests also compute the statistics of the output. `by_rows`: each step
    of a layer along time may read its recurrent weight in parts.
    """

    cells: Mapping[str, int]  # the steps of the innermost loops, by axis
    used_rows = 0  # the most rows of a table that a step uses; 0: all
    # Known slabs for the tile sizes at hand, by operand, whether transfers are free, and own loops.
    known: dict[tuple[object, ...], Slabs | None]

    def __init__(
        self,
        operator: Operator,
        cuts: Sequence[Cut | None],
        prices: Prices,
        statistics: bool = False,
        by_rows: bool = False,
    ) -> None:
        self.operator = operator
        self.prices = prices
        self.statistics = statistics
        self.cuts = cuts
        self.count = operator.input_count
        self.is_pair = len(cuts) > self.count + 1
        self.axes = [operator.operand(i) for i in range(self.count + 1)]
        self.axes += self.axes[:1] * self.is_pair  # a gradient has the shape of its tensor
        self.parts = [parts_of(*pair) for pair in zip(self.axes, cuts, strict=True)]
        self.streamable = [
            cut is not None and len(cut.piece_sizes) > 1 and cut.piece_parts == 1 for cut in cuts
        ]
        self.sizes = {
            axis: operator.size(axis)
            for axis in (*operator.free_axes, *operator.summed)
            if operator.size(axis) > 1 and not (self.is_pair and axis == "oh")
            and not (operator.has_steps and axis == "k" and not by_rows)
        }  # fmt: skip

    @property
    def visited(self) -> Mapping[str, int]:
        """Return how many indices of each axis a nest visits; of a table, only those in use."""
        return {**self.sizes, ROWS: self.used_rows} if self.used_rows else self.sizes

    def _cut_along(self, axis: str) -> list[int]:
        """Return the sizes of the parts of cut operands along an axis, in indices of the axis."""
        return [
            part // a.per if part % a.per == 0 else 0
            for axes, parts in zip(self.axes, self.parts, strict=True)
            for a, part in zip(axes, parts, strict=True)
            if a.cut_by == axis and part < a.size and a.window is None
        ]

    def extents(self, index: int, levels: Sequence[Level], count: int) -> list[Sizes]:
        """Return the largest extents of an operand inside of some loops, one for each axis."""
        extents = []
        for axis in self.axes[index]:
            extent = np.full(count, axis.size, np.int64)
            for level in levels:
                if level.axis == axis.cut_by:
                    extent = np.minimum(extent, axis.extent(level.step))
            extents.append(extent)
        return extents

    def _step(self, axis: str | None, levels: Sequence[Level], count: int) -> Sizes:
        """Return the step of the innermost loop over an axis; without one, the size of the axis."""
        steps = [level.step for level in levels if level.axis == axis]
        return steps[-1] if steps else np.full(count, self.operator.size(axis or ""), np.int64)

    def sums_bytes(self, order: Order, tile: Mapping[str, Sizes], count: int) -> Sizes:
        """Return the bytes of accumulators that are not in the output."""
        sums_bytes, none_yet = np.zeros(count, np.int64), np.ones(count, bool)
        levels = [self.level(loop, tile) for loop in order]
        if self.operator.has_steps:
            for level in levels:
                kept_bytes = self.operator.kept_bytes(by_rows=level.axis == "k")
                sums_bytes = np.maximum(sums_bytes, (level.trips > 1) * kept_bytes)
            return sums_bytes
        if self.operator.sink in ("none", "store"):
            return sums_bytes
        for depth, level in enumerate(levels):
            if level.axis in self.operator.summed:
                here = none_yet & (level.trips > 1)  # the first loop over terms
                extents = self.extents(self.count, levels[:depth], count)
                sums_bytes = np.where(here, 4 * np.prod(extents, axis=0), sums_bytes)
                none_yet &= ~here
        return sums_bytes

    def level(self, loop: LoopOf, tile: Mapping[str, Sizes]) -> Level:
        axis, outer = loop
        size, step = self.visited[axis], tile[axis]
        if outer:
            return Level(axis, True, step, -(-size // step))
        cell = np.full_like(step, self.cells[axis])
        return Level(axis, False, cell, -(-np.minimum(step, size) // cell))

    def owned(self, index: int) -> frozenset[str]:
        """Return the axes whose loops move the slab of an operand."""
        axes = (a for a in self.axes[index] if a.size > 1 or a.window)
        return frozenset(str(a.cut_by) for a in axes if a.cut_by)

    def option(
        self, index: int, position: Position, tile: Mapping[str, Sizes], count: int, are_free: bool
    ) -> Option | None:
        """Return the ring of an operand at a position; None: no tile size allows it.

        `are_free`: the transfers cost nothing.
        """
        key = (index, are_free, position.own)
        if key not in self.known:
            inside = [self.level(loop, tile) for loop in position.own]
            self.known[key] = self._slabs(index, inside, tile, count, are_free)
        slabs = self.known[key]
        if slabs is None:
            return None
        allowed = slabs.allowed
        if index >= self.count:  # its sums must be complete
            terms = self.operator.summed if index == self.count else ("k",)
            for loop, _ in position.others:
                if loop[0] in terms:
                    allowed = allowed & (self.level(loop, tile).trips == 1)
        if self.statistics and index == self.count:  # slabs have all samples and all rows
            for loop in position.own:
                if loop[0] in ("n", "oh"):
                    allowed = allowed & (self.level(loop, tile).trips == 1)
        total = np.zeros((6, count))
        moved = total[4 if index >= self.count else 3]
        for cost, trips in slabs.regions:
            times = self._repeats(position, tile, trips, count)
            total[:3] += times * cost[:3]
            moved += times * cost[3]
            total[5] += times * cost[4]
        if index >= self.count and not are_free:
            turn_us, turn_uj = self.prices.turns[index - self.count]
            total[0] += turn_us
            total[2] += turn_uj
        return Option(allowed, slabs.slab_bytes, slabs.slab_us, total) if allowed.any() else None

    def _slabs(
        self, index: int, inside: list[Level], tile: Mapping[str, Sizes], count: int, are_free: bool
    ) -> Slabs | None:
        """Return the slabs of an operand in the loops `inside`; None: no tile size allows them."""
        allowed = np.ones(count, bool)
        for a, part in zip(self.axes[index], self.parts[index], strict=True):
            for level in inside:
                if level.axis == a.cut_by:
                    whole = (level.step * a.per) % part == 0 if part < a.size else False
                    allowed &= (level.trips == 1) | whole | (a.window is not None)
        if self.used_rows and index in (self.operator.overwritten, table_of(self.operator)):
            trips = [level.trips for level in inside if level.axis == ROWS]
            allowed &= np.max([np.ones(count, np.int64), *trips], axis=0) > 1
        if not allowed.any():
            return None
        steps = [self._step(a.cut_by, inside, count) for a in self.axes[index]]
        extents = [
            np.where(e < a.size, a.slab(step, part), e) for a, e, step, part in zip(
                self.axes[index], self.extents(index, inside, count), steps,
                self.parts[index], strict=True,
            )
        ]  # fmt: skip
        slab_bytes = 4 * np.prod(extents, axis=0)
        if are_free:
            return Slabs(allowed, slab_bytes, np.zeros(count), [])
        first = self._region(
            index,
            [
                parts_within(e, p) if a.window is None else _touched(a, p, 0 * step, step, step)
                for a, e, p, step in zip(
                    self.axes[index], extents, self.parts[index], steps, strict=True
                )
            ],
            count,
        )
        return Slabs(allowed, slab_bytes, first[0], self._regions(index, inside, tile, count))

    def _regions(
        self, index: int, inside: list[Level], tile: Mapping[str, Sizes], count: int
    ) -> Sequence[tuple[Array, Mapping[str, Sizes]]]:
        """Return the regions of an operand: see Slabs."""
        regions: list[list[tuple[Parts, dict[str, Sizes]]]] = []
        for a, part in zip(self.axes[index], self.parts[index], strict=True):
            size = (a.cut_by == ROWS and self.used_rows) or a.size
            whole = (parts_within(np.full(count, size, np.int64), part), dict[str, Sizes]())
            both = {level.outer for level in inside if level.axis == a.cut_by}
            if a.window is not None and both:
                regions.append(self._banded(a, part, both, tile))
                continue
            if both != {True, False} or a.size == 1:
                regions.append([whole])
                continue
            step = tile[str(a.cut_by)] * a.per
            last = size - (-(-size // step) - 1) * step
            cell = self.cells[str(a.cut_by)] * a.per
            regions.append([
                (parts_within(size - last, part), {str(a.cut_by): -(-step // cell)}),
                (parts_within(last, part), {str(a.cut_by): -(-last // cell)}),
            ])  # fmt: skip
        costed = []
        for combination in product(*regions):
            trips = {axis: t for _, more in combination for axis, t in more.items()}
            costed.append((self._region(index, [parts for parts, _ in combination], count), trips))
        return costed

    def _banded(
        self, a: OperandAxis, part: int, levels: set[bool], tile: Mapping[str, Sizes]
    ) -> list[tuple[Parts, dict[str, Sizes]]]:
        """Return the parts that windows touch, by region: see Slabs.

        `levels`: the loops over the axis that are outside of the ring; True is its outer loop.
        """
        assert a.window is not None
        axis, size = str(a.cut_by), a.window.rows_cut
        outer = tile[axis]
        step = np.full_like(outer, self.cells[axis]) if False in levels else outer
        if levels != {True, False}:
            return [(_touched(a, part, 0 * outer, 0 * outer + size, step), {})]
        last = (-(-size // outer) - 1) * outer  # first row of the last tile
        return [
            (_touched(a, part, 0 * outer, last, step), {axis: -(-outer // step)}),
            (_touched(a, part, last, 0 * outer + size, step), {axis: -(-(size - last) // step)}),
        ]

    def _repeats(
        self,
        position: Position,
        tile: Mapping[str, Sizes],
        trips: Mapping[str, Sizes],
        count: int,
    ) -> Sizes:
        """Return how often the loops over other axes transfer the slabs of a region."""
        counted: dict[str, Sizes] = {}
        for loop, inside in position.others:
            axis, outer = loop
            cells = -(-self.visited[axis] // self.cells[axis])
            # An inner loop that repeats counts the iterations of its outer loop, too.
            times = self.level(loop, tile).trips if outer else np.full(count, cells, np.int64)
            if inside is not None:
                several = [trips.get(own[0], self.level(own, tile).trips) > 1 for own in inside]
                times = np.where(np.any(several, axis=0), times, counted.get(axis, 1))
            counted[axis] = times
        product_of: Sizes = np.prod([np.ones(count, np.int64), *counted.values()], axis=0)
        return product_of

    def _region(self, index: int, parts: Sequence[Parts], count: int) -> Array:
        """Return the costs to load parts of an input, or to store parts of an output.

        `parts`: one for each axis. Rows: lane, processor, energy, bytes, transfers.
        """
        total = np.zeros((5, count))
        price = self.prices.load if index < self.count else self.prices.store
        if index > self.count:
            assert self.prices.store_also is not None
            price = self.prices.store_also
        sides = [
            [
                (extent, many)
                for extent, many in ((np.full(count, whole, np.int64), number), (edge, edges))
                if many.any()
            ]
            for (number, edge, edges), whole in zip(parts, self.parts[index], strict=True)
        ]
        for combination in product(*sides):
            size, number = np.full(count, 4, np.int64), np.ones(count, np.int64)
            for extent, many in combination:
                size, number = size * extent, number * many
            total[:3] += number * price(size)
            total[3] += number * size
            total[4] += number
        return total


def parts_within(extent: Sizes, part: int) -> Parts:
    """Return the parts of an extent that begins at a part."""
    return extent // part, extent % part, np.minimum(extent % part, 1)


def _touched(a: OperandAxis, part: int, first: Sizes, end: Sizes, step: Sizes) -> Parts:
    """Return the parts that the windows of the rows from `first` to `end` touch, step by step."""
    counts = [_touches(a, part, *map(int, three)) for three in zip(first, end, step, strict=True)]
    number, edges = np.array(counts, np.int64).reshape(-1, 2).T
    return number, np.full_like(number, a.size % part), edges


@cache
def _touches(a: OperandAxis, part: int, first: int, end: int, step: int) -> tuple[int, int]:
    """Return how often windows touch a whole part, and how often the smaller last one."""
    assert a.window is not None
    number = edges = 0
    for at in range(first, end, step):
        begin, after = a.window.pieces_of(at, min(at + step, end), part)
        edge = after % part > 0
        number += after // part - begin // part
        edges += edge
    return number, edges
