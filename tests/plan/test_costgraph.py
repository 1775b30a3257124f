"""Cost graphs come in as JSON: good ones whole, bad ones with an error that names the node."""

import copy
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings, strategies as st
from poet_host.errors import BadInput
from poet_host.plan.costgraph import dump_cost_graph, load_cost_graph, parse_cost_graph
from poet_host.plan.keepall import keep_everything
from poet_host.plan.plan import Plan, Statement, StoppedBy, plan_from_json
from poet_host.plan.problem import CostGraph, CostNode, Mode

PAGES = {"page_in_us": 14.3, "page_in_uj": 4.7, "page_out_us": 14.9, "page_out_uj": 4.9}
GOOD: dict[str, Any] = {
    "format": "poet-cost-graph",
    "version": 1,
    "name": "step",
    "nodes": [
        {"name": "w1", "inputs": [], "bytes": 16, "stored": True, "keep": False, **PAGES},
        {
            "name": "conv 1 ü 卷",
            "inputs": ["w1"],
            "bytes": 65536,
            "time_us": 812.5,
            "energy_uj": 53.6,
            "stored": False,
            "keep": False,
            "workspace_bytes": 128,
            "page_in_cpu_us": 1.5,
            "page_out_cpu_us": 2,
            **PAGES,
        },
        {
            "name": "new w1",
            "inputs": ["conv 1 ü 卷", "w1"],
            "bytes": 16,
            "time_us": 0,
            "energy_uj": 0,
            "stored": False,
            "keep": True,
            "overwrites": "w1",
            **PAGES,
        },
    ],
    "base_power_uw": 1000,
}


def test_every_key_arrives() -> None:
    costs = {"page_in_us": 14.3, "page_in_uj": 4.7, "page_out_us": 14.9, "page_out_uj": 4.9}
    assert parse_cost_graph(GOOD) == CostGraph(
        "step",
        (
            CostNode("w1", (), 16, stored=True, **costs),
            CostNode(
                "conv 1 ü 卷",
                (0,),
                65536,
                812.5,
                53.6,
                page_in_cpu_us=1.5,
                page_out_cpu_us=2.0,
                workspace_bytes=128,
                **costs,
            ),
            CostNode("new w1", (1, 0), 16, keep=True, overwrites=0, **costs),
        ),
        storage=True,
        base_power_uw=1000.0,
    )


def test_without_storage_paging_needs_no_costs() -> None:
    graph = copy.deepcopy(GOOD) | {"storage": False}
    for node in graph["nodes"]:
        for key in PAGES:
            del node[key]
    assert not parse_cost_graph(graph).storage


def test_an_input_listed_twice_counts_once() -> None:
    graph = copy.deepcopy(GOOD)
    graph["nodes"][1]["inputs"] = ["w1", "w1"]
    assert parse_cost_graph(graph).nodes[1].inputs == (0,)


def test_whole_numbers_may_be_written_as_floats() -> None:
    graph = copy.deepcopy(GOOD)
    graph["nodes"][1]["bytes"] = 65536.0
    node = parse_cost_graph(graph).nodes[1]
    assert (node.bytes, type(node.bytes)) == (65536, int)


def node_change(index: int, **change: Any) -> Callable[[dict[str, Any]], None]:
    return lambda graph: graph["nodes"][index].update(change)


def without(index: int, key: str) -> Callable[[dict[str, Any]], None]:
    return lambda graph: graph["nodes"][index].pop(key)


def top(**change: Any) -> Callable[[dict[str, Any]], None]:
    return lambda graph: graph.update(change)


