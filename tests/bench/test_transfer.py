"""The benchmark of transfers: does it move all weights, and report every row?"""

from pathlib import Path

import pytest

from bench.transfer import measure, report


@pytest.mark.slow
def test_all_weights_go_onto_the_board_and_come_back(tmp_path: Path) -> None:
    timed = measure("lenet-digits", "digits", tmp_path)
    text = report("lenet-digits", timed)
    rows = [line for line in text.splitlines() if line[:1] == "|"][2:]
    assert len(rows) == len(timed) == 5
    assert len({item.size_bytes for item in timed}) == 1
    assert all(f"| {timed[0].size_bytes:,} |" in row for row in rows)
