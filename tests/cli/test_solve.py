"""`solve` and `info`: budgets and the arena, gaps, what is trained, losses, names of outputs."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import poet_host as poet
import pytest
import torch
from poet_host import api
from poet_host.cli.info import MOST_ROWS
from poet_host.device.board import load_board, names
from poet_host.errors import BadInput
from poet_host.graph.summary import summary_of
from poet_host.plan.costgraph import dump_cost_graph
from poet_host.plan.infeasible import largest_need
from poet_host.plan.pricing import cost_graph
from poet_host.plan.problem import Problem
from poet_host.profile.profile import Profile, estimate_profile
from poet_host.schedule.schedule import Schedule
from poet_host.solver.greedy import unsearched
from poet_host.solver.settings import Settings
from poet_host.solver.solve import DEFAULT_GAP
from poet_host.solver.solve import solve as plan_of
from support.command import Command
from support.cost_graphs import random_cost_graph
from support.onnx_models import legacy
from support.small_graphs import small_graph
from torch import nn

BAD, INFEASIBLE, GAP, UNKNOWN = 2, 5, 6, 7
ARENA = load_board("mkr1000").arena_bytes
MKR = ("--board", "mkr1000", "--gap", 1, "--json")


@pytest.fixture
def poet_host(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture
def costs(tmp_path: Path) -> Path:
    path = tmp_path / "small.graph.json"
    path.write_text(json.dumps(dump_cost_graph(small_graph(3, True))))
    return path


# Budgets and the arena.


def test_the_arena_is_the_budget_where_none_is_given(poet_host: Command, tmp_path: Path) -> None:
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
    refused = poet_host(*solve, "-o", out)
    assert refused.code == BAD
    for named in ("mkr1000", f"{ARENA:,}", "--beyond-arena"):
        assert named in refused.err
    assert not out.exists()
    study = poet_host(*solve, "--plan", tmp_path / "plan.json")
    assert study.code in (0, INFEASIBLE)
    assert study.json["ram_bytes"] > ARENA
    beyond = poet_host(*solve, "-o", out, "--beyond-arena")
    assert beyond.code == study.code
    assert out.exists() == (beyond.code == 0)


@pytest.mark.parametrize("board", ["native", "rpi4b"])
def test_computers_have_no_such_limit(poet_host: Command, tmp_path: Path, board: str) -> None:
    solve = ("solve", "resnet-digits", "--board", board, "--method", "keep-everything", "--json")
    above = load_board(board).arena_bytes + 4 if board == "rpi4b" else "100%"
    assert poet_host(*solve, "--ram", above, "-o", tmp_path / "x.poet").code == 0


def test_a_graph_of_costs_has_no_arena(poet_host: Command, costs: Path) -> None:
    refused = poet_host("solve", costs)
    assert refused.code == BAD
    assert "--ram" in refused.err


@pytest.mark.parametrize("ram", ["64k", "1.5", "0.5", "3", "0"])
def test_budgets_that_hold_nothing(poet_host: Command, ram: str) -> None:
    refused = poet_host("solve", "linear", "--board", "native", "--ram", ram)
    assert refused.code == BAD
    assert repr(ram) in refused.err


# What sets the floor.


def test_the_operator_that_sets_the_floor_is_named() -> None:
    graph = api.load_graph("bert-micro")
    profile = estimate_profile(load_board("mkr1000"))
    costs = cost_graph(graph, profile)
    need = largest_need(costs)
    assert need is not None
    assert sum(size for _, size in need.tensors) + need.workspace_bytes == need.bytes
    plan = poet.solve(graph, profile)
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
    ("changes", "options", "code", "words", "absent"),
    [
        ({"gap": 0.25, "stopped_by": "time-limit"}, (), 0, "", "poet-host:"),
        ({"gap": 0.25, "stopped_by": "time-limit"}, ("--gap", 0.1), GAP, "--time-limit", "itself"),
        ({"gap": 0.25, "stopped_by": "exhausted"}, ("--gap", 0.1), GAP, "itself", "more --time"),
        ({"gap": 1e-6, "stopped_by": "time-limit"}, ("--gap", 0), GAP, "--time-limit", "itself"),
        ({"gap": 0.05, "stopped_by": "gap"}, ("--gap", 0.1), 0, "", "poet-host:"),
        ({"status": "unknown", "statements": (), "stopped_by": "exhausted"}, (), UNKNOWN, "--ram",
         "give more --time"),
        ({"status": "unknown", "statements": (), "stopped_by": "time-limit"}, (), UNKNOWN,
         "give more --time", "itself"),
    ],
)  # fmt: skip
def test_a_gap_is_asked_for_or_accepted(
    poet_host: Command, costs: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any],
    options: tuple[object, ...], code: int, words: str, absent: str,
) -> None:  # fmt: skip
    plan = replace(api.solve(api.load(costs), ram="100%"), **({"status": "feasible"} | changes))
    monkeypatch.setattr(api, "solve", lambda *arguments, **more: plan)
    result = poet_host("solve", costs, "--ram", 24, *options)
    assert result.code == code
    assert words in result.err
    assert absent not in result.err
    if plan.statements:
        assert f"gap {changes['gap']:.2%}" in result.out


def test_without_a_gap_the_search_stops_at_one_per_cent() -> None:
    graph, profile = api.load_graph("linear"), estimate_profile(load_board("mkr1000"))
    plan = poet.solve(graph, profile, ram="70%")
    assert plan.stopped_by in ("gap", "proof")
    assert plan.gap is not None
    assert plan.gap <= DEFAULT_GAP
    proved = poet.solve(graph, profile, ram="100%", gap=0)
    assert (proved.stopped_by, proved.gap) == ("proof", 0.0)


def test_the_search_says_why_it_ended() -> None:
    """Unplaced, a bound is reached; a search that may not begin is ended by the clock."""
    problem = Problem(small_graph(3, True), 10_000)
    assert plan_of(problem).stopped_by == "proof"
    graph = cost_graph(api.load_graph("resnet-digits"), estimate_profile(load_board("mkr1000")))
    hurried = plan_of(Problem(graph, ARENA), Settings(time_limit_s=1.0))
    assert hurried.stopped_by == "time-limit"


def test_more_time_is_not_advised_where_the_search_ended_by_itself(
    poet_host: Command, tmp_path: Path
) -> None:
    """This graph's bound, of plans without offsets, is below all plans with them."""
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
    asked = poet_host(*solve, "--gap", DEFAULT_GAP)
    assert asked.code == GAP
    assert "give more --time-limit" not in asked.err
    assert "itself" in asked.out


