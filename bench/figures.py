"""Figures of a sweep: `python -m bench.figures DIR`, where DIR is a folder of `compare -o DIR`.

Writes DIR/figures and DIR/methods.md. One colour, marker and line per method, legible in grey.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from poet_host.compare.sweep import Case, Point, Result, file_name, slug
from poet_host.errors import BadInput, PoetError
from poet_host.files import read_json, write_whole
from poet_host.plan.costgraph import load_cost_graph
from poet_host.plan.infeasible import largest_operator_bytes
from poet_host.plan.plan import objective_value, plan_from_json
from poet_host.plan.problem import DEFAULT_OBJECTIVE
from poet_host.view.picture import draw_plan

from .methods import PROPERTIES, properties
from .report import table

Axes = Any
Found = tuple[Point, Result]


@dataclass(frozen=True)
class Style:
    colour: str
    marker: str
    line: str


STYLES: dict[str, Style] = {
    "poet": Style("#000000", "o", "-"),
    "poet-paging": Style("#0072b2", "s", "--"),
    "poet-remat": Style("#d55e00", "^", "--"),
    "checkpoint-all": Style("#8c8c8c", "X", ":"),
    "chen-sqrt": Style("#56b4e9", "v", ":"),
    "chen-greedy": Style("#009e73", "D", ":"),
    "griewank": Style("#e69f00", "P", ":"),
    "checkmate": Style("#cc79a7", "<", "-."),
    "dtr": Style("#7b3294", "*", "-."),
    "dtr-eq": Style("#c2a5cf", "p", "-."),
    "capuchin": Style("#a6611a", "h", "-."),
    "pofo": Style("#1b7837", ">", "-."),
}


def figures(found: Sequence[Found]) -> dict[str, bytes]:
    """All figures that the results allow, as PNG by file name. Boards are side by side.

    Raises BadInput if matplotlib is missing.
    """
    files: dict[str, bytes] = {}
    for group in grouped(found, lambda p: (_family(p.case), _limit(p), p.objective)):
        if any(len(_rams(panel)) > 1 for panel in _panels(group)):
            files[f"energy-{_family(group[0][0].case)}{_tag(group[0][0])}.png"] = energy(group)
    for group in grouped(found, lambda p: (slug(p.case), _limit(p), p.objective)):
        for other in ("capuchin", "pofo"):
            methods = {p.method for p, _ in group}
            if len(_rams(group)) > 1 and {"poet", other} <= methods:
                name = f"poet-{other}-{slug(group[0][0].case)}{_tag(group[0][0])}.png"
                files[name] = pair(group, other)
    for group in grouped(found, lambda p: (_family(p.case), p.ram_bytes, p.objective)):
        if any(len(_limits(panel)) > 1 for panel in _panels(group)):
            point = group[0][0]
            name = f"deadline-{_family(point.case)}-{point.ram_bytes}{_objective_tag(point)}.png"
            files[name] = deadlines(group)
    for group in grouped(found, lambda p: slug(p.case)):
        drawn = timeline(group)
        if drawn is not None:
            files[f"timeline-{slug(group[0][0].case)}.png"] = drawn
    if found:
        files["methods.png"] = _properties_figure(found)
    return files


def grouped(found: Sequence[Found], key: Callable[[Point], Any]) -> list[list[Found]]:
    groups: dict[Any, list[Found]] = {}
    for point, result in found:
        groups.setdefault(key(point), []).append((point, result))
    return list(groups.values())


def _rams(found: Sequence[Found]) -> set[int]:
    return {p.ram_bytes for p, _ in found}


def _limits(found: Sequence[Found]) -> set[float | None]:
    return {p.deadline_us for p, _ in found}


def _panels(found: Sequence[Found]) -> list[list[Found]]:
    """The points of each board."""
    return grouped(found, lambda p: p.case.digest)


def joined(*parts: str, by: str) -> str:
    return by.join(part for part in parts if part)


def _family(case: Case) -> str:
    """The name of the cases whose panels are in one figure."""
    return file_name(case.model, case.profile)


def _times(point: Point) -> float | None:
    """The deadline as a multiple of keep-everything's time; None if that is unknown or 0."""
    keeping = point.case.keeping
    if point.deadline_us is None or keeping is None or not keeping.time_us:
        return None
    return point.deadline_us / keeping.time_us


