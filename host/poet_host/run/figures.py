"""Figures of a sweep: one colour, marker and line per method everywhere, legible in grey."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from ..errors import BadInput
from ..plan.baselines.method import largest_operator_bytes
from ..plan.baselines.registry import SCHEDULERS
from ..plan.plan import Statement
from .picture import draw
from .sweep import INAPPLICABLE, Case, Point, Result

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
    "capuchin": Style("#a6611a", "h", "-."),
    "pofo": Style("#1b7837", ">", "-."),
}


def figures(found: Sequence[Found]) -> dict[str, bytes]:
    """All figures that the results give, as PNG by file name.

    Raises BadInput if matplotlib is missing.
    """
    files: dict[str, bytes] = {}
    for group in _groups(found, lambda p: (_slug(p.case), p.deadline_us)):
        point = group[0][0]
        if len({p.ram_bytes for p, _ in group}) > 1:
            files[f"energy-{_name(point)}.png"] = _energy_figure(group)
            for other in ("capuchin", "pofo"):
                if {"poet", other} <= {p.method for p, _ in group}:
                    files[f"poet-{other}-{_name(point)}.png"] = _pair_figure(group, other)
    for group in _groups(found, lambda p: (_slug(p.case), p.ram_bytes)):
        if len({p.deadline_us for p, _ in group}) > 1:
            name = f"deadline-{_slug(group[0][0].case)}-{group[0][0].ram_bytes}.png"
            files[name] = _deadline_figure(group)
    for group in _groups(found, lambda p: _slug(p.case)):
        timeline = _timeline(group)
        if timeline is not None:
            files[f"timeline-{_slug(group[0][0].case)}.png"] = timeline
    if found:
        files["methods.png"] = _properties_figure(found)
    return files


PROPERTIES = (
    "method", "graphs", "recomputes", "pages", "weighs", "planned", "infeasible", "no answer",
    "n/a", "extended", "recomputed", "paged in",
)  # fmt: skip


def properties(found: Sequence[Found]) -> list[tuple[str, ...]]:
    """What each method is, and what it really did: a row each, in the columns of PROPERTIES.

    Counted are points: planned, proved infeasible, without answer, not applicable, planned
    beyond the published method; and per plan, on average, results computed again and paged in.
    """
    rows: list[tuple[str, ...]] = []
    for name, row in SCHEDULERS.items():
        mine = [(p, r) for p, r in found if p.method == name]
        if not mine:
            continue
        plans = [(p, r.plan) for p, r in mine if r.plan is not None and r.plan.statements]
        again = sum(_again(p, plan.statements) for p, plan in plans)
        paged = sum(_paged(p, plan.statements) for p, plan in plans)
        status = [r.row["status"] for _, r in mine]
        rows.append(
            (
                name, row.applies_to.split(";")[0], _yes(row.recomputes), _yes(row.pages),
                row.minimises, f"{len(plans)} of {len(mine)}", str(status.count("infeasible")),
                str(status.count("unknown")), str(status.count(INAPPLICABLE)),
                str(sum(bool(plan.note) for _, plan in plans)),
                _mean(again, len(plans)), _mean(paged, len(plans)),
            )
        )  # fmt: skip
    return rows


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"


def _mean(total: int, count: int) -> str:
    return f"{total / count:.1f}" if count else "-"


def _again(point: Point, statements: Sequence[Statement]) -> int:
    computed = sum(not node.stored for node in point.case.costs.nodes)
    return sum(s.op == "compute" for s in statements) - computed


def _paged(point: Point, statements: Sequence[Statement]) -> int:
    stored = {node.name for node in point.case.costs.nodes if node.stored}
    return sum(s.op == "page_in" and s.node not in stored for s in statements)


def _groups(found: Sequence[Found], key: Callable[[Point], Any]) -> list[list[Found]]:
    groups: dict[Any, list[Found]] = {}
    for point, result in found:
        groups.setdefault(key(point), []).append((point, result))
    return list(groups.values())


def _slug(case: Case) -> str:
    return "-".join(part for part in (case.model, case.board, case.profile) if part)


def _name(point: Point) -> str:
    limit = "" if point.deadline_us is None else f"-{point.deadline_us / 1e3:.6g}ms"
    return _slug(point.case) + limit


def _title(point: Point, *more: str) -> str:
    case = point.case
    return ", ".join(part for part in (case.model, case.board, case.profile, *more) if part)


def _limit(point: Point) -> str:
    if point.deadline_us is None:
        return "no deadline"
    if point.case.keeping is None or not point.case.keeping.time_us:
        return f"deadline {point.deadline_us / 1e3:,.4g} ms"
    return f"deadline {point.deadline_us / point.case.keeping.time_us:.3g}x"


def _figure(width: float, height: float, panels: int = 1) -> tuple[Any, list[Axes]]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BadInput("figures need matplotlib: try `pip install 'poet-host[plot]'`") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, panels, squeeze=False)[0]
    return figure, list(axes)


def _png(figure: Any) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=120, bbox_inches="tight")
    return buffer.getvalue()


def _unit(values: Sequence[float], units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """The largest unit that leaves the largest value at 1 or more."""
    most = max(values, default=0.0)
    return next(((size, name) for size, name in units if most >= size), units[-1])


_BYTES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1.0, "bytes"))
_ENERGY = ((1e6, "J"), (1e3, "mJ"), (1.0, "uJ"))


def _lines(
    axes: Axes, found: Sequence[Found], x: Callable[[Point], float], y: Callable[[Result], float]
) -> None:
    """One line per method over the points with a plan, in the table's order of methods."""
    for name, style in STYLES.items():
        mine = [(x(p), y(r)) for p, r in found if p.method == name and r.row["plan"]]
        if mine:
            first = name == "poet"
            axes.plot(
                *zip(*sorted(mine), strict=True), color=style.colour, marker=style.marker,
                linestyle=style.line, linewidth=2.2 if first else 1.3, markersize=7,
                markerfacecolor=style.colour if first else "white", markeredgewidth=1.4,
                label=name, zorder=3 if first else 2,
            )  # fmt: skip


