"""What a step does over time: promised by the plan's rules, done by the board's trace."""

from dataclasses import replace
from itertools import pairwise

import pytest
from fuzz.commit_cuts import training
from poet_host.errors import BadInput
from poet_host.plan.plan import Plan, Statement, start_offsets
from poet_host.plan.problem import CostGraph, CostNode, Mode, Problem
from poet_host.plan.verify import verify
from poet_host.run.run import Traced
from poet_host.schedule.decode import Wait, decode
from poet_host.schedule.nests import Streamed
from poet_host.schedule.times import costs_of_schedule
from poet_host.view.lanes import Bar, Box, planned, recorded, views_of
from poet_host.view.page import page_data
from support.lanes_example import GRAPH, PLAN, SPANS_US, run_of


def test_bars_follow_the_rules_of_the_plan() -> None:
    assert planned(GRAPH, PLAN).bars == (
        Bar(0, "a", "forward", 0, 10),
        Bar(1, "w", "page_in", 10, 14),  # then the processor is at 11
        Bar(2, "a", "page_out", 14, 21),  # then at 13
        Bar(3, "b", "wait", 13, 14),  # for w
        Bar(3, "b", "forward", 14, 34),
        Bar(5, "a", "again", 34, 44),
        Bar(6, "w2", "forward", 44, 47),
        Bar(7, "w2", "page_out", 47, 52),
    )


def test_boxes_are_the_tensors_in_the_arena() -> None:
    view = planned(GRAPH, PLAN)
    assert sorted(view.boxes, key=lambda box: (box.offset, box.begin_us)) == [
        Box(0, 4, "a", "forward", 0, 16, 0, 10, 34),
        Box(5, 8, "a", "again", 0, 16, 34, 44, 52),
        Box(1, 6, "w", "page_in", 16, 8, 10, 14, 44),
        Box(6, 8, "w2", "forward", 16, 8, 44, 47, 52),
        Box(3, 8, "b", "forward", 24, 16, 14, 34, 52),
        Box(3, 3, "b", "forward", 40, 4, 14, 14, 34, workspace=True),
    ]
    assert view.height_bytes == 44
    assert view.end_us == 52


def test_the_fullest_moment_is_not_that_of_the_highest_address() -> None:
    """A page-in takes the highest bytes at the start. Later, more bytes below it are in use."""
    high = replace(GRAPH.nodes[0], name="v")
    graph = replace(GRAPH, nodes=(*GRAPH.nodes, high))
    statements = (Statement("page_in", "v", 100), *PLAN)
    view = planned(graph, statements)
    assert view.height_bytes == 108
    assert view.fullest == (15, 52)  # v, a, w, b and its workspace
    spans = ((0, 6), *((begin + 6, end + 6) for begin, end in SPANS_US))
    trace = run_of().trace
    first = Traced("page_in", "v", False, False, 6.0, 0, 0.0, 6.0)
    moved = (
        replace(one, statement=i + 1, begin_us=spans[i + 1][0], end_us=spans[i + 1][1])
        for i, one in enumerate(trace)
    )
    measured = recorded(graph, statements, replace(run_of(), trace=(first, *moved)))
    assert measured.height_bytes == 108
    assert measured.fullest == (24, 52)


def test_the_memory_of_a_page_in_is_taken_when_it_is_queued() -> None:
    statements = (*PLAN[:3], Statement("page_in", "v", 40))
    graph = replace(GRAPH, nodes=(*GRAPH.nodes, CostNode("v", (), 4, page_in_us=3.0, stored=True)))
    view = planned(graph, statements)
    assert view.bars[-1] == Bar(3, "v", "page_in", 21, 24)  # after the page-out
    assert view.boxes[-1] == Box(3, 4, "v", "page_in", 40, 4, 13, 24, 24)


def test_a_free_waits_for_the_transfer_of_its_memory() -> None:
    view = planned(GRAPH, (*PLAN[:3], Statement("free", "a"), Statement("compute", "a", 0)))
    assert view.bars[-2:] == (Bar(3, "a", "wait", 13, 21), Bar(4, "a", "again", 21, 31))
    assert view.boxes[0].end_us == 21


def test_bytes_in_use_are_those_of_the_verifier() -> None:
    view = planned(GRAPH, PLAN)
    plan = Plan("feasible", 44, statements=PLAN)
    totals = verify(Problem(GRAPH, 44), plan, placed=False)
    assert max(view.in_use) == max(used for _, used in view.used) == totals.peak_bytes == 44
    assert view.in_use == (16, 24, 24, 44, 40, 40, 40, 40)
    assert view.used[-1] == (52, 0)
    times = [time_us for time_us, _ in view.used]
    assert times == sorted(times)


