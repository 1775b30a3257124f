"""Blocks: memory that is used for a limited time. Placement gives each block an offset."""

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 4  # offsets are multiples of this many bytes


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
