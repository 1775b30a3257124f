"""Packing: fixed offsets, as low as possible, for blocks that are in memory for a limited time.

Two blocks that live at the same time must not overlap in memory. To decide whether all blocks fit
below a capacity is NP-complete (dynamic storage allocation). So several methods run, cheapest
first: first fit, which places blocks in several orders; a local search, which places blocks earlier
if they end above the capacity; a depth-first search that is complete for small problems. Orders
that differ little from the order in time are tried first, since they give small schedules: a board
also chooses offsets by first fit in time, and a schedule encodes such an offset in one bit. Limits
count steps, not time, so that equal input gives equal offsets.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

ALIGNMENT = 4  # offsets are multiples of this many bytes
# Limits of a local search: the number of pairs of blocks that it compares.
MAX_STEPS_SHORT, MAX_STEPS_LONG = 500_000, 3_000_000
MAX_TREE_STEPS = 200_000  # limit of each depth-first search, in blocks tried
MIN_STEPS_PER_TRY = 200  # of the local search
SEED = 1

_SortKey = Callable[[int], tuple[int, ...]]


def aligned(size: int, unit: int = ALIGNMENT) -> int:
    """Return the smallest multiple of `unit` that is at least `size`."""
    return -(-size // unit) * unit


@dataclass(frozen=True)
class Block:
    """A block of memory that is used from time `begin` until just before time `end`."""

    begin: int
    end: int
    size_bytes: int

    @property
    def aligned(self) -> int:
        """Return the size rounded up to a multiple of 4. No other block can use the padding."""
        return aligned(self.size_bytes)

    @property
    def life(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class Packing:
    """An offset for each block."""

    offsets: tuple[int, ...]
    height_bytes: int  # the highest end


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
    return _Packer(blocks, capacity_bytes, time_limit_s).pack(thorough)


def live_peak(blocks: Sequence[Block]) -> int:
    """Return the largest number of bytes in use at the same time. No packing is lower.

    Padding counts for all blocks except one, since the highest block needs no padding.
    """
    events = sorted(
        [(block.begin, 1, block) for block in blocks] + [(block.end, 0, block) for block in blocks],
        key=lambda event: event[:2],
    )
    live = peak = 0
    spares: dict[int, int] = {}
    for _, starts, block in events:
        live += block.aligned if starts else -block.aligned
        spare = block.aligned - block.size_bytes
        spares[spare] = spares.get(spare, 0) + (1 if starts else -1)
        peak = max(peak, live - max((s for s, count in spares.items() if count), default=0))
    return peak


def neighbours(blocks: Sequence[Block]) -> list[list[int]]:
    """Return for each block the other blocks that live at the same time. Leave out empty blocks."""
    found: list[list[int]] = [[] for _ in blocks]
    alive: list[int] = []
    for i in sorted(range(len(blocks)), key=lambda i: blocks[i].begin):
        if not blocks[i].size_bytes:
            continue
        alive = [j for j in alive if blocks[j].end > blocks[i].begin]
        for j in alive:
            found[i].append(j)
            found[j].append(i)
        alive.append(i)
    return found


class _Packer:
    def __init__(
        self, blocks: Sequence[Block], capacity_bytes: int, time_limit_s: float | None
    ) -> None:
        self.blocks, self.near = blocks, neighbours(blocks)
        self.size = [block.size_bytes for block in blocks]
        self.aligned = [block.aligned for block in blocks]
        self.capacity = max(capacity_bytes, live_peak(blocks))
        self.ends_at = None if time_limit_s is None else time.monotonic() + time_limit_s
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
        """Search depth-first in several orders. If no search is complete, search locally again."""
        for key in self._keys():
            if self._out_of_time():
                return
            tree = _Tree(self.blocks, self.capacity, sorted(order, key=key))
            if tree.search():
                ends = map(int.__add__, tree.offsets, self.size)
                self._fits(Packing(tuple(tree.offsets), max(ends)))
                return
            if tree.steps < MAX_TREE_STEPS:  # proved: no packing fits, so find a low one
                self._search_orders(order, packing, MAX_STEPS_SHORT)
                return
        self._search_orders(order, packing, MAX_STEPS_LONG)

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
        return self.ends_at is not None and time.monotonic() > self.ends_at

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


class _Tree:
    """Depth-first search for a packing, from low offsets to high ones.

    In any packing, each block can be lowered until it lies on another block, or at offset 0. So the
    search places blocks by rising offset, each on the highest placed block that lives at the same
    time. The skyline is the top of the placed blocks at each time. A branch ends when the
    remaining blocks do not fit above the skyline at some time. A block is not placed next if
    another block fits below it.
    """

    def __init__(self, blocks: Sequence[Block], capacity: int, order: Sequence[int]) -> None:
        times = sorted({t for block in blocks for t in (block.begin, block.end)})
        at = {t: k for k, t in enumerate(times)}
        self.span = [(at[block.begin], at[block.end]) for block in blocks]
        self.size = [block.size_bytes for block in blocks]
        self.aligned = [block.aligned for block in blocks]
        self.capacity = capacity
        self.skyline = [0] * len(times)
        self.left = [0] * len(times)  # for each time, the bytes of live blocks that are not placed
        # For each time, the indices of the blocks alive then, in descending order of padding.
        self.alive: list[list[int]] = [[] for _ in times]
        self.placed = [False] * len(blocks)
        for i in sorted(order, key=lambda i: self.size[i] - self.aligned[i]):
            self._add(i, self.aligned[i])
            for t in range(*self.span[i]):
                self.alive[t].append(i)
        self.offsets = [0] * len(blocks)
        self.order = [i for i in order if blocks[i].size_bytes]
        self.steps = 0

    def search(self) -> bool:
        """Return True if `offsets` is a packing; False if none exists or the steps run out."""
        trail: list[tuple[int, list[int]]] = []  # (placed block, skyline before it was placed)
        branches = [self._choices(self.order, 0)]
        remaining = [self.order]
        while self.steps < MAX_TREE_STEPS:
            if not remaining[-1]:
                return True
            choice = next(branches[-1], None)
            if choice is None:
                branches.pop()
                remaining.pop()
                if not trail:
                    return False
                self._undo(*trail.pop())
                continue
            low, i = choice
            trail.append((i, self._put(i, low)))
            if self._too_high(i):
                self._undo(*trail.pop())
                continue
            remaining.append([j for j in remaining[-1] if j != i])
            branches.append(self._choices(remaining[-1], low))
        return False

    def _choices(self, blocks: Sequence[int], floor: int) -> Iterator[tuple[int, int]]:
        """Return pairs (offset, block) of blocks that may be placed next, lowest offset first."""
        lows = [max(self.skyline[slice(*self.span[i])]) for i in blocks]
        self.steps += len(blocks) + sum(self.span[i][1] - self.span[i][0] for i in blocks) // 16
        above = min(
            (max(low, floor) + self.aligned[i] for low, i in zip(lows, blocks, strict=True)),
            default=0,
        )
        fitting = [
            (low, k)
            for k, (low, i) in enumerate(zip(lows, blocks, strict=True))
            if floor <= low < above and low + self.size[i] <= self.capacity
        ]
        return iter([(low, blocks[k]) for low, k in sorted(fitting)])

    def _too_high(self, i: int) -> bool:
        """Return whether the remaining blocks exceed the capacity at some time of the life of i.

        The padding of the highest block does not count. In the best case, the highest block is the
        block with the most padding.
        """
        begin, end = self.span[i]
        top, most = self.offsets[i] + self.aligned[i], max(self.left[begin:end])
        if top + most <= self.capacity:
            return False
        if top + most - ALIGNMENT >= self.capacity:
            return True
        for t in range(begin, end):
            above = next((j for j in self.alive[t] if not self.placed[j]), None)
            if above is not None:
                spare = self.aligned[above] - self.size[above]
                if top + self.left[t] - spare > self.capacity:
                    return True
        return False

    def _put(self, i: int, low: int) -> list[int]:
        self.placed[i] = True
        begin, end = self.span[i]
        old = self.skyline[begin:end]
        self.skyline[begin:end] = [low + self.aligned[i]] * (end - begin)
        self._add(i, -self.aligned[i])
        self.offsets[i] = low
        return old

    def _undo(self, i: int, old: list[int]) -> None:
        self.placed[i] = False
        begin, end = self.span[i]
        self.skyline[begin:end] = old
        self._add(i, self.aligned[i])

    def _add(self, i: int, size: int) -> None:
        for t in range(*self.span[i]):
            self.left[t] += size