COSTS = ("time_us", "energy_uj", *PAGES, "page_in_cpu_us", "page_out_cpu_us")
BAD: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    # what is wrong: how to break it, a pattern of what the message must name
    "unknown key of a node": (node_change(1, colour="red"), "conv 1"),
    "misspelt key": (node_change(1, energy_mj=1), "conv 1"),
    "unknown key on top": (top(deadline=5), "deadline"),
    "no name": (without(1, "name"), "node 1"),
    "name no text": (node_change(1, name=7), "node 1"),
    "name empty": (node_change(1, name=""), "node 1"),
    "name half a character": (node_change(1, name="\ud800"), "node 1"),
    "name twice": (node_change(2, name="w1"), '"w1"'),
    "node no object": (lambda graph: graph["nodes"].append("x"), "node 3"),
    "nodes missing": (lambda graph: graph.pop("nodes"), "nodes"),
    "nodes no list": (top(nodes={}), "nodes"),
    "nodes empty": (top(nodes=[]), "nodes"),
    "graph without a name": (lambda graph: graph.pop("name"), "name"),
    "other format": (top(format="onnx"), "format"),
    "format missing": (lambda graph: graph.pop("format"), "format"),
    "version of the future": (top(version=4), "version 4"),
    "version true": (top(version=True), "version"),
    "version missing": (lambda graph: graph.pop("version"), "version"),
    "storage no flag": (top(storage="no"), "storage"),
    "base power negative": (top(base_power_uw=-1), "base_power_uw"),
    "inputs missing": (without(1, "inputs"), "conv 1"),
    "inputs no list": (node_change(1, inputs="w1"), "conv 1"),
    "input no name": (node_change(1, inputs=[0]), "conv 1"),
    "input unknown": (node_change(1, inputs=["w2"]), '"w2"'),
    "input itself": (node_change(1, inputs=["conv 1 ü 卷"]), "conv 1"),
    "cycle": (node_change(1, inputs=["new w1"]), '"new w1"'),
    "stored with inputs": (node_change(1, stored=True), "conv 1"),
    "stored no flag": (node_change(1, stored=1), "conv 1"),
    "keep no flag": (node_change(1, keep="true"), "conv 1"),
    "once no flag": (node_change(1, once=None), "conv 1"),
    "bytes missing": (without(1, "bytes"), "conv 1"),
    "bytes half": (node_change(1, bytes=1.5), "conv 1"),
    "bytes true": (node_change(1, bytes=True), "conv 1"),
    "bytes negative": (node_change(1, bytes=-4), "conv 1"),
    "bytes beyond any memory": (node_change(1, bytes=1 << 60), "conv 1"),
    "workspace a text": (node_change(1, workspace_bytes="64"), "conv 1"),
    "workspace negative": (node_change(1, workspace_bytes=-1), "conv 1"),
    "overwrites no input": (node_change(1, overwrites="new w1"), "conv 1"),
    "overwrites nothing": (node_change(1, overwrites=None), "conv 1"),
    "overwrites another size": (node_change(1, overwrites="w1"), "conv 1"),
    "stored overwrites": (node_change(0, overwrites="w1"), '"w1"'),
    "modes of a stored node": (node_change(0, modes=[{}]), '"w1"'),
    "modes no list": (node_change(1, modes={}), "conv 1"),
    "modes null": (node_change(1, modes=None), "conv 1"),
    **{
        f"{key} {number}": (node_change(1, **{key: number}), f"conv 1 ü 卷.*{key}")
        for key in COSTS
        for number in (-1, math.nan, math.inf, -math.inf, "1", None, True, 10**400)
    },
    **{f"{key} missing": (without(1, key), f"conv 1 ü 卷.*{key}") for key in COSTS[:6]},
}


@pytest.mark.parametrize("what", BAD)
def test_bad_graph(what: str) -> None:
    change, named = BAD[what]
    graph = copy.deepcopy(GOOD)
    change(graph)
    with pytest.raises(BadInput) as error:
        parse_cost_graph(graph, "g.json")
    assert str(error.value).startswith("g.json")
    assert re.search(named, str(error.value))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", [None, [], "graph", 3, True])
def test_no_graph_at_all(value: object) -> None:
    with pytest.raises(BadInput, match=r"^cost graph"):
        parse_cost_graph(value)


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "g.graph.json"
    path.write_text(json.dumps(GOOD), encoding="utf-8")
    assert load_cost_graph(path) == parse_cost_graph(GOOD)
    path.write_text('{"format": "poet-cost-graph",', encoding="utf-8")
    with pytest.raises(BadInput, match=r"g\.graph\.json, line 1"):
        load_cost_graph(path)
    for number in ("NaN", "Infinity", "-Infinity", "1e999"):
        path.write_text(json.dumps(GOOD).replace("812.5", number), encoding="utf-8")
        with pytest.raises(BadInput, match=r"conv 1 ü 卷.*time_us"):
            load_cost_graph(path)
    with pytest.raises(BadInput, match="cannot be read"):
        load_cost_graph(tmp_path / "none.json")