# What is trained.


def test_the_summary_counts_what_pytorch_counts() -> None:
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
        nn.Linear(256, 10),
    )  # fmt: skip
    graph = poet.load(module, torch.zeros(2, 1, 8, 8), batch=2, momentum=0.5)
    found = summary_of(graph)
    assert found.parameters == sum(one.numel() for one in module.parameters())
    assert found.trained_parameters == found.parameters
    assert [(one.kind, one.parameters) for one in found.layers if one.parameters] == [
        ("conv2d", 40), ("batchnorm", 8), ("linear", 2570),
    ]  # fmt: skip
    inside = (3 * 8 - 2) ** 2  # pairs of a pixel and a tap that are not padding
    assert [one.macs for one in found.layers if one.macs] == [4 * inside, 2560]
    assert found.macs == 4 * inside + 2560
    assert (found.loss, found.optimizer, found.batch) == ("cross-entropy", "momentum", 2)
    assert found.rates["momentum"] == 0.5
    assert found.data_shape == (1, 8, 8)


@pytest.mark.parametrize(
    ("options", "trained", "statistics"),
    [({}, "yes", "by the batch"), ({"train": "last:1"}, "no", "frozen"),
     ({"batchnorm": "frozen"}, "no", "frozen"), ({"train": "*.bias"}, "partly", "by the batch")],
)  # fmt: skip
def test_the_summary_says_what_is_frozen(
    options: dict[str, str], trained: str, statistics: str
) -> None:
    found = summary_of(api.load("resnet-digits", **options))
    norm = next(one for one in found.layers if one.name == "bn1")
    assert (norm.trained, norm.statistics) == (trained, statistics)
    frozen = {"yes": (), "no": ("bn1.weight", "bn1.bias"), "partly": ("bn1.weight",)}
    assert norm.frozen == frozen[trained]
    last = found.layers[-1]
    assert last.trained == ("partly" if options.get("train") == "*.bias" else "yes")


