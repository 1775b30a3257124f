"""Every part of `make results` is a target of the Makefile, and a finished part runs once."""

import re
from pathlib import Path

import pytest

from bench import results
from bench.commits import ROOT


def test_each_part_is_made_by_targets_of_the_makefile() -> None:
    rules = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    targets = [it.split()[0] for part in (*results.COUNTED, *results.TIMED) for it in part.targets]
    assert set(targets) <= set(rules)


def test_a_failure_does_not_lose_the_other_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "Makefile").write_text("good:\n\techo x >> runs\nbad:\n\tfalse\n")
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(results, "FOLDER", tmp_path / "build")
    monkeypatch.setattr(results, "commit", lambda: "0123456789")
    monkeypatch.setattr(results, "missing", lambda: iter(["README.md:1: 2"]))
    monkeypatch.setattr(results, "COUNTED", (results.Part("bad", ("bad",), 1),))
    monkeypatch.setattr(results, "TIMED", (results.Part("good", ("good",), 1),))
    assert results.main([]) == results.main([]) == 1
    assert (tmp_path / "runs").read_text() == "x\n"  # the second time only the other part ran
    assert "README.md:1: 2" in capsys.readouterr().out
