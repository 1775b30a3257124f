"""The trace for Perfetto, held to the rules of the Trace Event Format.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU and, for what
Perfetto wants beyond it, https://perfetto.dev/docs/faq: slices of a thread nest perfectly.
"""

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import Any

from poet_host import api
from poet_host.plan.plan import Plan, Statement
from poet_host.plan.problem import CostGraph, CostNode
from poet_host.resources import resource
from poet_host.run.run import Run, Traced
from poet_host.schedule.decode import Wait, decode
from poet_host.schedule.schedule import Schedule
from poet_host.schedule.times import costs_of_schedule
from poet_host.view.lanes import View, planned, views_of
from poet_host.view.perfetto import chrome_trace
from support.lanes_example import run_of

EXAMPLE = resource("schedules") / "resnet-digits-mkr1000.poet"
METADATA = {
    "process_name": "name", "thread_name": "name",
    "process_sort_index": "sort_index", "thread_sort_index": "sort_index",
}  # fmt: skip


def check(text: str) -> dict[str, list[dict[str, Any]]]:
    """Events by phase; every rule of the format that a viewer relies on."""
    value = json.loads(text, parse_constant=lambda name: f"no number: {name}")
    assert set(value) <= {"traceEvents", "displayTimeUnit", "otherData"}
    assert value["displayTimeUnit"] in ("ms", "ns")
    phases: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in value["traceEvents"]:
        assert isinstance(event["name"], str)
        assert event["name"]
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["tid"] > 0
        if event["ph"] != "M":
            assert isinstance(event["ts"], int | float)
            assert event["ts"] >= 0
        phases[event["ph"]].append(event)
    assert set(phases) <= {"M", "X", "C", "s", "f"}
    for event in phases["M"]:
        assert list(event["args"]) == [METADATA[event["name"]]]
    named = {(e["pid"], e["tid"]) for e in phases["M"] if e["name"] == "thread_name"}
    threads = defaultdict(list)
    for event in phases["X"]:
        assert isinstance(event["dur"], int | float)
        assert event["dur"] >= 0
        assert isinstance(event["args"], dict)
        threads[event["pid"], event["tid"]].append(event)
    assert set(threads) <= named
    assert len({tid for _, tid in named}) == len(named)  # as Perfetto looks names up by it
    for events in threads.values():
        spans = sorted((ns(e["ts"]), ns(e["ts"]) + ns(e["dur"])) for e in events)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    counters = defaultdict(list)
    for event in phases["C"]:
        assert all(isinstance(number, int) and number >= 0 for number in event["args"].values())
        counters[event["pid"], event["name"]].append(event["ts"])
    assert all(times == sorted(set(times)) for times in counters.values())
    ends = {}
    for event in phases["s"]:
        assert isinstance(event["id"], int)
        assert event["id"] not in ends
        ends[event["id"]] = event
        assert within(event, threads)
    for event in phases["f"]:
        begin = ends.pop(event["id"])
        assert (begin["name"], begin["cat"]) == (event["name"], event["cat"])
        assert begin["ts"] <= event["ts"]
        assert event["bp"] == "e"  # binds to the slice around it
        assert within(event, threads)
    assert not ends
    return phases


def ns(time_us: float) -> int:
    """Whole nanoseconds, as Perfetto counts."""
    assert abs(time_us * 1e3 - round(time_us * 1e3)) < 1e-3
    return round(time_us * 1e3)


def within(flow: dict[str, Any], threads: Any) -> bool:
    return any(
        e["ts"] <= flow["ts"] <= e["ts"] + e["dur"] for e in threads[flow["pid"], flow["tid"]]
    )


def trace_of(schedule: Schedule, views: list[View]) -> dict[str, list[dict[str, Any]]]:
    return check(json.dumps(chrome_trace(schedule, views), allow_nan=False))


