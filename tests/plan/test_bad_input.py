"""Bad and extreme cost graphs and limits, on the command line and in Python."""

import copy
import json
import math
import re
from pathlib import Path
from typing import Any

import poet_host as poet
import pytest
from poet_host.errors import BadInput
from poet_host.plan.costgraph import dump_cost_graph, load_cost_graph
from poet_host.plan.plan import plan_from_json
from poet_host.plan.problem import LARGEST_COST, CostGraph, CostNode, Problem
from poet_host.plan.verify import verify
from support.command import Command, Result
from support.plans import node_with

from tests.plan.test_costgraph import BAD as BAD_GRAPHS, GOOD

DONE, BAD, INFEASIBLE, UNKNOWN = 0, 2, 5, 7
MOST_BYTES = 2**53


def saved(graph: CostGraph, folder: Path) -> Path:
    path = folder / "g.graph.json"
    path.write_text(json.dumps(dump_cost_graph(graph)), encoding="utf-8")
    return path


def refused(result: Result, words: str) -> None:
    """Exit code 2, one sentence about `words`, a pattern, and the same as one JSON object."""
    assert result.code == BAD
    assert result.json == {"error": result.json["error"], "exit_code": BAD}
    assert re.search(words, result.json["error"])
    assert f"poet-host: {result.json['error']}\n" in result.err
    assert "\n" not in result.json["error"]


PAGES = ("page_in_us", "page_in_uj", "page_out_us", "page_out_uj")
node = node_with(time_us=10.0, energy_uj=10.0, **dict.fromkeys(PAGES, 1.0))
ONE = CostGraph("one", (node("only", 64),))


# Files that are not cost graphs.


@pytest.mark.parametrize("what", BAD_GRAPHS)
def test_a_broken_rule_is_named_and_nothing_is_written(
    poet_host: Command, tmp_path: Path, what: str
) -> None:
    change, named = BAD_GRAPHS[what]
    graph = copy.deepcopy(GOOD)
    change(graph)
    path, out = tmp_path / "g.json", tmp_path / "plan.json"
    path.write_text(json.dumps(graph), encoding="utf-8")
    result = poet_host("solve", path, "--ram", "100KiB", "--plan", out, "--json")
    refused(result, named)
    assert result.json["error"].startswith(f"{path}")
    assert not out.exists()


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "1e200", "-0.1"])
def test_base_power_must_be_a_finite_number(poet_host: Command, tmp_path: Path, value: str) -> None:
    path = tmp_path / "g.json"
    path.write_text(json.dumps(GOOD).replace("1000", value), encoding="utf-8")
    refused(poet_host("solve", path, "--ram", 100, "--json"), "base_power_uw")


BAD_FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "line 1: .*JSON"),
    "cut": (json.dumps(GOOD).encode()[:200], "JSON"),
    "binary": (b"\xff\xfe\x00", "not a text file"),
    "nothing": (b"null", "poet-cost-graph"),
    "plan": (b'{"format": "poet-plan", "version": 1}', "poet-cost-graph"),
    "deep": (b"[" * 100_000, "nested too deeply"),
    "digits": (b"[1" + b"0" * 5000 + b"]", "too many digits"),
    "key twice": (json.dumps(GOOD).replace('"bytes": 16,', '"bytes": 16, "bytes": 9,', 1).encode(),
                  'the key "bytes" twice'),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_FILES)
def test_files_of_something_else(poet_host: Command, tmp_path: Path, what: str) -> None:
    content, words = BAD_FILES[what]
    path = tmp_path / "g.json"
    path.write_bytes(content)
    result = poet_host("solve", path, "--ram", 100, "--json")
    refused(result, words)
    assert result.json["error"].startswith(f"{path}")


def test_a_folder_is_not_a_cost_graph(poet_host: Command, tmp_path: Path) -> None:
    folder = tmp_path / "g.json"
    folder.mkdir()
    refused(poet_host("solve", folder, "--ram", 100, "--json"), "is a directory")


# Names.

NAMES = (
    *("a b", " ", "\t", "größe", "卷积", "🐈", "e\u0301", "\u00e9", 'say "x"', "a\nb"),
    "x" * 5000,
)


