"""The picture: the file is one, with a pair of panels for each view."""

import struct
import sys

import pytest
from poet_host.errors import BadInput
from poet_host.plan.plan import Plan, Statement
from poet_host.plan.problem import CostGraph, CostNode
from poet_host.view.lanes import planned, recorded
from poet_host.view.picture import draw_plan, draw_views
from support.lanes_example import GRAPH, PLAN, run_of


def size(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def test_a_plan_is_drawn() -> None:
    png = draw_plan(GRAPH, Plan("feasible", 44, statements=PLAN), title="small")
    assert len(png) > 10_000
    assert size(png) == (1680, 900)


def test_a_plan_without_storage_is_drawn() -> None:
    nodes = (CostNode("w", (), 8, stored=True), CostNode("y", (0,), 4, time_us=5.0))
    statements = (Statement("compute", "y", 8), Statement("free", "w"))
    plan = Plan("feasible", 12, statements=statements)
    assert draw_plan(CostGraph("bare", nodes, storage=False), plan, title="bare")


def test_a_recorded_run_is_drawn_below_the_plan() -> None:
    views = [planned(GRAPH, PLAN), recorded(GRAPH, PLAN, run_of())]
    assert size(draw_views(views, title="small", ram_bytes=44)) == (1680, 1800)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["$", "$x_$", "a\\$b$", "\N{SNOWMAN WITHOUT SNOW}\x07", "\u4e2d"])
def test_any_name_is_drawn(name: str) -> None:
    nodes = (CostNode(name, (), 44, time_us=5.0),)
    plan = Plan("feasible", 44, statements=(Statement("compute", name, 0),))
    assert draw_plan(CostGraph(name, nodes), plan, title=name)


def test_without_matplotlib_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(BadInput, match=r"pip install 'poet-host\[plot\]'"):
        draw_plan(GRAPH, Plan("feasible", 44, statements=PLAN), title="")
