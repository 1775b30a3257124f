"""Shared by the benchmarks: tables as Markdown, numbers as text, and how they were measured."""

import os
import platform
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from poet_host.files import read_text

from .commits import commit

TEMPLATES = Path(__file__).with_name("templates")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, words: bool = False) -> str:
    """A Markdown table. Columns after the first are right-aligned numbers, unless `words`."""
    lines = [head, ["---", *("---" if words else "---:" for _ in head[1:])], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def command() -> str:
    """The command line of this process."""
    return " ".join(["python", *sys.orig_argv[1:]])


def about(*packages: str) -> str:
    """Commit, date, command, processor cores and versions: what a reader needs to judge times."""
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return (
        f"Commit {commit()}. {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, `{command()}`, "
        f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, "
        f"{versions}. One run of each, one after the other; load of the machine at the end "
        f"{os.getloadavg()[1]:.1f}."
    )


def filled(name: str, **values: object) -> str:
    """A report: the paragraphs of a template with these values, without those that become empty."""
    paragraphs = read_text(TEMPLATES / f"{name}.md").strip().split("\n\n")
    parts = (paragraph.replace("\n", " ").format(**values) for paragraph in paragraphs)
    return "\n\n".join(filter(None, parts)) + "\n"


def percent(share: float | None, digits: int = 2) -> str:
    return "-" if share is None else f"{round(100 * share, digits) + 0.0:.{digits}f}"  # not -0.0


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
