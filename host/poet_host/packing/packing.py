"""Packing: fixed offsets, as low as possible, for blocks that are in memory for a limited time.

Two blocks that live at the same time must not overlap in memory. To decide whether all blocks fit
below a capacity is NP-complete (dynamic storage allocation). So several methods run, cheapest
first: first fit, which places blocks in several orders; a local search, which places blocks earlier
if they end above the capacity; an exact search, which may also prove that nothing fits. Orders that
differ little from the order in time are tried first, since they give small schedules: a board also
chooses offsets by first fit in time, and a schedule encodes such an offset in one bit. Limits count
steps, not time, so that equal input gives equal offsets.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from .. import work
from .blocks import Block, live_peak, neighbours
from .packing_search import search

# Limits of a local search: the number of pairs of blocks that it compares.
MAX_STEPS_SHORT, MAX_STEPS_LONG = 500_000, 3_000_000
MIN_STEPS_PER_TRY = 200  # of the local search
STEPS_PER_S = 5_000_000  # of the local search, for counted work
SEED = 1

_SortKey = Callable[[int], tuple[int, ...]]


@dataclass(frozen=True)
class Packing:
    """An offset for each block."""

    offsets: tuple[int, ...]
    height_bytes: int  # the highest end
    nothing_fits: bool = False  # proved: no packing fits below the capacity that was asked for


def pack(
    blocks: Sequence[Block],
    capacity_bytes: int,
    time_limit_s: float | None = None,
    thorough: bool = True,
) -> Packing:
    """Find a packing not higher than `capacity_bytes`. If none is found, return the lowest found.

    Equal input gives equal offsets, unless `time_limit_s` ends the search. If the short searches
    fail, long searches run and take seconds. `thorough` False: leave out the long searches.
    """
    spans = [span for block in blocks for span in block.spans]
    whole = (min((b for b, _ in spans), default=0), max((e for _, e in spans), default=0))
    # Blocks that live all the time, and need no padding, are at the bottom of a lowest packing.
    offsets, bottom, others = [0] * len(blocks), 0, []
    for i, block in enumerate(blocks):
        if block.spans == (whole,) and block.size_bytes == block.aligned:
            offsets[i], bottom = bottom, bottom + block.size_bytes
        else:
            others.append(i)
    rest = [blocks[i] for i in others]
    packing = _Packer(rest, capacity_bytes - bottom, time_limit_s).pack(thorough)
    for i, offset in zip(others, packing.offsets, strict=True):
        offsets[i] = bottom + offset
    nothing_fits = packing.nothing_fits or capacity_bytes < live_peak(blocks)
    return Packing(tuple(offsets), bottom + packing.height_bytes, nothing_fits)


class _Packer:
    def __init__(
        self, blocks: Sequence[Block], capacity_bytes: int, time_limit_s: float | None
    ) -> None:
        self.blocks, self.near = blocks, neighbours(blocks)
        self.size = [block.size_bytes for block in blocks]
        self.aligned = [block.aligned for block in blocks]
        self.capacity = max(capacity_bytes, live_peak(blocks))
        self.ends_at = None if time_limit_s is None else work.now_s() + time_limit_s
        self.rng = random.Random(SEED)
        self.best = Packing((0,) * len(blocks), 1 << 62)

    def pack(self, thorough: bool) -> Packing:
        in_time = sorted(range(len(self.blocks)), key=lambda i: self.blocks[i].begin)
        start, lowest = in_time, self._first_fit(in_time)
        if self._fits(lowest) or self._search_orders(start, lowest, MAX_STEPS_SHORT):
            return self.best
        for order in self._orders(in_time):
            packing = self._first_fit(order)
            if self._fits(packing):
                return self.best
            if packing.height_bytes < lowest.height_bytes:
                start, lowest = order, packing
        if thorough:
            self._search_long(start, lowest)
        return self.best

    def _search_long(self, order: list[int], packing: Packing) -> None:
        """Search exactly. If that finds no packing, search locally again."""
        left_s = None if self.ends_at is None else self.ends_at - work.now_s()
        found = search(self.blocks, self.capacity, time_limit_s=left_s)
        if found is not None and found.result == "found":
            ends = map(int.__add__, found.offsets, self.size)
            self._fits(Packing(found.offsets, max(ends)))
            return
        nothing_fits = found is not None and found.result == "none"
        self._search_orders(order, packing, MAX_STEPS_SHORT if nothing_fits else MAX_STEPS_LONG)
        self.best = replace(self.best, nothing_fits=nothing_fits)

    def _keys(self) -> list[_SortKey]:
        """Return keys that sort blocks by life, by size, and by size x life, largest first."""
        blocks, size = self.blocks, self.aligned
        return [
            lambda i: (-blocks[i].life, -size[i]),
            lambda i: (-size[i], -blocks[i].life),
            lambda i: (-size[i] * blocks[i].life,),
        ]

    def _orders(self, in_time: list[int]) -> Iterator[list[int]]:
        """Yield orders in which to place the blocks.

        Most orders move a part of the blocks to the front, such as the largest sixteenth. Within
        both parts, blocks stay in the order of time. The last orders sort all blocks by a key.
        """
        for part in (16, 8, 4, 2):
            for key in self._keys():
                first = set(sorted(in_time, key=key)[: len(in_time) // part])
                rest = [i for i in in_time if i not in first]
                yield [*(i for i in in_time if i in first), *rest]
        for key in self._keys():
            yield sorted(in_time, key=key)

    def _fits(self, packing: Packing) -> bool:
        """Keep the packing if it is the lowest so far. Return whether it fits the capacity."""
        if packing.height_bytes < self.best.height_bytes:
            self.best = packing
        return packing.height_bytes <= self.capacity

    def _out_of_time(self) -> bool:
        return self.ends_at is not None and work.now_s() > self.ends_at

    def _first_fit(self, order: Iterable[int]) -> Packing:
        """Give each block in turn the lowest offset that is free during its life."""
        near, sizes, aligned = self.near, self.size, self.aligned
        ends: dict[int, int] = {}
        offsets = [0] * len(sizes)
        height = 0
        for i in order:
            size, low = sizes[i], 0
            for offset, end in sorted((offsets[j], ends[j]) for j in near[i] if j in ends):
                if low + size <= offset:
                    break
                if end > low:
                    low = end
            offsets[i], ends[i] = low, low + aligned[i]
            height = max(height, low + size)
        return Packing(tuple(offsets), height)

    def _search_orders(self, order: list[int], packing: Packing, most_steps: int) -> bool:
        """Search for an order in which all blocks fit. Return whether it was found.

        Each try places a block that ends above the capacity earlier, or moves a neighbour of it.
        """
        excess = self._excess(packing)
        steps = MIN_STEPS_PER_TRY + sum(map(len, self.near))
        for _ in range(most_steps // steps):
            if self._out_of_time():
                return False
            work.add(steps / STEPS_PER_S)
            changed = self._changed(order, packing)
            found = self._first_fit(changed)
            if self._fits(found):
                return True
            less = self._excess(found)
            if less <= excess or self.rng.random() < 0.01:
                order, packing, excess = changed, found, less
        return False

    def _excess(self, packing: Packing) -> tuple[int, int]:
        """Return the highest end of a block, and the sum of all bytes above the capacity."""
        ends = map(int.__add__, packing.offsets, self.size)
        return packing.height_bytes, sum(end - self.capacity for end in ends if end > self.capacity)

    def _changed(self, order: list[int], packing: Packing) -> list[int]:
        order, rng = list(order), self.rng
        position = {i: k for k, i in enumerate(order)}
        out = [i for i in order if packing.offsets[i] + self.size[i] > self.capacity]
        i = rng.choice(out)
        earlier = [j for j in self.near[i] if position[j] < position[i]]
        chance = rng.random()
        if earlier and chance < 0.8:
            j = rng.choice(earlier)
            if chance < 0.6:
                order.insert(position[j], order.pop(position[i]))
            else:
                order[position[i]], order[position[j]] = j, i
        else:
            j = rng.choice(self.near[i])
            order.insert(rng.randrange(len(order)), order.pop(position[j]))
        return order
