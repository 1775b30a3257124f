"""The problems that `make bench-solver` solves, and the aims for each."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from poet_host.plan.keepall import keep_everything
from poet_host.plan.problem import CostGraph, Problem
from poet_host.solver.settings import Settings
from poet_host.solver.solve import solve

from . import graphs

LEAST = 0  # per cent: the smallest budget for which there is a plan


@dataclass(frozen=True)
class Point:
    """One problem."""

    model: str
    board: str
    percent: int  # RAM: of keep-everything's peak, or LEAST
    training: bool = False  # a whole training step, not the paper's graph
    deadline: float | None = None  # multiple of the time of computing everything once
    one_percent_s: float | None = None  # aim: a gap of 1 per cent is proved in this time
    paper: bool = False  # is it also solved with the paper's formulation?

    @property
    def name(self) -> str:
        return f"{self.model} training" if self.training else self.model

    @property
    def limits(self) -> str:
        percent = f"{self.percent} %" if self.percent else "least"
        return percent if self.deadline is None else f"{percent}, {self.deadline}x"

    @property
    def aims_at_700_bytes(self) -> bool:
        return not self.training and self.board == graphs.M4 and self.percent >= 20

    def graph(self) -> CostGraph:
        return _graph(self.model, self.board, self.training)

    def problem(self) -> Problem:
        graph = self.graph()
        peak = keep_everything(graph).peak_bytes
        assert peak is not None
        ram = peak * self.percent // 100 if self.percent else _least_ram(graph)
        once_us = sum(node.time_us for node in graph.nodes)
        limit_us = None if self.deadline is None else self.deadline * once_us
        return Problem(graph, ram, limit_us, objective="added-energy")


@cache
def _graph(model: str, board: str, training: bool) -> CostGraph:
    return graphs.training(model, board) if training else graphs.reference(model, board)


def _least_ram(graph: CostGraph) -> int:
    least = solve(Problem(graph, 1), Settings(time_limit_s=10.0, counted=True)).smallest_ram_bytes
    assert least is not None
    return least


def points(quick: bool) -> list[Point]:
    """All points, or a few that are solved quickly."""
    every = [*_reference_m4(), *_reference_others(), *_training()]
    return [p for p in every if _is_quick(p)] if quick else every


def _is_quick(point: Point) -> bool:
    return point.deadline is None and (
        (point.model, point.percent, point.board)
        in {
            ("vgg16-cifar", 50, graphs.M4),
            ("resnet18-cifar", 50, graphs.M4),
            ("resnet8-cifar", 90, graphs.M4),
            ("bert", 50, "mkr1000"),
        }
    )


def _reference_m4() -> Iterator[Point]:
    aims = [
        ("vgg16-cifar", (90, 70, 50, 43), 1.0),
        ("resnet18-cifar", (90, 70, 50, 40), 2.0),
        ("resnet18-cifar", (30, 20, 12), 30.0),
        ("bert", (90, 70, 50, 30), 30.0),
        ("bert", (20, 10), 60.0),
    ]
    with_paper = {("vgg16-cifar", 70), ("vgg16-cifar", 50), ("resnet18-cifar", 50)}
    with_paper |= {("resnet18-cifar", 30), ("bert", 50)}
    for model, percents, one_percent_s in aims:
        for percent in percents:
            paper = (model, percent) in with_paper
            yield Point(model, graphs.M4, percent, one_percent_s=one_percent_s, paper=paper)


def _reference_others() -> Iterator[Point]:
    for board in ("mkr1000", "rpi4b"):
        for model, percents in (
            ("vgg16-cifar", (50, 43)),
            ("resnet18-cifar", (50, 12)),
            ("bert", (50, 10)),
        ):
            for percent in percents:
                yield Point(model, board, percent, one_percent_s=2.0)


def _training() -> Iterator[Point]:
    for model, percents in (
        ("resnet8-cifar", (90, 50, LEAST)),
        ("resnet18-cifar", (90, 80, 70, 60, LEAST)),
        ("vgg16-cifar", (LEAST,)),
        ("bert-base", (90, 60, 30, LEAST)),
    ):
        for percent in percents:
            yield Point(model, graphs.M4, percent, training=True)
    for model, percent in (("resnet18-cifar", 90), ("resnet18-cifar", 70), ("bert-base", 90)):
        for deadline in (1.2, 1.05):
            yield Point(model, graphs.M4, percent, training=True, deadline=deadline)
    for board in ("mkr1000", "rpi4b"):
        yield Point("resnet18-cifar", board, 70, training=True)
