"""The command `compare`: many methods, budgets and deadlines, in parallel, into one table."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from .. import api
from ..baselines.registry import METHODS, SCHEDULERS
from ..compare.sweep import Case, Point, Result, Store, cores, sweep
from ..errors import BadInput
from ..plan.limits import deadline_us, ram_bytes
from ..plan.problem import CostGraph
from . import completion
from .console import emit, progress, say, show_table, show_text
from .options import FiniteRange, json_option, model_options, profile_of
from .solve import time_limit_option


def _listed(text: str | Sequence[str]) -> list[str]:
    """Words separated by commas, each once; of several options too."""
    texts = [text] if isinstance(text, str) else text
    words = (word.strip() for one in texts for word in one.split(","))
    return list(dict.fromkeys(word for word in words if word))


EPILOG = "\b\nMethods:\n" + "\n".join(
    f"  {row.name:<15} {row.description} [{row.citation}]" for row in SCHEDULERS.values()
)


@click.command(epilog=EPILOG)
@click.argument(
    "models", metavar="MODEL...", nargs=-1, required=True, shell_complete=completion.models
)
@click.option(
    "--board", "boards", multiple=True, metavar="LIST", help="Boards, separated by commas."
)
@click.option(
    "--profile", "profiles", multiple=True, metavar="LIST",
    help="`estimate` (the default), `paper` (the POET paper's figures for the boards), or files "
    "that `profile` measured.",
)  # fmt: skip
@click.option(
    "--budgets", default="100%,75%,50%,40%,30%", show_default=True, metavar="LIST",
    help="RAM budgets, as --ram of `solve`.",
)  # fmt: skip
@click.option(
    "--deadlines", default="none", show_default=True, metavar="LIST",
    help="Deadlines, as --deadline of `solve`.",
)  # fmt: skip
@click.option(
    "--methods", default=",".join(METHODS), show_default=True, metavar="LIST",
    help="Methods; see below.",
)  # fmt: skip
@time_limit_option
@click.option(
    "--gap", type=FiniteRange(0, 1), default=0.0, show_default=True, metavar="G",
    help="Stop each when its energy is proved to be within this share of the least; 0: a proof.",
)  # fmt: skip
@click.option(
    "--output", "-o", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="Keep the table and the plans in this folder; what is there is not solved again.",
)  # fmt: skip
@click.option(
    "--jobs", "-j", type=click.IntRange(1), default=cores, metavar="N",
    help="Points solved at the same time (default: one per processor).",
)  # fmt: skip
@model_options
@json_option
def compare(
    models: tuple[str, ...],
    boards: tuple[str, ...],
    profiles: tuple[str, ...],
    budgets: str,
    deadlines: str,
    methods: str,
    time_limit: float,
    gap: float,
    output: Path | None,
    jobs: int,
    as_json: bool,
    **options: Any,
) -> None:
    """Solve each MODEL by several methods within several budgets, and compare.

    Models are built-in, .onnx files or cost graphs. The table has one row a point, with the path
    of its plan, verified. Interrupted, the same command goes on where it was.
    """
    wanted = _methods(methods)
    limits = _words(budgets, "--budgets"), _words(deadlines, "--deadlines")
    cases = list(_cases(models, _listed(boards), _listed(profiles), options))
    points = [
        Point(case, method, ram, limit, time_limit, gap)
        for case in cases
        for ram, limit in _limits(case, *limits)
        for method in wanted
    ]
    with _store(output) as store:
        results = _swept(points, store, jobs, output)
        found = list(zip(points, results, strict=True))
    if as_json:
        emit({"points": [one.row for one in results]})
        return
    _show(found)


def _methods(text: str) -> list[str]:
    names = _words(text, "--methods")
    unknown = [name for name in names if name not in METHODS]
    if unknown:
        raise BadInput(f"there is no method {unknown[0]}: choose of {', '.join(METHODS)}")
    return names


def _words(text: str, option: str) -> list[str]:
    words = _listed(text)
    if not words:
        raise BadInput(f"{option} {text!r}: name at least one")
    return words


def _cases(
    models: Sequence[str], boards: list[str], profiles: list[str], options: dict[str, Any]
) -> Iterator[Case]:
    """Every model on every board with every profile."""
    if boards and profiles and not {"estimate", "paper"} & set(profiles):
        raise BadInput("profiles that were measured name their board: leave out --board")
    for model in dict.fromkeys(models):
        graph = api.load(model, **options)
        if isinstance(graph, CostGraph):
            if boards or profiles:
                raise BadInput(f"{model} has its costs: leave out --board and --profile")
            yield Case(graph.name, "", "", graph)
            continue
        for name in profiles or ["estimate"]:
            of_a_board = name in ("estimate", "paper")
            named: Sequence[str | None] = boards if of_a_board and boards else [None]
            for board in named:
                profile = profile_of(board, name)
                yield Case(graph.name, profile.board, _word(name), api.costs_of(graph, profile))


def _word(profile: str) -> str:
    """How the table names a profile."""
    return profile if profile in ("estimate", "paper") else Path(profile).stem


def _limits(case: Case, budgets: list[str], deadlines: list[str]) -> list[tuple[int, float | None]]:
    keep = case.keeping
    rams = [ram_bytes(one, keep.peak_bytes if keep else None) for one in budgets]
    times = [deadline_us(one, keep.time_us if keep else None) for one in deadlines]
    return [(ram, limit) for limit in dict.fromkeys(times) for ram in dict.fromkeys(rams)]


@contextmanager
def _store(output: Path | None) -> Iterator[Store]:
    if output is not None:
        try:
            store = Store(output)
        except OSError as error:
            raise BadInput(
                f"{error.filename} cannot be made ({(error.strerror or str(error)).lower()}): "
                "-o names a folder that you may write to"
            ) from error
        yield store
        return
    with TemporaryDirectory(prefix="poet-compare-") as folder:
        yield Store(Path(folder))


def _swept(points: list[Point], store: Store, jobs: int, output: Path | None) -> list[Result]:
    """Results; the table of everything finished is written however this ends."""
    try:
        with progress(f"comparing {len(points)} points") as report:
            return sweep(points, store, jobs=jobs, progress=report)
    finally:
        rows = store.write_table()
        if output:
            say(f"{len(rows)} finished points are in {output}/table.csv and table.json")


def _show(found: list[tuple[Point, Result]]) -> None:
    """A table for each model and board."""
    columns = (
        "method", ">bytes", ">deadline, ms", "status", ">energy, uJ", ">x", ">time, ms", ">peak",
    )  # fmt: skip
    by_case: dict[str, list[tuple[str, ...]]] = {}
    for point, result in found:
        case = point.case
        title = " ".join(part for part in (case.model, case.board, case.profile) if part)
        by_case.setdefault(title, []).append(_row(point, result))
    for title, rows in by_case.items():
        show_table(columns, rows, title=title)
    for note, names in _notes(found).items():
        show_text(f"{note}: {', '.join(names)}")


def _notes(found: list[tuple[Point, Result]]) -> dict[str, list[str]]:
    """What was done beyond methods (`*`), and why there is no plan, with the methods."""
    notes: dict[str, dict[str, None]] = {}
    for point, result in found:
        mark = "* " if result.row["plan"] else ""
        for note in (result.row["note"] or "").split("; "):
            if note:
                notes.setdefault(mark + note, {})[point.method] = None
    return {note: list(names) for note, names in notes.items()}


def _row(point: Point, result: Result) -> tuple[str, ...]:
    row = result.row

    def shown(key: str, scale: float = 1.0) -> str:
        """Six digits, or all before the point."""
        if row[key] is None:
            return ""
        number = row[key] if scale == 1.0 else row[key] / scale
        whole = isinstance(number, int) or number >= 1e5
        return f"{number:,.0f}" if whole else f"{number:,.{6 - len(str(int(number)))}f}"

    keep = point.case.keeping
    ratio = ""
    if row["energy_uj"] is not None and keep is not None and keep.energy_uj:
        ratio = f"{row['energy_uj'] / keep.energy_uj:.2f}"
    status = row["status"] + (" *" if row["plan"] and row["note"] else "")
    return (
        point.method, f"{point.ram_bytes:,}", shown("deadline_us", 1e3), status,
        shown("energy_uj"), ratio, shown("time_us", 1e3), shown("peak_bytes"),
    )  # fmt: skip
