"""Nests of an operator in a grammar, priced in NumPy, and the best of them.

The grammar: an axis has at most two loops. The step of the inner loop is the cell, the largest
that every operand allows. The step of the outer loop is a multiple of the parts of all operands;
along an axis that a sum goes over, it is the least common multiple. Outer loops are outside of all
inner loops, otherwise in any order. Each operand with several pieces streams at any depth or is
whole in RAM. All rings have two slots, or one, or what is written has one and the inputs two.

Nests in all orders of nest_orders.py are priced. Of these, a nest is left out only if another one
needs no more workspace, time and energy. tests/stream/test_nest_search.py compares the result with
a walk over every nest of the grammar.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import compress
from math import gcd, lcm
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..graph.cuts import Cut
from ..graph.kept_slabs import ROWS, most_used
from ..graph.operands import OperandAxis, Operator, Sizes
from ..plan.box import Box
from ..plan.nests import MAX_LOOPS, OPERAND_STATE_BYTES, STATE_BYTES, Loop, Nest, Ring
from .nest_orders import Choices, Order, choices_of, orders_of
from .nest_traffic import Array, Columns, NestTraffic, Prices
from .pareto import front
from .priced_nest import PricedNest, wall_us

_How = tuple[Choices, NDArray[np.int64], tuple[int, int]]  # rows of `picked`, slots
_Way = tuple[Choices, NDArray[np.int64], tuple[int, int], int]  # ... and the column
Streams = Literal["anything", "everything", "nothing"]
SLOTS = ((2, 2), (1, 1), (2, 1))  # of the rings of inputs, and of the output


class NestSearch(NestTraffic):
    """All nests of one operator. `cuts`: of the inputs, then of the output. With one more, that of
    the input gradient: all pairs in which the weight streams.

    `inputs`: the names of the inputs, if some of them may be the same tensor. Such a tensor streams
    as each of these inputs, or as none. `table_slabs`: see `most_used`. If a board keeps slabs of
    a table, then in each nest that streams, the table does, with one loop over its rows.
    `statistics`: see NestTraffic.
    """

    def __init__(
        self,
        operator: Operator,
        cuts: Sequence[Cut | None],
        prices: Prices,
        inputs: Sequence[str] = (),
        table_slabs: int = 0,
        statistics: bool = False,
    ) -> None:
        super().__init__(operator, cuts, prices, statistics)
        first = list(map(inputs.index, inputs))
        self.equal = [(first[i], i) for i in range(len(inputs)) if first[i] != i]
        self.cells = self._cells()
        if ROWS in self.cells and self.cells[ROWS] == lcm(*self._cut_along(ROWS)):
            self.used_rows = most_used(operator, self.cells[ROWS], table_slabs)
        if self.used_rows:
            self.streamable[0] = False  # the board reads all tokens before it begins
        self.tiles = self._tiles() if self.cells else {}

    # ---- cells and tiles

    def _cells(self) -> dict[str, int]:
        """Return the steps of a cell along each axis; {} if no cell suits all operands."""
        cells = {
            axis: min(size, gcd(*self._cut_along(axis)) or size)
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
        return tuple(a.cell(cells.get(str(a.cut_by))) for a in axes)

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
            elif axis == ROWS and self.used_rows:
                steps = {least}
            else:
                count = -(-size // least)
                steps = {least * -(-count // i) for i in range(1, count + 1)}
            found[axis] = sorted({min(step, size) for step in steps} | {size})
        return found

    # ---- all nests

    def best(self, most_bytes: float = np.inf) -> list[PricedNest]:
        """Return the nests that no other nest of the same streamed operands dominates.

        `most_bytes`: the largest workspace. The list is empty if no nest is possible.
        """
        if not self.is_possible:
            return []
        steps = [
            [self.cells[axis]] if axis in self.outermost else steps
            for axis, steps in self.tiles.items()
        ]
        grid = np.meshgrid(*steps, indexing="ij") if self.sizes else []
        tile = {axis: t.ravel().astype(np.int64) for axis, t in zip(self.sizes, grid, strict=True)}
        others = [axis for axis in self.sizes if axis not in self.outermost]
        orders = orders_of(
            tuple(self.outermost),
            tuple(axis for axis in others if len(self.tiles[axis]) > 1),
            tuple(axis for axis in others if axis in self.looped),
            self.operator.summed,
        )
        found: dict[tuple[bool, tuple[bool, ...]], list[tuple[Array, list[_Way]]]] = {}
        for key, rows, how in self._priced(orders, tile, most_bytes=most_bytes):
            at = np.flatnonzero(np.isfinite(rows[1]))
            at = at[front(rows[:3, at])]
            found.setdefault(key, []).append((rows[:, at], [(*how, int(i)) for i in at]))
        result = []
        for (in_place, _), groups in found.items():
            rows = np.concatenate([rows for rows, _ in groups], axis=1)
            ways = [way for _, more in groups for way in more]
            for i in front(rows[:3]):
                result.append(self._made(rows[:, i], tile, ways[i], in_place))
        return result

    @property
    def is_possible(self) -> bool:
        """Return whether the operator can run as a nest."""
        return bool(self.places) and (bool(self.cells) or not self.sizes)

    @property
    def looped(self) -> list[str]:
        """Return the axes that have several cells."""
        return [axis for axis in self.sizes if self.cells[axis] < self.sizes[axis]]

    @cached_property
    def outermost(self) -> list[str]:
        """Return axes whose only loop is outside of all others in one of the best nests.

        Everything that streams has one part for each cell along such an axis. So nothing in RAM is
        of use in the next iteration, and a larger step only makes slabs larger.
        """
        streams = [i for i, can in enumerate(self.streamable) if can]
        return [
            axis for axis in self.looped
            if axis in self.operator.free_axes
            and not (self.statistics and axis in ("n", "oh"))  # loops inside the output's slabs
            and all(
                any(
                    a.cut_by == axis and a.window is None and a.size > 1
                    and part == self.cells[axis] * a.per
                    for a, part in zip(self.axes[i], self.parts[i], strict=True)
                )
                for i in streams
            )
        ]  # fmt: skip

    def few(self) -> list[PricedNest]:
        """Return a nest in which nothing streams, and the one of least workspace if any streams.

        In the latter, everything streams that can. Inner loops over axes of sums are the last ones,
        so that slabs of the output are small, or the first ones, so that those of inputs are. Costs
        are without transfers. The list is empty if there is no nest.
        """
        if not self.is_possible:
            return []
        found = []
        ends = [sorted({steps[0], steps[-1]}) for steps in self.tiles.values()]
        both: tuple[Streams, ...] = ("nothing", "everything")
        for streams in both if any(self.streamable) else both[:1]:
            steps = [pair if streams == "everything" else pair[-1:] for pair in ends]
            grid = np.meshgrid(*steps, indexing="ij") if self.sizes else []
            tile = {
                axis: t.ravel().astype(np.int64) for axis, t in zip(self.sizes, grid, strict=True)
            }
            best = self._least(tile, streams)
            if best is not None:
                found.append(best)
        return found

    def _least(self, tile: Mapping[str, Sizes], streams: Streams) -> PricedNest | None:
        summed = self.operator.summed
        terms_last = sorted(self.sizes, key=lambda a: summed.index(a) if a in summed else -1)
        terms_first = sorted(terms_last, key=lambda axis: axis not in summed)
        outer = [(axis, True) for axis in terms_last if len(self.tiles[axis]) > 1]
        least, best = np.inf, None
        for inner in (terms_last, terms_first):
            order = (*outer, *((axis, False) for axis in inner if axis in self.looped))
            for (in_place, _), rows, how in self._priced((order,), tile, streams):
                workspace = np.where(np.isfinite(rows[1]), rows[0], np.inf)
                i = int(np.argmin(workspace))
                if workspace[i] < least:
                    least, best = workspace[i], self._made(rows[:, i], tile, (*how, i), in_place)
        return best

    def _priced(
        self,
        orders: tuple[Order, ...],
        tile: Mapping[str, Sizes],
        streams: Streams = "anything",
        most_bytes: float = np.inf,
    ) -> Iterator[tuple[tuple[bool, tuple[bool, ...]], Array, _How]]:
        """Yield what streams, the costs by row (see `_made`), and how the nests are made.

        `streams`: what streams. If it is "everything" that can, rings have one slot.
        """
        count = max((len(t) for t in tile.values()), default=1)
        self.known = {}
        are_free = streams == "everything"
        loops = [self.level(loop, tile).trips > 1 for loop in orders[0]]
        allowed = np.sum([np.zeros(count, bool), *loops], axis=0) <= MAX_LOOPS
        owned = tuple(
            self.owned(i) if can and streams != "nothing" else None
            for i, can in enumerate(self.streamable)
        )
        terms = self.operator.summed if self.operator.sink not in ("none", "store") else None
        for in_place in self.places:
            shared = self.operator.overwritten if in_place else None
            choices = choices_of(
                orders,
                owned,
                self._single(tile),
                None if terms is None else frozenset(terms),
                None if shared is None else (shared, self.count),
            )
            columns = [
                Columns.of(
                    [r if r is None else self.option(i, r, tile, count, are_free) for r in rings],
                    count,
                )
                for i, rings in enumerate(choices.rings)
            ]
            fixed = STATE_BYTES + OPERAND_STATE_BYTES * len(self.axes) + np.stack(
                [self.sums_bytes(orders[i], tile, count) for i in choices.for_sums]
            )  # fmt: skip
            for streamed, picked in self._by_streams(choices.picked, columns, are_free):
                for slots in SLOTS[1:2] if are_free else SLOTS if any(streamed) else SLOTS[:1]:
                    others = (s for i, s in enumerate(streamed[: self.count]) if i != shared)
                    if slots[0] != slots[1] and not (any(streamed[self.count :]) and any(others)):
                        continue
                    rows = self._rows(columns, picked, slots, shared, fixed, allowed, most_bytes)
                    yield (in_place, streamed), rows, (choices, picked, slots)

    def _by_streams(
        self, picked: NDArray[np.int64], columns: Sequence[Columns], all_stream: bool
    ) -> Iterator[tuple[tuple[bool, ...], NDArray[np.int64]]]:
        """Yield the rows of `picked` of each set of operands that may stream.

        `all_stream`: each operand streams that can.
        """
        streams = picked[:, : len(columns)] > 0
        is_kept = self.used_rows and self.operator.sink == "sgd"
        for streamed in map(tuple, np.unique(streams, axis=0).tolist()):
            if any(streamed[first] != streamed[second] for first, second in self.equal):
                continue
            if is_kept and any(streamed) and not streamed[-1]:
                continue
            if self.is_pair and not (streamed[self.count] and streamed[self.count - 1]):
                continue  # the weight of a pair always streams
            if all_stream and any(
                not here and column.allowed[1:].any()
                for here, column in zip(streamed, columns, strict=True)
            ):
                continue
            yield streamed, picked[(streams == streamed).all(axis=1)]

    def _single(self, tile: Mapping[str, Sizes]) -> frozenset[str]:
        """Return the axes of which the last of several tiles may be a single cell."""
        found = set()
        for axis in self.looped:
            size, step, cell = self.visited[axis], tile[axis], self.cells[axis]
            last = size - (-(-size // step) - 1) * step
            if ((cell < step) & (step < size) & (last <= cell)).any():
                found.add(axis)
        return frozenset(found)

    @property
    def places(self) -> list[bool]:
        """Return whether the output may take over the memory of an input, and may have its own."""
        over = self.operator.overwritten
        if over is None:
            return [True]
        own = [] if self.operator.must_overwrite else [False]
        return [True, *own] if self.parts[over] == self.parts[self.count] else own

    def _rows(
        self,
        columns: list[Columns],
        picked: NDArray[np.int64],
        slots: tuple[int, int],
        shared: int | None,
        fixed: NDArray[np.int64],
        allowed: NDArray[np.bool_],
        most_bytes: float,
    ) -> Array:
        """Return rows: workspace, wall, energy, processor, lane, bytes in, bytes out.

        `picked`: see Choices. The columns are all tile sizes of its first row, then those of the
        next one. Costs are infinite for what is not allowed, and for workspaces of more than
        `most_bytes`.
        """
        workspace = fixed[picked[:, -2]].astype(float)
        allowed = np.broadcast_to(allowed, workspace.shape)
        numbers = [
            slots[1] if i >= self.count or i == shared else slots[0] for i in range(len(columns))
        ]
        for i, column in enumerate(columns):
            allowed = allowed & column.allowed[picked[:, i]]
            if i != shared:
                workspace += numbers[i] * column.slab_bytes[picked[:, i]]
        rows = np.full((7, *workspace.shape), np.inf)
        rows[0] = workspace
        number, tile = np.nonzero(allowed & (workspace <= most_bytes))
        total, serial, ends = np.zeros((6, len(tile))), np.zeros(len(tile)), np.zeros(len(tile))
        alone = np.zeros((3, len(tile)))  # lane, processor, number of transfers that cells wait for
        for i, column in enumerate(columns):
            at = picked[number, i]
            costs = column.costs[:, at, tile]
            total += costs
            if numbers[i] == 1:
                alone += costs[[0, 1, 5]]
                serial += np.maximum(costs[0], costs[1]) + self.prices.piece_us * costs[5]
            else:
                ends += column.slab_us[at, tile]
        processor = self.prices.kernel_us + total[1] + self.prices.piece_us * total[5]
        wall = wall_us(
            processor - alone[1] - self.prices.piece_us * alone[2],
            total[0] - alone[0],
            serial,
            ends,
        )
        energy = self.prices.kernel_uj + total[2]
        rows[1:, number, tile] = [wall, energy, processor, total[0], total[3], total[4]]
        return rows.reshape(len(rows), -1)

    def _made(self, row: Array, tile: Mapping[str, Sizes], way: _Way, in_place: bool) -> PricedNest:
        choices, picked, slots, column = way
        number, at = divmod(column, max((len(t) for t in tile.values()), default=1))
        order = choices.orders[picked[number, -1]]
        levels = [self.level(loop, tile) for loop in order]
        active = [bool(level.trips[at] > 1) for level in levels]
        loops = tuple(Loop(level.axis, int(level.step[at])) for level in compress(levels, active))
        rings = [known[i] for known, i in zip(choices.rings, picked[number], strict=False)]
        operands = tuple(
            None if ring is None
            else Ring(
                slots[1] if i >= self.count or (in_place and i == self.operator.overwritten)
                else slots[0],
                sum(active[: ring.depth_in(order)]),
            )
            for i, ring in enumerate(rings)
        )  # fmt: skip
        workspace, wall, energy, processor, lane, moved_in, moved_out = map(float, row)
        end = self.count + 1
        nest = Nest(loops, operands[:end], in_place, operands[end:], self.statistics)
        return PricedNest(
            nest, int(workspace), processor, lane, wall, energy, int(moved_in), int(moved_out)
        )