def test_a_plan_is_a_process_with_two_lanes_and_a_counter() -> None:
    schedule = Schedule.load(EXAMPLE)
    statements = decode(schedule)
    found = trace_of(schedule, views_of(schedule))
    assert [e["args"]["name"] for e in found["M"] if e["name"].endswith("_name")] == [
        "planned", "processor", "transfers",
    ]  # fmt: skip
    for op, kinds in (("compute", ("forward", "again")), ("page_in", ("page_in",))):
        mine = [
            statement
            for statement in statements
            if not isinstance(statement, Wait) and statement.op == op
        ]
        slices = [e for e in found["X"] if e["cat"] in kinds]
        assert [e["name"] for e in slices] == [statement.node for statement in mine]
    # A plan may end with the processor's part of a page-out, which is not drawn.
    costs = costs_of_schedule(schedule)
    out = [it.node for it in statements if not isinstance(it, Wait) and it.op == "page_out"][-1]
    rest_us = costs.nodes[costs.index[out]].page_out_cpu_us
    last = max(e["ts"] + e["dur"] for e in found["X"])
    late_us = schedule.meta["plan"]["time_us"] - last
    assert min(abs(late_us), abs(late_us - rest_us)) < 0.001
    conv = next(e for e in found["X"] if e["name"] == "conv1")
    assert conv["args"]["operator"] == "conv2d(data, conv1.weight)"
    assert conv["args"]["bytes"] == 4096
    assert found["C"][-1]["args"] == {"bytes": 0}
    outs = {s.node for s in statements if not isinstance(s, Wait) and s.op == "page_out"}
    ins = {s.node for s in statements if not isinstance(s, Wait) and s.op == "page_in"}
    assert len(found["s"]) == len(found["f"]) >= len(outs & ins)


def test_a_page_out_points_to_every_page_in_after_it() -> None:
    nodes = (CostNode("a", (), 4, 2.0, 1.0, 3.0, 1.0, 4.0, 1.0), CostNode("b", (0,), 4, 1.0, 1.0))
    graph = CostGraph("two", nodes)
    statements = (
        Statement("compute", "a", 0), Statement("page_out", "a"), Statement("free", "a"),
        Statement("page_in", "a", 0), Statement("free", "a"), Statement("page_in", "a", 4),
        Statement("compute", "b", 0),
    )  # fmt: skip
    schedule = api.encode(graph, None, Plan("feasible", 8, statements=statements))
    found = trace_of(schedule, [planned(graph, decode(schedule))])
    assert [e["ts"] for e in found["s"]] == [2, 2]
    assert [e["ts"] for e in found["f"]] == [6, 9]


def test_a_run_is_a_second_process() -> None:
    schedule = Schedule.load(EXAMPLE)
    statements = decode(schedule)
    spans = []
    p = x = 0.0
    for statement in statements:  # a board that is slow, and whose clock ticks in thirds
        begin = max(p, x) if isinstance(statement, Wait) or statement.op.startswith("page") else p
        end = begin + 1000 / 3
        p, x = (
            (p, end)
            if not isinstance(statement, Wait) and statement.op.startswith("page")
            else (end, x)
        )
        spans.append((begin, end))
    run = replace(with_trace(run_of(), statements, spans), plan_crc=schedule.solved_crc)
    found = trace_of(schedule, views_of(schedule, run))
    names = {e["pid"]: e["args"]["name"] for e in found["M"] if e["name"] == "process_name"}
    assert names == {1: "planned", 2: "measured"}
    assert {e["name"] for e in found["X"] if e["pid"] == 2} >= {"commits the step", "conv1"}
    assert {e["pid"] for e in found["C"]} == {1, 2}


def with_trace(run: Run, statements: Any, spans: Any) -> Run:
    trace = tuple(
        Traced(
            "wait" if isinstance(one, Wait) else one.op,
            "" if isinstance(one, Wait) else one.node,
            False, False, end - begin, number, begin, end,
        )
        for number, (one, (begin, end)) in enumerate(zip(statements, spans, strict=True))
    )  # fmt: skip
    return replace(run, trace=trace)
