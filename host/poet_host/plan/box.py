"""The memory of a tensor or of a slab of it."""

from dataclasses import dataclass
from functools import cached_property
from math import prod


@dataclass(frozen=True)
class Box:
    """The memory of a tensor or a slab: parts one after another, each in row-major order."""

    size: tuple[int, ...]  # indices along each axis of the operand
    part: tuple[int, ...]  # those of a part

    @property
    def size_bytes(self) -> int:
        return 4 * prod(self.size)

    @cached_property
    def dense(self) -> tuple[int, ...]:
        """Return the largest parts that are row-major: those of the box, or all of it."""
        several = [part < size for part, size in zip(self.part, self.size, strict=True)]
        ordered = not any(
            several[i] and any(part > 1 for part in self.part[:i]) for i in range(len(several))
        )
        return self.size if ordered else self.part

    def holds(self, cell: tuple[int, ...]) -> bool:
        """Return whether each cell of this size is dense and in row-major order."""
        part = self.dense
        inside = all(
            p >= size or (c and p % c == 0)
            for p, c, size in zip(part, cell, self.size, strict=True)
        )
        cut = [axis for axis, (p, c) in enumerate(zip(part, cell, strict=True)) if c < p]
        return inside and (not cut or all(c == 1 for c in cell[: cut[-1]]))
