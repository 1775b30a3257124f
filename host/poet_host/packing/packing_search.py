"""The exact search for a packing, in C (packing_search.c), compiled on first use.

Where no C compiler is installed, there is no exact search: `pack` works without it.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from .. import work
from ..firmware_build.compile import library_of
from .blocks import ALIGNMENT, Block, live_peak

MAX_STEPS = 300_000_000
STEPS_PER_S = 100_000_000  # roughly
_RESULTS: tuple[Literal["none", "found", "unknown"], ...] = ("none", "found", "unknown")


@dataclass(frozen=True)
class Searched:
    """What the exact search found."""

    result: Literal["none", "found", "unknown"]  # "none" is proved
    offsets: tuple[int, ...]  # of each block if "found", else empty
    nodes: int
    steps: int


def library() -> tuple[Any, Any] | None:
    """Return (ffi, lib) of the search in C; None if it cannot be compiled on this computer."""
    return library_of(Path(__file__).parent, "packing")


def search(
    blocks: Sequence[Block],
    capacity_bytes: int,
    max_steps: int = MAX_STEPS,
    time_limit_s: float | None = None,
) -> Searched | None:
    """Search for a packing not higher than `capacity_bytes`, until it is found or proved missing.

    Equal input gives equal results, unless `time_limit_s` ends the search. A step looks at one
    block at one time. Return None if this computer has no compiler for the search.
    """
    loaded = library()
    if loaded is None:
        return None
    ffi, lib = loaded
    order = [i for i, block in enumerate(blocks) if block.size_bytes]
    order.sort(key=lambda i: blocks[i].begin)
    offsets = [0] * len(blocks)
    if not order:
        return Searched("found", tuple(offsets), 0, 0)
    if live_peak([blocks[i] for i in order]) > capacity_bytes:
        return Searched("none", (), 0, 0)
    # The search knows one time for each block. So what it finds is right, but it proves less.
    chosen = [blocks[i].whole for i in order]
    is_exact = all(blocks[i].again is None for i in order)
    if not is_exact and live_peak(chosen) > capacity_bytes:
        return Searched("unknown", (), 0, 0)
    times = _sections(chosen)
    unit = math.gcd(*(block.aligned for block in chosen))
    # Without its padding, the highest block may end above the last multiple of 4.
    capacity = (capacity_bytes + ALIGNMENT - 1) // unit
    arrays = {
        "begin": ffi.new("int32_t[]", [bisect_left(times, block.begin) for block in chosen]),
        "end": ffi.new("int32_t[]", [bisect_left(times, block.end) for block in chosen]),
        "size": ffi.new("int64_t[]", [block.aligned // unit for block in chosen]),
        "latest": ffi.new("int64_t[]", [(capacity_bytes - b.size_bytes) // unit for b in chosen]),
    }
    problem = ffi.new("struct packing_problem *", {
        "count": len(chosen), "sections": len(times), "capacity": capacity, **arrays,
    })  # fmt: skip
    limit_s = -1.0 if time_limit_s is None else max(0.0, time_limit_s)
    if limit_s >= 0 and work.counted_s() is not None:
        max_steps, limit_s = min(max_steps, int(limit_s * STEPS_PER_S)), -1.0
    effort = ffi.new("struct packing_effort *", {"max_steps": max_steps, "max_seconds": limit_s})
    found = ffi.new("int64_t[]", len(chosen))
    result = _RESULTS[lib.packing_search(problem, effort, found)]
    if result == "none" and not is_exact:
        result = "unknown"
    work.add(effort.steps / STEPS_PER_S)
    for k, i in enumerate(order):
        offsets[i] = found[k] * unit
    placed = tuple(offsets) if result == "found" else ()
    return Searched(result, placed, effort.nodes, effort.steps)


def _sections(blocks: Sequence[Block]) -> list[int]:
    """Return the times at which a block begins and another one ends before the next one begins.

    No other time has more blocks alive.
    """
    begins = sorted({block.begin for block in blocks})
    ends = sorted(block.end for block in blocks)
    return [
        begin
        for begin, following in pairwise([*begins, ends[-1]])
        if bisect_right(ends, following) > bisect_right(ends, begin)
    ]
