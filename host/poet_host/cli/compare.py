"""The command `compare`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import click

from .. import api
from ..baselines.registry import SCHEDULERS
from ..errors import BadInput
from . import completion
from .console import Answer, progress, say, show_table, show_text
from .declared import FiniteRange, argument, option, takes
from .options import ModelOptions, SearchOptions, profile_of

EPILOG = "\b\nMethods:\n" + "\n".join(
    f"  {row.name:<15} {row.description} [{row.citation}]" for row in SCHEDULERS.values()
)


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """The options of the command.

    --board LIST  Plan for these boards, separated by commas. [default: the boards of --profile]
    --profile LIST  Sources of the costs, separated by commas: `estimate` (the description of each
        board), `paper` (the figures of the POET paper) or a file that `poet-host profile` wrote.
        [default: estimate]
    --budgets LIST  RAM budgets, separated by commas: bytes, a size such as 24KiB, or a share such
        as 50%. 100% is the RAM that a training step needs if every tensor stays in RAM.
    --deadlines LIST  Deadlines of a training step, separated by commas: milliseconds, a multiple
        such as 1.2x, or none. 1x is the time that the step takes if every tensor stays in RAM.
    --methods LIST  Planning methods, separated by commas. The list below describes them. [default:
        all]
    --gap G  Stop each search when it is proved that any other plan saves at most this share of what
        the best plan found so far needs (0.01 = 1 %). With 0, it must be proved that no plan is
        better.
    --output, -o DIR  Write the table and the plans to this folder. Rows of the table that are
        already in the folder are not solved again. [default: not written]
    --jobs, -j N  Number of plans to solve in parallel. [default: the number of processors]
    --scheduler ADDRESS  Solve on the Dask cluster whose scheduler is at this address, such as
        tcp://192.168.1.7:8786. Its workers need the same version of poet-host, and a C compiler if
        this computer has one. [default: this computer]
    """

    models: tuple[str, ...] = argument(
        metavar="MODEL...", nargs=-1, required=True, shell_complete=completion.models
    )
    boards: tuple[str, ...] = option("--board")
    profiles: tuple[str, ...] = option("--profile")
    budgets: str = "100%,75%,50%,40%,30%"
    deadlines: str = "none"
    methods: str = ",".join(SCHEDULERS)
    search: SearchOptions
    gap: float = option(type=FiniteRange(0, 1), default=0.0)
    output: Path | None = option(type=click.Path(file_okay=False, path_type=Path))
    jobs: int | None = None
    scheduler: str | None = None
    model: ModelOptions


@click.command(epilog=EPILOG)
@takes
def compare(given: CompareOptions) -> Answer:
    """Compare planning methods at several RAM budgets and deadlines.

    MODEL is a built-in model, an .onnx file or a cost graph. Each combination of model, board,
    profile, method, budget and deadline is a point, and has a row in the table. All plans are
    verified. If a comparison with --output is interrupted, the same command continues it.
    """
    if given.scheduler and given.jobs:
        raise BadInput("the workers of --scheduler solve the points: omit --jobs")
    methods = _methods(given.methods)
    limits = _some_words(given.budgets, "--budgets"), _some_words(given.deadlines, "--deadlines")
    cases = [*_cases(given.models, _words(*given.boards), _words(*given.profiles), given.model)]
    limit_s = given.search.limit_s()
    with progress("pricing operators"):
        points = [
            _Point(costs, method, streaming() if api.uses_modes(method) else whole, whole)
            for graph, profile, costs in cases
            for whole, streaming in _problems(graph, profile, *limits, given.search)
            for method in methods
        ]
    with (
        api.cluster(given.scheduler) if given.scheduler else nullcontext() as pool,
        progress(f"comparing {len(points):,} points") as report,
    ):
        rows = api.compare_methods(
            [(point.problem, point.method, point.costs) for point in points],
            time_limit_s=limit_s, work_limit=given.search.work_limit, gap=given.gap,
            folder=given.output, jobs=given.jobs, pool=pool, progress=report, report=say,
        )  # fmt: skip
    return Answer({"points": rows}, lambda: _show([*zip(points, rows, strict=True)]))


@dataclass(frozen=True)
class _Point:
    costs: str  # name of the profile; empty if the graph has its own costs
    method: str
    problem: api.Problem
    whole: api.Problem  # the same without operators that stream


def _methods(text: str) -> list[str]:
    names = _some_words(text, "--methods")
    unknown = [name for name in names if name not in SCHEDULERS]
    if unknown:
        raise BadInput(f"unknown method {unknown[0]}: choose from {', '.join(SCHEDULERS)}")
    return names


def _words(*lists: str) -> list[str]:
    words = (word.strip() for text in lists for word in text.split(","))
    return list(dict.fromkeys(word for word in words if word))


def _some_words(text: str, option: str) -> list[str]:
    words = _words(text)
    if not words:
        raise BadInput(f"{option} {text!r} has no value: write at least one value")
    return words


def _cases(
    models: Sequence[str], boards: list[str], profiles: list[str], options: ModelOptions
) -> Iterator[tuple[api.Graph | api.CostGraph, api.Profile | None, str]]:
    """Yield each model with each profile and the name of its costs."""
    if boards and profiles and not {"estimate", "paper"} & set(profiles):
        raise BadInput("each measured profile already names its board: omit --board")
    stems = [Path(name).stem for name in dict.fromkeys(profiles)]
    for model in dict.fromkeys(models):
        graph = api.load(model, **vars(options))
        if isinstance(graph, api.CostGraph):
            if boards or profiles:
                raise BadInput(
                    f"{model} is a cost graph with its own costs: omit --board and --profile"
                )
            yield graph, None, ""
            continue
        for name in profiles or ["estimate"]:
            is_measured = name not in ("estimate", "paper")
            named: Sequence[str | None] = [None] if is_measured or not boards else boards
            stem = Path(name).stem
            shown = stem if is_measured and stems.count(stem) == 1 else name
            for board in named:
                yield graph, profile_of(board, name), shown


def _problems(
    graph: api.Graph | api.CostGraph,
    profile: api.Profile | None,
    rams: Sequence[str],
    deadlines: Sequence[str],
    search: SearchOptions,
) -> Iterator[tuple[api.Problem, Callable[[], api.Problem]]]:
    """Yield the problem of each pair of limits, and a function that lets its operators stream."""
    costs = api.costs_of(graph, profile)
    priced = cache(lambda ram_bytes: api.problem(graph, profile, ram=ram_bytes))
    found = [
        api.problem(costs, ram=ram, deadline=limit, objective=search.objective)
        for limit in deadlines
        for ram in rams
    ]
    for whole in {(it.ram_bytes, it.deadline_us): it for it in found}.values():
        whole = replace(whole, profile=profile)

        def streaming(whole: api.Problem = whole) -> api.Problem:
            wanted = priced(whole.ram_bytes)
            return whole if wanted.streaming is None else replace(whole, graph=wanted.graph)

        yield whole, streaming


def _show(found: list[tuple[_Point, dict[str, Any]]]) -> None:
    columns = (
        "method", ">bytes", ">deadline, ms", "status", ">energy, uJ", ">x", ">time, ms", ">peak",
    )  # fmt: skip
    by_case: dict[str, list[tuple[str, ...]]] = {}
    for point, row in found:
        title = " ".join(row[key] for key in ("model", "board", "profile") if row[key])
        by_case.setdefault(title, []).append(_cells(point, row))
    for title, rows in by_case.items():
        show_table(columns, rows, title=title)
    for note, names in _notes(row for _, row in found).items():
        show_text(f"{note}: {', '.join(names)}")


def _notes(rows: Iterable[dict[str, Any]]) -> dict[str, list[str]]:
    """Return a map from each note to the names of the methods that have this note.

    The note of a plan begins with `*`, and states how the method was changed to make the plan. Any
    other note states why the method found no plan.
    """
    notes: dict[str, dict[str, None]] = {}
    for row in rows:
        mark = "* " if row["plan"] else ""
        for note in (row["note"] or "").split("; "):
            if note:
                notes.setdefault(mark + note, {})[row["method"]] = None
    return {note: list(names) for note, names in notes.items()}


def _cells(point: _Point, row: dict[str, Any]) -> tuple[str, ...]:
    def shown(key: str, scale: float = 1.0) -> str:
        """Return a value as text; "" for None.

        Integers and values of 100,000 or more have no decimals. Others have six significant digits.
        """
        if row[key] is None:
            return ""
        number = row[key] if scale == 1.0 else row[key] / scale
        whole = isinstance(number, int) or number >= 1e5
        return f"{number:,.0f}" if whole else f"{number:,.{6 - len(str(int(number)))}f}"

    keep = point.whole.keep_everything
    energy = "energy_uj" if row["objective"] == "added-energy" else "total_energy_uj"
    kept_uj = getattr(keep, energy) if keep else None
    ratio = f"{row[energy] / kept_uj:.2f}" if row[energy] is not None and kept_uj else ""
    status = row["status"] + (" *" if row["plan"] and row["note"] else "")
    return (
        row["method"], f"{row['ram_bytes']:,}", shown("deadline_us", 1e3), status,
        shown(energy), ratio, shown("time_us", 1e3), shown("peak_bytes"),
    )  # fmt: skip
