"""Schedules with nests: what a board accepts trains to the right bits, and on a bad card too."""

import re
import subprocess
from pathlib import Path

import pytest
from support.c_fuzzer import TODAY_S, counts, fuzz, today
from support.compiler import compiler
from support.nest_bench import (
    CORPUS,
    SEEDS,
    compile_faults,
    compile_fuzzer,
    fuzz_command,
    silent,
    write_seeds,
)

HEADER = CORPUS.parent / "faults.h"


@pytest.fixture
def seeds(tmp_path: Path) -> list[Path]:
    return write_seeds(tmp_path / "seeds", **SEEDS)


@pytest.mark.slow
def test_every_accepted_schedule_trains_to_the_bits_of_the_reference(
    tmp_path: Path, seeds: list[Path]
) -> None:
    """20 seconds with new changes each day, Clang's sanitizers on; `make fuzz-nest` goes on."""
    program = compile_fuzzer(tmp_path, compiler("clang"))
    found = tmp_path / "found"
    found.mkdir()
    command = fuzz_command(program, 1 + today(), -TODAY_S, found, CORPUS)
    done = subprocess.run(
        [*command, seeds[0].parent], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen = {name: int(count) for name, count in re.findall(r"^(\D+) (\d+)$", done.stderr, re.M)}
    assert seen["loaded"] > len(seeds) // 2
    assert seen["equal"] > 3 * len(seeds)
    kinds = ("nests", "pairs", "statistics", "kept slabs", "inferences")
    assert min(seen[name] for name in kinds) > 50


@pytest.mark.slow
def test_no_fault_of_a_card_leads_to_other_weights(tmp_path: Path, seeds: list[Path]) -> None:
    """20 seconds with new runs each day, sanitizers on; `make fault-nest` goes on."""
    done = fuzz(compile_faults(tmp_path), today(), -TODAY_S, *seeds)
    found = counts(done)
    kinds = re.findall(r'FAULT\(\w+, "(.*)"\)', HEADER.read_text())
    assert len(kinds) == 14
    for kind in (*kinds, "several faults"):
        equal, later = found[f"{kind}: equal"], found[f"{kind}: an error, then equal"]
        assert equal + later > found["rounds"] // 100 > 10
    some = ("nests", "pairs", "batches ahead", "steps without a commit",
            "steps with tensors that stay")  # fmt: skip
    assert min(found[name] for name in some) > found["rounds"] // 2
    assert found["steps"] > 5 * found["rounds"]
    others = silent(done.stderr)
    assert not others
