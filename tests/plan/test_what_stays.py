"""What stays in RAM from step to step: the formats, and each law of the verifier."""

from dataclasses import replace
from typing import Any

import pytest
from poet_host.errors import BadInput
from poet_host.plan.costgraph import dump_cost_graph, parse_cost_graph
from poet_host.plan.intervals import Interval, intervals
from poet_host.plan.plan import Plan, Statement, plan_from_json
from poet_host.plan.pricing import commit_costs
from poet_host.plan.problem import CostGraph, Mode, Problem
from poet_host.plan.verify import PlanError, Totals, verify
from poet_host.profile.profile import estimate_profile
from support.plans import node_with, plan_of

node = node_with(
    energy_uj=8.0, time_us=10.0, page_in_us=4.0, page_in_uj=2.0, page_out_us=5.0, page_out_uj=3.0
)
STREAM = Mode((1,), False, 4, 10.0, 4.0, 12.0, 9.0)

# x: a batch; w: a parameter; c: a constant; a uses all, or streams w; u, then v renew w in place.
GRAPH = CostGraph(
    "step",
    (
        node("x", 4, stored=True, given=True),
        node("w", 8, stored=True, stays=True),
        node("c", 4, stored=True, stays=True),
        node("a", 4, 0, 1, 2, modes=(STREAM,)),
        node("u", 8, 1, 3, overwrites=1, keep=True, once=True),
        node("v", 8, 4, overwrites=4, keep=True, once=True),
    ),
    base_power_uw=1e6,
    commit_every=4,
)
START = {"w": 0, "c": 8, "x": 12}
PLAN = (
    Statement("compute", "a", 16),
    Statement("free", "x"),
    Statement("compute", "u", 0),
    Statement("page_out", "u"),
    Statement("compute", "v", 0),
)
PROBLEM = Problem(GRAPH, 20)


def plan(statements: tuple[Statement, ...] = PLAN, **more: Any) -> Plan:
    start = more.pop("start", START)
    return plan_of(statements, initial_offsets=tuple(start.items()), commit_every=4, **more)


def test_what_stays_is_written_once_in_n_steps() -> None:
    # p: a 10, u 20, v 30; x: u 25. The page-out of u ends before v overwrites it.
    ended = max(25.0 + 10.0, 30.0)
    time_us = ended + 5.0 / 4
    energy_uj = 3 * 8.0 + 3.0 + 3.0 / 4
    assert verify(PROBLEM, plan()) == Totals(energy_uj, time_us, 20, energy_uj + time_us, ended + 5)


def test_what_a_statement_wrote_is_not_written_again() -> None:
    last = (*PLAN, Statement("page_out", "v"))
    assert verify(PROBLEM, plan(last)).energy_uj == 3 * 8.0 + 2 * 3.0


def test_a_deadline_bounds_the_step_that_writes() -> None:
    verify(replace(PROBLEM, deadline_us=40.0), plan())
    with pytest.raises(PlanError, match="deadline"):
        verify(replace(PROBLEM, deadline_us=39.9), plan())


def s(op: Any, name: str, offset: int | None = None, **more: Any) -> Statement:
    return Statement(op, name, offset, **more)


