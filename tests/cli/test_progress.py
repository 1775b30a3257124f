"""Progress lines without a terminal: at most one a second, and always the last one."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from poet_host.cli import console
from poet_host.cli.console import progress


def lines(capsys: Any, monkeypatch: pytest.MonkeyPatch, reports: int, apart_s: float) -> list[str]:
    """The lines of this many epochs, each of which takes `apart_s` seconds."""
    now: Iterator[float] = count(step=apart_s / 2)  # the clock is read twice at most
    monkeypatch.setattr(console.time, "monotonic", lambda: next(now))
    with progress("training") as report:
        for epoch in range(1, reports + 1):
            report(15 * epoch, 15 * reports, f"epoch {epoch}", is_line=True)
    return [line for line in capsys.readouterr().err.splitlines() if "epoch" in line]


def test_tiny_epochs_write_few_lines_and_the_last_one(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = lines(capsys, monkeypatch, 10_000, 0.001)
    assert found[0].endswith("epoch 1")
    assert found[-1].endswith("150,000 of 150,000, epoch 10000")
    assert 5 <= len(found) <= 12


def test_long_epochs_write_a_line_each(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(lines(capsys, monkeypatch, 20, 4.0)) == 20


def test_the_last_line_is_printed_once_after_an_error_too(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        with progress("training") as report:
            report(1, 3, "epoch 1", is_line=True)
            report(2, 3, "epoch 2", is_line=True)
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert capsys.readouterr().err.count("epoch 2") == 1
