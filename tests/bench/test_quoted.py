"""Figures of the documents that the results no longer have are listed."""

import subprocess
from pathlib import Path

from bench.quoted import missing


def test_a_figure_that_changed_is_listed_where_it_is_quoted(tmp_path: Path) -> None:
    page, report = tmp_path / "bench/RESULTS-speed.md", tmp_path / "schedules/paper/REPORT.md"
    for path, text in (
        (page, "| step | 275.54 |\n| peak | 24,528 |\n| gap | 0.13 |\n"),
        (report, "None.\n"),
        (tmp_path / "docs/size.md", "A plan has 24,528 bytes.\n\nNot a result: 1,275.\n"),
        (tmp_path / "README.md", "Fast.\n\nA step takes\n276 s ([see](bench/RESULTS-speed.md)).\n"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for command in ("init -q", "add -A", "-c user.name=a -c user.email=a@b commit -qm first"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    assert list(missing(root=tmp_path)) == []
    page.write_text("| step | 275.4 |\n| peak | 24,530 |\n")
    listed = [line.rsplit(":", 1)[0] for line in missing(root=tmp_path)]
    assert listed == ["README.md:4: 276", "docs/size.md:1: 24,528"]
