"""Run the fuzzers in C of tests/firmware (fuzz.h)."""

import subprocess
import time
from pathlib import Path

TODAY_S = 20
TODAY_ROUNDS = 6_000  # of the fast fuzzers: some seconds


def fuzz(
    program: Path, seed: int, limit: int, *files: Path, timeout_s: float | None = 180
) -> subprocess.CompletedProcess[str]:
    """`limit`: number of rounds, or of seconds if it is negative."""
    command = [program, str(seed), str(limit), *files]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


def today() -> int:
    """The first round of this day."""
    return int(time.time()) // 86_400 * 10**6


def counts(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """The counters of a fuzzer that kept all rules."""
    assert done.returncode == 0, done.stderr[-2000:]
    pairs = (line.rsplit(maxsplit=1) for line in done.stdout.splitlines())
    return {name: int(count) for name, count in pairs}


def finds_nothing_today(program: Path, *files: Path) -> None:
    """Assert that the rounds of this day keep all rules, and that they did what they can do."""
    found = counts(fuzz(program, today(), TODAY_ROUNDS, *files))
    assert min(found.values()) > found["rounds"] // 100 > 10, found
