"""Modes in cost graphs and plans: how they are read, and the laws that the verifier holds."""

import copy
import math
import re
from dataclasses import replace
from typing import Any

import pytest
from poet_host.errors import BadInput
from poet_host.plan.costgraph import dump_cost_graph, parse_cost_graph
from poet_host.plan.plan import Statement, plan_from_json
from poet_host.plan.problem import CostGraph, Mode, Problem
from poet_host.plan.verify import PlanError, verify
from support.plans import node_with, plan_of, totals

PAGES = {"page_in_us": 4.0, "page_in_uj": 2.0, "page_out_us": 5.0, "page_out_uj": 3.0}
MODE: dict[str, Any] = {
    "streamed_inputs": ["w"],
    "streamed_output": False,
    "workspace_bytes": 12,
    "time_us": 20.0,
    "transfer_us": 6.0,
    "wall_us": 21.0,
    "energy_uj": 30.0,
}
ROWS: list[dict[str, Any]] = [
    {"name": "w", "inputs": [], "bytes": 8, "stored": True, "keep": False, **PAGES},
    {
        "name": "a", "inputs": ["w"], "bytes": 8, "time_us": 10, "energy_uj": 8, "stored": False,
        "keep": False, "overwrites": "w", "modes": [MODE | {"streamed_output": True}], **PAGES,
    },
]  # fmt: skip
GOOD: dict[str, Any] = {
    "format": "poet-cost-graph",
    "version": 1,
    "name": "step",
    "nodes": ROWS,
}


def with_mode(**change: Any) -> dict[str, Any]:
    """GOOD with a changed mode. A key whose value is ... is left out."""
    graph = copy.deepcopy(GOOD)
    row = graph["nodes"][1]["modes"][0] | change
    graph["nodes"][1]["modes"] = [MODE | {"overwrites": None}, row]
    for key in [key for key, value in row.items() if value is ...]:
        del row[key]
    return graph


def test_modes_arrive() -> None:
    moved = {"moved_in_bytes": 8.0, "moved_out_bytes": 16}
    graph = parse_cost_graph(with_mode(**moved))
    assert graph.nodes[1].modes == (
        Mode((0,), False, 12, 20.0, 6.0, 21.0, 30.0),
        Mode((0,), True, 12, 20.0, 6.0, 21.0, 30.0, 8, 16, overwrites=0),
    )
    assert parse_cost_graph(dump_cost_graph(graph)) == graph
    dumped = dump_cost_graph(graph)["nodes"][1]["modes"]
    assert [row.get("overwrites", ...) for row in dumped] == [None, ...]
    assert "modes" not in dump_cost_graph(graph)["nodes"][0]


def test_mode_0_is_the_node_itself() -> None:
    graph = parse_cost_graph(GOOD)
    node = graph.nodes[1]
    own, streamed = node.all_modes
    assert own == Mode((), False, 0, 10.0, 0.0, 10.0, 8.0, overwrites=0)
    assert (node.whole_inputs(), node.whole_inputs(1)) == ((0,), ())
    assert (graph.own_bytes(1), graph.own_bytes(1, 1)) == (0, 12)
    assert (node.taken(), node.taken(1)) == (0, None)
    assert streamed is node.modes[0]


def test_a_mode_may_choose_what_it_overwrites() -> None:
    rows = [{**ROWS[0], "name": name} for name in ("v", "w")]
    row = {**ROWS[1], "inputs": ["v", "w"], "overwrites": "w"}
    for over, position in (("v", 0), (None, None), ("w", 1)):
        row["modes"] = [MODE | {"streamed_inputs": [], "overwrites": over}]
        graph = parse_cost_graph({**GOOD, "nodes": [*rows, row]})
        assert graph.nodes[2].modes[0].overwrites == position
        assert parse_cost_graph(dump_cost_graph(graph)) == graph