def test_large_graph(tmp_path: Path) -> None:
    nodes = [
        {
            "name": f"n{i}",
            "inputs": [f"n{j}" for j in (i - 1, i // 2) if 0 <= j < i],
            "bytes": 64,
            "time_us": 1,
            "energy_uj": 1,
            "stored": False,
            "keep": False,
            **PAGES,
        }
        for i in range(2000)
    ]
    path = tmp_path / "large.json"
    path.write_text(json.dumps(GOOD | {"nodes": nodes}), encoding="utf-8")
    graph = load_cost_graph(path)
    assert len(graph.nodes) == 2000
    assert graph.nodes[1999].inputs == (1998, 999)
    plan = keep_everything(graph)
    assert plan.energy_uj == 2000.0
    assert plan.peak_bytes == 64 * 502


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
costs = st.floats(0, 1e12, allow_nan=False)


@st.composite
def modes_of(draw: st.DrawFn, inputs: list[int], over: int | None) -> Mode:
    """A mode that overwrites nothing, or what the node does."""
    streamed = [i for i in inputs if draw(st.booleans())]
    taken = draw(st.sampled_from([None, over]))
    parts = draw(costs), draw(costs)
    return Mode(
        tuple(streamed),
        draw(st.booleans()) if taken is None else taken in streamed,
        draw(st.integers(0, 99)),
        *parts,
        max(parts) + draw(st.sampled_from([0.0, 1.0])),
        draw(costs),
        draw(st.integers(0, 99)),
        draw(st.integers(0, 99)),
        taken,
    )


@st.composite
def cost_graphs(draw: st.DrawFn) -> CostGraph:
    nodes: list[CostNode] = []
    for name in draw(st.lists(names, min_size=1, max_size=6, unique=True)):
        stored = draw(st.booleans())
        before = st.lists(st.integers(0, len(nodes) - 1), max_size=3, unique=True)
        inputs = draw(before) if nodes and not stored else []
        over = draw(st.sampled_from([None, *inputs]))
        keys = ("time_us", "energy_uj", *PAGES, "page_in_cpu_us", "page_out_cpu_us")
        nodes.append(
            CostNode(
                name,
                tuple(inputs),
                draw(st.integers(0, 1 << 53)) if over is None else nodes[over].bytes,
                **{key: draw(costs) for key in keys},
                stored=stored,
                keep=draw(st.booleans()),
                overwrites=over,
                workspace_bytes=draw(st.integers(0, 99)),
                once=draw(st.booleans()),
                modes=() if stored else tuple(draw(st.lists(modes_of(inputs, over), max_size=2))),
            )
        )
    return CostGraph(draw(names), tuple(nodes), draw(st.booleans()), draw(costs))


@pytest.mark.slow
@given(cost_graphs())
@settings(max_examples=200, deadline=None)
def test_a_graph_survives_json(graph: CostGraph) -> None:
    text = json.dumps(dump_cost_graph(graph), allow_nan=False)
    assert parse_cost_graph(json.loads(text)) == graph


offsets = st.none() | st.integers(0, 1 << 40)
numbers = st.none() | st.floats(-1e300, 1e300)
statements = st.builds(
    Statement,
    st.sampled_from(["compute", "page_in", "page_out", "free"]),
    names,
    offsets,
    offsets,
    st.integers(0, 3),
)
plans = st.builds(
    Plan,
    status=st.sampled_from(["optimal", "feasible", "infeasible", "unknown"]),
    ram_bytes=st.integers(0, 1 << 53),
    deadline_us=numbers,
    energy_uj=numbers,
    bound=numbers,
    gap=numbers,
    time_us=numbers,
    total_energy_uj=numbers,
    peak_bytes=offsets,
    solve_s=costs,
    statements=st.lists(statements, max_size=5).map(tuple),
    smallest_ram_bytes=offsets,
    smallest_deadline_us=numbers,
    method=names,
    initial_offsets=st.dictionaries(names, st.integers(0, 99), max_size=3).map(
        lambda found: tuple(found.items())
    ),
    stopped_by=st.sampled_from(get_args(StoppedBy)),
)


@pytest.mark.slow
@given(plans)
@settings(max_examples=200, deadline=None)
def test_a_plan_survives_json(plan: Plan) -> None:
    text = json.dumps(plan.to_json(), allow_nan=False)
    assert plan_from_json(json.loads(text)) == plan


PLAN = keep_everything(parse_cost_graph(GOOD)).to_json()


def test_plan_as_the_contract_has_it() -> None:
    assert list(PLAN)[:3] == ["format", "version", "status"]
    assert PLAN["statements"][:2] == [
        {"op": "page_in", "node": "w1", "offset": 0},
        {"op": "compute", "node": "conv 1 ü 卷", "offset": 144, "workspace_offset": 16},
    ]
    assert PLAN["statements"][-1] == {"op": "free", "node": "new w1"}
    assert (PLAN["bound"], PLAN["gap"], PLAN["deadline_us"]) == (None, None, None)
    assert not {"smallest_ram_bytes", "smallest_deadline_us", "initial_offsets"} & set(PLAN)
    plan = plan_from_json(PLAN)
    assert plan.to_json(statements=False) == {
        key: value for key, value in PLAN.items() if key != "statements"
    }


BAD_PLANS: dict[str, tuple[dict[str, Any], str]] = {
    "other format": ({"format": "poet-cost-graph"}, "format"),
    "other version": ({"version": 4}, "version"),
    "unknown key": ({"energy": 1}, "energy"),
    "status": ({"status": "good"}, "status"),
    "statements": ({"statements": {}}, "statements"),
    "statement": ({"statements": [3]}, r"statements\[0\]"),
    "operation": ({"statements": [{"op": "wait", "node": "a"}]}, r"statements\[0\]"),
    "operation a list": ({"statements": [{"op": [], "node": "a"}]}, r"statements\[0\]"),
    "node": ({"statements": [{"op": "free"}]}, r"statements\[0\]"),
    "key of a statement": ({"statements": [{"op": "free", "node": "a", "at": 1}]}, "at"),
    "offset": ({"statements": [{"op": "compute", "node": "a", "offset": 0.5}]}, r"statements\[0\]"),
    "offset negative": ({"statements": [{"op": "compute", "node": "a", "offset": -4}]}, "offset"),
    "mode": ({"statements": [{"op": "compute", "node": "a", "mode": -1}]}, "mode"),
    "mode a text": ({"statements": [{"op": "compute", "node": "a", "mode": "1"}]}, "mode"),
    "energy": ({"energy_uj": "7"}, "energy_uj"),
    "energy not finite": ({"energy_uj": math.nan}, "energy_uj"),
    "peak": ({"peak_bytes": 7.5}, "peak_bytes"),
    "ram": ({"ram_bytes": None}, "ram_bytes"),
    "ram true": ({"ram_bytes": True}, "ram_bytes"),
    "solve_s": ({"solve_s": None}, "solve_s"),
    "method": ({"method": 1}, "method"),
    "stopped by": ({"stopped_by": "luck"}, "stopped_by"),
    "stopped by a list": ({"stopped_by": []}, "stopped_by"),
    "initial offsets": ({"initial_offsets": [1]}, "initial_offsets"),
    "initial offset": ({"initial_offsets": {"w": "0"}}, "initial_offsets"),
}


@pytest.mark.parametrize("what", BAD_PLANS)
def test_bad_plan(what: str) -> None:
    change, named = BAD_PLANS[what]
    with pytest.raises(BadInput, match=named) as error:
        plan_from_json(PLAN | change, "p.json")
    assert str(error.value).startswith("p.json")


@pytest.mark.parametrize("value", [None, [], "plan"])
def test_no_plan_at_all(value: object) -> None:
    with pytest.raises(BadInput, match="not a plan"):
        plan_from_json(value)