BROKEN: dict[str, tuple[str, str, dict[str, int], tuple[Statement, ...]]] = {
    # what is wrong: law, node, start, statements
    "unknown tensor at the start": ("node", "z", {**START, "z": 16}, PLAN),
    "a computed tensor at the start": ("stays", "a", {**START, "a": 16}, PLAN),
    "two in one place at the start": ("overlap", "x", {**START, "x": 4}, PLAN),
    "it is not in RAM at the end": ("stays", "c", START, (*PLAN, s("free", "c"))),
    "its heir is not in RAM at the end": (
        "stays", "v", START, (*PLAN, s("page_out", "v"), s("free", "v")),
    ),
    "it is elsewhere at the end": (
        "stays", "c", START, (*PLAN, s("free", "c"), s("page_in", "c", 12)),
    ),
    "its old value is paged in": (
        "old value", "w", START, (PLAN[0], s("free", "w"), s("page_in", "w", 0), *PLAN[1:]),
    ),
    "its old value is streamed": (
        "old value", "a", START, (s("compute", "a", 16, mode=1, workspace_offset=20), *PLAN[1:]),
    ),
    "its old value is paged in after a page-out": (
        "old value", "w", START,
        (PLAN[0], s("page_out", "w"), s("free", "w"), s("page_in", "w", 0), *PLAN[1:]),
    ),
    "a statement `start`": ("start", "w", {}, (s("start", "w", 0),)),
    "a kept node that does not end the chain is not written": (
        "keep", "u", START, (*PLAN[:3], PLAN[4]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_each_broken_law_is_named(what: str) -> None:
    law, name, start, statements = BROKEN[what]
    problem = replace(PROBLEM, ram_bytes=24)
    with pytest.raises(PlanError) as error:
        verify(problem, plan(statements, start=start))
    assert (error.value.law, error.value.node) == (law, name)


def test_a_constant_may_leave_and_come_back_to_its_place() -> None:
    back = (*PLAN, s("free", "c"), s("page_in", "c", 8))
    assert verify(PROBLEM, plan(back)).energy_uj == verify(PROBLEM, plan()).energy_uj + 2.0


def test_with_n_of_1_storage_has_the_value_of_the_last_step() -> None:
    again = (PLAN[0], s("free", "w"), s("page_in", "w", 0), *PLAN[1:])
    verify(PROBLEM, replace(plan(again), commit_every=1))
    problem = replace(PROBLEM, graph=replace(GRAPH, commit_every=1))
    verify(problem, replace(plan(again), commit_every=None))


def test_the_cost_graph_is_read_as_it_was_written() -> None:
    assert dump_cost_graph(GRAPH)["version"] == 3
    read = parse_cost_graph(dump_cost_graph(GRAPH))
    assert read == replace(GRAPH, may_leave_out=True)
    assert read.heirs == {1: 5, 2: 2}
    plain = dump_cost_graph(replace(GRAPH, commit_every=1))
    assert "commit_every" not in plain
    assert plain["version"] == 3


def test_a_plan_in_which_something_stays_has_version_3() -> None:
    written = plan().to_json()
    assert (written["version"], written["commit_every"]) == (3, 4)
    assert plan_from_json(written) == plan()
    started = plan((Statement("start", "w", 0),)).to_json()
    with pytest.raises(BadInput, match="start"):
        plan_from_json(started)
    unplaced = plan(start=dict.fromkeys(START))
    assert unplaced.to_json()["initial_offsets"] == dict.fromkeys(START)
    assert plan_from_json(unplaced.to_json()) == unplaced


def row(name: str, **fields: Any) -> dict[str, Any]:
    """A row of the graph in JSON, with other fields."""
    rows = dump_cost_graph(GRAPH)["nodes"]
    return next(it for it in rows if it["name"] == name) | fields


BAD: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # what is wrong: what the message names, changed fields of the graph, the changed row
    "a computed node stays": ('"a"', {}, row("a", stays=True)),
    "a computed node is given": ('"a"', {}, row("a", given=False)),
    "no boolean": ("stays", {}, row("w", stays=1)),
    "version 2": ('"given"', {"version": 2}, row("w")),
    "an N of 0": ("commit_every", {"commit_every": 0}, row("w")),
    "an N that is not whole": ("commit_every", {"commit_every": 2.5}, row("w")),
    "two nodes renew it": ('"v"', {}, row("v", inputs=["w"], overwrites="w")),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_graph_is_refused_by_name(what: str) -> None:
    named, fields, changed = BAD[what]
    graph = dump_cost_graph(GRAPH)
    graph |= fields
    graph["nodes"] = [changed if it["name"] == changed["name"] else it for it in graph["nodes"]]
    if graph["version"] == 2:
        del graph["commit_every"]
    with pytest.raises(BadInput) as error:
        parse_cost_graph(graph)
    assert named in str(error.value)


def test_other_intervals_share_what_stays_and_the_record() -> None:
    solved = replace(plan(), total_energy_uj=100.0, time_us=40.0)
    own, ten, hundred = intervals(solved, GRAPH, None)
    commit_uj = 3.0 + 5.0  # the page-out of v, and its time at 1 W
    assert own == Interval(4, 100.0, 8 + 8 / 4, more_may_stay=False)
    ten_uj = pytest.approx(100.0 + commit_uj * (1 / 10 - 1 / 4))
    assert ten == Interval(10, ten_uj, 8 + 8 / 10, more_may_stay=False)
    assert hundred.written_bytes == 8 + 8 / 100
    # What the step reads from storage is written in each step.
    often = replace(GRAPH, commit_every=1)
    reads = replace(solved, statements=(s("compute", "a", mode=1), *PLAN[1:]))
    assert {it.total_energy_uj for it in intervals(reads, often, None)} == {100.0}
    # A card's commit record is shared too.
    profile = estimate_profile("mkr1000")
    own, ten, _ = intervals(solved, often, profile)
    time_us, record_uj = commit_costs(profile, often, solved)
    emptied_us, emptied_uj = commit_costs(profile, often, replace(solved, initial_offsets=()))
    lane = profile.page_in.times_us(504)
    assert time_us - emptied_us == pytest.approx(lane[0])  # it is read back, in a shared block
    assert record_uj > emptied_uj
    assert own.total_energy_uj == pytest.approx(100.0 + record_uj + time_us)
    sum_us, share_uj = commit_costs(profile, replace(GRAPH, commit_every=10), solved)
    assert ten.total_energy_uj == pytest.approx(100.0 - commit_uj * 0.9 + share_uj + sum_us)
    # What is read back before a commit takes a share of the time of ten steps.
    assert 10 * sum_us == pytest.approx(profile.commit(often.kept_sizes, 400.0, [8])[0])
