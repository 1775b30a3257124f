"""Transfers of tensors between RAM and storage: their times, and the storage blocks they move."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .. import isa
from ..graph.cuts import BLOCK, TRAILER
from ..schema import Amount

_N = TypeVar("_N", float, NDArray[np.float64])
_SHARED_BYTES = isa.constants()["POET_SHARED_BYTES"]


@dataclass(frozen=True)
class Lane:
    """Coefficients of the time that a transfer in one direction takes.

    In the fields, `rest` means the bytes of a tensor after its last whole block. No block is moved
    while the CRC of these bytes is computed, so this CRC adds to the time. Fields `cpu_...` are for
    processor time.
    """

    base_us: Amount  # latency
    us_per_byte: Amount  # time for each byte of the moved blocks
    cpu_base_us: Amount
    cpu_us_per_byte: Amount
    us_per_rest_byte: Amount = 0.0  # additional time for each byte after the last whole block
    cpu_us_per_rest_byte: Amount = 0.0

    def times_us(self, size_bytes: int) -> tuple[float, float]:
        """Return the time and the processor time of the transfer of a tensor."""
        return self._times_us(moved_bytes(size_bytes), size_bytes % BLOCK)

    def pieces_us(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the times (first row) and processor times (second row) of transfers of pieces.

        `sizes`: bytes of each piece, of tensors with several pieces. Their trailers lie in blocks
        of their own, and the transfer of such a block is shared by the pieces of its trailers.
        """
        pieces = self._times_us(
            (-(-sizes // BLOCK) * BLOCK).astype(float), (sizes % BLOCK).astype(float)
        )
        trailers = self._times_us(BLOCK, 0)
        share = TRAILER / BLOCK
        return np.stack([one + share * more for one, more in zip(pieces, trailers, strict=True)])

    def _times_us(self, moved: _N, rest: _N) -> tuple[_N, _N]:
        time_us = self.base_us + self.us_per_byte * moved + self.us_per_rest_byte * rest
        cpu_us = self.cpu_base_us + self.cpu_us_per_byte * moved + self.cpu_us_per_rest_byte * rest
        return time_us, cpu_us


@dataclass(frozen=True)
class Transfer:
    """Costs of moving one tensor from and to storage. Fields `..._cpu_us` are processor times."""

    page_in_us: float
    page_in_uj: float
    page_in_cpu_us: float
    page_out_us: float
    page_out_uj: float
    page_out_cpu_us: float


def shares(size_bytes: int) -> bool:
    """Return whether a renewed tensor of this size shares a storage block with others."""
    return size_bytes <= _SHARED_BYTES


def shared_blocks(sizes: Iterable[int]) -> int:
    """Return how many storage blocks the small ones among tensors of these sizes share."""
    blocks, free = 0, 0
    for size_bytes in sizes:
        needed = size_bytes + TRAILER
        if shares(size_bytes):
            if needed > free:
                blocks, free = blocks + 1, BLOCK
            free -= needed
    return blocks


def moved_bytes(size_bytes: int) -> int:
    """Return the bytes of the storage blocks that hold a tensor and its trailer (with a CRC)."""
    return -(-(size_bytes + TRAILER) // BLOCK) * BLOCK