def test_a_mode_occupies_both_lanes_and_its_streamed_output_no_memory() -> None:
    """a stays on storage; b streams it, needs 8 bytes of workspace, and takes 25 us."""
    out = Mode((), True, 4, 12.0, 7.0, 12.0, 1.0)
    streams = Mode((0,), False, 8, 20.0, 6.0, 25.0, 1.0)
    nodes = (replace(GRAPH.nodes[1], modes=(out,)), CostNode("b", (0,), 16, modes=(streams,)))
    statements = (Statement("compute", "a", None, 0, 1), Statement("compute", "b", 8, 0, 1))
    view = planned(CostGraph("streamed", nodes), statements)
    assert view.bars == (
        Bar(0, "a", "forward", 0, 12),
        Bar(0, "a", "streamed", 0, 12),
        Bar(1, "b", "forward", 12, 37),
        Bar(1, "b", "streamed", 12, 37),
    )
    assert sorted(view.boxes, key=lambda box: box.begin_us) == [
        Box(0, 0, "a", "forward", 0, 4, 0, 0, 12, workspace=True),
        Box(1, 1, "b", "forward", 0, 8, 12, 12, 37, workspace=True),
        Box(1, 2, "b", "forward", 8, 16, 12, 37, 37),
    ]
    assert view.in_use == (4, 24)


def test_operands_stream_after_the_transfers_before() -> None:
    streams = Mode((0,), False, 8, 20.0, 6.0, 25.0, 1.0)
    graph = CostGraph("g", (GRAPH.nodes[1], CostNode("b", (0,), 16, modes=(streams,))))
    statements = (PLAN[0], PLAN[2], Statement("compute", "b", 24, 16, 1))
    spans = ((0, 11), (12, 20), (14, 40))
    trace = tuple(
        Traced(it.op, it.node, False, True, end - begin, number, begin, end)
        for number, (it, (begin, end)) in enumerate(zip(statements, spans, strict=True))
    )
    view = recorded(graph, statements, replace(run_of(), steps=(), trace=trace))
    assert view.bars[-2:] == (Bar(2, "b", "forward", 14, 40), Bar(2, "b", "streamed", 20, 40))


def test_a_wait_takes_no_time_of_its_own_in_a_plan() -> None:
    statements = (*PLAN[:3], Wait(1), *PLAN[3:])
    view = planned(GRAPH, statements)
    assert view.times[3] is None
    assert view.end_us == 52
    assert [bar.statement for bar in view.bars if bar.kind == "wait"] == [4]


def test_without_storage_tensors_are_in_ram_from_the_start() -> None:
    nodes = (CostNode("w", (), 8, stored=True), CostNode("y", (0,), 4, time_us=5.0))
    graph = CostGraph("bare", nodes, storage=False)
    statements = (Statement("compute", "y", 8), Statement("free", "w"))
    plan = Plan("feasible", 12, statements=statements)
    view = planned(graph, statements, start_offsets(graph, plan))
    assert view.boxes[0] == Box(-1, 1, "w", "page_in", 0, 8, 0, 0, 5)


def test_a_run_is_shown_as_it_was_traced() -> None:
    view = recorded(GRAPH, PLAN, run_of())
    assert view.name == "measured"
    busy = {bar.statement: (bar.begin_us, bar.end_us) for bar in view.bars if bar.kind != "wait"}
    traced = {i: span for i, span in enumerate(SPANS_US) if PLAN[i].op != "free"}
    assert busy == {**traced, 8: (60, 62)}  # then the commit
    kinds = [(bar.kind, bar.begin_us, bar.end_us) for bar in view.bars if bar.statement in (3, 4)]
    assert kinds == [("wait", 11, 18), ("forward", 18, 40), ("wait", 40, 41)]
    assert view.bars[-1] == Bar(8, "", "commit", 60, 62)
    assert view.boxes[1] == Box(0, 4, "a", "forward", 0, 16, 0, 11, 41)
    assert view.end_us == 62


def test_where_windows_of_a_trace_meet_nothing_overlaps() -> None:
    spans = ((0, 11), (9, 17), (17, 25), (18, 40), (38, 39), (38, 47), (47, 51), (24, 57))
    view = recorded(GRAPH, PLAN, run_of(spans))
    for lane in (("page_in", "page_out"), ("forward", "again", "wait", "commit")):
        bars = [bar for bar in view.bars if bar.kind in lane]
        assert all(a.end_us <= b.begin_us for a, b in pairwise(bars))
    assert [timed.end_us for timed in view.times if timed] == [11, 19, 27, 40, 41, 50, 54, 87]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda trace: (), "run.json has no trace"),
        (lambda trace: trace[:3], "5 of 8 statements .* 3 steps"),
        (lambda trace: (*trace[:-1], trace[0]), "twice"),
        (
            lambda trace: (*trace[:-1], Traced("free", "b", False, True, 1.0, 7, 0.0, 1.0)),
            "statement 7 .*free b",
        ),
        (
            lambda trace: (*trace, Traced("wait", "", False, False, 1.0, 8, 0.0, 1.0)),
            "statement 8 .*wait ",
        ),
    ],
)
def test_a_trace_that_is_not_the_schedules_is_refused(change: object, words: str) -> None:
    run = run_of()
    run = replace(run, trace=change(run.trace))  # type: ignore[operator]
    with pytest.raises(BadInput, match=words):
        recorded(GRAPH, PLAN, run, "run.json")


def test_the_page_has_the_costs_of_a_nest() -> None:
    schedule = training("sgd").schedule
    costs, tensors = costs_of_schedule(schedule), page_data(schedule, views_of(schedule))["tensors"]
    nests = [it for it in decode(schedule) if isinstance(it, Streamed)]
    assert nests
    for it in nests:
        mode = costs.nodes[costs.index[it.node]].mode(it.mode)
        shown = tensors[schedule.numbers[it.node]]
        assert (shown[6], shown[7]) == (mode.energy_uj, mode.wall_us)