def _finish(axes: Axes, x: str, y: str, title: str) -> None:
    axes.set(xlabel=x, ylabel=y)
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)


def _reference(axes: Axes, value: float, label: str) -> None:
    axes.axhline(value, color="#555555", linewidth=0.8, linestyle=(0, (6, 3)), label=label)


def _energy_figure(group: Sequence[Found]) -> bytes:
    """Energy against RAM, with the least RAM that any schedule needs."""
    point = group[0][0]
    floor = largest_operator_bytes(point.case.costs)
    ram_unit, ram_name = _unit([p.ram_bytes for p, _ in group], _BYTES)
    unit, unit_name = _unit([r.row["energy_uj"] or 0.0 for _, r in group], _ENERGY)
    figure, (axes,) = _figure(9, 5.2)
    _lines(axes, group, lambda p: p.ram_bytes / ram_unit, lambda r: r.row["energy_uj"] / unit)
    axes.axvline(floor / ram_unit, color="#555555", linewidth=1, linestyle=":", label="floor")
    keeping = point.case.keeping
    if keeping is not None and keeping.energy_uj is not None:
        _reference(axes, keeping.energy_uj / unit, "keeping everything")
    title = _title(point, _limit(point))
    _finish(axes, f"RAM budget, {ram_name}", f"energy of a step, {unit_name}", title)
    if all(r.row["plan"] is None for _, r in group):
        axes.text(0.5, 0.5, "no plan within these budgets", transform=axes.transAxes, ha="center")
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return _png(figure)


def _pair_figure(group: Sequence[Found], other: str) -> bytes:
    """POET against one other method: energy and steps per hour, against RAM."""
    pair = [(p, r) for p, r in group if p.method in ("poet", other)]
    point = group[0][0]
    ram_unit, ram_name = _unit([p.ram_bytes for p, _ in pair], _BYTES)
    unit, unit_name = _unit([r.row["energy_uj"] or 0.0 for _, r in pair], _ENERGY)
    figure, (left, right) = _figure(11, 4.4, panels=2)
    _lines(left, pair, lambda p: p.ram_bytes / ram_unit, lambda r: r.row["energy_uj"] / unit)
    _lines(right, pair, lambda p: p.ram_bytes / ram_unit, lambda r: 3.6e9 / r.row["time_us"])
    title, x = _title(point, _limit(point)), f"RAM budget, {ram_name}"
    _finish(left, x, f"energy of a step, {unit_name}", title)
    _finish(right, x, "steps per hour", f"poet and {other}")
    for axes in (left, right):
        if axes.get_lines():
            axes.legend(fontsize=8)
        else:
            axes.text(0.5, 0.5, "neither has a plan", transform=axes.transAxes, ha="center")
    return _png(figure)


def _deadline_figure(group: Sequence[Found]) -> bytes:
    """Energy against the deadline within one RAM budget; none stands at the right end."""
    point = group[0][0]
    keeping = point.case.keeping
    times = keeping is not None and bool(keeping.time_us)
    scale = (keeping.time_us or 1e3) if keeping is not None and times else 1e3
    limits = [p.deadline_us / scale for p, _ in group if p.deadline_us is not None]
    free = max(limits) * 1.08
    unit, unit_name = _unit([r.row["energy_uj"] or 0.0 for _, r in group], _ENERGY)
    figure, (axes,) = _figure(9, 5.2)

    def at(one: Point) -> float:
        return free if one.deadline_us is None else one.deadline_us / scale

    _lines(axes, group, at, lambda r: r.row["energy_uj"] / unit)
    ticks = sorted(set(limits))
    labels = [f"{tick:.3g}" for tick in ticks]
    if any(p.deadline_us is None for p, _ in group):
        ticks, labels = [*ticks, free], [*labels, "none"]
    axes.set_xticks(ticks, labels)
    label = "deadline, multiples of keeping everything" if times else "deadline, ms"
    title = _title(point, f"{point.ram_bytes:,} bytes of RAM")
    _finish(axes, label, f"energy of a step, {unit_name}", title)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return _png(figure)


def _timeline(group: Sequence[Found]) -> bytes | None:
    """The plan of `poet` for the least RAM, as `show --png` draws it."""
    mine = [(p, r.plan) for p, r in group if p.method == "poet" and r.plan and r.plan.statements]
    if not mine:
        return None
    point, plan = min(mine, key=lambda one: (one[0].ram_bytes, one[0].deadline_us or 0.0))
    title = _title(point, f"{point.ram_bytes:,} bytes of RAM", _limit(point), "poet")
    return draw(point.case.costs, plan, title=title)


def _properties_figure(found: Sequence[Found]) -> bytes:
    rows = properties(found)
    figure, (axes,) = _figure(15, 1.0 + 0.36 * len(rows))
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
    return _png(figure)