def _tag(point: Point) -> str:
    """The part of a file's name that says the deadline, and the objective if it is not usual."""
    limit = "" if point.deadline_us is None else "-" + _limit(point).split()[1]
    return limit + _objective_tag(point)


def _objective_tag(point: Point) -> str:
    return "" if point.objective == DEFAULT_OBJECTIVE else f"-{point.objective}"


def _title(case: Case, *more: str, above: str = "") -> str:
    """The title of a panel, in two lines with `above`."""
    names = joined(case.model, case.board, case.profile, by=", ")
    if not above:
        return joined(names, *more, by=", ")
    return names + "\n" + joined(*more, above, by="; ")


def _limit(point: Point) -> str:
    if point.deadline_us is None:
        return "no deadline"
    times = _times(point)
    if times is None:
        return f"deadline {point.deadline_us / 1e3:.6g}ms"
    return f"deadline {times:.5g}x"


def new_figure(panels: int, columns: int, width: float, height: float) -> tuple[Any, list[Axes]]:
    """A figure with `panels` axes in rows of `columns`. The size is that of a panel, in inches."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BadInput("figures need matplotlib: try `pip install 'poet-host[plot]'`") from error
    columns = min(columns, panels)
    rows = -(-panels // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in axes[panels:]:
        unused.axis("off")
    return figure, axes[:panels]


def as_png(figure: Any) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=120, bbox_inches="tight")
    return buffer.getvalue()


def _unit(values: Sequence[float], units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """The largest unit that leaves the largest value at 1 or more."""
    most = max(values, default=0.0)
    return next(((size, name) for size, name in units if most >= size), units[-1])


_BYTES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1.0, "bytes"))
_TIME = ((3.6e9, "h"), (1e6, "s"), (1e3, "ms"), (1.0, "us"))
_ENERGY = ((1e9, "kJ"), (1e6, "J"), (1e3, "mJ"), (1.0, "uJ"))


def _lines(
    axes: Axes,
    found: Sequence[Found],
    x: Callable[[Point], float],
    y: Callable[[Point, Result], float],
) -> None:
    """One line per method over the points with a plan, in the table's order of methods."""
    for name, style in STYLES.items():
        mine = [(x(p), y(p, r)) for p, r in found if p.method == name and r.row["plan"]]
        if mine:
            first = name == "poet"
            axes.plot(
                *zip(*sorted(mine), strict=True), color=style.colour, marker=style.marker,
                linestyle=style.line, linewidth=2.2 if first else 1.3, markersize=7,
                markerfacecolor=style.colour if first else "white", markeredgewidth=1.4,
                label=name, zorder=3 if first else 2,
            )  # fmt: skip


MARGIN = "outside right center"
FINE_PERCENT = 0.1  # above it the axis of overheads is logarithmic


def finish(axes: Axes, x: str, y: str, title: str) -> None:
    axes.set(xlabel=x, ylabel=y)
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)


def add_legend(figure: Any, panels: Sequence[Axes]) -> None:
    """One legend for all panels, in the order of methods."""
    found: dict[str, Any] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    order = [*(name for name in STYLES if name in found), *(x for x in found if x not in STYLES)]
    figure.legend([found[x] for x in order], order, loc=MARGIN, fontsize=9, handlelength=3.2)


