"""`boards`, `models` and `info`: lists, layers, what is trained, losses."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import poet_host as poet
import pytest
import torch
from poet_host import api
from poet_host.cli.info import MAX_ROWS
from poet_host.device.board import load_board, names
from poet_host.errors import BadInput
from poet_host.graph.models import MODELS
from poet_host.plan.infeasible import largest_need
from poet_host.plan.pricing import cost_graph
from poet_host.plan.problem import Problem
from poet_host.profile.profile import estimate_profile
from poet_host.solver.greedy import greedy_totals
from poet_host.solver.solve import solve as plan_of
from support.command import Command
from support.onnx_models import legacy
from support.small_graphs import small_graph
from torch import nn

BAD = 2


def test_boards_and_models_are_listed(poet_host: Command) -> None:
    boards, models = poet_host("boards", "--json"), poet_host("models", "--json")
    assert [board["name"] for board in boards.json["boards"]] == names()
    assert [model["name"] for model in models.json["models"]] == list(MODELS)
    assert boards.err == models.err == ""
    assert "mkr1000" in poet_host("boards").out
    table = poet_host("models").out
    assert all(name in table for name in MODELS)


def test_the_summary_counts_what_pytorch_counts() -> None:
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
        nn.Linear(256, 10),
    )  # fmt: skip
    graph = poet.load(module, torch.zeros(2, 1, 8, 8), batch=2, momentum=0.5)
    found = api.summary(graph)
    assert found.parameters == sum(parameter.numel() for parameter in module.parameters())
    assert found.trained_parameters == found.parameters
    assert [(layer.kind, layer.parameters) for layer in found.layers if layer.parameters] == [
        ("conv2d", 40), ("batchnorm", 8), ("linear", 2570),
    ]  # fmt: skip
    inside = (3 * 8 - 2) ** 2  # pairs of a pixel and a tap that are not padding
    assert [layer.macs for layer in found.layers if layer.macs] == [4 * inside, 2560]
    assert found.macs == 4 * inside + 2560
    assert (found.loss, found.optimizer, found.batch) == ("cross-entropy", "momentum", 2)
    assert found.rates["momentum"] == 0.5
    assert found.data_shape == (1, 8, 8)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(4, 6, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cells(x)[0][:, -1]


def test_the_layers_have_all_parameters_and_macs() -> None:
    found = api.summary(poet.load(Recurrent(), torch.zeros(2, 5, 4), batch=2))
    kept = [layer for layer in found.layers if layer.parameters]
    assert [(layer.kind, layer.trained) for layer in kept] == [("linear", "yes"), ("lstm", "yes")]
    assert sum(layer.parameters for layer in kept) == found.parameters == 4 * 6 * (4 + 6 + 2)
    assert sum(layer.macs for layer in kept) == found.macs == 5 * 4 * 6 * (4 + 6)


@pytest.mark.parametrize(
    ("options", "trained", "statistics"),
    [({}, "yes", "by the batch"), ({"train": "last:1"}, "no", "frozen"),
     ({"batchnorm": "frozen"}, "no", "frozen"), ({"train": "*.bias"}, "partly", "by the batch")],
)  # fmt: skip
def test_the_summary_names_frozen_parameters(
    options: dict[str, str], trained: str, statistics: str
) -> None:
    found = api.summary(api.load("resnet-digits", **options))
    norm = next(layer for layer in found.layers if layer.name == "bn1")
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
        ({"optimizer": "adamw", "beta1": 0.5}, {"beta1": 0.5, "weight_decay": 0.01}),
        ({"optimizer": "rmsprop", "weight_decay": 0.1}, {"beta2": 0.99, "weight_decay": 0.1}),
        ({"optimizer": "nesterov", "weight_decay": 0.1}, {"momentum": 0.9, "weight_decay": 0.1}),
    ],
)
def test_the_optimiser_is_read_from_the_graph(options: Any, rates: dict[str, float]) -> None:
    found = api.summary(api.load("resnet-digits", **options))
    assert found.optimizer == options["optimizer"]
    assert {name: found.rates[name] for name in rates} == rates


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.pull, self.out = nn.Linear(6, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.fc(x)
        return self.out(x + self.pull(x))


def test_a_layer_may_have_the_name_of_a_rate() -> None:
    graph = poet.load(Residual(), torch.zeros(2, 6), loss="cross-entropy")
    assert graph["fc:grad:pull"].op != "scale"
    assert "proximal" not in api.summary(graph).rates


def test_solve_prints_the_model(poet_host: Command) -> None:
    solve = ("solve", "resnet18-cifar", "--board", "rpi4b", "--method", "keep-everything")
    shown = poet_host(*solve, "--momentum", 0.5).out
    for word in ("175,258", "72,767,232", "cross-entropy", "momentum 0.5", "1 of 3x32x32"):
        assert word in shown
    layers = shown.split("parameters   ")[1].count("1x")
    assert layers <= MAX_ROWS + 1
    assert "poet-host info" in shown
    printed = poet_host(*solve, "--json").json
    assert printed["model"]["parameters"] == 175_258
    assert printed["model"]["optimizer"] == "sgd"
    assert len(printed["model"]["layers"]) == 51


@pytest.mark.slow
def test_info_shows_all_layers_and_boards(poet_host: Command, tmp_path: Path) -> None:
    shown = poet_host("info", "resnet18-cifar")
    assert shown.code == 0
    assert shown.out.count(" conv2d ") == 15
    assert all(name in shown.out for name in names())
    assert "does not fit" not in shown.out  # on the MKR1000, operators stream
    printed = poet_host("info", "resnet-digits", "--batch", 2, "--json").json
    assert printed["batch"] == 2
    assert [row["board"] for row in printed["boards"]] == names()
    graph = api.load("resnet-digits", batch=2)
    for row in printed["boards"]:
        profile = estimate_profile(load_board(row["board"]))
        costs = cost_graph(graph, profile)
        too_little = row["smallest_ram_bytes"] - 4
        assert api.solve(graph, profile, ram=too_little).status == "infeasible"
        assert row["keep_everything_bytes"] == api.keep_everything(costs).peak_bytes
        totals = greedy_totals(Problem(costs, row["arena_bytes"]))
        assert totals is not None
        assert (row["energy_uj"], row["time_us"]) == (totals.energy_uj, totals.time_us)
        assert row["total_energy_uj"] == totals.total_energy_uj
        assert totals.peak_bytes <= row["arena_bytes"]
    least_bytes = printed["boards"][0]["smallest_ram_bytes"]
    assert api.solve(graph, names()[0], ram=least_bytes, gap=1.0).peak_bytes == least_bytes


def test_info_of_one_board_and_of_a_schedule(poet_host: Command, tmp_path: Path) -> None:
    schedule = tmp_path / "x.poet"
    solve = ("solve", "lenet-digits", "--board", "native", "--ram", "100%", "--train", "last:1")
    assert poet_host(*solve, "--method", "keep-everything", "-o", schedule).code == 0
    printed = poet_host("info", schedule, "--board", "mkr1000", "--json").json
    assert [row["board"] for row in printed["boards"]] == ["mkr1000"]
    graph = api.load("lenet-digits", train="last:1")
    own = json.loads(json.dumps(asdict(api.summary(graph))))
    assert printed["rates"] == pytest.approx(own.pop("rates"))  # a schedule holds float32
    assert {key: printed[key] for key in own} == own
    assert poet_host("info", schedule, "--batch", 2).code == BAD
    assert printed["trained_parameters"] < printed["parameters"]


def test_info_needs_layers(poet_host: Command, costs: Path) -> None:
    assert poet_host("info", costs).code == BAD


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_without_search_is_never_above_the_budget(seed: int) -> None:
    graph = small_graph(seed, True)
    need = largest_need(graph)
    assert need is not None
    for ram in (need.bytes - 1, need.bytes, 2 * need.bytes):
        totals = greedy_totals(Problem(graph, ram))
        assert totals is None if ram < need.bytes else True
        if totals:
            best = plan_of(Problem(graph, ram)).energy_uj
            assert totals.peak_bytes <= ram
            assert best is not None
            assert best <= totals.energy_uj * (1 + 1e-9)


# Losses.


class Shaped(nn.Module):
    """A linear layer whose output has some shape."""

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
def test_outputs_that_may_not_be_classes_need_a_loss(
    poet_host: Command, tmp_path: Path, module: nn.Module, is_clear: bool
) -> None:
    example, path = torch.zeros(2, 8), tmp_path / "m.onnx"
    path.write_bytes(legacy(module, example))
    info = ("info", path, "--board", "native")
    assert poet_host(*info, "--loss", "mse", "--json").json["loss"] == "mse"
    without = poet_host(*info)
    if is_clear:
        assert without.code == 0
        assert "cross-entropy (default" in without.out
        assert api.summary(poet.load(module, example)).loss == "cross-entropy"
    else:
        without.fails(BAD, "cross-entropy, mse")
        poet_host("solve", path, "--board", "native").fails(BAD)
        with pytest.raises(BadInput, match="cross-entropy, mse"):
            poet.load(module, example)


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("resnet-digit", "did you mean resnet-digits?"),
        ("model.pt", "poet.load"),
        ("model.safetensors", "poet.load"),
        ("model.tflite", ".onnx"),
        (".", "folder"),
        ("nothing-like-it", ", ".join(MODELS)),
    ],
)
def test_an_unknown_model_is_refused_with_a_way(
    name: str, named: str, poet_host: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    poet_host("info", name).fails(BAD, named)


def test_the_smallest_ram_is_the_same_for_all_boards() -> None:
    graph = api.load("resnet-digits")
    assert isinstance(graph, poet.Graph)
    assert len({api.smallest_ram_bytes(graph, estimate_profile(name)) for name in names()}) == 1


def test_info_reports_each_board(poet_host: Command) -> None:
    shown = poet_host("info", "resnet-digits")
    assert f"5 of 6, now {names()[-1]}" in shown.err  # the others as time passes
    profile = estimate_profile("mkr1000")
    totals = greedy_totals(Problem(cost_graph(api.load("resnet-digits"), profile), 24_576))
    assert totals is not None
    assert f"{totals.total_energy_uj:,.0f}" in shown.out  # what `solve` and `compare` print


def test_a_profile_without_a_card_keeps_everything_in_ram(
    poet_host: Command, tmp_path: Path
) -> None:
    measured = tmp_path / "profile.json"
    profile = estimate_profile(load_board("nrf52840_dk"))
    replace(profile, kind="measured", storage=False).save(measured)
    for model, fits in (("linear", True), ("resnet18-cifar", False)):
        (row,) = poet_host("info", model, "--profile", measured, "--json").json["boards"]
        assert row["smallest_ram_bytes"] is None
        assert (row["keep_everything_bytes"] <= row["arena_bytes"]) == fits
        assert (row["total_energy_uj"] is not None) == (row["time_us"] is not None) == fits
        table = poet_host("info", model, "--profile", measured).out
        assert "not known" in table
        assert ("not found" in table) != fits