@pytest.mark.parametrize(
    ("options", "rates"),
    [
        ({"optimizer": "sgd", "weight_decay": 0.1}, {"learning_rate": 0.03, "weight_decay": 0.1}),
        ({"optimizer": "momentum"}, {"learning_rate": 0.03, "momentum": 0.9}),
        ({"optimizer": "adam"}, {"learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999}),
    ],
)
def test_the_optimiser_is_read_from_the_graph(options: Any, rates: dict[str, float]) -> None:
    found = summary_of(api.load("resnet-digits", **options))
    assert found.optimizer == options["optimizer"]
    assert {name: found.rates[name] for name in rates} == rates


def test_solve_prints_what_it_trains(poet_host: Command) -> None:
    solve = ("solve", "resnet18-cifar", "--board", "rpi4b", "--method", "keep-everything")
    shown = poet_host(*solve, "--momentum", 0.5).out
    for word in ("175,258", "72,767,232", "cross-entropy", "momentum 0.5", "1 of 3x32x32"):
        assert word in shown
    layers = shown.split("parameters   ")[1].count("1x")
    assert layers <= MOST_ROWS + 1
    assert "poet-host info" in shown
    told = poet_host(*solve, "--json").json
    assert told["model"]["parameters"] == 175_258
    assert told["model"]["optimizer"] == "sgd"
    assert len(told["model"]["layers"]) == 51


def test_info_shows_all_layers_and_boards(poet_host: Command, tmp_path: Path) -> None:
    shown = poet_host("info", "resnet18-cifar")
    assert shown.code == 0
    assert shown.out.count(" conv2d ") == 15
    assert all(name in shown.out for name in names())
    assert "does not fit" in shown.out  # the MKR1000
    told = poet_host("info", "resnet-digits", "--batch", 2, "--json").json
    assert told["batch"] == 2
    assert [row["board"] for row in told["boards"]] == names()
    graph = api.load("resnet-digits", batch=2)
    for row in told["boards"]:
        profile = estimate_profile(load_board(row["board"]))
        costs = cost_graph(graph, profile)
        least = plan_of(Problem(costs, 4)).smallest_ram_bytes
        assert row["smallest_ram_bytes"] == least
        assert row["keep_everything_bytes"] == api.keep_everything(costs).peak_bytes
        totals = unsearched(Problem(costs, row["arena_bytes"]))
        assert totals is not None
        assert (row["energy_uj"], row["time_us"]) == (totals.energy_uj, totals.time_us)
        assert totals.peak_bytes <= row["arena_bytes"]


def test_info_of_one_board_and_of_a_schedule(poet_host: Command, tmp_path: Path) -> None:
    schedule = tmp_path / "x.poet"
    solve = ("solve", "lenet-digits", "--board", "native", "--ram", "100%", "--train", "last:1")
    assert poet_host(*solve, "--method", "keep-everything", "-o", schedule).code == 0
    told = poet_host("info", schedule, "--board", "mkr1000", "--json").json
    assert [row["board"] for row in told["boards"]] == ["mkr1000"]
    graph = api.load("lenet-digits", train="last:1")
    own = json.loads(json.dumps(summary_of(graph).to_json()))
    assert told["rates"] == pytest.approx(own.pop("rates"))  # a schedule holds float32
    assert {key: told[key] for key in own} == own
    assert poet_host("info", schedule, "--batch", 2).code == BAD
    assert told["trained_parameters"] < told["parameters"]


def test_info_needs_layers(poet_host: Command, costs: Path) -> None:
    assert poet_host("info", costs).code == BAD


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_without_search_is_never_above_the_budget(seed: int) -> None:
    graph = small_graph(seed, True)
    need = largest_need(graph)
    assert need is not None
    for ram in (need.bytes - 1, need.bytes, 2 * need.bytes):
        totals = unsearched(Problem(graph, ram))
        assert totals is None if ram < need.bytes else True
        if totals:
            best = plan_of(Problem(graph, ram)).energy_uj
            assert totals.peak_bytes <= ram
            assert best is not None
            assert best <= totals.energy_uj * (1 + 1e-9)


# Losses.


class Shaped(nn.Module):
    """A linear layer whose output is seen in some shape."""

    def __init__(self, features: int, *shape: int, end: nn.Module | None = None) -> None:
        super().__init__()
        self.linear, self.shape = nn.Linear(8, features), shape
        self.end = end or nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.end(self.linear(x).reshape(x.shape[0], *self.shape))
        return out


@pytest.mark.parametrize(
    ("module", "is_clear"),
    [
        (Shaped(8, 8), False),  # as its input: an autoencoder
        (Shaped(1, 1), False),  # a number, or two classes
        (Shaped(12, 4, 3), False),
        (Shaped(8, 8, end=nn.Sigmoid()), False),
        (Shaped(3, 3), True),
        (Shaped(3, 3, 1), True),
        (Shaped(8, 8, end=nn.Softmax(-1)), True),
        (Shaped(12, 4, 3, end=nn.Softmax(-1)), True),
        (Shaped(1, 1, end=nn.Sigmoid()), True),
    ],
    ids=str,
)
def test_the_loss_is_asked_for_where_the_output_may_be_no_classes(
    poet_host: Command, tmp_path: Path, module: nn.Module, is_clear: bool
) -> None:
    example, path = torch.zeros(2, 8), tmp_path / "m.onnx"
    path.write_bytes(legacy(module, example))
    info = ("info", path, "--board", "native")
    given = poet_host(*info, "--loss", "mse", "--json")
    assert given.json["loss"] == "mse"
    asked = poet_host(*info)
    if is_clear:
        assert asked.code == 0
        assert "cross-entropy, assumed" in asked.out
        assert summary_of(poet.load(module, example)).loss == "cross-entropy"
    else:
        assert asked.code == poet_host("solve", path, "--board", "native").code == BAD
        assert "cross-entropy, mse" in asked.err
        with pytest.raises(BadInput, match="cross-entropy, mse"):
            poet.load(module, example)


# Results.


@pytest.mark.parametrize(
    ("option", "name", "is_written"),
    [("-o", "x.txt", False), ("-o", "x", False), ("-o", "x.poet", True),
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


@pytest.mark.parametrize("method", api.ALL_METHODS)
def test_a_schedule_holds_the_deadline_and_what_was_predicted(tmp_path: Path, method: str) -> None:
    graph = api.load_graph("linear")
    profile = estimate_profile(load_board("rpi4b"))
    for deadline in (None, "9x"):
        plan = poet.solve(
            graph, profile, ram="300%", deadline=deadline, method=method, time_limit_s=20
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
        assert meta["commit"] == {"time_us": profile.commit_us, "energy_uj": profile.commit_uj}
        assert np.isclose(
            held["total_energy_uj"],
            held["energy_uj"] + profile.power.base_uw * held["time_us"] / 1e6,
        )
