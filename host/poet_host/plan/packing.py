"""Packing: fixed offsets for blocks that live for a while, as low as possible.

Two blocks that live at the same time must not overlap in memory. To decide whether all fit
below a capacity is NP-complete (dynamic storage allocation), so several methods take
turns, cheapest first; all are deterministic.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

ALIGNMENT = 4  # bytes; offsets are multiples of it


@dataclass(frozen=True)
class Block:
    """`size_bytes` of memory from time `begin` until before time `end`."""

    begin: int
    end: int
    size_bytes: int

    @property
    def aligned(self) -> int:
        """Bytes that the block keeps from others, since those begin at multiples of 4."""
        return -(-self.size_bytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Packing:
    """An offset for each block; `height_bytes` is the highest end."""

    offsets: tuple[int, ...]
    height_bytes: int


def live_peak(blocks: Sequence[Block]) -> int:
    """Most bytes alive at once, blocks aligned but for one on top: no packing is lower."""
    events = sorted(
        [(block.begin, 1, block) for block in blocks] + [(block.end, 0, block) for block in blocks],
        key=lambda event: event[:2],
    )
    live = peak = 0
    slack: dict[int, int] = {}
    for _, starts, block in events:
        live += block.aligned if starts else -block.aligned
        spare = block.aligned - block.size_bytes
        slack[spare] = slack.get(spare, 0) + (1 if starts else -1)
        peak = max(peak, live - max((s for s, count in slack.items() if count), default=0))
    return peak


def neighbours(blocks: Sequence[Block]) -> list[list[int]]:
    """For each block, those that live at the same time; empty blocks have none."""
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


def first_fit(
    blocks: Sequence[Block], near: Sequence[Sequence[int]], order: Iterable[int]
) -> Packing:
    """Give each block in turn the lowest offset that is free during its life."""
    offsets = [-1] * len(blocks)
    ends = [0] * len(blocks)
    height = 0
    for i in order:
        size = blocks[i].size_bytes
        low = 0
        for offset, end in sorted((offsets[j], ends[j]) for j in near[i] if offsets[j] >= 0):
            if low + size <= offset:
                break
            low = max(low, end)
        offsets[i], ends[i] = low, low + blocks[i].aligned
        height = max(height, low + size)
    return Packing(tuple(offsets), height)


def pack(blocks: Sequence[Block], capacity_bytes: int) -> Packing:
    """A packing not higher than `capacity_bytes` if one is found, else the lowest found."""
    near = neighbours(blocks)
    best: Packing | None = None
    for order in _orders(blocks):
        packing = first_fit(blocks, near, order)
        if best is None or packing.height_bytes < best.height_bytes:
            best = packing
        if best.height_bytes <= capacity_bytes:
            break
    assert best is not None
    return best


def _orders(blocks: Sequence[Block]) -> list[list[int]]:
    """In order of time (as a board would allocate), then big, long and large-area first."""
    every = range(len(blocks))

    def size(i: int) -> int:
        return blocks[i].aligned

    def life(i: int) -> int:
        return blocks[i].end - blocks[i].begin

    return [
        sorted(every, key=lambda i: blocks[i].begin),
        sorted(every, key=lambda i: (-size(i), -life(i))),
        sorted(every, key=lambda i: (-life(i), -size(i))),
        sorted(every, key=lambda i: -size(i) * life(i)),
    ]
