"""Nests: one operator computed part by part, while its operands stream through small buffers.

A nest is a list of loops over the axes of an operator. The innermost cell is one call of the
kernel. An operand is whole in RAM, or only a *slab* of it: what the first `depth` loops leave. A
ring has room for one or two slabs. Slabs of inputs come from storage, slabs of the output go there.
schedules/FORMAT.md has the laws ("Streamed operators"), and how a board keeps a nest in RAM.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import TypeVar

import numpy as np

from .. import isa
from ..graph.cuts import Cut
from ..graph.kept_slabs import ROWS, most_used, table_of
from ..graph.operands import Operator
from .box import Box
from .parts import LawError, fit_statistics, parts_of

_C = isa.constants()
MAX_LOOPS = _C["POET_LOOPS"]
STATE_BYTES = _C["POET_NEST_BYTES"]
OPERAND_STATE_BYTES = _C["POET_NEST_OPERAND_BYTES"]

_T = TypeVar("_T")
Range = tuple[int, int]  # first index, index after the last


@dataclass(frozen=True)
class Loop:
    """A loop over the range that the outer loops leave of an axis."""

    axis: str  # one of graph.operands.AXES
    step: int  # indices for each iteration; the last iteration may have fewer


@dataclass(frozen=True)
class Ring:
    """The buffers of an operand that streams."""

    slots: int  # slabs in RAM at the same time: 1 or 2
    depth: int  # number of loops that fix a slab


@dataclass(frozen=True)
class Nest:
    """How one operator is computed part by part."""

    loops: tuple[Loop, ...]  # the outermost first
    operands: tuple[Ring | None, ...]  # of each input, then of the output; None: whole in RAM
    # False: the output does not take over the memory of an input, although the operator may do so.
    in_place: bool = True
    # Of a pair, which is a nest of the gradient of a weight that also computes the input gradient:
    # the ring of the input gradient, or None. Empty: the nest computes one operator.
    also: tuple[Ring | None, ...] = ()
    # True: the nest of a convolution also computes the statistics (batchnorm_stats) of its output.
    statistics: bool = False

    @property
    def rings(self) -> tuple[Ring | None, ...]:
        """Return the ring of each operand: inputs, output, the input gradient of a pair."""
        return (*self.operands, *self.also)


class NestedOperator:
    """A nest of one operator, and the tensors that it uses. Raises LawError if it breaks a law.

    `cuts` are the cuts of the inputs, then of the output, then of the input gradient of a pair or
    of the statistics; None: not cut. `table_slabs` is that of the board. If a step uses only some
    slabs of a table, the walk has the most slabs that it may use.
    """

    def __init__(
        self,
        operator: Operator,
        cuts: tuple[Cut | None, ...],
        nest: Nest,
        table_slabs: int = 0,
    ) -> None:
        self.operator = operator
        self.table_slabs = table_slabs
        self.cuts = cuts
        self.nest = nest
        self.count = operator.input_count
        self._check_loops()
        others = len(nest.also) + nest.statistics
        if not len(cuts) - others == len(nest.operands) == self.count + 1:
            raise LawError("operands", f"the operator has {self.count + 1} operands")
        self.axes = [operator.operand(i) for i in range(self.count + 1)]
        self.axes += [self.axes[0] for _ in nest.also]  # a gradient has the shape of its tensor
        self._check_rings()
        self._check_pair()
        self.parts = [parts_of(*pair) for pair in zip(self.axes, cuts, strict=False)]
        if nest.statistics:
            self._check_statistics(cuts[-1])
        if self.overwritten is not None and self.parts[self.overwritten] != self.parts[self.count]:
            raise LawError("place", "the output is cut in another way than what it overwrites")
        self._check_slabs()

    # ---- laws

    def _check_loops(self) -> None:
        operator, last = self.operator, dict[str, int]()
        loops = self.nest.loops
        if len(loops) > MAX_LOOPS:
            raise LawError("loops", f"a nest has at most {MAX_LOOPS} loops")
        for loop in loops:
            if loop.axis not in (*operator.free_axes, *operator.summed):
                raise LawError("axes", f"{operator.kernel} cannot be cut along {loop.axis}")
            outer = last.get(loop.axis, operator.size(loop.axis))
            if not 1 <= loop.step <= outer or (loop.axis in last and outer % loop.step):
                raise LawError(
                    "steps", f"the step {loop.step} along {loop.axis} must divide the outer step"
                )
            last[loop.axis] = loop.step
        order = [
            operator.ordered.index(loop.axis) for loop in loops if loop.axis in operator.ordered
        ]
        earlier = operator.ordered[: max(order, default=0)]
        if order != sorted(order) or any(
            last.get(axis, operator.size(axis)) > 1 for axis in earlier
        ):
            raise LawError("terms", "a sum's terms must be added in ascending order")

    def _check_rings(self) -> None:
        nest, operator = self.nest, self.operator
        for ring in nest.rings:
            if ring and not (ring.slots in (1, 2) and 0 <= ring.depth <= len(nest.loops)):
                raise LawError("rings", "a ring has 1 or 2 slots, and the depth of some loops")
        output = nest.operands[-1]
        if output and output.depth > self.sums_depth:
            raise LawError("output", "a result leaves RAM before its sums are complete")
        if not nest.in_place and (operator.overwritten is None or operator.must_overwrite):
            raise LawError("place", "the operator leaves no choice of where its output lies")
        over = self.overwritten
        if over is not None and nest.operands[over] != output:
            raise LawError("place", "the output and the input that it overwrites share a ring")

    def _check_pair(self) -> None:
        for ring in self.nest.also:
            if not self.operator.may_be_paired:
                raise LawError("pair", f"{self.operator.kernel} is not the gradient of a weight")
            axes = [loop.axis for loop in self.nest.loops]
            if "oh" in axes:
                raise LawError("pair", "the rows of a pair are not cut")
            if ring and "k" in axes[: ring.depth]:
                raise LawError("pair", "an input gradient leaves RAM before its sums are complete")

    def _check_statistics(self, cut: Cut | None) -> None:
        ring, axes = self.nest.operands[-1], self.axes[-1]
        left = self._extents(self.count, ring.depth if ring else 0)
        if any(left[j] < axes[j].size for j in (0, 2)):
            raise LawError("statistics", "a slab of the output has not all samples and rows")
        if not fit_statistics(self.operator, self.parts[-1], cut):
            raise LawError("statistics", "the output's parts do not suit statistics, or their cut")

    def _check_slabs(self) -> None:
        for i, ring in enumerate(self.nest.rings):
            cut = self.cuts[i]
            if ring:
                if cut is not None and len(cut.piece_sizes) > 1 and cut.piece_parts > 1:
                    raise LawError("parts", f"the pieces of operand {i} have several parts")
                slab, whole = self.box(i).size, self._extents(i, 0)
                if any(
                    s < size and s % piece
                    for s, size, piece in zip(slab, whole, self.pieces(i), strict=True)
                ):
                    raise LawError("parts", f"the slabs of operand {i} are not whole parts")
            if not all(map(self.box(i).holds, self._dense_cells(i))):
                raise LawError("cells", f"the cells of operand {i} are not dense")

    def _dense_cells(self, index: int) -> tuple[tuple[int, ...], ...]:
        """Return the extents of parts of a cell, each of which must be dense."""
        operator, nest, box, cell = self.operator, self.nest, self.box(index), self._cell(index)
        if box.dense != box.size or nest.also:
            return (cell,)
        if operator.has_planes and index in (0, self.count):
            return (*cell[:2], *box.size[2:]), (1, 1, *cell[2:])
        rows = operator.has_rows and index == 1
        if operator.has_rows_of_gradients and index >= 2:
            rows = self.sums_depth == len(nest.loops) and nest.operands[-1] is None
        return ((1, *cell[1:]) if rows else cell,)

    # ---- geometry

    @property
    def overwritten(self) -> int | None:
        """Return the index of the input whose memory the output takes over, or None."""
        return self.operator.overwritten if self.nest.in_place else None

    def may_overwrite(self, index: int) -> bool:
        """Return whether the output may lie where an input lies that is whole in RAM."""
        whole = self.nest.operands[index] is None and self.nest.operands[-1] is None
        return whole and self.parts[index] == self.parts[self.count]

    def freeable(self, inputs: Sequence[_T], output: _T) -> tuple[_T, ...]:
        """Return the operands that are in RAM after the nest, each once. The overwritten input is
        not there any more.
        """
        gone = None if self.overwritten is None else inputs[self.overwritten]
        whole = [
            x
            for x, ring in zip((*inputs, output), self.nest.operands, strict=True)
            if ring is None and x != gone
        ]
        return tuple(dict.fromkeys(whole))

    @property
    def sums_depth(self) -> int:
        """Return the number of loops outside of all loops over sums."""
        summed = self.operator.summed
        loops = self.nest.loops
        return next((i for i, loop in enumerate(loops) if loop.axis in summed), len(loops))

    def _step(self, axis: str | None, depth: int) -> int | None:
        """Return the innermost step along an axis in the first loops, or None."""
        steps = [loop.step for loop in self.nest.loops[:depth] if loop.axis == axis]
        return steps[-1] if steps else None

    def _extents(self, index: int, depth: int) -> tuple[int, ...]:
        """Return the largest extents that the first loops leave of an operand."""
        found = []
        for axis in self.axes[index]:
            step = self._step(axis.cut_by, depth)
            found.append(axis.size if step is None else int(axis.extent(np.array(step))))
        return tuple(found)

    def _cell(self, index: int) -> tuple[int, ...]:
        """Return the extents of a cell of an operand: see OperandAxis.cell."""
        depth = len(self.nest.loops)
        return tuple(a.cell(self._step(a.cut_by, depth)) for a in self.axes[index])

    def box(self, index: int) -> Box:
        """Return the memory of a slab of an operand; of the whole operand if it is in RAM."""
        ring = self.nest.rings[index]
        depth = ring.depth if ring else 0
        size = tuple(
            extent if step is None or extent == axis.size else int(axis.slab(np.array(step), piece))
            for axis, extent, piece, step in zip(
                self.axes[index],
                self._extents(index, depth),
                self.pieces(index),
                (self._step(axis.cut_by, depth) for axis in self.axes[index]),
                strict=True,
            )
        )
        part = tuple(map(min, self.parts[index], size))
        return Box(size, part)

    def pieces(self, index: int) -> tuple[int, ...]:
        """Return the indices of a piece along each axis of an operand that streams."""
        cut = self.cuts[index]
        one = cut is None or len(cut.piece_sizes) == 1
        return self._extents(index, 0) if one else self.parts[index]

    @property
    def ring_bytes(self) -> tuple[int, ...]:
        """Return the bytes of the ring of each operand; an overwritten input has the output's."""
        return tuple(
            ring.slots * self.box(i).size_bytes if ring and i != self.overwritten else 0
            for i, ring in enumerate(self.nest.rings)
        )

    @property
    def sums_bytes(self) -> int:
        """Return the bytes of accumulators that are apart from the output, or of what is kept."""
        apart = self.operator.sink not in ("none", "store")
        several = self.sums_depth < len(self.nest.loops)
        if self.operator.has_steps and self.nest.loops:
            return self.operator.kept_bytes(several)
        return 4 * prod(self._extents(self.count, self.sums_depth)) if apart and several else 0

    @property
    def state_bytes(self) -> int:
        return STATE_BYTES + OPERAND_STATE_BYTES * len(self.axes)

    @property
    def workspace_bytes(self) -> int:
        """Return the RAM that the nest needs in addition to the operands that are whole."""
        return self.state_bytes + self.sums_bytes + sum(self.ring_bytes)

    @cached_property
    def used_rows(self) -> int:
        """Return the most rows of a table that a step uses; 0: all rows of what may be a table."""
        loops = [(depth, loop) for depth, loop in enumerate(self.nest.loops) if loop.axis == ROWS]
        if len(loops) != 1 or self.nest.operands[0]:
            return 0
        ring = self.nest.operands[table_of(self.operator)]
        if ring.depth <= loops[0][0] if ring else self.operator.kernel != "embedding":
            return 0
        return most_used(self.operator, loops[0][1].step, self.table_slabs)

    # ---- what happens, by walking

    def levels(self, depth: int) -> Iterator[list[dict[str, Range]]]:
        """Yield the ranges of all axes that 0, 1, ... `depth` loops leave, in order."""
        axes = (*self.operator.free_axes, *self.operator.summed)

        def inside(outer: list[dict[str, Range]]) -> Iterator[list[dict[str, Range]]]:
            if len(outer) > depth:
                yield outer
                return
            loop = self.nest.loops[len(outer) - 1]
            first, end = outer[-1][loop.axis]
            starts = range(first, end, loop.step)
            is_down = loop.axis == "n" and self.operator.walks_down
            for at in reversed(starts) if is_down else starts:
                inner = {**outer[-1], loop.axis: (at, min(at + loop.step, end))}
                yield from inside([*outer, inner])

        first = {axis: (0, self.operator.size(axis)) for axis in axes}
        if self.used_rows:
            first[ROWS] = (0, self.used_rows)
        return inside([first])

    def indices(self, depth: int) -> Iterator[dict[str, Range]]:
        """Yield the ranges of all axes that the first loops leave, in order."""
        return (levels[-1] for levels in self.levels(depth))

    def cells(self) -> Iterator[dict[str, Range]]:
        """Yield the ranges of all axes, for each call of the kernel."""
        return self.indices(len(self.nest.loops))

    def cut_ranges(self, index: int, ranges: dict[str, Range]) -> list[Range | None]:
        """Return the range along each axis of an operand; None for an axis that no loop cuts."""
        return [ranges.get(str(axis.cut_by)) for axis in self.axes[index]]

    def slabs(self, index: int) -> Iterator[tuple[Range, ...]]:
        """Yield the slabs of an operand that streams, in the order in which they are moved."""
        ring = self.nest.rings[index]
        assert ring is not None
        last = None
        for ranges in self.indices(ring.depth):
            cut = self.cut_ranges(index, ranges)
            if cut != last:
                yield tuple(
                    (0, axis.size) if at is None
                    else axis.window.pieces_of(*at, piece) if axis.window
                    else (at[0] * axis.per, at[1] * axis.per)
                    for axis, at, piece in zip(
                        self.axes[index], cut, self.pieces(index), strict=True
                    )
                )  # fmt: skip
            last = cut

    def transfers_of(self, index: int, slab: tuple[Range, ...]) -> Iterator[int]:
        """Yield the bytes of each transfer of a slab, trailers not counted."""
        sides = (
            [min(part, end - at) for at in range(first, end, part)]
            for (first, end), part in zip(slab, self.pieces(index), strict=True)
        )
        return (4 * prod(side) for side in product(*sides))

    def transfers(self, index: int) -> Counter[int]:
        """Return how many transfers of an operand move how many bytes, trailers not counted."""
        return Counter(
            size for slab in self.slabs(index) for size in self.transfers_of(index, slab)
        )

    @cached_property
    def loads(self) -> Counter[int]:
        """Return how many transfers into RAM move how many bytes."""
        return self._transfers(range(self.count))

    @cached_property
    def stores(self) -> Counter[int]:
        """Return how many transfers out of RAM move how many bytes."""
        return self._transfers(range(self.count, len(self.axes)))

    def _transfers(self, indices: range) -> Counter[int]:
        return sum((self.transfers(i) for i in indices if self.nest.rings[i]), Counter[int]())
