"""All nests of an operator in a grammar, priced in NumPy, and the best of them.

The grammar: an axis has at most two loops. The step of the inner loop is the cell, the largest
that every operand allows. The step of the outer loop is a multiple of the parts of all operands;
along an axis that a sum goes over, it is the least common multiple. Outer loops are outside of all
inner loops, otherwise in any order. Each operand with several pieces streams at any depth or is
whole in RAM. All rings have two slots, or one, or the output has one and the inputs two.

Every nest of the grammar is priced. A nest is left out only if another one needs no more workspace,
time and energy. tests/plan/test_nest_search.py compares the result with a walk over every nest.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from math import gcd, lcm, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..graph.cuts import Cut
from ..graph.operands import OperandAxis, Operator
from .nest_traffic import Array, Level, NestTraffic, Option, Prices, Sizes
from .nests import MAX_LOOPS, OPERAND_STATE_BYTES, STATE_BYTES, Box, Loop, Nest, Ring

SLOTS = ((2, 2), (1, 1), (2, 1))  # of the rings of inputs, and of the output


@dataclass(frozen=True)
class PricedNest:
    """A nest with its costs."""

    nest: Nest
    workspace_bytes: int
    time_us: float  # of the processor
    transfer_us: float  # of the transfer lane
    wall_us: float
    energy_uj: float
    moved_in_bytes: int
    moved_out_bytes: int


def wall_us(processor: Array, parallel: Array, serial: Array, ends: Array) -> Array:
    """Return the time of nests.

    Transfers of rings with two slots run next to the cells, except for the first load and the last
    store (`ends`). Transfers of rings with one slot do not (`serial`).
    """
    return np.maximum(processor, parallel) + serial + ends


class NestSearch(NestTraffic):
    """All nests of one operator. `cuts`: of the inputs, then of the output."""

    def __init__(self, operator: Operator, cuts: Sequence[Cut | None], prices: Prices) -> None:
        super().__init__(operator, cuts, prices)
        self.cells = self._cells()
        self.tiles = self._tiles() if self.cells else {}

    # ---- cells and tiles

    def _cut_along(self, axis: str) -> list[int]:
        """Return the parts along an axis of the operator, in its indices, of cut operands."""
        return [
            part // a.per if part % a.per == 0 else 0
            for axes, parts in zip(self.axes, self.parts, strict=True)
            for a, part in zip(axes, parts, strict=True)
            if a.cut_by == axis and part < a.size
        ]

    def _cells(self) -> dict[str, int]:
        """Return the steps of a cell along each axis; {} if no cell suits all operands."""
        cells = {
            axis: gcd(size, *self._cut_along(axis)) if self._cut_along(axis) else size
            for axis, size in self.sizes.items()
        }
        if 0 in (part for axis in self.sizes for part in self._cut_along(axis)):
            return {}
        summed = [axis for axis in self.operator.summed if axis in cells]
        while True:
            before = dict(cells)
            looped = [i for i, axis in enumerate(summed) if cells[axis] < self.sizes[axis]]
            for axis in summed[: max(looped, default=0)]:
                cells[axis] = 1
            for axes, parts in zip(self.axes, self.parts, strict=True):
                box = Box(tuple(a.size for a in axes), parts).dense
                cell = self._cell(cells, axes)
                last = max((j for j, p in enumerate(box) if cell[j] < p), default=0)
                for a, extent in zip(axes[:last], cell[:last], strict=True):
                    if extent > 1:
                        if a.cut_by not in cells or a.per > 1:
                            return {}
                        cells[a.cut_by] = 1
            if cells == before:
                break
        boxes = (
            Box(tuple(a.size for a in axes), parts)
            for axes, parts in zip(self.axes, self.parts, strict=True)
        )
        fits = all(
            box.holds(self._cell(cells, axes)) for box, axes in zip(boxes, self.axes, strict=True)
        )
        return cells if fits else {}

    @staticmethod
    def _cell(cells: Mapping[str, int], axes: Sequence[OperandAxis]) -> tuple[int, ...]:
        return tuple(min(cells.get(str(a.cut_by), a.size) * a.per, a.size) for a in axes)

    def _tiles(self) -> dict[str, list[int]]:
        """Return the steps of the outer loop of each axis; the size of the axis: no such loop."""
        found = {}
        several = sum(
            self.cells[axis] < self.sizes[axis]
            for axis in self.operator.summed
            if axis in self.sizes
        )
        for axis, size in self.sizes.items():
            least = lcm(self.cells[axis], *self._cut_along(axis))
            if axis in self.operator.summed:
                steps = {least} if several == 1 else set()
            else:
                count = -(-size // least)
                steps = {least * -(-count // i) for i in range(1, count + 1)}
            found[axis] = sorted({min(step, size) for step in steps} | {size})
        return found

    # ---- all nests

    def best(self, most_bytes: int | None = None) -> list[PricedNest]:
        """Return the nests that no other nest of the same streamed operands dominates.

        `most_bytes`: the largest workspace. The list is empty if no nest is possible.
        """
        if not self.cells and self.sizes:
            return []
        grid = np.meshgrid(*self.tiles.values(), indexing="ij") if self.sizes else []
        tile = {axis: t.ravel().astype(np.int64) for axis, t in zip(self.sizes, grid, strict=True)}
        found: dict[tuple[bool, tuple[bool, ...]], list[tuple[Array, list[tuple[Any, ...]]]]] = {}
        for levels in self._orders(tile):
            for key, rows, how in self._priced(levels, tile):
                keep = np.isfinite(rows[1])
                if most_bytes is not None:
                    keep &= rows[0] <= most_bytes
                if keep.any():
                    at = np.flatnonzero(keep)
                    at = at[front(rows[:3, at])]
                    found.setdefault(key, []).append((rows[:, at], [(*how, i) for i in at]))
        result = []
        for (in_place, _), groups in found.items():
            rows = np.concatenate([rows for rows, _ in groups], axis=1)
            ways = [way for _, more in groups for way in more]
            for i in front(rows[:3]):
                result.append(self._made(rows[:, i], ways[i], in_place))
        return result

    def _orders(self, tile: Mapping[str, Sizes]) -> Iterator[list[Level]]:
        """Yield the loops in each order."""
        outer = [axis for axis in self.sizes if len(self.tiles[axis]) > 1]
        inner = [axis for axis in self.sizes if self.cells[axis] < self.sizes[axis]]
        summed = self.operator.summed
        for first in permutations(outer):
            for second in permutations(inner):
                terms = [summed.index(axis) for axis in (*first, *second) if axis in summed]
                if terms != sorted(terms):
                    continue
                yield [
                    *(self._level(axis, True, tile) for axis in first),
                    *(self._level(axis, False, tile) for axis in second),
                ]

    def _level(self, axis: str, outer: bool, tile: Mapping[str, Sizes]) -> Level:
        size, step = self.sizes[axis], tile[axis]
        if outer:
            return Level(axis, True, step, -(-size // step))
        cell = np.full_like(step, self.cells[axis])
        return Level(axis, False, cell, -(-step // cell))

    def _priced(
        self, levels: list[Level], tile: Mapping[str, Sizes]
    ) -> Iterator[tuple[tuple[bool, tuple[bool, ...]], Array, tuple[Any, ...]]]:
        """Yield what streams, the costs by row (see `_made`), and how the nests are made."""
        count = max((len(t) for t in tile.values()), default=1)
        summed = self.operator.summed
        complete = [np.ones(count, bool)]  # by depth: no sum is open
        for level in levels:
            open_ = level.trips > 1 if level.axis in summed else np.zeros(count, bool)
            complete.append(complete[-1] & ~open_)
        options: list[list[Option | None]] = []
        for i in range(self.count + 1):
            rings = self.rings_of(i, levels, tile, count) if self.streamable[i] else []
            if i == self.count:
                rings = [r for r in rings if (complete[r.depth] & r.allowed).any()]
            options.append([None, *rings])
        sums = self._sums_bytes(levels, complete, count)
        active = sum((level.trips > 1).astype(int) for level in levels)
        state = STATE_BYTES + OPERAND_STATE_BYTES * (self.count + 1)
        over = self.operator.overwritten
        choices = [True] if over is None or self.operator.must_overwrite else [True, False]
        for in_place in choices:
            shared = over if in_place else None
            for chosen in product(*options):
                if shared is not None and not _same_depth(chosen[shared], chosen[-1]):
                    continue
                streamed = tuple(ring is not None for ring in chosen)
                for slots in SLOTS if any(streamed) else SLOTS[:1]:
                    others = (s for i, s in enumerate(streamed[:-1]) if i != shared)
                    if slots[0] != slots[1] and not (streamed[-1] and any(others)):
                        continue
                    yield (
                        (in_place, streamed),
                        self._rows(chosen, slots, shared, complete, state + sums, active, count),
                        (levels, chosen, slots, in_place),
                    )

    def _rows(
        self,
        rings: Sequence[Option | None],
        slots: tuple[int, int],
        shared: int | None,
        complete: list[NDArray[np.bool_]],
        fixed: Sizes,
        active: Sizes | int,
        count: int,
    ) -> Array:
        """Return rows: workspace, wall, energy, processor, lane, bytes in, bytes out."""
        allowed = np.ones(count, bool) & (np.asarray(active) <= MAX_LOOPS)
        workspace = np.broadcast_to(fixed, count).astype(float)
        total, serial, ends = np.zeros((5, count)), np.zeros(count), np.zeros(count)
        for i, ring in enumerate(rings):
            if ring is None:
                continue
            is_output = i == self.count
            number = slots[1] if is_output or i == shared else slots[0]
            allowed &= ring.allowed
            if is_output:
                allowed &= complete[ring.depth]
            if i != shared:
                workspace += number * ring.slab_bytes
            total += ring.costs
            if number == 1:
                serial += ring.costs[0]
            else:
                ends += ring.slab_us
        processor = self.prices.kernel_us + total[1]
        wall = wall_us(processor, total[0] - serial, serial, ends)
        wall = np.where(allowed, wall, np.inf)
        energy = self.prices.kernel_uj + total[2]
        return np.stack([workspace, wall, energy, processor, total[0], total[3], total[4]])

    def _made(self, row: Array, way: tuple[Any, ...], in_place: bool) -> PricedNest:
        levels, rings, slots, _, at = way
        kept = [level for level in levels if level.trips[at] > 1]
        loops = tuple(Loop(level.axis, int(level.step[at])) for level in kept)
        operands = tuple(
            None if ring is None
            else Ring(
                slots[1] if i == self.count or (in_place and i == self.operator.overwritten)
                else slots[0],
                sum(level.trips[at] > 1 for level in levels[: ring.depth]),
            )
            for i, ring in enumerate(rings)
        )  # fmt: skip
        workspace, wall, energy, processor, lane, moved_in, moved_out = map(float, row)
        return PricedNest(
            Nest(loops, operands, in_place), int(workspace), processor, lane, wall, energy,
            int(moved_in), int(moved_out),
        )  # fmt: skip

    def _sums_bytes(
        self, levels: list[Level], complete: list[NDArray[np.bool_]], count: int
    ) -> Sizes:
        """Return the bytes of accumulators apart from the output."""
        found = np.zeros(count, np.int64)
        if self.operator.sink in ("none", "store"):
            return found
        for depth in range(len(levels)):
            here = complete[depth] & ~complete[depth + 1]  # the first loop over terms
            extents = self.extents(self.count, levels[:depth], count)
            found = np.where(here, 4 * prod(extents), found)
        return found


def _same_depth(one: Option | None, other: Option | None) -> bool:
    return (one is None) == (other is None) and (
        one is None or other is None or one.depth == other.depth
    )


def front(rows: Array) -> list[int]:
    """Return the columns of `rows` that no other column equals or beats in every row.

    Of equal columns, one is returned.
    """
    order = np.lexsort(rows[::-1])
    found: list[int] = []
    while len(order):
        left = rows[:, order]
        least = np.minimum.accumulate(left, axis=1)
        certain = np.ones(len(order), bool)
        certain[1:] = (left[1:, 1:] < least[1:, :-1]).any(axis=0)
        best = order[certain]
        found += [int(i) for i in best]
        rest = order[~certain]
        for i in best:
            if not len(rest):
                break
            rest = rest[~(rows[:, rest] >= rows[:, i, None]).all(axis=0)]
        order = rest
    return found
