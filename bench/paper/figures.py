"""The report's figures, with the numbers of the paper's figures."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import poet_host as poet
from poet_host.compare.sweep import Point
from poet_host.plan.infeasible import largest_operator_bytes
from poet_host.plan.plan import objective_value
from poet_host.plan.problem import Objective
from poet_host.view.picture import draw_plan

from .. import figures as drawing, graphs
from .claims import Found
from .points import (
    ABLATION,
    MODELS,
    PREFIX,
    SHARES,
    TIMED_SHARE,
    VARIANTS,
    WHOLE,
    WHOLE_SHARES,
    ram_of,
)

KINDS = {"paper": "the paper's constants", "estimate": "realistic constants"} | {
    kind: f"the paper's constants, {words}" for kind, words in VARIANTS.items()
}
ENERGIES: dict[Objective, str] = {"added-energy": "added energy", "energy": "whole board"}


@dataclass(frozen=True)
class Figure:
    name: str
    caption: str
    png: bytes | None  # None if the sweep has no points for it


def figures(found: Found) -> list[Figure]:
    return [figure for figure in _all(found) if figure.png is not None]


def _all(found: Found) -> Iterator[Figure]:
    layers = graphs.eight_layers()
    plan = poet.solve(poet.problem(layers, ram=graphs.EIGHT_LAYERS_RAM, objective="added-energy"))
    title = f"eight layers in {graphs.EIGHT_LAYERS_RAM // 1024} KiB"
    yield Figure(
        "eight-layers.png",
        "Figure 2. A chain of eight layers: POET computes the cheap layers L2 and L3 again, and "
        "pages the dear layers L5 and L6.",
        draw_plan(layers, plan, title=title),
    )
    steps = (
        "Execution of the plan for `linear` as a whole step on the nRF52840, realistic constants"
    )
    mine = _of(found, lambda p: _is(p, "linear", "nrf52840_dk", "estimate") and _is_swept(p))
    yield Figure(
        "timeline.png",
        f"{steps}: what processor and storage do, and where every tensor lies.",
        drawing.timeline(mine) if mine else None,
    )
    for model in MODELS:
        yield _energy(found, PREFIX + model, "paper", f"{model}, the paper's graph")
    for model, name in WHOLE.items():
        for objective in ENERGIES:
            yield _energy(found, name, "estimate", f"{model}, the whole step", objective)
    for model, kind in (("ref-vgg16-cifar", "paper"), ("resnet18-cifar", "estimate")):
        mine = _of(found, lambda p: _is(p, model, None, kind) and _is_timed(p))  # noqa: B023
        yield Figure(
            f"deadline-{model}-{kind}.png",
            f"Figure 4. Ablation against the deadline: {model}, {KINDS[kind]}.",
            drawing.deadlines(mine) if any(p.deadline_us for p, _ in mine) else None,
        )
    yield _pair(found, "capuchin", "ref-resnet18-cifar", "rpi4b", "paper", "Figure 5")
    yield _pair(found, "capuchin", "ref-resnet18-cifar", "rpi4b", "nocache-x10", "Figure 5")
    for objective in ENERGIES:
        yield _pair(
            found, "capuchin", "resnet18-cifar", "rpi4b", "estimate", "Figure 5", objective
        )  # fmt: skip
    yield _pair(
        found, "pofo", "ref-resnet18-cifar", "jetson_tx2", "paper", "Table 3, as a figure"
    )  # fmt: skip
    streamed = {(p.case.model, p.case.board) for p, _ in found if p.case.profile == "streamed"}
    mine = _of(found, lambda p: (p.case.model, p.case.board) in streamed and _is_streamed(p))
    yield Figure(
        "streamed.png",
        "Energy of whole steps below the floor of operators that are not split.",
        _streamed(mine) if mine else None,
    )


def _energy(
    found: Found, model: str, kind: str, words: str, objective: Objective = "added-energy"
) -> Figure:
    mine = _of(found, lambda p: _is(p, model, None, kind, objective) and _is_swept(p))
    return Figure(
        f"energy-{model}-{kind}{_tag(objective)}.png",
        f"Figure 3. Energy against RAM: {words}, {KINDS[kind]}, {ENERGIES[objective]}.",
        drawing.energy(mine) if mine else None,
    )


def _pair(
    found: Found, other: str, model: str, board: str, kind: str, number: str,
    objective: Objective = "added-energy",
) -> Figure:  # fmt: skip
    mine = _of(found, lambda p: _is(p, model, board, kind, objective) and _is_swept(p))
    both = {"poet", other} <= {p.method for p, _ in mine}
    return Figure(
        f"poet-{other}-{model}-{board}-{kind}{_tag(objective)}.png",
        f"{number}. POET and {other}: {model} on {board}, {KINDS[kind]}, {ENERGIES[objective]}.",
        drawing.pair(mine, other) if both else None,
    )


def _tag(objective: Objective) -> str:
    return "" if objective == "added-energy" else "-whole-board"


def _streamed(found: Found) -> bytes:
    """Energy against RAM below the floor and above it, a panel for each model and board.

    `found` has points of `poet` for whole steps, with streamed operators and without.
    """
    panels = drawing.grouped(found, lambda p: (p.case.model, p.case.board))
    figure, every = drawing.new_figure(len(panels), 2, 5.4 if len(panels) > 1 else 7.0, 4.0)
    for axes, group in zip(every, panels, strict=True):
        _streamed_of(axes, group)
    drawing.add_legend(figure, every)
    return drawing.as_png(figure)


def _streamed_of(axes: Any, group: Found) -> None:
    case = next(p.case for p, _ in group if p.case.whole_costs is not None)
    keeping, costs = case.keeping, case.whole_costs
    assert keeping is not None
    assert costs is not None
    for label, is_streamed, name in (
        ("operators stream", True, "poet-paging"),
        ("whole operators", False, "poet"),
    ):
        style = drawing.STYLES[name]
        mine = sorted(
            (p.ram_bytes / 1024, r.value(p.objective) / objective_value(p.objective, keeping))
            for p, r in group
            if r.row["plan"] and (p.case.whole_costs is not None) == is_streamed
        )
        if mine:
            axes.plot(
                *zip(*mine, strict=True), color=style.colour, marker=style.marker,
                linestyle=style.line, label=label,
            )  # fmt: skip
    floor = largest_operator_bytes(costs) / 1024
    axes.axvline(floor, color="#555555", linewidth=1, linestyle=":", label="floor")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    title = f"{case.model}, {case.board}"
    drawing.finish(axes, "RAM budget, KiB", "whole board, times keeping everything", title)


def _of(found: Found, is_wanted: Callable[[Point], bool]) -> Sequence[drawing.Found]:
    return [(point, result) for point, result in found if is_wanted(point)]


def _is(
    point: Point, model: str, board: str | None, kind: str, objective: Objective = "added-energy"
) -> bool:
    case = point.case
    mine = (case.model, case.profile, point.objective)
    return mine == (model, kind, objective) and board in (None, case.board)


def _is_streamed(point: Point) -> bool:
    """Is the point one below the floor, or one of the same objective above it?"""
    is_whole = point.case.profile == "estimate" and _is_swept(point)
    return (
        point.method == "poet"
        and point.objective == "energy"
        and (is_whole or point.case.profile == "streamed")
    )


def _is_swept(point: Point) -> bool:
    """Is the point part of a sweep over RAM by all methods?"""
    shares = SHARES if point.case.model.startswith(PREFIX) else WHOLE_SHARES
    budgets = [ram_of(point.case, share) for share in shares]
    return point.deadline_us is None and point.ram_bytes in budgets


def _is_timed(point: Point) -> bool:
    """Is the point part of the ablation, with a deadline or without?"""
    return point.method in ABLATION and point.ram_bytes == ram_of(point.case, TIMED_SHARE)
