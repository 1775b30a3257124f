"""Weights that do not find their way back into a PyTorch module are named."""

import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import poet_host as poet
import pytest
import safetensors.torch
import torch
from poet_host import api
from poet_host.errors import PoetWarning
from poet_host.graph.graph import Graph
from poet_host.graph.weights import start_values, to_named
from poet_host.onnx.returning import notice
from poet_host.schedule.schedule import Schedule
from support import whole_runs as runs
from support.command import Command
from support.onnx_judge import imported
from support.onnx_models import FOLDED, by_dynamo, legacy
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import register_parametrization

LOST = {"b2.parametrizations.weight.original"}


class Positive(nn.Module):
    """A parametrization that cannot be trained through: batchnorm reads what it computes."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight.exp()


class Small(nn.Module):
    """Two convolutions with batchnorm, one without a bias, and a classifier."""

    def __init__(self, normed: bool = False, positive: bool = False) -> None:
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.c2, self.b2 = nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)
        self.fc = weight_norm(nn.Linear(4, 3)) if normed else nn.Linear(4, 3)
        for norm in (self.b1, self.b2):
            norm.running_mean = torch.randn(4)
            norm.running_var = torch.rand(4) + 0.5
        if positive:
            register_parametrization(self.b2, "weight", Positive())

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.b2(self.c2(torch.relu(self.b1(self.c1(x))))))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


class Reused(nn.Module):
    """A parameter that nothing reads, a frozen one, a buffer, and weights that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)
        self.second.weight = self.first.weight
        self.unused = nn.Parameter(torch.ones(3))
        self.frozen = nn.Parameter(torch.ones(64), requires_grad=False)
        self.register_buffer("mask", torch.ones(64))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x.flatten(1))) * self.frozen
        logits: Tensor = self.second(x) * self.mask
        return logits


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(2, 1, 8, 8)


def test_recomputed_parameters_of_a_module_are_named(x: Tensor) -> None:
    with pytest.warns(PoetWarning) as seen:
        graph = poet.load(Small(positive=True), x)
    assert seen[0].filename == __file__
    assert isinstance(graph, Graph)
    assert set(graph.lost) == LOST
    assert len(graph.made_up) == 1
    assert all(name in str(seen[0].message) for name in (*LOST, *graph.made_up))


@pytest.mark.parametrize("module_of", [Small, Reused])
def test_a_module_whose_parameters_all_return_gives_no_warning(
    module_of: type[nn.Module], x: Tensor
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", PoetWarning)
        graph = poet.load(module_of(), x)
    assert isinstance(graph, Graph)
    assert (graph.lost, graph.made_up) == ((), ())


def test_lost_parameters_are_those_that_load_state_dict_misses(x: Tensor, tmp_path: Path) -> None:
    """As the guide checks it: of the parameters, exactly those that were named."""
    for positive in (False, True):
        module = Small(positive=positive)
        graph = api.load_graph(module, x)
        poet.save_weights(tmp_path / "w.safetensors", graph, start_values(graph, 0))
        weights = safetensors.torch.load_file(tmp_path / "w.safetensors")
        missing, unexpected = module.load_state_dict(weights, strict=False)
        parameters = {name for name, _ in module.named_parameters()}
        assert parameters & set(missing) == set(graph.lost) == (LOST if positive else set())
        assert set(unexpected) == set(graph.made_up)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("write", "names"),
    [
        (lambda m, x: legacy(m, x, **FOLDED), r"onnx::Conv_\d+"),
        (by_dynamo, r"c[12]\.(weight|bias|weight_bias)"),
    ],
)
def test_tensors_that_an_exporter_folded_are_named(write: Any, names: str, x: Tensor) -> None:
    graph = imported(write(Small(), x))
    assert not graph.lost
    assert len(graph.made_up) == 4
    assert all(re.fullmatch(names, name) for name in graph.made_up)
    for name in graph.made_up:
        assert name in notice(graph)


@pytest.mark.slow
def test_a_file_with_the_names_of_its_module_gives_no_warning(x: Tensor) -> None:
    for data in (by_dynamo(Small(), x, optimize=False), legacy(Small(), x)):
        graph = imported(data)
        assert (graph.lost, graph.made_up, notice(graph)) == ((), (), "")


@pytest.mark.slow
def test_a_weight_that_an_exporter_computed_is_named(x: Tensor) -> None:
    """By default the newer exporter computes what weight_norm makes, and calls it after that."""
    module = Small(normed=True)
    for data in (by_dynamo(module, x), legacy(module, x, **FOLDED)):
        graph = imported(data)
        saved = to_named(graph, start_values(graph, 0), constants=False)
        foreign = saved.keys() - module.state_dict().keys()
        assert foreign
        assert foreign <= set(graph.made_up)


def test_frozen_parameters_are_not_named(x: Tensor) -> None:
    assert imported(legacy(Small(), x, **FOLDED), train="last:1").made_up == ()


def test_a_schedule_names_lost_parameters(x: Tensor, tmp_path: Path) -> None:
    graph = api.load_graph(Small(positive=True), x)
    runs.schedule(graph).save(tmp_path / "m.poet")
    found = Schedule.load(tmp_path / "m.poet").graph
    assert (found.lost, found.made_up) == (graph.lost, graph.made_up)
    with pytest.warns(PoetWarning, match="weight.original"):
        poet.export(found, start_values(found, 0))


def test_many_names_are_bounded() -> None:
    graph = api.load_graph("linear")
    text = notice(replace(graph, made_up=tuple(f"onnx::Gemm_{i}" for i in range(25))))
    assert "onnx::Gemm_19" in text
    assert "onnx::Gemm_20" not in text
    assert "5 more" in text


def test_the_commands_name_lost_parameters(poet_host: Command, x: Tensor, tmp_path: Path) -> None:
    model, schedule = tmp_path / "m.onnx", tmp_path / "m.poet"
    model.write_bytes(legacy(Small(), x, **FOLDED))
    graph = imported(model.read_bytes(), loss="cross-entropy")
    solved = poet_host(
        "solve", str(model), "--board", "native", "--ram", "100%", "--gap", "1", "-o", str(schedule)
    )
    assert solved.code == 0
    weights = tmp_path / "w.safetensors"
    poet.save_weights(weights, graph, start_values(graph, 0))
    exported = poet_host(
        "export", str(schedule), "-w", str(weights), "-o", str(tmp_path / "o.onnx"), "--json"
    )
    assert exported.code == 0
    for result in (solved, exported):
        assert all(name in result.err for name in graph.made_up)
        assert "Traceback" not in result.err
        assert "UserWarning" not in result.err
