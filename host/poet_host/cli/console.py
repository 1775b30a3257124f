"""What the command line prints: results on stdout, everything else on stderr."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from .. import api
from ..data.classes import Classes

WIDTH = 110  # of tables where there is no terminal to ask

LINE_EVERY_S = 60.0  # of progress where there is no terminal


class Report(Protocol):
    """Progress so far: done, total (0: not known), and words about it.

    Without a terminal a line is printed where `is_line` asks for it, and once in a minute.
    """

    def __call__(self, done: int, total: int, word: str, is_line: bool = False) -> None: ...


def of_steps(report: Report) -> Callable[[int, int], None]:
    """`report` for what tells only of how many, which are steps."""
    return lambda done, total: report(done, total, "steps")


def _stderr() -> Console:
    # Made anew each time: tests and shells may redirect stderr in between.
    return Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


def say(message: str) -> None:
    """A message for people, on stderr."""
    _stderr().print(escape(message))


def warn(message: str) -> None:
    _stderr().print(f"[yellow]{escape(message)}[/yellow]")


def say_classes(classes: Classes) -> None:
    """Say which number each word of a table has."""
    if classes:
        say(f"classes: {', '.join(f'{i} {name}' for i, name in enumerate(classes))}")


def say_emulated(connection: api.Connection) -> None:
    """Whose times they are, where they are not the board's."""
    if connection.is_emulated:
        say(
            f"QEMU executes the program of {connection.board.name} here: results are the board's, "
            "times are not"
        )


def to_json(value: Mapping[str, Any]) -> str:
    """A line of JSON; a number that JSON cannot hold is a defect and raises."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"


def emit(value: Mapping[str, Any]) -> None:
    """One JSON object on stdout."""
    sys.stdout.write(to_json(value))
    sys.stdout.flush()


def failure(message: str, code: int) -> dict[str, object]:
    """The keys of a JSON object that say why a command failed."""
    return {"error": message, "exit_code": code}


def show_text(text: str) -> None:
    """Plain text on stdout."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """A table on stdout; a column whose name starts with `>` is right-aligned."""
    table = Table(
        title=title or None,
        title_justify="left",
        box=box.SIMPLE,
        show_header=any(name.strip(">") for name in columns),
    )
    for column in columns:
        right = column.startswith(">")
        table.add_column(
            column.removeprefix(">"), justify="right" if right else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    console = Console(highlight=False, file=sys.stdout, emoji=False)
    if not console.is_terminal:
        console.width = WIDTH
    console.print(table)


class _Bar(BarColumn):
    """A bar only where there is an end to go to."""

    def render(self, task: Task) -> Any:
        return Text() if task.total is None else super().render(task)


class _Count(MofNCompleteColumn):
    def render(self, task: Task) -> Text:
        return Text() if task.total is None else super().render(task)


@contextmanager
def progress(title: str) -> Iterator[Report]:
    """A progress bar on stderr if that is a terminal; lines if it is not."""
    console = _stderr()
    if not console.is_terminal:
        say(f"{title} ...")
        yield _lines(title)
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

        def report(done: int, total: int, word: str, is_line: bool = False) -> None:
            bar.update(task, completed=done, total=total or None, word=escape(word))

        yield report


def _lines(title: str) -> Report:
    printed_s = time.monotonic()

    def report(done: int, total: int, word: str, is_line: bool = False) -> None:
        nonlocal printed_s
        if is_line or time.monotonic() - printed_s >= LINE_EVERY_S:
            printed_s = time.monotonic()
            count = f"{done:,} of {total:,}" if total else ""
            say(f"{title}: {', '.join(part for part in (count, word) if part)}")

    return report
