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
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..graph.cuts import Cut
from ..graph.kept_slabs import ROWS, most_used
from ..graph.operands import OperandAxis, Operator, Sizes
from ..plan.box import Box
from ..plan.nests import MAX_LOOPS, OPERAND_STATE_BYTES, STATE_BYTES, Loop, Nest, Ring
from .nest_orders import FOR_SUMS, ORDER, Choices, Order, choices_of, orders_of
from .nest_traffic import Array, Columns, NestTraffic, Prices
from .priced_nest import PricedNest, front, wall_us

Streams = Literal["anything", "everything", "nothing"]
SLOTS = ((2, 2), (1, 1), (2, 1))  # of the rings of inputs, and of the output


class _Batch(NamedTuple):
    """Nests in which the same operands stream. Their costs are columns of one array."""

    in_place: bool
    streamed: tuple[bool, ...]  # by operand
    choices: Choices
    picked: NDArray[np.int64]  # some rows of `choices.picked`; each has a column for each tile size
    slots: tuple[int, int]  # see SLOTS


class NestSearch(NestTraffic):
    """The search over all nests of one operator, or over all pairs in which the weight streams.

    `cuts`, `statistics`, `by_rows`: see NestTraffic. `inputs`: the names of the inputs, if some of
    them may be the same tensor. Such a tensor streams as each of these inputs, or as none.
    `table_slabs`: see `most_used`. If a board keeps slabs of a table, each nest with streams
    streams the table, in one loop over its rows.
    """

    def __init__(
        self,
        operator: Operator,
        cuts: Sequence[Cut | None],
        prices: Prices,
        inputs: Sequence[str] = (),
        table_slabs: int = 0,
        statistics: bool = False,
        by_rows: bool = False,
    ) -> None:
        super().__init__(operator, cuts, prices, statistics, by_rows)
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
        summed = [axis for axis in self.operator.ordered if axis in cells]
        boxes = [
            Box(tuple(a.size for a in axes), parts)
            for axes, parts in zip(self.axes, self.parts, strict=True)
        ]
        while True:
            before = dict(cells)
            looped = [i for i, axis in enumerate(summed) if cells[axis] < self.sizes[axis]]
            for axis in summed[: max(looped, default=0)]:
                cells[axis] = 1
            for axes, box in zip(self.axes, boxes, strict=True):
                cell = self._cell(cells, axes)
                last = max((j for j, p in enumerate(box.dense) if cell[j] < p), default=0)
                for a, extent in zip(axes[:last], cell[:last], strict=True):
                    if extent > 1:
                        if a.cut_by not in cells or a.per > 1:
                            return {}
                        cells[a.cut_by] = 1
            if cells == before:
                break
        fits = all(
            box.holds(self._cell(cells, axes)) for box, axes in zip(boxes, self.axes, strict=True)
        )
        return cells if fits else {}

    @staticmethod
    def _cell(cells: Mapping[str, int], axes: Sequence[OperandAxis]) -> tuple[int, ...]:
        return tuple(a.cell(cells.get(str(a.cut_by))) for a in axes)

    def _tiles(self) -> dict[str, list[int]]:
        """Return the steps of the outer loop of each axis; the size of the axis: no such loop."""
        tiles = {}
        several = sum(
            self.cells[axis] < self.sizes[axis]
            for axis in self.operator.ordered
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
            tiles[axis] = sorted({min(step, size) for step in steps} | {size})
        return tiles

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
        tile = self._grid(steps)
        others = [axis for axis in self.sizes if axis not in self.outermost]
        orders = orders_of(
            tuple(self.outermost),
            tuple(axis for axis in others if len(self.tiles[axis]) > 1),
            tuple(axis for axis in others if axis in self.looped),
            self.operator.ordered,
        )
        fronts: dict[tuple[bool, tuple[bool, ...]], list[tuple[Array, _Batch, list[int]]]] = {}
        for batch, costs in self._priced(orders, tile, most_bytes=most_bytes):
            columns = np.flatnonzero(np.isfinite(costs[1]))
            columns = columns[front(costs[:3, columns])]
            kept = costs[:, columns], batch, columns.tolist()
            fronts.setdefault((batch.in_place, batch.streamed), []).append(kept)
        best = []
        for group in fronts.values():
            costs = np.concatenate([kept for kept, _, _ in group], axis=1)
            nests = [(batch, column) for _, batch, columns in group for column in columns]
            best += [self._nest(costs[:, i], tile, *nests[i]) for i in front(costs[:3])]
        return best

    def _grid(self, steps: Sequence[Sequence[int]]) -> dict[str, Sizes]:
        """Return all tile sizes: by axis, its step in each of them."""
        grid = np.meshgrid(*steps, indexing="ij") if self.sizes else []
        return {axis: t.ravel().astype(np.int64) for axis, t in zip(self.sizes, grid, strict=True)}

    @property
    def is_possible(self) -> bool:
        """Return whether the operator can run as a nest."""
        return bool(self.in_place_choices) and (bool(self.cells) or not self.sizes)

    @property
    def looped(self) -> list[str]:
        """Return the axes that have several cells."""
        return [axis for axis in self.sizes if self.cells[axis] < self.sizes[axis]]

    @cached_property
    def outermost(self) -> list[str]:
        """Return axes that one of the best nests loops over once, as its outermost loop.

        Along such an axis, each iteration reads and writes parts of its own: nothing in RAM is of
        use to the next iteration, and longer iterations only need larger slabs.
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

    def smallest(self) -> list[PricedNest]:
        """Return the nest of least workspace in which nothing streams, then the one with streams.

        In the second, everything streams that can. Its inner loops over axes of sums are the last
        ones, which makes slabs of the output small, or the first ones, which makes slabs of inputs
        small. Costs are without transfers. The list is empty if there is no nest.
        """
        if not self.is_possible:
            return []
        smallest = []
        ends = [sorted({steps[0], steps[-1]}) for steps in self.tiles.values()]
        both: tuple[Streams, ...] = ("nothing", "everything")
        for streams in both if any(self.streamable) else both[:1]:
            steps = [pair if streams == "everything" else pair[-1:] for pair in ends]
            nest = self._least(self._grid(steps), streams)
            if nest is not None:
                smallest.append(nest)
        return smallest

    def _least(self, tile: Mapping[str, Sizes], streams: Streams) -> PricedNest | None:
        """Return the nest of least workspace in one of two orders of loops; None: no nest."""
        summed = self.operator.ordered
        terms_last = sorted(self.sizes, key=lambda a: summed.index(a) if a in summed else -1)
        terms_first = sorted(terms_last, key=lambda axis: axis not in summed)
        outer = [(axis, True) for axis in terms_last if len(self.tiles[axis]) > 1]
        least, best = np.inf, None
        for inner in (terms_last, terms_first):
            order = (*outer, *((axis, False) for axis in inner if axis in self.looped))
            for batch, costs in self._priced((order,), tile, streams):
                workspace = np.where(np.isfinite(costs[1]), costs[0], np.inf)
                i = int(np.argmin(workspace))
                if workspace[i] < least:
                    least, best = workspace[i], self._nest(costs[:, i], tile, batch, i)
        return best

    def _priced(
        self,
        orders: tuple[Order, ...],
        tile: Mapping[str, Sizes],
        streams: Streams = "anything",
        most_bytes: float = np.inf,
    ) -> Iterator[tuple[_Batch, Array]]:
        """Yield batches of nests with their costs (see `_costs`).

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
        summed = frozenset(self.operator.summed)
        terms = None if self.operator.sink in ("none", "store") else summed
        for in_place in self.in_place_choices:
            shared = self.operator.overwritten if in_place else None
            same_ring = None if shared is None else (shared, self.count)
            choices = choices_of(orders, owned, self._single(tile), terms, same_ring)
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
                    batch = _Batch(in_place, streamed, choices, picked, slots)
                    yield batch, self._costs(batch, columns, fixed, allowed, most_bytes)

    def _by_streams(
        self, picked: NDArray[np.int64], columns: Sequence[Columns], all_stream: bool
    ) -> Iterator[tuple[tuple[bool, ...], NDArray[np.int64]]]:
        """Yield each set of operands that may stream, with its rows of `picked`.

        `all_stream`: only the set of all operands that can stream.
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
        single = set()
        for axis in self.looped:
            size, step, cell = self.visited[axis], tile[axis], self.cells[axis]
            last = size - (-(-size // step) - 1) * step
            if ((cell < step) & (step < size) & (last <= cell)).any():
                single.add(axis)
        return frozenset(single)

    @property
    def in_place_choices(self) -> list[bool]:
        """Return the legal values of `Nest.in_place`."""
        over = self.operator.overwritten
        if over is None:
            return [True]
        own = [] if self.operator.must_overwrite else [False]
        return [True, *own] if self.parts[over] == self.parts[self.count] else own

    def _costs(
        self,
        batch: _Batch,
        columns: list[Columns],
        fixed: NDArray[np.int64],
        allowed: NDArray[np.bool_],
        most_bytes: float,
    ) -> Array:
        """Return rows: workspace, wall, energy, processor, lane, bytes in, bytes out.

        The columns are all tile sizes of the first row of `picked`, then those of the next one.
        Costs are infinite for nests that are not allowed, and for workspaces of more than
        `most_bytes`. `fixed`: bytes without slabs, by index in `for_sums` and by tile size.
        """
        picked, slots = batch.picked, self._slots(batch)
        shared = self.operator.overwritten if batch.in_place else None
        workspace = fixed[picked[:, FOR_SUMS]].astype(float)
        allowed = np.broadcast_to(allowed, workspace.shape)
        for i, column in enumerate(columns):
            allowed = allowed & column.allowed[picked[:, i]]
            if i != shared:
                workspace += slots[i] * column.slab_bytes[picked[:, i]]
        rows = np.full((7, *workspace.shape), np.inf)
        rows[0] = workspace
        number, tile = np.nonzero(allowed & (workspace <= most_bytes))
        total, serial, ends = np.zeros((6, len(tile))), np.zeros(len(tile)), np.zeros(len(tile))
        alone = np.zeros((3, len(tile)))  # lane, processor, number of transfers that cells wait for
        for i, column in enumerate(columns):
            at = picked[number, i]
            costs = column.costs[:, at, tile]
            total += costs
            if slots[i] == 1:
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

    def _slots(self, batch: _Batch) -> list[int]:
        """Return the slots of the ring of each operand, if it streams."""
        shared = self.operator.overwritten if batch.in_place else None
        written = (i >= self.count or i == shared for i in range(len(self.axes)))
        return [batch.slots[is_written] for is_written in written]

    def _nest(
        self, costs: Array, tile: Mapping[str, Sizes], batch: _Batch, column: int
    ) -> PricedNest:
        """Return the nest of a column of a batch, with its costs."""
        choices, picked = batch.choices, batch.picked
        number, at = divmod(column, max((len(t) for t in tile.values()), default=1))
        order = choices.orders[picked[number, ORDER]]
        levels = [self.level(loop, tile) for loop in order]
        active = [bool(level.trips[at] > 1) for level in levels]
        loops = tuple(Loop(level.axis, int(level.step[at])) for level in compress(levels, active))
        rings = [rings[i] for rings, i in zip(choices.rings, picked[number], strict=False)]
        operands = tuple(
            None if ring is None else Ring(slots, sum(active[: ring.depth_in(order)]))
            for slots, ring in zip(self._slots(batch), rings, strict=True)
        )
        workspace, wall, energy, processor, lane, moved_in, moved_out = map(float, costs)
        end = self.count + 1
        nest = Nest(loops, operands[:end], batch.in_place, operands[end:], self.statistics)
        return PricedNest(
            nest, int(workspace), processor, lane, wall, energy, int(moved_in), int(moved_out)
        )
