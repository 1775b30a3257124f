"""Where a card holds tensors, and how it shows that they are whole (FORMAT.md, "A card").

A tensor on a card has one or several slots. In each slot it consists of pieces. Each piece has a
trailer: the CRC-32 of its bytes, and its owner, which depends on the commit for which it was
written. All code that finds slots or trailers on a card uses this module.
"""

import struct
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import NamedTuple

from .. import isa
from .model import BLOCK, CURRENT, FIXED, INPUT, SHARED, SLOTS, Model, Tensor

_C = isa.constants()
UNIT_BLOCKS = _C["POET_UNIT_BLOCKS"]
ERASE_BLOCKS = _C["POET_ERASE_BLOCKS"]

# Blocks, counted from the start of the partition; poet.h has the same numbers.
MODEL_BLOCK, MODEL_BLOCKS = 64, 1024
PLAN_BLOCK, PLAN_BLOCKS = MODEL_BLOCK + MODEL_BLOCKS, 128
COMMIT_BLOCKS = (UNIT_BLOCKS, 2 * UNIT_BLOCKS)  # of even and odd sequence numbers
DATA_BLOCK = 3 * UNIT_BLOCKS

_ALL_ONES = 0xFFFFFFFF
_TRAILER = struct.Struct("<II")
TRAILER_BYTES = _TRAILER.size
MOST_DATA_BLOCKS = _ALL_ONES // (BLOCK // TRAILER_BYTES) - DATA_BLOCK
LAST_SEQUENCE = 2**32 - 1  # of a commit; after it, firmware commits no more
_POLYNOMIAL = 0xEDB88320  # of CRC-32, lowest power first


class Piece(NamedTuple):
    """A range of a tensor's bytes that has its own trailer. The place is that of slot 0."""

    block: int  # first block, counted in the data area
    size_bytes: int
    trailer: int  # position of the trailer: number of bytes from the start of the data area
    at: int = 0  # position of the first byte in the block


def pieces(tensor: Tensor) -> list[Piece]:
    """Return the pieces of a tensor, in the order of its bytes."""
    sizes, end = tensor.piece_sizes, (tensor.block + tensor.blocks) * BLOCK
    if tensor.flags & SHARED:
        trailer = tensor.block * BLOCK + tensor.at + tensor.size_bytes
        return [Piece(tensor.block, tensor.size_bytes, trailer, tensor.at)]
    if tensor.cut is None or len(sizes) == 1:
        return [Piece(tensor.block, tensor.size_bytes, end - TRAILER_BYTES)]
    stride = tensor.cut.stride_blocks
    trailers = (tensor.block + tensor.cut.trailer_block) * BLOCK
    return [
        Piece(tensor.block + i * stride, size_bytes, trailers + i * TRAILER_BYTES)
        for i, size_bytes in enumerate(sizes)
    ]


def slots_of(model: Model, tensor: Tensor) -> int:
    """Return the number of slots of a stored tensor."""
    return {FIXED: 1, INPUT: 2, CURRENT: model.slots}.get(tensor.place, 0)


def slot_block(model: Model, slot: int) -> int:
    """Return the block from which the places of pieces count in a slot."""
    return DATA_BLOCK + slot * model.slot_stride


def job_block(data_blocks: int) -> int:
    """Return the first block of a job, counted from the start of the partition."""
    return DATA_BLOCK + whole_units(data_blocks)


def whole_units(blocks: int, unit: int = UNIT_BLOCKS) -> int:
    """Round a number of blocks up to whole units: by default, allocation units of a card."""
    return -(-blocks // unit) * unit


@dataclass(frozen=True)
class State:
    """A committed state of the CURRENT tensors: the record `poet_state`."""

    step: int = 0
    generation: int = 0  # 0: there is no such state
    digest: int = 0
    fixed: int = 0  # sequence number of the commit for which the FIXED tensors were written
    loss: float = 0.0


@dataclass(frozen=True)
class Commit:
    """The record `poet_commit`, without its magic number and CRC."""

    sequence: int
    model_crc: int
    data_blocks: int
    slot: int  # of `now`
    prior_slot: int
    every: int  # most steps that may have followed this commit before the next one; 0: 1
    now: State
    prior: State = State()

    def to_bytes(self) -> bytes:
        record = isa.pack("poet_commit", magic=_C["POET_COMMIT_MAGIC"], **asdict(self))
        return record[:-4] + zlib.crc32(record[:-4]).to_bytes(4, "little")


def commit_from_bytes(raw: bytes) -> Commit | None:
    """Return a commit record, or None if it is not whole."""
    row = isa.unpack("poet_commit", raw)
    is_whole = row.pop("crc") == zlib.crc32(raw[:-4])
    most = max(row["slot"], row["prior_slot"])
    if row.pop("magic") != _C["POET_COMMIT_MAGIC"] or not is_whole or most > SLOTS:
        return None
    now, prior = State(**row.pop("now")), State(**row.pop("prior"))
    return Commit(**row, now=now, prior=prior)


def prior_slot(commit: Commit, version: int) -> int:
    """Return the slot of the prior state. Commits of version 2 do not name it."""
    return (commit.slot - 1) % SLOTS if version == 2 else commit.prior_slot


def newest(commits: Iterable[Commit | None]) -> Commit | None:
    """Return the commit with the greatest sequence number."""
    whole = [commit for commit in commits if commit and commit.sequence]
    return max(whole, key=lambda commit: commit.sequence, default=None)


def generation_of(identity: int, sequence: int) -> int:
    """Return the generation of the commit `sequence` on the card with this `identity`."""
    return zlib.crc32(sequence.to_bytes(4, "little"), identity)


def identity_of(generation: int, sequence: int) -> int:
    """Return the identity of the card on which a commit has this generation."""
    state = generation ^ _ALL_ONES
    for _ in range(32):  # takes back one step of the CRC for each bit of `sequence`
        state = (state ^ _POLYNOMIAL) << 1 | 1 if state >> 31 else state << 1
    return state ^ sequence ^ _ALL_ONES


def owner_of(trailer: bytes) -> int:
    """Return the owner in a trailer."""
    _, owner = _TRAILER.unpack(trailer)
    return int(owner)


def trailer_of(piece: Piece, crc: int, generation: int) -> bytes:
    """Return the trailer of a piece whose bytes have this CRC-32."""
    return _TRAILER.pack(crc, piece.block ^ generation)


def digest_of(trailers: Iterable[bytes]) -> int:
    """Return the digest of a state: the exclusive or of the CRC-32 of all CURRENT trailers."""
    digest = 0
    for trailer in trailers:
        digest ^= zlib.crc32(trailer)
    return digest


def crc_of(trailer: bytes) -> int:
    """Return the CRC-32 in a trailer."""
    crc, _ = _TRAILER.unpack(trailer)
    return int(crc)
