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
    again: tuple[int, int] | None = None  # a later time, begin and end, at which it is used too

    @property
    def aligned(self) -> int:
        """Return the size rounded up to a multiple of 4. No other block can use the padding."""
        return aligned(self.size_bytes)

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Return the times at which the block is used: begin and end of each."""
        return ((self.begin, self.end), *(() if self.again is None else (self.again,)))

    @property
    def life(self) -> int:
        return sum(end - begin for begin, end in self.spans)

    @property
    def whole(self) -> "Block":
        """Return the block that is used between its two times, too."""
        if self.again is None:
            return self
        return Block(self.begin, self.again[1], self.size_bytes)


def live_peak(blocks: Sequence[Block]) -> int:
    """Return the largest number of bytes in use at the same time. No packing is lower.

    Padding counts for all blocks except one, since the highest block needs no padding.
    """
    spans = [(span, block) for block in blocks for span in block.spans]
    events = sorted(
        [(begin, 1, block) for (begin, _), block in spans]
        + [(end, 0, block) for (_, end), block in spans],
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
    alive: list[tuple[int, int]] = []  # a block, and the end of its time
    used = (i for i, block in enumerate(blocks) if block.size_bytes)
    spans = [(*span, i) for i in used for span in blocks[i].spans]
    for begin, end, i in sorted(spans, key=lambda span: span[0]):
        alive = [(j, until) for j, until in alive if until > begin]
        for j, _ in alive:
            if j not in found[i]:
                found[i].append(j)
                found[j].append(i)
        alive.append((i, end))
    return found
