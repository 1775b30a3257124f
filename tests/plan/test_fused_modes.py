"""Version 2 of cost graphs: modes that read other nodes, or compute several nodes, and nodes that a
plan leaves out.
"""

import copy
import re
from dataclasses import replace
from typing import Any

import pytest
from poet_host.errors import BadInput
from poet_host.plan.costgraph import dump_cost_graph, parse_cost_graph
from poet_host.plan.placed_plan import PlacedPlan, realise
from poet_host.plan.plan import Statement, plan_from_json
from poet_host.plan.problem import Also, CostGraph, Problem
from poet_host.plan.transfers import overlap
from poet_host.plan.verify import PlanError, verify
from poet_host.view.plan_table import plan_rows
from support.mode_graphs import fused, mode_graph
from support.plans import plan_of, totals

PAGES = {"page_in_us": 4.0, "page_in_uj": 2.0, "page_out_us": 5.0, "page_out_uj": 3.0}
COSTS = {"time_us": 10.0, "energy_uj": 8.0, "stored": False, "keep": False, **PAGES}
STORED = {"inputs": [], "bytes": 8, "stored": True, "keep": False, **PAGES}
MODE: dict[str, Any] = {
    "streamed_inputs": ["w"], "streamed_output": False, "workspace_bytes": 12, "time_us": 20.0,
    "transfer_us": 6.0, "wall_us": 21.0, "energy_uj": 30.0,
    "also": [{"node": "norm", "streamed": True}, {"node": "relu", "streamed": False}],
}  # fmt: skip
# conv reads w and x, norm reads conv, relu takes the place of norm, and end reads relu.
ROWS: list[dict[str, Any]] = [
    {"name": "x", **STORED},
    {"name": "w", **STORED},
    {"name": "conv", "inputs": ["x", "w"], "bytes": 16, **COSTS, "modes": [MODE]},
    {"name": "norm", "inputs": ["conv"], "bytes": 16, **COSTS},
    {"name": "relu", "inputs": ["norm"], "bytes": 16, **COSTS},
    {"name": "end", "inputs": ["relu"], "bytes": 4, **COSTS | {"keep": True},
     "modes": [MODE | {"streamed_inputs": [], "inputs": ["norm"], "also": []}]},
]  # fmt: skip


def graph_of(rows: list[dict[str, Any]] = ROWS, **top: Any) -> CostGraph:
    form = {"format": "poet-cost-graph", "version": 2, "name": "step", "nodes": rows}
    return parse_cost_graph(form | top, "g.json")


def changed(name: str, **change: Any) -> list[dict[str, Any]]:
    """ROWS with another mode of one node. A key whose value is ... is left out."""
    rows = copy.deepcopy(ROWS)
    row = next(row for row in rows if row["name"] == name)
    mode = row["modes"][0] | change
    row["modes"] = [{key: value for key, value in mode.items() if value is not ...}]
    return rows


GRAPH = graph_of()
CONV = Statement("compute", "conv", 8, 24, 1, also_offsets=(36,))
BEGIN = (Statement("page_in", "x", 0), CONV)
FREES = tuple(Statement("free", name) for name in ("x", "conv", "relu"))
REST = (Statement("compute", "end", 0), Statement("page_out", "end"))
PLAN = (*BEGIN, *FREES[:2], *REST)


def test_a_mode_of_several_nodes_arrives() -> None:
    """It reads what its nodes read, except one another."""
    mode = GRAPH.nodes[2].modes[0]
    assert mode.also == (Also(3, True), Also(4, False))
    assert GRAPH.nodes[2].inputs_of(1) == (0, 1)
    assert GRAPH.nodes[2].whole_inputs(1) == (0,)
    assert GRAPH.own_bytes(2, 1) == 12 + 16 + 16
    assert GRAPH.nodes[5].whole_inputs(1) == (3,)
    assert GRAPH.may_leave_out
    assert parse_cost_graph(dump_cost_graph(GRAPH)) == GRAPH


def test_a_table_counts_nodes_that_are_computed_again() -> None:
    """Not statements: relu is computed with conv, then alone."""
    again = (Statement("page_in", "norm", 40), Statement("compute", "relu", 40))
    costs = dict.fromkeys(("energy_uj", "total_energy_uj", "time_us", "peak_bytes"), 1)
    for statements, count in ((BEGIN, "0"), ((*BEGIN, FREES[2], *again), "1")):
        rows = dict(plan_rows(None, plan_of(statements, **costs), GRAPH))
        assert rows["recomputed"] == count


def test_graphs_survive_json() -> None:
    for seed in range(60):
        graph = replace(fused(mode_graph(seed), seed), may_leave_out=True)
        assert parse_cost_graph(dump_cost_graph(graph)) == graph
    plain = replace(GRAPH, may_leave_out=False)
    assert dump_cost_graph(plain)["version"] == 2
    nodes = tuple(replace(node, modes=()) for node in GRAPH.nodes)
    assert dump_cost_graph(replace(plain, nodes=nodes))["version"] == 1
    assert dump_cost_graph(replace(GRAPH, nodes=nodes))["version"] == 2


