"""Shared by the benchmarks: tables as Markdown, numbers as text, and how they were measured."""

import os
import platform
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version

from .commits import ROOT, git


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, words: bool = False) -> str:
    """A Markdown table. Columns after the first are right-aligned numbers, unless `words`."""
    lines = [head, ["---", *("---" if words else "---:" for _ in head[1:])], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def about(command: str, *packages: str) -> str:
    """Date, command, processor cores and versions: what a reader needs to judge times."""
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, `{command}`, {os.cpu_count()} cores "
        f"({platform.machine()}), Python {platform.python_version()}, {versions}. One run of each, "
        f"one after the other; load of the machine at the end {os.getloadavg()[1]:.1f}."
    )


def commit() -> str:
    """The short name of the commit that is checked out, with -dirty after it if files differ."""
    found = git(ROOT, "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*")
    return found or "unknown"


def percent(share: float | None, digits: int = 2) -> str:
    return "-" if share is None else f"{round(100 * share, digits) + 0.0:.{digits}f}"  # not -0.0


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
