"""Run the fuzzers in C of tests/firmware (fuzz.h)."""

import subprocess
import time
from pathlib import Path

TODAY_S = 20


def fuzz(program: Path, seed: int, limit: int) -> subprocess.CompletedProcess[str]:
    """`limit`: number of rounds, or of seconds if it is negative."""
    command = [program, str(seed), str(limit)]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)


def finds_nothing_today(program: Path) -> None:
    """Assert that the rounds of this day keep all rules, and that they did what they can do."""
    done = fuzz(program, int(time.time()) // 86_400 * 10**6, -TODAY_S)
    assert done.returncode == 0, done.stderr[-2000:]
    counts = {name: int(count) for name, count in map(str.split, done.stdout.splitlines())}
    assert min(counts.values()) > counts["rounds"] // 100 > 10, counts