def test_what_a_plan_may_leave_out() -> None:
    """end reads relu in mode 0 and norm in mode 1, so neither is read in every plan."""
    assert GRAPH.unavoidable == {5}
    assert graph_of(changed("end", inputs=...)).unavoidable == {2, 3, 4, 5} - {2, 3}
    assert replace(GRAPH, may_leave_out=False).unavoidable == {2, 3, 4, 5}


BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "inputs no list": ("conv", {"inputs": "x"}, "inputs"),
    "inputs null": ("conv", {"inputs": None}, "inputs"),
    "an unknown input": ("conv", {"inputs": ["nobody", "w"]}, '"nobody"'),
    "a later input": ("conv", {"inputs": ["w", "end"]}, '"end"'),
    "an input of its own": ("conv", {"inputs": ["w", "norm"]}, '"norm"'),
    "itself": ("end", {"inputs": ["end"]}, '"end"'),
    "an input twice": ("conv", {"inputs": ["w", "w"]}, "twice"),
    "it streams what it does not read": ("conv", {"inputs": ["x"]}, '"w"'),
    "also no list": ("conv", {"also": "norm"}, "also"),
    "also a name": ("conv", {"also": ["norm"]}, "also"),
    "also null": ("conv", {"also": None}, "also"),
    "also without a name": ("conv", {"also": [{"streamed": True}]}, "also"),
    "also without a flag": ("conv", {"also": [{"node": "norm"}]}, "streamed"),
    "also no flag": ("conv", {"also": [{"node": "norm", "streamed": 1}]}, "streamed"),
    "also with another key": (
        "conv", {"also": [{"node": "norm", "streamed": True, "bytes": 4}]}, "bytes",
    ),
    "not the next node": ("conv", {"also": [{"node": "relu", "streamed": True}]}, '"norm"'),
    "an earlier node": ("end", {"also": [{"node": "relu", "streamed": True}]}, "no node"),
    "beyond the end": ("end", {"also": [{"node": "more", "streamed": True}]}, "no node"),
    "the keys of an older program": ("conv", {"deferred": True}, "deferred"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_mode(what: str) -> None:
    node, change, named = BAD[what]
    with pytest.raises(BadInput) as error:
        graph_of(changed(node, **change))
    assert re.match(rf'g\.json, node "{node}", mode 1\b', str(error.value))
    assert named in str(error.value)
    assert "\n" not in str(error.value)


def test_only_version_2_has_the_new_keys() -> None:
    with pytest.raises(BadInput, match=r'node "conv", mode 1: .*"version" 2 may have "also"'):
        graph_of(version=1)
    with pytest.raises(BadInput, match="may_leave_out"):
        graph_of(may_leave_out=True)
    with pytest.raises(BadInput, match="reads versions 1, 2 and 3"):
        graph_of(version=4)


def in_place(**change: Any) -> CostGraph:
    """GRAPH, but relu takes the place of norm."""
    rows = changed("conv", **change)
    rows[4] = rows[4] | {"overwrites": "norm"}
    return graph_of(rows)


def test_a_node_that_overwrites_another_one_of_the_mode_streams_like_it() -> None:
    with pytest.raises(BadInput, match=r'"conv", mode 1: its node "relu" .*both'):
        in_place()
    graph = in_place(also=[{"node": name, "streamed": False} for name in ("norm", "relu")])
    assert graph.own_bytes(2, 1) == 12 + 16 + 16
    plan = [BEGIN[0], replace(CONV, also_offsets=(36, 36)), *FREES[:2], *REST]
    assert verify(Problem(graph, 64), plan_of(plan)).peak_bytes == 52
    with pytest.raises(PlanError) as error:
        verify(Problem(graph, 64), plan_of([BEGIN[0], replace(CONV, also_offsets=(36, 40))]))
    assert error.value.law == "overwrites"


def test_a_mode_names_what_it_overwrites_if_it_does_not_read_it() -> None:
    rows = changed("end")
    rows[4]["bytes"] = 4
    rows[5]["overwrites"] = "relu"
    with pytest.raises(BadInput, match=r'"end", mode 1: .*"relu".*"overwrites": null'):
        graph_of(rows)
    rows[5]["modes"][0]["overwrites"] = None
    assert graph_of(rows).nodes[5].modes[0].overwrites is None


def test_one_statement_computes_several_nodes() -> None:
    """It needs x in RAM, and w on storage. Then conv and relu are in RAM, norm on storage."""
    found = verify(Problem(GRAPH, 52), plan_of(PLAN))
    assert (found.energy_uj, found.time_us, found.peak_bytes) == (2 + 30 + 8 + 3, 4 + 21 + 15, 52)
    again = [*BEGIN, FREES[1], FREES[2], CONV, *FREES[:2], *REST]
    assert verify(Problem(GRAPH, 52), plan_of(again)).energy_uj == found.energy_uj + 30


def test_a_node_that_nobody_reads_is_left_out() -> None:
    """Only norm is read, which is on storage."""
    plan = [*BEGIN, *FREES, Statement("page_in", "norm", 0)]
    plan += [Statement("compute", "end", 16, 20, 1), Statement("page_out", "end")]
    assert verify(Problem(GRAPH, 52), plan_of(plan)).energy_uj == 2 + 30 + 2 + 30 + 3
    rows = [row for row in changed("end", inputs=["w"]) if row["name"] != "relu"]
    rows[-1]["inputs"] = ["w"]
    rows[2]["modes"] = []
    short = graph_of(rows)
    plan = [Statement("page_in", "w", 0), Statement("compute", "end", 8), REST[1]]
    assert verify(Problem(short, 12), plan_of(plan)).energy_uj == 2 + 8 + 3
    with pytest.raises(PlanError) as error:
        verify(Problem(replace(short, may_leave_out=False), 12), plan_of(plan))
    assert error.value.law == "order"


BROKEN: dict[str, tuple[str, list[Statement]]] = {
    "a whole input missing": ("input", [CONV]),
    "an output in RAM": ("twice", [*BEGIN, replace(CONV, offset=56)]),
    "an output over an input": ("overlap", [BEGIN[0], replace(CONV, offset=4)]),
    "outputs over one another": ("overlap", [BEGIN[0], replace(CONV, also_offsets=(12,))]),
    "workspace over an output": ("overlap", [BEGIN[0], replace(CONV, workspace_offset=40)]),
    "no offset": ("offset", [BEGIN[0], replace(CONV, also_offsets=())]),
    "too many offsets": ("offset", [BEGIN[0], replace(CONV, also_offsets=(36, 52))]),
    "too high": ("height", [BEGIN[0], replace(CONV, also_offsets=(52,))]),
    "a streamed node in RAM": (
        "streamed", [*BEGIN, *FREES, Statement("page_in", "x", 0),
                     Statement("page_in", "norm", 44), CONV],
    ),
    "computed after a later node": (
        "order", [Statement("page_in", "x", 0), Statement("page_in", "w", 8),
                  Statement("compute", "conv", 16), Statement("compute", "norm", 32),
                  Statement("free", "conv"), Statement("compute", "end", 16, 20, 1), *FREES[:1],
                  Statement("compute", "relu", 0)],
    ),
    "a kept node left out": ("keep", [*BEGIN]),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_broken_plan(what: str) -> None:
    law, statements = BROKEN[what]
    with pytest.raises(PlanError) as error:
        verify(Problem(GRAPH, 64), plan_of(statements))
    assert error.value.law == law


def test_a_node_is_computed_once_by_every_mode() -> None:
    rows = copy.deepcopy(ROWS)
    rows[3]["once"] = True
    with pytest.raises(PlanError) as error:
        verify(Problem(graph_of(rows), 64), plan_of([*BEGIN, FREES[1], FREES[2], CONV]))
    assert error.value.law == "once"


def test_without_storage_no_node_of_a_mode_streams() -> None:
    rows = changed("conv", streamed_inputs=[])
    bare = replace(graph_of(rows), storage=False)
    with pytest.raises(PlanError) as error:
        verify(Problem(bare, 99), plan_of([replace(CONV, offset=16)]))
    assert error.value.law == "no storage"


def test_plans_survive_json() -> None:
    plan = plan_of(PLAN)
    top = plan.to_json()
    assert top["version"] == 2
    assert top["statements"][1] == {
        "op": "compute", "node": "conv", "offset": 8, "workspace_offset": 24, "mode": 1,
        "also_offsets": [36],
    }  # fmt: skip
    assert plan_from_json(top).statements == PLAN
    assert plan_of(PLAN[:1]).to_json()["version"] == 1
    assert plan_of(PLAN[:1], problem=Problem(GRAPH, 64)).to_json()["version"] == 2


def test_all_outputs_are_placed_and_move_with_early_transfers() -> None:
    loose = [replace(it, offset=None, workspace_offset=None, also_offsets=()) for it in PLAN]
    problem = Problem(GRAPH, 60)
    found = realise(problem, loose, placed=True, time_limit_s=5.0)
    assert isinstance(found, PlacedPlan)
    assert len(found.statements[1].also_offsets) == 1
    assert verify(problem, plan_of(found.statements)) == found.totals
    moved = overlap(problem, loose)
    assert totals(problem, moved).time_us <= totals(problem, loose).time_us
