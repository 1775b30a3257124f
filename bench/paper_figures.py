"""The report's figures, with the numbers of the paper's figures."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from poet_host.compare.sweep import Point

from . import figures as drawing
from .claims import Found
from .paper_points import ABLATION, MODELS, PREFIX, SHARES, TIMED_SHARE, WHOLE_SHARES, ram_of

KINDS = {"paper": "the paper's constants", "estimate": "realistic constants"}


@dataclass(frozen=True)
class Figure:
    name: str
    caption: str
    png: bytes | None  # None if the sweep has no points for it


def figures(found: Found) -> list[Figure]:
    return [figure for figure in _all(found) if figure.png is not None]


def _all(found: Found) -> Iterator[Figure]:
    steps = (
        "Execution of the plan for `linear` as a whole step on the nRF52840, realistic constants"
    )
    mine = _of(found, lambda p: _is(p, "linear", "nrf52840_dk", "estimate") and _is_swept(p))
    yield Figure(
        "timeline.png",
        f"Figure 2. {steps}: what processor and storage do, and where every tensor lies.",
        drawing.timeline(mine) if mine else None,
    )
    for model in MODELS:
        yield _energy(found, PREFIX + model, "paper", f"{model}, the paper's graph")
    for model, name in MODELS.items():
        yield _energy(found, name, "estimate", f"{model}, the whole step")
    for model, kind in (("ref-resnet18-cifar", "paper"), ("resnet18-cifar", "estimate")):
        mine = _of(found, lambda p: _is(p, model, None, kind) and _is_timed(p))  # noqa: B023
        yield Figure(
            f"deadline-{model}-{kind}.png",
            f"Figure 4. Ablation against the deadline: {model}, {KINDS[kind]}.",
            drawing.deadlines(mine) if any(p.deadline_us for p, _ in mine) else None,
        )
    yield _pair(found, "capuchin", "ref-resnet18-cifar", "rpi4b", "paper", "Figure 5")
    yield _pair(found, "capuchin", "resnet18-cifar", "rpi4b", "estimate", "Figure 5")
    yield _pair(found, "pofo", "ref-vgg16-cifar", "nrf52840_dk", "paper", "Table 3, as a figure")


def _energy(found: Found, model: str, kind: str, words: str) -> Figure:
    mine = _of(found, lambda p: _is(p, model, None, kind) and _is_swept(p))
    return Figure(
        f"energy-{model}-{kind}.png",
        f"Figure 3. Energy against RAM: {words}, {KINDS[kind]}.",
        drawing.energy(mine) if mine else None,
    )


def _pair(found: Found, other: str, model: str, board: str, kind: str, number: str) -> Figure:
    mine = _of(found, lambda p: _is(p, model, board, kind) and _is_swept(p))
    both = {"poet", other} <= {p.method for p, _ in mine}
    return Figure(
        f"poet-{other}-{model}-{board}-{kind}.png",
        f"{number}. POET and {other}: {model} on {board}, {KINDS[kind]}.",
        drawing.pair(mine, other) if both else None,
    )


def _of(found: Found, is_wanted: Callable[[Point], bool]) -> Sequence[drawing.Found]:
    return [(point, result) for point, result in found if is_wanted(point)]


def _is(point: Point, model: str, board: str | None, kind: str) -> bool:
    case = point.case
    return (case.model, case.profile) == (model, kind) and board in (None, case.board)


def _is_swept(point: Point) -> bool:
    """Is the point part of a sweep over RAM by all methods?"""
    shares = SHARES if point.case.model.startswith(PREFIX) else WHOLE_SHARES
    budgets = [ram_of(point.case, share) for share in shares]
    return point.deadline_us is None and point.ram_bytes in budgets


def _is_timed(point: Point) -> bool:
    """Is the point part of the ablation, with a deadline or without?"""
    return point.method in ABLATION and point.ram_bytes == ram_of(point.case, TIMED_SHARE)
