"""The output of the command line: results on stdout, everything else on stderr."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from ..errors import PoetError
from ..run.session import Report

TABLE_WIDTH = 110  # width of a table in characters, if stdout is not a terminal
# Shortest times between two progress lines, if stderr is not a terminal: of ordinary reports, and
# of reports that ask for a line.
PROGRESS_LINE_S, ASKED_LINE_S = 60.0, 1.0


def _stderr() -> Console:
    # Make a new console for each message, because stderr may be redirected between messages.
    return Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


def say(message: str) -> None:
    _stderr().print(escape(message))


def say_classes(classes: Sequence[str]) -> None:
    if classes:
        say(f"classes: {', '.join(f'{i} {name}' for i, name in enumerate(classes))}")


def emit(value: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout. Raises ValueError for nan and infinity."""
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")  # ASCII, which each stream encodes
    sys.stdout.flush()


@dataclass(frozen=True)
class Answer:
    """What a command prints at its end."""

    facts: Mapping[str, Any]  # with --json
    show: Callable[[], object] = lambda: None  # prints the same for people
    error: str = ""  # why the command fails after its work
    code: int = 0  # exit code without an error

    def give(self, as_json: bool) -> int:
        """Print the answer, and return the exit code."""
        code = PoetError.exit_code if self.error else self.code
        if as_json:
            emit({**self.facts, **(failure(self.error, code) if self.error else {})})
        else:
            self.show()
        if self.error:
            say(f"poet-host: {self.error}")
        return code


def failure(message: str, code: int) -> dict[str, object]:
    """Return the keys that a failed command adds to its JSON object."""
    return {"error": message, "exit_code": code}


def show_text(text: str) -> None:
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Print a table on stdout. Columns whose name starts with `>` are right-aligned."""
    table = Table(
        title=title or None,
        title_justify="left",
        box=box.SIMPLE,
        show_header=any(name.strip(">") for name in columns),
    )
    for column in columns:
        right = column.startswith(">")
        table.add_column(
            escape(column.removeprefix(">")), justify="right" if right else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    console = Console(highlight=False, file=sys.stdout, emoji=False)
    if not console.is_terminal:
        console.width = TABLE_WIDTH
    console.print(table)


class _IfKnown(ProgressColumn):
    """A column that is shown only if the total is known."""

    def render(self, task: Task) -> Any:
        return Text() if task.total is None else super().render(task)  # type: ignore[safe-super]


class _Bar(_IfKnown, BarColumn):
    pass


class _Count(_IfKnown, MofNCompleteColumn):
    pass


@contextmanager
def progress(title: str, what: str = "") -> Iterator[Report]:
    """Show a progress bar on stderr, or progress lines if stderr can show no bar.

    `what` is the text of a report that has none.
    """
    console = _stderr()
    if not console.is_interactive:
        lines = _Lines(title, what)
        try:
            yield lines
        finally:
            lines.print_last()
        return
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        _Bar(bar_width=12),
        _Count(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[word]}"),
        console=console,
    ) as bar:
        task = bar.add_task(escape(title), total=None, word="")

        def report(done: int, total: int, word: str = what, is_line: bool = False) -> None:
            bar.update(task, completed=done, total=total or None, word=escape(word))

        yield report


class _Lines:
    """Progress lines on stderr: see Report."""

    def __init__(self, title: str, what: str) -> None:
        say(f"{title} ...")
        self._title, self._what, self._printed_s = title, what, time.monotonic()
        self._is_asked = False  # whether a line was asked for
        self._last = ""  # the last line that was asked for and is not printed; "": none

    def __call__(self, done: int, total: int, word: str = "", is_line: bool = False) -> None:
        count = f"{done:,} of {total:,}" if total else ""
        line = f"{self._title}: {', '.join(part for part in (count, word or self._what) if part)}"
        passed_s = time.monotonic() - self._printed_s
        is_first = is_line and not self._is_asked
        self._is_asked |= is_line
        if is_first or passed_s >= (ASKED_LINE_S if is_line else PROGRESS_LINE_S):
            self._printed_s, self._last = time.monotonic(), ""
            say(line)
        elif is_line:
            self._last = line

    def print_last(self) -> None:
        if self._last:
            say(self._last)