def test_names_are_any_text(poet_host: Command, tmp_path: Path) -> None:
    nodes = [node(name, 64, *([i - 1] if i else [])) for i, name in enumerate(NAMES)]
    graph = CostGraph("ein Graph 图", tuple(nodes))
    path, out = saved(graph, tmp_path), tmp_path / "plan ü.json"
    result = poet_host("solve", path, "--ram", "100%", "--plan", out, "--json")
    assert result.code == DONE
    plan = plan_from_json(json.loads(out.read_text(encoding="utf-8")))
    verify(Problem(graph, 128), plan)
    computed = [it.node for it in plan.statements if it.op == "compute"]
    assert computed == list(NAMES)
    assert poet_host("solve", path, "--ram", "100%").code == DONE


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J", "\u2028", 'say "x"'])
def test_an_error_about_a_strange_name_is_one_line(
    poet_host: Command, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "g.json"
    graph = copy.deepcopy(GOOD)
    graph["nodes"][1]["name"] = name
    path.write_text(json.dumps(graph), encoding="utf-8")
    result = poet_host("solve", path, "--ram", 100, "--json")
    refused(result, 'node "new w1".*"conv 1 ü 卷"')
    graph["nodes"][2]["inputs"][0] = name
    graph["nodes"][1]["bytes"] = -1
    path.write_text(json.dumps(graph), encoding="utf-8")
    result = poet_host("solve", path, "--ram", 100, "--json")
    refused(result, f"node {re.escape(json.dumps(name))}")
    assert result.json["error"].isprintable()


# Limits.

BAD_LIMITS: dict[tuple[str, str], str] = {
    **{("--ram", text): "RAM budget" for text in ("", "nan", "inf", "1e9", "0x10", "64.5.5", "-1")},
    ("--ram", str(MOST_BYTES + 1)): f"{MOST_BYTES:,} bytes",
    ("--ram", "9" * 5000): "RAM budget",
    **{("--deadline", text): "deadline" for text in ("", "nan", "inf", "0", "-1x", "1e999", "0x")},
    **{("--deadline-us", text): "positive number" for text in ("nan", "inf", "-inf", "0", "-1")},
    ("--deadline-us", "soon"): "--deadline-us",
    **{("--gap", text): "--gap" for text in ("nan", "inf", "-0.1", "1.1", "x")},
    **{("--time-limit", text): "--time-limit" for text in ("nan", "inf", "0", "-1", "x")},
    ("--method", "best"): "--method",
}


@pytest.mark.parametrize("option", BAD_LIMITS, ids=lambda option: " ".join(option)[:30])
def test_limits_that_are_none(poet_host: Command, tmp_path: Path, option: tuple[str, str]) -> None:
    name, value = option
    limits = {"--ram": "64"} | {name: value}
    given = [word for pair in limits.items() for word in pair]
    result = poet_host("solve", saved(ONE, tmp_path), *given, "--json")
    refused(result, BAD_LIMITS[option])


@pytest.mark.parametrize(
    "bad",
    [
        {"ram": math.nan}, {"ram": -1}, {"ram": 2 * MOST_BYTES}, {"ram": "much"},
        {"deadline": math.nan}, {"deadline": math.inf}, {"deadline": 0}, {"deadline": -1.0},
        {"gap": math.nan}, {"gap": -0.1}, {"gap": 1.5},
        {"time_limit_s": math.nan}, {"time_limit_s": math.inf}, {"time_limit_s": 0},
        {"method": "best"},
    ],
    ids=str,
)  # fmt: skip
def test_limits_that_are_none_in_python(bad: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        poet.solve(ONE, **({"ram": 64} | bad))


def test_results_need_files_of_their_own(poet_host: Command, tmp_path: Path) -> None:
    path = saved(ONE, tmp_path)
    before = path.read_bytes()
    solve = ("solve", path, "--ram", 64, "--json")
    refused(poet_host(*solve, "--plan", path), f"{path}: this command also reads")
    refused(poet_host(*solve, "--plan", tmp_path / "." / path.name), "also reads")
    table = tmp_path / "d.tsv"
    table.write_text("1\t0\n")
    refused(poet_host(*solve, "--data", table, "--plan", table), "also reads")
    table.unlink()
    plan, link = tmp_path / "x.json", tmp_path / "x.poet"
    link.symlink_to(plan)
    refused(poet_host(*solve, "--plan", plan, "-o", link), "also writes")
    link.unlink()
    refused(poet_host(*solve, "--plan", tmp_path / "none" / "x"), "none does not exist")
    refused(poet_host(*solve, "--plan", tmp_path), "is a directory")
    assert path.read_bytes() == before
    assert [it.name for it in tmp_path.iterdir()] == [path.name]


# Extremes that are legal.


def solved(poet_host: Command, graph: CostGraph, folder: Path, *limits: object) -> Result:
    """Solved. The plan is legal, the exit code is that of its status, no other file is written."""
    path, out = saved(graph, folder), folder / "plan.json"
    result = poet_host("solve", path, *limits, "--plan", out, "--json")
    printed = result.json
    plan = plan_from_json(json.loads(out.read_text(encoding="utf-8")))
    if plan.statements:
        verify(Problem(load_cost_graph(path), printed["ram_bytes"], printed["deadline_us"]), plan)
        assert result.code == DONE
    else:
        codes = {"infeasible": INFEASIBLE, "unknown": UNKNOWN}
        assert result.code == codes.get(printed["status"], DONE)
    assert {it.name for it in folder.iterdir()} == {path.name, out.name}
    return result


@pytest.mark.parametrize("ram", [0, 63, 64, "1GiB", MOST_BYTES, "0%", "100%", "1000000%"])
@pytest.mark.parametrize("storage", [True, False])
def test_a_single_node_in_any_budget(
    poet_host: Command, tmp_path: Path, ram: object, storage: bool
) -> None:
    graph = CostGraph("one", ONE.nodes, storage)
    result = solved(poet_host, graph, tmp_path, "--ram", ram)
    if ram in (0, 63, "0%"):
        assert (result.code, result.json["smallest_ram_bytes"]) == (INFEASIBLE, 64)
        assert "smallest budget that works is 64 bytes" in result.err
    else:
        printed = result.json
        assert (result.code, printed["status"], printed["energy_uj"]) == (DONE, "optimal", 10.0)
        assert (printed["peak_bytes"], printed["time_us"]) == (64, 10.0)
        assert printed["bound"] == pytest.approx(10.0, rel=2e-9)


@pytest.mark.parametrize("storage", [True, False])
def test_what_costs_and_weighs_nothing(poet_host: Command, tmp_path: Path, storage: bool) -> None:
    nodes = [CostNode("w", (), 0, stored=True, keep=True), CostNode("a", (0,), 0)]
    nodes += [CostNode("b", (0, 1), 0, overwrites=0, keep=True)]
    if not storage:  # else w would be lost
        nodes[0] = CostNode("w", (), 0, stored=True)
    graph = CostGraph("nothing", tuple(nodes), storage)
    printed = solved(poet_host, graph, tmp_path, "--ram", 0, "--deadline-us", 1e-9).json
    assert (printed["status"], printed["energy_uj"], printed["time_us"]) == ("optimal", 0.0, 0.0)
    assert (printed["gap"], printed["peak_bytes"], printed["total_energy_uj"]) == (0.0, 0, 0.0)


def test_nothing_to_compute(poet_host: Command, tmp_path: Path) -> None:
    graph = CostGraph("still", (node("w", 64, stored=True, keep=True),))
    assert solved(poet_host, graph, tmp_path, "--ram", 0).json["status"] == "optimal"
    assert poet_host("solve", saved(graph, tmp_path), "--ram", 0).code == DONE
    without = CostGraph("still", graph.nodes, storage=False)
    result = solved(poet_host, without, tmp_path, "--ram", 63)
    assert (result.code, result.json["smallest_ram_bytes"]) == (INFEASIBLE, 64)
    assert solved(poet_host, without, tmp_path, "--ram", 64).code == DONE


@pytest.mark.parametrize("scale", [1e-300, 1e-9, 1e9, LARGEST_COST / 10])
def test_costs_of_any_size(poet_host: Command, tmp_path: Path, scale: float) -> None:
    slow = {"time_us": 10 * scale, "energy_uj": 10 * scale, **dict.fromkeys(PAGES, scale)}
    nodes = (node("a", 64, **slow), node("b", 64, **slow), node("c", 64, 0, **slow))
    graph = CostGraph("scaled", nodes, base_power_uw=scale)
    printed = solved(poet_host, graph, tmp_path, "--ram", 128).json
    assert printed["status"] == "optimal"
    assert printed["energy_uj"] == pytest.approx(30 * scale, rel=1e-9)


def test_deadlines_of_any_size(poet_host: Command, tmp_path: Path) -> None:
    for limit_us in (1e-300, 9.99):
        result = solved(poet_host, ONE, tmp_path, "--ram", 64, "--deadline-us", limit_us)
        assert (result.code, result.json["smallest_deadline_us"]) == (INFEASIBLE, 10.0)
        assert "a deadline of 0.01 ms works" in result.err
    for limit_us in (10.0, 1e300):
        assert solved(poet_host, ONE, tmp_path, "--ram", 64, "--deadline-us", limit_us).code == DONE


def star(nodes: int) -> CostGraph:
    """The last node reads every other."""
    few = [node(f"n{i}", 64) for i in range(nodes - 1)]
    return CostGraph("star", (*few, node("all", 64, *range(nodes - 1))))


@pytest.mark.slow
def test_a_thousand_nodes_that_need_each_other(poet_host: Command, tmp_path: Path) -> None:
    graph = star(1000)
    result = solved(poet_host, graph, tmp_path, "--ram", "50%", "--time-limit", 5)
    assert (result.code, result.json["smallest_ram_bytes"]) == (INFEASIBLE, 64 * 1000)
    found = solved(poet_host, graph, tmp_path, "--ram", 64 * 1000, "--time-limit", 2)
    assert found.json["energy_uj"] is None or found.json["energy_uj"] >= 10_000.0
    assert found.json["bound"] is None or found.json["bound"] <= 10_000.0 * (1 + 1e-9)
