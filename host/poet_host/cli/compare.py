"""The command `compare`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import gettempdir

import click

from .. import api
from ..baselines.registry import METHODS, SCHEDULERS
from ..compare.sweep import Case, Point, Result, Store, cores, sweep
from ..errors import BadInput
from ..plan.limits import deadline_us, ram_bytes
from ..temporary import temporary_folder
from . import completion
from .console import emit, progress, say, show_table, show_text
from .declared import argument, option, takes
from .options import JSON, FiniteRange, ModelOptions, SearchOptions, WholeRange, profile_of

EPILOG = "\b\nMethods:\n" + "\n".join(
    f"  {row.name:<15} {row.description} [{row.citation}]" for row in SCHEDULERS.values()
)


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """The options of `compare`."""

    models: tuple[str, ...] = argument(
        metavar="MODEL...", nargs=-1, required=True, shell_complete=completion.models
    )  # fmt: skip
    boards: tuple[str, ...] = option(
        "--board", multiple=True, metavar="LIST", show_default="the boards of --profile",
        help="Plan for these boards, separated by commas.",
    )  # fmt: skip
    profiles: tuple[str, ...] = option(
        "--profile", multiple=True, metavar="LIST", show_default="estimate",
        help="Sources of the costs, separated by commas: `estimate` (the description of each "
        "board), `paper` (the figures of the POET paper) or a file that `poet-host profile` wrote.",
    )  # fmt: skip
    budgets: str = option(
        default="100%,75%,50%,40%,30%", show_default=True, metavar="LIST",
        help="RAM budgets, separated by commas: bytes, a size such as 24KiB, or a share such as "
        "50%. 100% is the RAM that a training step needs if every tensor stays in RAM.",
    )  # fmt: skip
    deadlines: str = option(
        default="none", show_default=True, metavar="LIST",
        help="Deadlines of a training step, separated by commas: milliseconds, a multiple such as "
        "1.2x, or none. 1x is the time that the step takes if every tensor stays in RAM.",
    )  # fmt: skip
    methods: str = option(
        default=",".join(METHODS), show_default="all", metavar="LIST",
        help="Planning methods, separated by commas. The list below describes them.",
    )  # fmt: skip
    search: SearchOptions
    gap: float = option(
        type=FiniteRange(0, 1), default=0.0, show_default=True, metavar="G",
        help="Stop each search when it is proved that any other plan saves at most this share of "
        "what the best plan found so far needs (0.01 = 1 %). With 0, it must be proved that no "
        "plan is better.",
    )  # fmt: skip
    output: Path | None = option(
        "--output", "-o", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
        show_default="not written",
        help="Write the table and the plans to this folder. Rows of the table that are already in "
        "the folder are not solved again.",
    )  # fmt: skip
    jobs: int = option(
        "--jobs", "-j", type=WholeRange(1), default=cores, metavar="N",
        show_default="the number of processors",
        help="Number of plans to solve in parallel.",
    )  # fmt: skip
    model: ModelOptions
    as_json: bool = JSON


@click.command(epilog=EPILOG)
@takes
def compare(given: CompareOptions) -> None:
    """Compare planning methods at several RAM budgets and deadlines.

    MODEL is a built-in model, an .onnx file or a cost graph. Each combination of model, board,
    profile, method, budget and deadline is a point, and has a row in the table. All plans are
    verified. If a comparison with --output is interrupted, the same command continues it.
    """
    chosen = _methods(given.methods)
    limits = _some_words(given.budgets, "--budgets"), _some_words(given.deadlines, "--deadlines")
    settings = list(
        _settings(given.models, _words(*given.boards), _words(*given.profiles), given.model)
    )
    limit_s, counted = given.search.limit()
    with progress("pricing operators"):
        points = [
            Point(case, method, ram, limit, limit_s, given.gap, given.search.objective, counted)
            for setting in settings
            for ram, limit in _limits(setting.case, *limits)
            for method in chosen
            for case in [setting.streaming(ram) if api.uses_modes(method) else setting.case]
        ]
    with _store(given.output) as store:
        results = _swept(points, store, given.jobs, given.output)
        found = list(zip(points, results, strict=True))
    if given.as_json:
        emit({"points": [result.row for result in results]})
        return
    _show(found)


def _methods(text: str) -> list[str]:
    names = _some_words(text, "--methods")
    unknown = [name for name in names if name not in METHODS]
    if unknown:
        raise BadInput(f"unknown method {unknown[0]}: choose from {', '.join(METHODS)}")
    return names


def _words(*lists: str) -> list[str]:
    words = (word.strip() for text in lists for word in text.split(","))
    return list(dict.fromkeys(word for word in words if word))


def _some_words(text: str, option: str) -> list[str]:
    words = _words(text)
    if not words:
        raise BadInput(f"{option} {text!r} has no value: write at least one value")
    return words


class _Setting:
    """A case, and the same case with operators that stream, for each RAM budget."""

    def __init__(
        self, case: Case, graph: api.Graph | api.CostGraph, profile: api.Profile | None
    ) -> None:
        self.case, self.graph, self.profile = case, graph, profile
        self.streaming = cache(self._streaming)

    def _streaming(self, ram_bytes: int) -> Case:
        """Return the case with the modes of streaming; without them if every operator fits."""
        wanted = api.problem(self.graph, self.profile, ram=ram_bytes)
        if wanted.streaming is None:
            return self.case
        return replace(self.case, costs=wanted.graph, whole_costs=self.case.costs)


def _settings(
    models: Sequence[str], boards: list[str], profiles: list[str], options: ModelOptions
) -> Iterator[_Setting]:
    if boards and profiles and not {"estimate", "paper"} & set(profiles):
        raise BadInput("each measured profile already names its board: omit --board")
    for model in dict.fromkeys(models):
        graph = api.load(model, **vars(options))
        if isinstance(graph, api.CostGraph):
            if boards or profiles:
                raise BadInput(
                    f"{model} is a cost graph with its own costs: omit --board and --profile"
                )
            yield _Setting(Case(graph.name, "", "", graph), graph, None)
            continue
        for name in profiles or ["estimate"]:
            is_measured = name not in ("estimate", "paper")
            named: Sequence[str | None] = [None] if is_measured or not boards else boards
            title = Path(name).stem if is_measured else name
            for board in named:
                profile = profile_of(board, name)
                case = Case(graph.name, profile.board, title, api.costs_of(graph, profile))
                yield _Setting(case, graph, profile)


def _limits(case: Case, budgets: list[str], deadlines: list[str]) -> list[tuple[int, float | None]]:
    keep = case.keeping
    rams = [ram_bytes(text, keep.peak_bytes if keep else None) for text in budgets]
    times = [deadline_us(text, keep.time_us if keep else None) for text in deadlines]
    return [(ram, limit) for limit in dict.fromkeys(times) for ram in dict.fromkeys(rams)]


@contextmanager
def _store(output: Path | None) -> Iterator[Store]:
    if output is not None:
        try:
            store = Store(output)
        except OSError as error:
            raise BadInput(
                f"-o: {error.filename} cannot be created ({error.strerror or error}). Name a "
                "folder that you can write to"
            ) from error
        yield store
        return
    with temporary_folder(Path(gettempdir()), "poet-compare-") as folder:
        yield Store(folder)


def _swept(points: list[Point], store: Store, jobs: int, output: Path | None) -> list[Result]:
    """Make a plan for each point. Write a table of the finished points, even after an error.

    A point is a model with its costs, a method, and the limits of RAM and time.
    """
    try:
        with progress(f"comparing {len(points):,} points") as report:
            return sweep(points, store, jobs=jobs, progress=report)
    finally:
        rows = store.write_table()
        if output:
            say(f"wrote {len(rows):,} finished points to {output}/table.csv and table.json")


def _show(found: list[tuple[Point, Result]]) -> None:
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
    """Return a map from each note to the names of the methods that have this note.

    The note of a plan begins with `*`, and states how the method was changed to make the plan. Any
    other note states why the method found no plan.
    """
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
        """Return a value as text; "" for None.

        Integers and values of 100,000 or more have no decimals. Others have six significant digits.
        """
        if row[key] is None:
            return ""
        number = row[key] if scale == 1.0 else row[key] / scale
        whole = isinstance(number, int) or number >= 1e5
        return f"{number:,.0f}" if whole else f"{number:,.{6 - len(str(int(number)))}f}"

    keep = point.case.keeping
    energy = "energy_uj" if point.objective == "added-energy" else "total_energy_uj"
    kept_uj = getattr(keep, energy) if keep else None
    ratio = f"{row[energy] / kept_uj:.2f}" if row[energy] is not None and kept_uj else ""
    status = row["status"] + (" *" if row["plan"] and row["note"] else "")
    return (
        point.method, f"{point.ram_bytes:,}", shown("deadline_us", 1e3), status,
        shown(energy), ratio, shown("time_us", 1e3), shown("peak_bytes"),
    )  # fmt: skip
