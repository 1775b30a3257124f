"""Which samples a step of a learner draws: the rule of samples.c."""

import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple


class Taught(NamedTuple):
    label: int
    next_step: int  # of the learner right before it was taught


def drawn(
    taught: Sequence[Taught], seed: int, step: int, batch: int, slots: int
) -> list[int] | None:
    """Return the indices of the samples that a step draws, or None if there is none for it.

    Each class has a sample in turn. A step draws from the newest `slots` samples of a class that
    were taught before it began. A sample is drawn no later than newer ones of its class.
    """
    found: dict[int, list[int]] = {}
    first: dict[int, int] = {}  # of each class, the least next_step so far
    for index, sample in reversed([*enumerate(taught)]):
        first[sample.label] = min(sample.next_step, first.get(sample.label, sample.next_step))
        if first[sample.label] <= step:
            found.setdefault(sample.label, []).append(index)
    newest = [found[label][:slots] for label in sorted(found)]
    if not newest:
        return None
    indices = []
    for i in range(batch):
        members = newest[(step * batch + i) % len(newest)]
        indices.append(members[choice(seed, step, i, len(members))])
    return indices


def choice(seed: int, step: int, i: int, count: int) -> int:
    """Return a number below `count`, by the last steps of MurmurHash3 (Austin Appleby)."""
    word = zlib.crc32(struct.pack("<II", step, i), seed)
    word = (word ^ word >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    word = (word ^ word >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return ((word ^ word >> 16) >> 16) * count >> 16