def _energies(axes: Axes, group: Sequence[Found], x: Callable[[Point], float]) -> tuple[str, str]:
    """Draw energies above keeping everything; whole energies if keeping everything has no plan.

    Returns the label of the axis, and the energy of keeping everything as text.
    """
    point = group[0][0]
    keeping = point.case.keeping
    what = {"energy": "energy", "added-energy": "added energy", "time": "time"}[point.objective]
    all_units = _TIME if what == "time" else _ENERGY
    values = [r.value(p.objective) for p, r in group if r.row["plan"]]
    least = objective_value(point.objective, keeping) if keeping else None
    if not least:
        unit, name = _unit(values, all_units)
        _lines(axes, group, x, lambda p, r: r.value(p.objective) / unit)
        return f"{what} of a step, {name}", ""
    _lines(axes, group, x, lambda p, r: 100 * (r.value(p.objective) / least - 1))
    axes.axhline(
        0, color="#555555", linewidth=0.8, linestyle=(0, (6, 3)), label="keeping everything"
    )
    axes.set_yscale("symlog", linthresh=FINE_PERCENT, linscale=0.5)
    axes.yaxis.set_major_formatter("{x:g}")
    overs = [100 * (value / least - 1) for value in values]
    top, bottom = max([*overs, FINE_PERCENT]), min([*overs, 0.0])
    axes.set_ylim(1.6 * bottom - FINE_PERCENT / 4, 1.6 * top)
    unit, name = _unit([least], all_units)
    above = f"keeping everything: {least / unit:,.4g} {name}"
    return f"{what} above keeping everything, %", above


def energy(found: Sequence[Found]) -> bytes:
    """Energy against RAM, with the least RAM that any schedule needs. A panel for each board."""
    return _by_board(_panels(found), _energy_of)


def _by_board(panels: list[list[Found]], draw_on: Callable[[Axes, Sequence[Found]], None]) -> bytes:
    """A panel for each board, with one legend."""
    figure, every = new_figure(len(panels), 2, 5.4 if len(panels) > 1 else 7.0, 4.0)
    for axes, group in zip(every, panels, strict=True):
        draw_on(axes, group)
    add_legend(figure, every)
    return as_png(figure)


def _energy_of(axes: Axes, group: Sequence[Found]) -> None:
    point = group[0][0]
    floor = largest_operator_bytes(point.case.costs)
    ram_unit, ram_name = _unit([p.ram_bytes for p, _ in group], _BYTES)
    label, above = _energies(axes, group, lambda p: p.ram_bytes / ram_unit)
    axes.axvline(floor / ram_unit, color="#555555", linewidth=1, linestyle=":", label="floor")
    finish(axes, f"RAM budget, {ram_name}", label, _title(point.case, _limit(point), above=above))
    if all(r.row["plan"] is None for _, r in group):
        _nothing(axes, "no plan within these budgets")


def _nothing(axes: Axes, why: str) -> None:
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center")


def pair(group: Sequence[Found], other: str) -> bytes:
    """POET against one other method: energy and steps per hour, against RAM, on one board."""
    pair = [(p, r) for p, r in group if p.method in ("poet", other)]
    point = group[0][0]
    ram_unit, ram_name = _unit([p.ram_bytes for p, _ in pair], _BYTES)
    figure, (left, right) = new_figure(2, 2, 5.5, 4.4)
    label, above = _energies(left, pair, lambda p: p.ram_bytes / ram_unit)
    _lines(right, pair, lambda p: p.ram_bytes / ram_unit, lambda _, r: 3.6e9 / r.row["time_us"])
    x = f"RAM budget, {ram_name}"
    finish(left, x, label, _title(point.case, _limit(point), above=above))
    finish(right, x, "steps per hour", f"poet and {other}")
    right.yaxis.set_major_formatter("{x:,g}")
    for axes in (left, right):
        if axes.get_lines():
            axes.legend(fontsize=8)
        else:
            _nothing(axes, "neither has a plan")
    return as_png(figure)