COSTS = ("time_us", "transfer_us", "wall_us", "energy_uj")
BAD: dict[str, tuple[dict[str, Any], str]] = {
    **{f"{key} missing": ({key: ...}, key) for key in MODE},
    **{
        f"{key} {number}": ({key: number}, key)
        for key in COSTS
        for number in (-1, math.nan, math.inf, "1", None, True)
    },
    **{
        f"{key} {number}": ({key: number}, key)
        for key in ("workspace_bytes", "moved_in_bytes", "moved_out_bytes")
        for number in (-1, 1.5, "1", None, True, 1 << 60)
    },
    "a key of version 2": ({"inputs": []}, '"version" 2 may have "inputs"'),
    "another key of version 2": ({"also": []}, '"version" 2 may have "also"'),
    "unknown key": ({"deferred": False}, "deferred"),
    "name": ({"name": "x"}, "name"),
    "streamed no list": ({"streamed_inputs": "w"}, "streamed_inputs"),
    "streamed no name": ({"streamed_inputs": [0]}, "streamed_inputs"),
    "streamed no input": ({"streamed_inputs": ["a"]}, '"a"'),
    "streamed unknown": ({"streamed_inputs": ["v"]}, '"v"'),
    "streamed twice": ({"streamed_inputs": ["w", "w"]}, '"w"'),
    "output no flag": ({"streamed_output": 1}, "streamed_output"),
    "wall below time": ({"wall_us": 19.9}, "wall_us"),
    "wall below transfers": ({"transfer_us": 22.0}, "wall_us"),
    "overwrites no input": ({"overwrites": "a"}, '"a"'),
    "overwrites no name": ({"overwrites": [0]}, "overwrites"),
    "overwrites false": ({"overwrites": False}, "overwrites"),
    "streams what it overwrites": ({"streamed_output": False}, "both"),
    "streams the output alone": ({"streamed_inputs": []}, "both"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_mode(what: str) -> None:
    change, named = BAD[what]
    with pytest.raises(BadInput) as error:
        parse_cost_graph(with_mode(**change), "g.json")
    assert re.match(r'g\.json, node "a", mode 2\b', str(error.value))
    assert named in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("mode", [None, 1, [], "x"])
def test_a_mode_must_be_an_object(mode: object) -> None:
    graph = copy.deepcopy(GOOD)
    graph["nodes"][1]["modes"] = [mode]
    with pytest.raises(BadInput, match=r'node "a", mode 1'):
        parse_cost_graph(graph)


def test_a_mode_overwrites_an_input_of_its_size() -> None:
    small = {**ROWS[0], "name": "v", "bytes": 4}
    row = {**ROWS[1], "inputs": ["v", "w"]}
    row["modes"] = [MODE | {"streamed_inputs": [], "overwrites": "v"}]
    with pytest.raises(BadInput, match=r'node "a", mode 1.*"v".*4 bytes'):
        parse_cost_graph({**GOOD, "nodes": [small, *ROWS[:1], row]})


def test_plans_with_modes_survive_json() -> None:
    plan = plan_of([Statement("compute", "a", 4, 0, 2), Statement("compute", "b", 0)])
    rows = plan.to_json()["statements"]
    assert rows == [
        {"op": "compute", "node": "a", "offset": 4, "workspace_offset": 0, "mode": 2},
        {"op": "compute", "node": "b", "offset": 0},
    ]
    assert plan_from_json(plan.to_json()).statements == plan.statements
    same = plan.to_json() | {"statements": [rows[1] | {"mode": 0}]}
    assert plan_from_json(same).statements == plan.statements[1:]


# The step of the verifier's tests: w is a parameter, a uses it, b uses a, u renews w in place.
node = node_with(energy_uj=8.0, time_us=10.0, page_in_cpu_us=1.0, page_out_cpu_us=2.0, **PAGES)


def mode(streamed: tuple[int, ...] = (), output: bool = False, **more: Any) -> Mode:
    return Mode(streamed, output, **({
        "workspace_bytes": 4, "time_us": 20.0, "transfer_us": 15.0, "wall_us": 25.0,
        "energy_uj": 30.0,
    } | more))  # fmt: skip


GRAPH = CostGraph(
    "step",
    (
        node("w", 8, stored=True),
        node("a", 4, 0, modes=(mode((0,)), mode((0,), output=True), mode())),
        node("b", 4, 1, modes=(mode((1,)), mode(overwrites=1), mode((1,), True, overwrites=1))),
        node(
            "u", 8, 0, 2, overwrites=0, keep=True, once=True,
            modes=(mode((0,), True, overwrites=0), mode((2,)), mode((0, 2), True)),
        ),
    ),
)  # fmt: skip


def c(name: str, mode: int = 0, at: int | None = None, workspace: int | None = None) -> Statement:
    return Statement("compute", name, at, workspace, mode)


def page_in(name: str, at: int = 0) -> Statement:
    return Statement("page_in", name, at)


def free(name: str) -> Statement:
    return Statement("free", name)


def out(name: str) -> Statement:
    return Statement("page_out", name)


# a and u stream w. Nothing but a and b is ever in RAM.
STREAMED = (c("a", 1, 0, 4), c("b", 0, 4), c("u", 1, None, 8))


def test_a_streamed_step() -> None:
    found = verify(Problem(GRAPH, 12), plan_of(STREAMED))
    assert (found.energy_uj, found.time_us, found.peak_bytes) == (68.0, 60.0, 12)


def test_both_lanes_are_idle_before_a_mode_and_busy_in_it() -> None:
    """A page-out runs from 35 to 40 while b is computed until 45, and another one until 50."""
    statements = [c("a", 1), out("a"), c("b"), out("b"), c("u", 1)]
    assert totals(Problem(GRAPH, 12), statements).time_us == 25 + 2 + 10 + 5 + 25
    after = [c("a", 1), c("b"), c("u", 1), Statement("page_in", "w")]
    assert totals(Problem(GRAPH, 16), after).time_us == 60 + 4


def test_a_mode_that_streams_nothing_takes_both_lanes_too() -> None:
    statements = [page_in("w"), c("a", 3), c("b"), c("u", 1)]
    with pytest.raises(PlanError):
        totals(Problem(GRAPH, 20), statements)
    statements.insert(2, free("w"))
    assert totals(Problem(GRAPH, 16), statements).time_us == 4 + 25 + 10 + 25


def test_what_is_streamed_out_is_on_storage() -> None:
    """It may be streamed in, paged in, and needs no page-out. The old w stays as it was."""
    plan = [c("a", 2), page_in("a"), c("b"), c("u", 1), free("a"), page_in("w"), free("w")]
    plan += [c("a", 1), free("a"), page_in("u")]
    assert totals(Problem(GRAPH, 12), plan).energy_uj == 30 + 2 + 8 + 30 + 2 + 30 + 2


def test_a_copy_of_a_streamed_input_stays_in_ram() -> None:
    plan = [page_in("w"), c("a", 1), c("b"), free("w"), c("u", 1)]
    assert totals(Problem(GRAPH, 16), plan).peak_bytes == 16
    with pytest.raises(PlanError) as error:
        totals(Problem(GRAPH, 15), plan)
    assert (error.value.law, error.value.statement) == ("RAM", 1)


def test_a_mode_overwrites_what_it_says() -> None:
    """Mode 2 of b takes the place of a, which mode 0 leaves alone."""
    plan = [c("a", 1, 0, 4), c("b", 2, 0, 4), c("u", 1, None, 4)]
    assert verify(Problem(GRAPH, 8), plan_of(plan)).peak_bytes == 8
    with pytest.raises(PlanError) as error:
        verify(Problem(GRAPH, 8), plan_of([*plan[:2], free("a")]))
    assert (error.value.law, error.value.node) == ("in RAM", "a")


def test_a_mode_may_leave_what_the_node_overwrites() -> None:
    """Mode 2 of u makes a second tensor. Then w is still in RAM, and u is not on storage."""
    plan = [page_in("w", 0), c("a", 0, 8), c("b", 0, 12), out("b"), free("a"), free("b")]
    plan += [c("u", 2, 8, 16), out("u"), free("w")]
    assert verify(Problem(GRAPH, 20), plan_of(plan)).peak_bytes == 20
    with pytest.raises(PlanError) as error:
        verify(Problem(GRAPH, 20), plan_of([*plan[:-2], free("w")]))
    assert (error.value.law, error.value.node) == ("keep", "u")


BROKEN: dict[str, tuple[str, int, list[Statement]]] = {
    "input on no storage": ("on storage", 1, [c("a", 1, 0, 4), c("b", 1, 4, 8)]),
    "an input that must be whole": ("input", 0, [c("a", 3, 0, 4)]),
    "output in RAM": ("streamed", 1, [c("a", 1, 0, 4), c("a", 2, None, 4)]),
    "overwritten input in RAM": (
        "streamed", 3, [c("a", 1, 0, 4), c("b", 0, 4), page_in("w", 12), c("u", 1, None, 8)],
    ),
    "output with an offset": ("offset", 0, [c("a", 2, 0, 4)]),
    "output without an offset": ("offset", 0, [c("a", 1, None, 4)]),
    "workspace without an offset": ("offset", 0, [c("a", 1, 0)]),
    "workspace over a tensor": ("overlap", 1, [c("a", 1, 0, 4), c("b", 2, 0, 0)]),
    "workspace over the output": ("overlap", 0, [c("a", 1, 0, 0)]),
    "workspace too high": ("height", 0, [c("a", 1, 0, 24)]),
    "not at the overwritten input": ("overwrites", 1, [c("a", 1, 0, 4), c("b", 2, 4, 8)]),
    "an output in RAM already": ("twice", 1, [c("a", 1, 0, 4), c("a", 1, 8, 4)]),
    "no such mode": ("mode", 0, [c("a", 4, 0, 4)]),
    "a page-in with a mode": ("mode", 0, [Statement("page_in", "w", 0, mode=1)]),
    "a free with a mode": ("mode", 1, [page_in("w"), Statement("free", "w", mode=1)]),
    "another order": ("order", 0, [c("b", 1, 0, 4)]),
    "once again": ("once", 3, [*STREAMED, c("u", 1, None, 8)]),
    "a stored tensor": ("stored", 0, [c("w", 1)]),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_broken_plan(what: str) -> None:
    law, at, statements = BROKEN[what]
    with pytest.raises(PlanError) as error:
        verify(Problem(GRAPH, 24), plan_of(statements))
    assert (error.value.law, error.value.statement) == (law, at)


@pytest.mark.parametrize("number", [1, 2])
def test_without_storage_nothing_streams(number: int) -> None:
    bare = replace(GRAPH, storage=False)
    with pytest.raises(PlanError) as error:
        verify(Problem(bare, 99), plan_of([c("a", number, None, 16)]))
    assert error.value.law == "no storage"


def test_without_storage_a_mode_that_streams_nothing_runs() -> None:
    plan = [c("a", 3, 8, 12), c("b", 2, 8, 12), c("u", 0, 0)]
    assert verify(Problem(replace(GRAPH, storage=False), 16), plan_of(plan)).time_us == 60


def test_a_tensor_of_0_bytes_overlaps_nothing() -> None:
    nodes = (
        node("w", 8, stored=True),
        node("z", 0, 0, modes=(mode((0,), workspace_bytes=0),)),
        node("y", 0, 1, 0, modes=(mode((0,), overwrites=1, workspace_bytes=8),)),
    )
    plan = [page_in("w"), c("z", 1, 4), c("y", 1, 4, 8)]
    assert verify(Problem(CostGraph("g", nodes), 16), plan_of(plan)).peak_bytes == 16
