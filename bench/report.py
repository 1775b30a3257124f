"""What the benchmarks share: tables as Markdown, and where numbers come from."""

import os
import platform
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; numbers, that is all but the first column, to the right."""
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def about(command: str, *packages: str) -> str:
    """Date, command, processor cores and versions: what a reader needs to judge times."""
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, `{command}`, {os.cpu_count()} cores "
        f"({platform.machine()}), Python {platform.python_version()}, {versions}. One run of each, "
        f"one after the other; load of the machine at the end {os.getloadavg()[1]:.1f}."
    )


def percent(share: float | None, digits: int = 2) -> str:
    return "-" if share is None else f"{100 * share:.{digits}f}"


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
