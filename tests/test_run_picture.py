"""The picture: its times are those of the plan's rules, and the file is a picture."""

import sys

import pytest
from poet_host.errors import BadInput
from poet_host.plan.plan import Statement
from poet_host.plan.problem import CostGraph, CostNode
from poet_host.run.picture import Bar, Box, bars_and_boxes, draw

GRAPH = CostGraph(
    "small",
    (
        CostNode("w", (), 8, page_in_us=4.0, page_in_cpu_us=1.0, page_out_us=5.0, stored=True),
        CostNode("a", (), 16, time_us=10.0, page_in_us=6.0, page_out_us=7.0, page_out_cpu_us=2.0),
        CostNode("b", (0, 1), 16, time_us=20.0, workspace_bytes=4),
        CostNode("w2", (0, 1, 2), 8, time_us=3.0, page_out_us=5.0, keep=True, overwrites=0),
    ),
)
PLAN = (
    Statement("compute", "a", 0),
    Statement("page_in", "w", 16),
    Statement("page_out", "a"),
    Statement("compute", "b", 24, workspace_offset=40),
    Statement("free", "a"),
    Statement("compute", "a", 0),
    Statement("compute", "w2", 16),
    Statement("page_out", "w2"),
)


def test_bars_follow_the_rules_of_the_plan() -> None:
    bars, _ = bars_and_boxes(GRAPH, PLAN, 44)
    assert bars == (
        Bar("a", "forward", 0, 10),
        Bar("w", "page_in", 10, 14),  # then the processor is at 11
        Bar("a", "page_out", 14, 21),  # then at 13
        Bar("b", "forward", 14, 34),  # waits for w
        Bar("a", "again", 34, 44),
        Bar("w2", "forward", 44, 47),
        Bar("w2", "page_out", 47, 52),
    )


def test_boxes_are_the_tensors_in_the_arena() -> None:
    _, boxes = bars_and_boxes(GRAPH, PLAN, 44)
    assert sorted(boxes, key=lambda box: (box.offset, box.begin_us)) == [
        Box("a", "forward", 0, 16, 0, 34),
        Box("a", "again", 0, 16, 34, 52),
        Box("w", "page_in", 16, 8, 10, 44),
        Box("w2", "forward", 16, 8, 44, 52),
        Box("b", "forward", 24, 16, 14, 52),
        Box("b (workspace)", "forward", 40, 4, 14, 34),
    ]


def test_a_free_waits_for_the_transfer_of_its_memory() -> None:
    statements = (*PLAN[:3], Statement("free", "a"), Statement("compute", "a", 0))
    bars, boxes = bars_and_boxes(GRAPH, statements, 44)
    assert bars[-1].begin_us == 21
    assert boxes[0].end_us == 21


def test_png_and_svg() -> None:
    png = draw(GRAPH, PLAN, title="small", ram_bytes=44)
    assert png.startswith(b"\x89PNG")
    assert len(png) > 10_000
    svg = draw(GRAPH, PLAN, title="small <plan>", ram_bytes=44, file_format="svg")
    assert b"<svg" in svg
    assert b"</svg>" in svg


def test_without_matplotlib_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(BadInput, match=r"pip install 'poet-host\[plot\]'"):
        draw(GRAPH, PLAN, title="", ram_bytes=44)