def deadlines(found: Sequence[Found]) -> bytes:
    """Energy against the deadline within one RAM budget, a panel for each board.

    Plans without a deadline are at the right end.
    """
    panels = [panel for panel in _panels(found) if len(_limits(panel)) > 1]
    return _by_board(panels, _deadlines_of)


def _deadlines_of(axes: Axes, group: Sequence[Found]) -> None:
    point = group[0][0]
    keeping = point.case.keeping
    times = keeping is not None and bool(keeping.time_us)
    scale = (keeping.time_us or 1e3) if keeping is not None and times else 1e3
    limits = [p.deadline_us / scale for p, _ in group if p.deadline_us is not None]
    free = max(limits, default=1.0) * 1.08

    def at(point: Point) -> float:
        return free if point.deadline_us is None else point.deadline_us / scale

    height, above = _energies(axes, group, at)
    ticks = sorted(set(limits))
    labels = [f"{tick:.3g}" for tick in ticks]
    if any(p.deadline_us is None for p, _ in group):
        ticks, labels = [*ticks, free], [*labels, "none"]
    axes.set_xticks(ticks, labels)
    label = "deadline, multiples of keeping everything" if times else "deadline, ms"
    title = _title(point.case, f"{point.ram_bytes:,} bytes", above=above)
    finish(axes, label, height, title)


def timeline(group: Sequence[Found]) -> bytes | None:
    """The plan of `poet` for the least RAM, as `show --png` draws it."""
    mine = [(p, r.plan) for p, r in group if p.method == "poet" and r.plan and r.plan.statements]
    if not mine:
        return None
    point, plan = min(mine, key=lambda pair: (pair[0].ram_bytes, pair[0].deadline_us or 0.0))
    title = _title(point.case, f"{point.ram_bytes:,} bytes of RAM", _limit(point), "poet")
    return draw_plan(point.case.costs, plan, title=title)


def _properties_figure(found: Sequence[Found]) -> bytes:
    rows = properties(found)
    figure, (axes,) = new_figure(1, 1, 15, 1.0 + 0.36 * len(rows))
    axes.axis("off")
    table = axes.table(rows, colLabels=PROPERTIES, loc="center", cellLoc="left")
    table.auto_set_font_size(False)
    table.set_fontsize(9)
    table.scale(1.0, 1.5)
    table.auto_set_column_width(range(len(PROPERTIES)))
    for (row, column), cell in table.get_celld().items():
        cell.set_edgecolor("#cccccc")
        if row == 0:
            cell.set_text_props(weight="bold")
        elif column == 0:
            cell.set_text_props(color=STYLES[rows[row - 1][0]].colour, weight="bold")
    return as_png(figure)


def finished(folder: Path) -> list[Found]:
    """The points in a folder of `compare -o`. Raises BadInput if a file is missing or damaged."""
    cases: dict[str, Case] = {}
    found: list[Found] = []
    for row in read_json(folder / "table.json"):
        graph = row["graph"]
        if graph not in cases:
            costs = load_cost_graph(folder / graph)
            cases[graph] = Case(row["model"], row["board"], row["profile"], costs)
        plan = plan_from_json(read_json(folder / row["plan"])) if row["plan"] else None
        limits = (row["ram_bytes"], row["deadline_us"])
        # The table has neither the time limit nor the gap: no figure needs them.
        point = Point(cases[graph], row["method"], *limits, 0.0, 0.0, row["objective"])
        found.append((point, Result(row, plan)))
    return found


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    try:
        found = finished(folder)
        files = figures(found)
    except PoetError as error:
        print(f"bench.figures: {error}", file=sys.stderr)
        return 2
    (folder / "figures").mkdir(exist_ok=True)
    for name, png in files.items():
        write_whole(folder / "figures" / name, png)
    methods = table(PROPERTIES, properties(found), words=True)
    write_whole(folder / "methods.md", methods + "\n")
    print(f"{len(files)} figures are in {folder / 'figures'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
