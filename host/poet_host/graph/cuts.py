"""Cuts: how a tensor is divided into parts and pieces (FORMAT.md, "Cuts").

A part contains some indices of up to three axes, and all elements below them. Parts are dense, and
a tensor is its parts one after another. A piece is one part or several parts in a row.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

import numpy as np

from .. import isa
from ..errors import BadInput

_C = isa.constants()
AXES = _C["POET_CUT_AXES"]
BLOCK = _C["POET_BLOCK"]
TRAILER = _C["POET_TRAILER"]
_MOST = 2**16 - 1  # the record has 16 bits for each number


@dataclass(frozen=True)
class Cut:
    """How a tensor is cut, as in the C record `poet_cut`. Raises BadInput for wrong numbers."""

    unit_bytes: int  # bytes of the elements that have the same three indices
    size: tuple[int, ...]  # number of indices along each axis, the outermost axis first
    part: tuple[int, ...]  # number of indices of a part along each axis
    piece_parts: int = 1  # number of parts of a piece

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise BadInput(f"the cut {self} is wrong: {problem}")

    def _problems(self) -> Iterator[str]:
        numbers = (*self.size, *self.part, self.piece_parts)
        whole = len(self.size) == len(self.part) == AXES
        if not (whole and all(0 < number <= _MOST for number in numbers)):
            yield f"it needs {AXES} axes, and numbers from 1 to {_MOST:,}"
        if self.unit_bytes <= 0 or self.unit_bytes % 4 or self.size_bytes >= 2**32:
            yield "its unit must be a multiple of 4 bytes, and the tensor must have less than 4 GiB"
        if any(part > size for size, part in zip(self.size, self.part, strict=True)):
            yield "a part is larger than the tensor"

    @property
    def size_bytes(self) -> int:
        return prod(self.size) * self.unit_bytes

    @property
    def is_row_major(self) -> bool:
        """Return True if the parts in their order are the tensor in row-major order."""
        return not any(
            self.part[i] < self.size[i] and any(part > 1 for part in self.part[:i])
            for i in range(AXES)
        )

    @cached_property
    def piece_sizes(self) -> tuple[int, ...]:
        """Return the number of bytes of each piece."""
        axes = (
            np.minimum(part, size - np.arange(0, size, part))
            for size, part in zip(self.size, self.part, strict=True)
        )
        first, second, third = np.ix_(*axes)
        parts = (first * second * third).reshape(-1) * self.unit_bytes
        starts = np.arange(0, len(parts), self.piece_parts)
        return tuple(np.add.reduceat(parts, starts).tolist())

    @property
    def stride_blocks(self) -> int:
        """Return the number of blocks from the start of a piece to the start of the next one."""
        return blocks_of(self.piece_sizes[0])

    @property
    def trailer_block(self) -> int:
        """Return the slot's first block with trailers. Only for tensors with several pieces."""
        *others, last = self.piece_sizes
        return len(others) * self.stride_blocks + blocks_of(last)

    def in_order(self, data: bytes) -> bytes:
        """Return a tensor in the order of its parts. `data`: its bytes in row-major order."""
        if self.is_row_major:
            return data
        array = self._array(data)
        return b"".join(array[place].tobytes() for place in self._places())

    def row_major(self, data: bytes) -> bytes:
        """Return a tensor in row-major order. `data`: its bytes in the order of its parts."""
        if self.is_row_major:
            return data
        array, at = self._array(bytes(len(data))).copy(), 0
        for place in self._places():
            part = array[place]
            part[:] = np.frombuffer(data, np.uint8, part.size, at).reshape(part.shape)
            at += part.size
        return array.tobytes()

    def _array(self, data: bytes) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
        return np.frombuffer(data, np.uint8).reshape(*self.size, self.unit_bytes)

    def _places(self) -> Iterator[tuple[slice, ...]]:
        starts = (range(0, size, part) for size, part in zip(self.size, self.part, strict=True))
        for first in product(*starts):
            yield tuple(slice(at, at + part) for at, part in zip(first, self.part, strict=True))


def blocks_of(size_bytes: int) -> int:
    """Return the number of blocks that contain `size_bytes` bytes."""
    return -(-size_bytes // BLOCK)
