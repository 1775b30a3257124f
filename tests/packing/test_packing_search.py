"""The exact search: a packing if one exists, else the proof that none does."""

import random
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from poet_host.firmware_build.compile import LIBRARY_FLAGS, library_of
from poet_host.packing import packing, packing_search
from poet_host.packing.blocks import Block, live_peak
from poet_host.packing.packing import pack
from poet_host.packing.packing_search import Searched, library, search
from poet_host.plan import placed_plan
from poet_host.plan.placed_plan import Excess, realise
from poet_host.plan.placement import Placement
from poet_host.plan.plan import Statement
from poet_host.plan.problem import CostGraph, CostNode, Problem

from bench.placement import check, cut_rectangle

# At most 22 bytes are alive, but no packing is that low: sizes are not multiples of 4.
TIGHT = [
    *(Block(0, 3, 8), Block(1, 12, 1), Block(2, 7, 6), Block(4, 10, 7), Block(5, 13, 4)),
    *(Block(8, 18, 7), Block(11, 15, 6), Block(14, 20, 6), Block(16, 22, 1), Block(17, 22, 1)),
    *(Block(19, 22, 8), Block(21, 22, 8)),
]


def can_be_packed(blocks: Sequence[Block], capacity: int) -> bool:
    """Try every offset of every block. Blocks that ended do not matter to later ones."""
    order = sorted((block for block in blocks if block.size_bytes), key=lambda block: block.begin)
    states: set[tuple[tuple[int, int], ...]] = {()}  # numbers and offsets of the blocks alive
    for k, block in enumerate(order):
        size, before, states = block.size_bytes, states, set()
        for state in before:
            alive = [(j, at) for j, at in state if order[j].end > block.begin]
            for low in range(0, capacity - size + 1, 4):
                if all(low + size <= at or at + order[j].size_bytes <= low for j, at in alive):
                    states.add((*alive, (k, low)))
    return bool(states)


def result(blocks: Sequence[Block], capacity: int) -> str:
    found = search(blocks, capacity)
    assert found is not None
    if found.result == "found":
        check(blocks, found.offsets, capacity)
    return found.result


def small_blocks(seed: int) -> list[Block]:
    rng = random.Random(seed)
    count, longest = rng.randint(6, 14), rng.randint(2, 5)
    begins = [rng.randrange(count) for _ in range(count)]
    return [Block(begin, begin + rng.randint(1, longest), rng.randint(1, 12)) for begin in begins]


def tight_blocks(seed: int) -> list[Block]:
    """Change some of the blocks that cannot be packed into their live peak."""
    rng = random.Random(seed)
    changed = rng.sample(range(len(TIGHT)), 3)
    return [
        replace(block, size_bytes=rng.randint(1, 8)) if i in changed else block
        for i, block in enumerate(TIGHT)
    ]


def test_the_search_agrees_with_trying_every_offset() -> None:
    missing = 0
    for seed in range(100):
        for blocks in (small_blocks(seed), tight_blocks(seed)):
            capacity = live_peak(blocks) + seed % 3
            if capacity <= 28:  # else there are too many offsets to try
                found = result(blocks, capacity)
                assert (found == "found") == can_be_packed(blocks, capacity), seed
                missing += found == "none"
    assert missing > 3


def test_a_packing_just_below_the_least_height_is_proved_missing() -> None:
    assert live_peak(TIGHT) == 22
    assert result(TIGHT, 22) == "none"
    assert result(TIGHT, 23) == "found"
    packed = pack(TIGHT, 22)
    assert (packed.height_bytes, packed.nothing_fits) == (23, True)
    assert not pack(TIGHT, 23).nothing_fits
    assert pack([Block(0, 1, 8)], 7).nothing_fits


@pytest.mark.parametrize("seed", range(6))
def test_rectangles_without_a_free_byte_are_packed(seed: int) -> None:
    blocks = cut_rectangle(seed, 100, 1000, 1 << 20)
    assert live_peak(blocks) == 1 << 20
    assert result(blocks, 1 << 20) == "found"
    assert result(blocks, (1 << 20) - 4) == "none"


def test_a_limit_ends_the_search_without_a_proof() -> None:
    blocks = cut_rectangle(1, 300, 200, 1 << 20)
    by_steps = search(blocks, 1 << 20, max_steps=1000)
    by_time = search(blocks, 1 << 20, time_limit_s=0.0)
    assert by_steps is not None
    assert by_time is not None
    assert by_steps.result == by_time.result == "unknown"
    assert search(blocks, 1 << 20, max_steps=1000) == by_steps


def test_blocks_without_bytes_need_no_memory() -> None:
    assert search([], 0) == Searched("found", (), 0, 0)
    assert result([Block(0, 3, 0), Block(1, 2, 5), Block(0, 2, 0)], 5) == "found"


def test_the_c_code_compiles_without_warnings(tmp_path: Path) -> None:
    assert library() is not None
    warnings = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror")
    sources = Path(packing_search.__file__).parent.glob("packing_*.c")
    output = tmp_path / "packing.so"
    subprocess.run(["cc", *LIBRARY_FLAGS, *warnings, *sources, "-o", output], check=True)


# The rule: solve again with less RAM only after a proof.


def _not_placed(*_: object) -> Placement:
    """Return what `arrange` returns at the limit of its search."""
    return Placement(STATEMENTS, (), 28)


CHAIN = CostGraph("chain", tuple(CostNode(f"n{k}", (k - 1,) if k else (), 8) for k in range(3)))
STATEMENTS = tuple(Statement("compute", f"n{k}") for k in range(3))


def test_less_ram_is_asked_for_only_after_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    def needs_less_ram(ram_bytes: int) -> bool:
        problem = Problem(CHAIN, ram_bytes)
        found = realise(problem, STATEMENTS, placed=True, time_limit_s=60.0)
        assert isinstance(found, Excess)
        assert found.ram_bytes > 0
        return found.needs_less_ram

    assert needs_less_ram(20)  # 24 bytes are alive

    monkeypatch.setattr(placed_plan, "arrange", _not_placed)
    assert not needs_less_ram(24)
    monkeypatch.setattr(placed_plan, "library", lambda: None)
    assert needs_less_ram(24)


def test_without_a_compiler_the_other_methods_still_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "search", lambda *_, **__: None)
    found = pack(TIGHT, 23)
    check(TIGHT, found.offsets, 23)
    assert not pack(TIGHT, 22).nothing_fits


def test_no_compiler_means_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    library_of.cache_clear()
    monkeypatch.setenv("PATH", "")
    assert library() is None
    assert search(TIGHT, 23) is None
    library_of.cache_clear()
