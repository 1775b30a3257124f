"""`poet-host solve`: budgets and the arena, gaps, cost graphs, methods, names of outputs."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import poet_host as poet
import pytest
from poet_host import api
from poet_host.device.board import load_board
from poet_host.plan.costgraph import dump_cost_graph
from poet_host.plan.infeasible import largest_need
from poet_host.plan.plan import Plan, Statement, moved_bytes, plan_from_json
from poet_host.plan.pricing import commit_costs, cost_graph
from poet_host.plan.problem import CostGraph, CostNode, Mode, Problem
from poet_host.plan.verify import verify
from poet_host.profile.profile import Profile, estimate_profile
from poet_host.schedule.decode import decode
from poet_host.schedule.nests import Streamed
from poet_host.schedule.schedule import Schedule
from poet_host.solver.settings import Settings
from poet_host.solver.solve import DEFAULT_GAP, solve as plan_of
from poet_host.stream.traffic import traffic_of
from poet_host.view.plan_table import traffic_rows
from support.command import Command
from support.cost_graphs import random_cost_graph, training
from support.mode_graphs import mode_problem, staying
from support.small_graphs import small_graph

BAD, INFEASIBLE, GAP, UNKNOWN = 2, 5, 6, 7
ARENA = load_board("mkr1000").arena_bytes
MKR = ("--board", "mkr1000", "--gap", 1, "--json")


# Budgets and the arena.


@pytest.mark.slow
def test_the_default_budget_is_the_arena(poet_host: Command, tmp_path: Path) -> None:
    out, measured = tmp_path / "x.poet", tmp_path / "p.json"
    by_board = poet_host("solve", "resnet-digits", *MKR, "-o", out)
    assert (by_board.code, by_board.json["ram_bytes"]) == (0, ARENA)
    assert f"{ARENA:,}" in by_board.err
    estimate_profile(load_board("nrf52840_dk")).save(measured)
    by_profile = poet_host("solve", "linear", "--profile", measured, "--json")
    assert by_profile.json["ram_bytes"] == load_board("nrf52840_dk").arena_bytes
    graph, profile = api.load_graph("linear"), Profile.load(measured)
    assert poet.solve(graph, profile).ram_bytes == load_board("nrf52840_dk").arena_bytes


@pytest.mark.parametrize("ram", [ARENA + 4, "100%", "25KiB"])
def test_a_schedule_above_the_arena_is_refused(
    poet_host: Command, tmp_path: Path, ram: object
) -> None:
    out = tmp_path / "x.poet"
    solve = ("solve", "resnet-digits", *MKR, "--method", "keep-everything", "--ram", ram)
    poet_host(*solve, "-o", out).fails(BAD, "mkr1000", f"{ARENA:,}", "--beyond-arena")
    assert not out.exists()
    study = poet_host(*solve, "--plan", tmp_path / "plan.json")
    assert study.code in (0, INFEASIBLE)
    assert study.json["ram_bytes"] > ARENA
    beyond = poet_host(*solve, "-o", out, "--beyond-arena")
    assert beyond.code == study.code
    assert out.exists() == (beyond.code == 0)


@pytest.mark.parametrize("board", ["native", "rpi4b"])
def test_computers_have_no_limit_of_the_arena(
    poet_host: Command, tmp_path: Path, board: str
) -> None:
    solve = ("solve", "resnet-digits", "--board", board, "--method", "keep-everything", "--json")
    above = load_board(board).arena_bytes + 4 if board == "rpi4b" else "100%"
    assert poet_host(*solve, "--ram", above, "-o", tmp_path / "x.poet").code == 0


def test_a_cost_graph_needs_a_budget(poet_host: Command, costs: Path) -> None:
    poet_host("solve", costs).fails(BAD, "--ram")


@pytest.mark.parametrize("ram", ["64k", "1.5", "0.5", "3", "0"])
def test_budgets_too_small_for_a_number(poet_host: Command, ram: str) -> None:
    poet_host("solve", "linear", "--board", "native", "--ram", ram).fails(BAD, repr(ram))


# What sets the floor.


def test_the_operator_that_sets_the_floor_is_named() -> None:
    graph = api.load_graph("bert-micro")
    profile = estimate_profile(load_board("mkr1000"))
    costs = cost_graph(graph, profile)
    need = largest_need(costs)
    assert need is not None
    assert sum(size for _, size in need.tensors) + need.workspace_bytes == need.bytes
    plan = poet.solve(poet.problem(graph, profile, streaming=False))
    assert (plan.status, plan.smallest_ram_bytes) == ("infeasible", need.bytes)
    with pytest.raises(poet.PoetError) as caught:
        poet.encode(graph, profile, plan)
    for named in (need.node, graph[need.node].op, *(name for name, _ in need.tensors)):
        assert named in str(caught.value)
    assert f"{need.bytes:,} bytes" in str(caught.value)


def test_a_floor_of_several_operators_names_none() -> None:
    graph = small_graph(4, True)
    kept = api.solve(graph, ram=4, method="keep-everything")
    need = largest_need(graph)
    assert need is not None
    assert (kept.smallest_ram_bytes or 0) > need.bytes
    assert need.node not in api.why_no_plan(graph, kept).split()


# Gaps, and why the search ended.


@pytest.mark.parametrize(
    ("changes", "options", "code", "named", "absent"),
    [
        ({"gap": 0.25, "stopped_by": "time-limit"}, (), 0, "", "poet-host:"),
        ({"gap": 0.05, "stopped_by": "gap"}, ("--gap", 0.1), 0, "", "poet-host:"),
        ({"gap": 0.1 + 5e-10, "stopped_by": "gap"}, ("--gap", 0.1), 0, "", "poet-host:"),
        ({"gap": 0.25}, ("--gap", 0.1), GAP, "25.00%", "itself"),
        ({"gap": 0.25, "stopped_by": "time-limit"}, ("--gap", 0.1), GAP, "--time-limit", "itself"),
        ({"gap": 0.25, "stopped_by": "exhausted"}, ("--gap", 0.1), GAP, "itself", "longer"),
        ({"gap": 1e-6, "stopped_by": "time-limit"}, ("--gap", 0), GAP, "--time-limit", "itself"),
        ({"gap": None}, (), 0, "", "poet-host:"),
        ({"gap": None}, ("--gap", 1), 0, "", "poet-host:"),
        ({"gap": None}, ("--gap", 0.1), GAP, "proved no gap", "longer"),
        ({"status": "unknown", "stopped_by": "exhausted"}, (), UNKNOWN, "--ram", "longer"),
        ({"status": "unknown", "stopped_by": "time-limit"}, (), UNKNOWN, "longer", "itself"),
    ],
)  # fmt: skip
def test_a_missed_gap_and_a_missing_plan_have_exit_codes(
    poet_host: Command, costs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any], options: tuple[object, ...], code: int, named: str, absent: str,
) -> None:  # fmt: skip
    changes = {"status": "feasible"} | changes
    if changes["status"] == "unknown":
        changes["statements"] = ()
    plan = replace(api.solve(api.load(costs), ram="100%"), **changes)
    monkeypatch.setattr(api, "solve", lambda *arguments, **more: plan)
    solve = ("solve", costs, "--ram", 24, *options)
    result = poet_host(*solve)
    result.fails(code, named)
    assert absent not in result.err
    assert not plan.gap or f"gap {plan.gap:.2%}" in result.out
    out = tmp_path / "small.poet"
    solved = poet_host(*solve, "-o", out, "--json")
    assert solved.code == code
    assert solved.json["status"] == changes["status"]
    assert out.exists() == bool(plan.statements)


@pytest.mark.slow
def test_without_a_gap_the_search_stops_at_one_per_cent() -> None:
    graph, profile = api.load_graph("linear"), estimate_profile(load_board("mkr1000"))
    plan = poet.solve(graph, profile, ram="70%", objective="added-energy")
    assert plan.stopped_by in ("gap", "proof")
    assert plan.gap is not None
    assert plan.gap <= DEFAULT_GAP
    proved = poet.solve(graph, profile, ram="100%", gap=0, objective="added-energy")
    assert (proved.stopped_by, proved.gap) == ("proof", 0.0)


def test_a_plan_names_what_ended_its_search() -> None:
    """A small search ends with a proof, a large one at its time limit."""
    problem = Problem(small_graph(3, True), 10_000)
    assert plan_of(problem).stopped_by == "proof"
    graph = cost_graph(api.load_graph("resnet-digits"), estimate_profile(load_board("mkr1000")))
    hurried = plan_of(Problem(graph, ARENA), Settings(time_limit_s=1.0))
    assert hurried.stopped_by == "time-limit"


@pytest.mark.slow
def test_no_longer_time_is_advised_if_the_search_ended_by_itself(
    poet_host: Command, tmp_path: Path
) -> None:
    """The bound of this graph is that of plans without offsets, which no placed plan reaches."""
    rng, sizes = random.Random(11), list[int]()
    graph = random_cost_graph(11, 18)
    for node in graph.nodes:
        over = node.overwrites
        sizes.append(rng.choice((4, 12, 20, 28, 36, 44, 100)) if over is None else sizes[over])
    nodes = tuple(
        replace(node, bytes=size, workspace_bytes=0)
        for node, size in zip(graph.nodes, sizes, strict=True)
    )
    path = tmp_path / "ended.graph.json"
    path.write_text(json.dumps(dump_cost_graph(replace(graph, nodes=nodes))))
    solve = ("solve", path, "--ram", 332, "--time-limit", 60)
    free = poet_host(*solve, "--json")
    assert (free.code, free.json["stopped_by"]) == (0, "exhausted")
    assert free.json["gap"] > DEFAULT_GAP
    missed = poet_host(*solve, "--gap", DEFAULT_GAP)
    assert missed.code == GAP
    assert "--time-limit or" not in missed.err
    assert "itself" in missed.out


# Cost graphs and methods.


def test_cost_graphs_are_solved(poet_host: Command, costs: Path, tmp_path: Path) -> None:
    out, schedule = tmp_path / "plan.json", tmp_path / "small.poet"
    solved = poet_host(
        "solve", costs, "--ram", 24, "--deadline-us", 60, "--plan", out, "-o", schedule, "--json"
    )
    assert solved.code == 0
    plan = plan_from_json(json.loads(out.read_text()))
    totals = verify(Problem(api.load(costs), 24, 60.0), plan)
    printed = solved.json
    assert printed["status"] == "optimal"
    assert "statements" not in printed
    assert (printed["energy_uj"], printed["time_us"]) == (totals.energy_uj, totals.time_us)
    assert (printed["ram_bytes"], printed["deadline_us"], printed["gap"]) == (24, 60.0, 0.0)
    assert poet_host("show", schedule).out.startswith("small")


def test_a_cost_graph_with_modes_is_solved_but_makes_no_schedule(
    poet_host: Command, tmp_path: Path
) -> None:
    path, plan_path, out = (tmp_path / name for name in ("m.json", "plan.json", "m.poet"))
    problem = mode_problem(6, 6, "added-energy")
    path.write_text(json.dumps(dump_cost_graph(problem.graph)), encoding="utf-8")
    ram = 2 * sum(node.bytes for node in problem.graph.nodes) + 64
    solve = ("solve", path, "--ram", ram, "--gap", 1)
    assert poet_host(*solve, "--plan", plan_path).code == 0
    plan = plan_from_json(json.loads(plan_path.read_text(encoding="utf-8")))
    verify(replace(problem, ram_bytes=ram), plan)
    poet_host(*solve, "-o", out).fails(BAD, "modes", "--plan")
    assert not out.exists()


def test_a_cost_graph_that_no_board_commits_is_refused_before_the_search(
    poet_host: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = tmp_path / "g.json", tmp_path / "x.poet"
    graph = CostGraph("g", (CostNode("x", (), 8),), commit_every=65_536)
    path.write_text(json.dumps(dump_cost_graph(graph)))
    monkeypatch.setattr(api, "solve", None)
    poet_host("solve", path, "--ram", 16, "-o", out).fails(BAD, "65,535 steps, not 65,536")
    assert not out.exists()


def test_a_schedule_of_a_plan_without_statements_is_refused(
    poet_host: Command, tmp_path: Path
) -> None:
    nodes = (CostNode("x", (), 8, stored=True), CostNode("unused", (0,), 8))
    path, out = tmp_path / "g.json", tmp_path / "x.poet"
    graph = CostGraph("g", nodes, may_leave_out=True)
    path.write_text(json.dumps(dump_cost_graph(graph)))
    poet_host("solve", path, "--ram", 16, "-o", out).fails(BAD, "unused", "--plan")
    assert not out.exists()


def test_the_bytes_that_modes_move_are_shown() -> None:
    nodes = (
        CostNode("a", (), 8, modes=(Mode((), True, 4, 1.0, 1.0, 1.0, 1.0, 0, 16),)),
        CostNode("b", (0,), 8, modes=(Mode((0,), False, 4, 1.0, 1.0, 1.0, 1.0, 24),)),
    )
    computes = [Statement("compute", name, mode=1) for name in ("a", "b")]
    plan = Plan("feasible", 99, statements=(*computes, Statement("page_out", "b")))
    graph = CostGraph("g", nodes)
    assert moved_bytes(graph, plan) == (24, 24)
    traffic = traffic_of(graph, Problem(graph, 99), plan)
    assert traffic is not None
    assert ("bytes moved in, out", "24, 24") in traffic_rows(traffic)
    assert traffic_of(graph, Problem(graph, 99), replace(plan, statements=())) is None


@pytest.mark.slow
def test_operators_stream_if_one_exceeds_the_ram(poet_host: Command, tmp_path: Path) -> None:
    whole, out = 4900, tmp_path / "streamed.poet"
    solve = ("solve", "resnet-digits", "--board", "mkr1000", "--gap", 1)
    poet_host(*solve, "--ram", whole, "--no-streaming").fails(INFEASIBLE, "resnet-digits")
    solved = poet_host(*solve, "--ram", whole, "-o", out, "--json").json
    traffic = solved["traffic"]
    assert 0 < traffic["streamed"] <= traffic["computed"]
    assert traffic["moved_in_bytes"] + traffic["moved_out_bytes"] > 0 < traffic["least_bytes"]
    assert solved["peak_bytes"] <= whole
    listing = poet_host("show", out).out
    assert listing.count("part by part") == sum(
        isinstance(it, Streamed) and bool(it.nest.loops) for it in decode(Schedule.load(out))
    )
    assert poet_host("show", out, "--html", tmp_path / "streamed.html").code == 0
    fits = poet_host(*solve, "--ram", "100%", "--json").json
    assert "traffic" not in fits
    poet_host(*solve, "--ram", 64).fails(INFEASIBLE, "--ram")
    poet_host("solve", "linear", "--board", "mkr1000", "--no-storage", "--streaming").fails(
        BAD, "linear"
    )


def test_an_unplaced_plan_has_no_offsets(poet_host: Command, costs: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    assert poet_host("solve", costs, "--ram", 24, "--plan", out, "--unplaced").code == 0
    statements = json.loads(out.read_text())["statements"]
    assert not any("offset" in statement for statement in statements)


def test_without_json_the_result_is_a_table(poet_host: Command, costs: Path) -> None:
    solved = poet_host("solve", costs, "--ram", "80%")
    assert solved.code == 0
    assert "optimal" in solved.out
    assert "solving small" in solved.err


@pytest.mark.parametrize("method", api.ALL_METHODS)
def test_every_method_can_be_chosen(poet_host: Command, costs: Path, method: str) -> None:
    solved = poet_host("solve", costs, "--ram", "100%", "--method", method, "--json")
    assert solved.code == 0
    assert solved.json["method"] == method


def test_keeping_everything_does_not_fit_less(poet_host: Command, costs: Path) -> None:
    solve = ("solve", costs, "--method", "keep-everything", "--json", "--ram")
    needed = poet_host(*solve, "100%").json["peak_bytes"]
    refused = poet_host(*solve, needed - 1)
    assert refused.code == 5
    assert refused.json["smallest_ram_bytes"] == needed
    late = poet_host(*solve, needed, "--deadline", "0.9x")
    assert late.code == 5
    assert late.json["smallest_deadline_us"] > late.json["deadline_us"]


def test_the_papers_figures_can_be_chosen(poet_host: Command) -> None:
    solve = ("solve", "linear", "--ram", "100%", "--method", "keep-everything")
    ours, papers = (
        poet_host(*solve, "--board", "mkr1000", "--json", "--profile", kind).json
        for kind in ("estimate", "paper")
    )
    assert ours["peak_bytes"] == papers["peak_bytes"]
    assert ours["energy_uj"] != papers["energy_uj"]
    poet_host(*solve, "--board", "native", "--profile", "paper").fails(BAD)
    poet_host(*solve, "--board", "mkr1000", "--profile", "p.json").fails(BAD, "omit --board")
    poet_host(*solve, "--profile", "paper").fails(BAD, "--board NAME")


def test_what_stays_in_ram_is_solved_but_makes_no_schedule(
    poet_host: Command, costs: Path, tmp_path: Path
) -> None:
    graphs = (staying(training(seed), seed) for seed in range(99))
    graph = next(graph for graph in graphs if graph.may_commit)
    path, plan_path = tmp_path / "g.json", tmp_path / "plan.json"
    path.write_text(json.dumps(dump_cost_graph(graph)))
    solve = ("solve", path, "--ram", "100%")
    shown = poet_host(*solve, "--commit-every", 10, "--plan", plan_path)
    assert "once in 10 steps" in shown.out
    plan = plan_from_json(json.loads(plan_path.read_text()))
    assert plan.commit_every == 10
    often = poet_host(*solve, "--commit-every", 1, "--json").json
    assert often["energy_uj"] > plan.energy_uj
    poet_host(*solve, "-o", tmp_path / "x.poet").fails(BAD, graph.name, "--plan")
    solve = ("solve", costs, "--ram", "100%")  # in which nothing may stay
    assert poet_host(*solve, "-o", tmp_path / "x.poet", "--commit-every", 7).code == 0
    poet_host(*solve, "--commit-every", 0).fails(BAD, "--commit-every")


def test_weights_of_a_model_stay_in_ram(poet_host: Command) -> None:
    solve = ("solve", "linear", "--board", "mkr1000", "--ram", "100%", "--gap", "0.2", "--json")
    ways = ((), ("--commit-every", 2), ("--commit-every", 100))
    once, every, seldom = (poet_host(*solve, *how).json for how in ways)
    assert [row["more_may_stay"] for row in once["intervals"]] == [False, True, True]
    assert every["commit_every"] == 2
    assert seldom["commit_every"] == 100
    assert seldom["energy_uj"] < every["energy_uj"] / 2
    known = {row["commit_every"]: row for row in every["intervals"]}
    assert sorted(known) == [2, 10, 100]
    assert known[100]["written_bytes"] < known[10]["written_bytes"] < known[2]["written_bytes"]
    assert seldom["intervals"][0]["total_energy_uj"] <= known[100]["total_energy_uj"] * 1.1
    shown = poet_host(*solve[:-1]).out
    assert "with --commit-every 10" in shown
    assert "more may stay" in shown
    refused = poet_host(*solve, "--commit-every", 2, "--no-storage")
    refused.fails(BAD, "linear", "--commit-every", "train")


def test_options_of_models_are_not_for_cost_graphs(poet_host: Command, costs: Path) -> None:
    poet_host("solve", costs, "--ram", 24, "--batch", 2).fails(BAD, "batch")
    poet_host("solve", costs, "--ram", 24, "--board", "native").fails(BAD, "omit --board")


def test_a_graph_without_a_keep_everything_plan_is_solved(
    poet_host: Command, tmp_path: Path
) -> None:
    """Without storage, an overwritten tensor that is used later must be recomputed."""
    node = {"bytes": 8, "time_us": 1, "energy_uj": 1}
    nodes = [
        {"name": "a", "inputs": [], **node},
        {"name": "b", "inputs": ["a"], "overwrites": "a", **node},
        {"name": "c", "inputs": ["a", "b"], **node},
    ]
    graph = {"format": "poet-cost-graph", "version": 1, "name": "x", "nodes": nodes}
    path = tmp_path / "x.graph.json"
    path.write_text(json.dumps({**graph, "storage": False}))
    found = poet_host("solve", path, "--ram", 24, "--json", "-o", tmp_path / "x.poet")
    assert (found.code, found.json["status"], found.json["energy_uj"]) == (0, "optimal", 4.0)
    assert poet_host("solve", path, "--ram", 23, "--json").json["smallest_ram_bytes"] == 24
    assert poet_host("solve", path, "--ram", "50%").code == 2


# Results.


@pytest.mark.parametrize(
    ("option", "name", "is_written"),
    [("-o", "x.txt", False), ("-o", "x", False), ("-o", "x.poet", True), ("-o", "no/x.poet", False),
     ("--plan", "x.poet", False), ("--plan", "plan", True), ("--plan", "x.json", True)],
)  # fmt: skip
def test_results_have_the_suffix_of_their_format(
    poet_host: Command, costs: Path, option: str, name: str, is_written: bool
) -> None:
    path = costs.parent / name
    result = poet_host("solve", costs, "--ram", "100%", option, path)
    assert result.code == (0 if is_written else BAD)
    assert path.exists() == is_written
    assert is_written or name in result.err


@pytest.mark.slow
@pytest.mark.parametrize("method", api.ALL_METHODS)
def test_a_schedule_holds_its_deadline_and_predictions(tmp_path: Path, method: str) -> None:
    graph = api.load_graph("linear")
    profile = estimate_profile(load_board("rpi4b"))
    for deadline in (None, "9x"):
        plan = poet.solve(
            graph, profile, ram="300%", deadline=deadline, method=method, work_limit=20_000
        )
        assert plan.statements, method
        poet.encode(graph, profile, plan).save(tmp_path / "x.poet")
        meta = Schedule.load(tmp_path / "x.poet").meta
        held = meta["plan"]
        keep = api.keep_everything(api.costs_of(graph, profile))
        expected = None if deadline is None else 9 * (keep.time_us or 0)
        assert held["deadline_us"] == (None if expected is None else pytest.approx(expected))
        for key in ("time_us", "energy_uj", "total_energy_uj"):
            assert held[key] == getattr(plan, key) > 0
        commit_us, commit_uj = commit_costs(profile, api.costs_of(graph, profile), plan)
        assert meta["commit"] == {"time_us": commit_us, "energy_uj": commit_uj}
        assert np.isclose(
            held["total_energy_uj"],
            held["energy_uj"] + profile.power.base_uw * held["time_us"] / 1e6,
        )
