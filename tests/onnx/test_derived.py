"""Parameters from which a model computes tensors are trained as in PyTorch."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import poet_host as poet
import pytest
import torch
from onnx import helper
from poet_host import api
from poet_host.errors import BadInput, PoetWarning
from poet_host.graph.training_options import TrainingOptions
from poet_host.graph.weights import start_values, to_named
from poet_host.reference.step import run_step
from poet_host.schedule.schedule import Schedule
from support.onnx_judge import answers, by_runtime, imported, random, same_as_runtime
from support.onnx_models import legacy, model
from support.whole_runs import MIB, board, profile, same, schedule, train
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import weight_norm as older_weight_norm
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

STEPS, BATCH, RATE = 20, 4, 0.01
SAMPLE = (3, 6)
make = helper.make_node


class Normed(nn.Module):
    """Weight normalisation of kinds of layers that have a weight as an input."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.dilated = norm(nn.Conv1d(3, 8, 3, padding=2, dilation=2))
        self.grouped = norm(nn.Conv1d(8, 8, 3, groups=2))
        self.larger = norm(nn.ConvTranspose1d(8, 8, 3))
        self.along = norm(nn.GRU(8, 8, batch_first=True), "weight_hh_l0")
        self.fc = norm(nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.grouped(torch.relu(self.dilated(x))))
        states, _ = self.along(self.larger(x).transpose(1, 2))
        logits: Tensor = self.fc(states.mean(1))
        return logits


class Attention(nn.Module):
    """What Swin, Swin v2, CaiT and cosine classifiers compute from parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 16)
        self.token, self.places = (nn.Parameter(torch.randn(1, n, 16)) for n in (1, 7))
        self.joined = nn.Linear(16, 48)
        self.temperature = nn.Parameter(torch.full((4, 1, 1), 1.2))
        self.rows, self.columns = (nn.Parameter(torch.randn(*size)) for size in ((13, 4), (4, 13)))
        self.continuous = nn.Sequential(nn.Linear(1, 5), nn.ReLU(), nn.Linear(5, 4, bias=False))
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.classes = nn.Parameter(torch.randn(4, 16))
        distances = torch.arange(7)[:, None] - torch.arange(7)
        self.register_buffer("distances", distances + 6)
        self.register_buffer("grid", torch.linspace(-1, 1, 13)[:, None])

    def forward(self, x: Tensor) -> Tensor:
        count = len(x)
        x = torch.cat([self.token.expand(count, -1, -1), self.first(x.transpose(1, 2))], 1)
        x = x + self.places
        bias = self.joined.bias.clone()
        bias[16:32].zero_()
        joined = functional.linear(x, self.joined.weight, bias).view(count, 7, 3, 4, 4)
        query, key, value = joined.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(2, 3) * torch.clamp(self.temperature, max=4.6).exp()
        table = 16 * torch.sigmoid(self.continuous(self.grid))
        for rows in (self.rows, table):
            scores = scores + rows[self.distances.view(-1)].view(7, 7, 4).permute(2, 0, 1)
        scores = scores + self.columns[:, self.distances]
        x = (scores.softmax(-1) @ value).transpose(1, 2).reshape(count, 7, 16)
        token = self.token.repeat(count, 1, 1) + x.mean(1, keepdim=True) / self.scale
        x = functional.normalize(token[:, 0])
        return functional.linear(x, functional.normalize(self.classes)) * self.scale.exp()


class Standard(nn.Module):
    """Weights of which batchnorm and a spectral norm standardise one, one also used transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gain = nn.Conv1d(3, 6, 3), nn.Parameter(torch.ones(6))
        self.limited = spectral_norm(nn.Linear(6, 5)).eval()
        self.back, self.shift = nn.Parameter(torch.zeros(6)), nn.Parameter(torch.zeros(6))
        self.narrow, self.fc = nn.Linear(6, 2, bias=False), nn.Linear(11, 4)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.conv.weight.reshape(1, 6, -1)
        rows = functional.batch_norm(rows, None, None, weight=self.gain * 0.5, training=True)
        x = functional.conv1d(x, rows.reshape(6, 3, 3), self.conv.bias).mean(2)
        x = functional.layer_norm(x, (6,), 1 + self.shift)
        x = functional.linear(torch.relu(self.narrow(x)), self.narrow.weight.t(), self.back)
        logits: Tensor = self.fc(torch.cat([x, self.limited(x)], 1))
        return logits


class Mixture(nn.Module):
    """Weights of experts mixed by a softmax, one tensor used both ways, a scale for the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = weight_norm(nn.Conv1d(3, 24, 3, padding=1))
        self.experts, self.shares = nn.Parameter(torch.randn(3, 24, 24, 2)), torch.randn(3)
        self.shares = nn.Parameter(self.shares)
        self.slope, self.tied = nn.Parameter(torch.randn(24)), nn.Parameter(torch.randn(9, 24))
        self.plain = nn.BatchNorm1d(24, affine=False)
        self.norm, self.fc = nn.LayerNorm(24, bias=False), nn.Linear(24, 4)
        self.temperature = nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        weight = (self.shares.softmax(0).view(3, 1, 1, 1) * self.experts).sum(0)
        x = functional.prelu(
            functional.conv1d(self.plain(self.first(x)), weight), self.slope.sigmoid()
        )
        tied = self.tied.tanh()
        x = functional.layer_norm(x.mean(2), (24,))
        x = self.norm(functional.linear(functional.linear(x, tied), tied.t()))
        logits: Tensor = self.fc(x) * self.temperature.exp()
        return logits


def in_pytorch(module: nn.Module, x: Tensor, y: Tensor) -> list[float]:
    optimizer = torch.optim.SGD(module.parameters(), RATE, momentum=0.9)
    losses = []
    for samples, labels in zip(x, y, strict=True):
        optimizer.zero_grad()
        loss = functional.cross_entropy(module(samples), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
@pytest.mark.parametrize("seed", range(3))
def test_derived_tensors_train_as_in_pytorch(seed: int) -> None:
    torch.manual_seed(seed)
    modules = Normed(weight_norm), Normed(older_weight_norm), Attention(), Standard(), Mixture()
    for module in modules:
        x, y = torch.randn(STEPS, BATCH, *SAMPLE), torch.randint(0, 4, (STEPS, BATCH))
        with warnings.catch_warnings():
            warnings.simplefilter("error", PoetWarning)
            graph = poet.load(
                module, x[0], batch=BATCH, lr=RATE, optimizer="momentum", loss="cross-entropy"
            )
        assert isinstance(graph, poet.Graph)
        losses, values = [], start_values(graph, 0)
        for i, (samples, labels) in enumerate(zip(x.numpy(), y.numpy(), strict=True), 1):
            given = {"data": samples, "label": labels.astype(np.int32)}
            made = run_step(graph, values | given, i)
            losses.append(float(made[graph.loss].item()))
            values |= {it.updates: made[it.name] for it in graph if it.updates}
        assert np.allclose(losses, in_pytorch(module, x, y), rtol=1e-5)
        named = to_named(graph, values, constants=False)
        for name, weight in module.named_parameters():
            assert np.allclose(named[name], weight.detach().numpy(), rtol=1e-4, atol=1e-6), name


def test_a_file_keeps_its_parameters() -> None:
    """They are trained, and the exported model gives the answers of the board."""
    for module in (Normed(weight_norm), Attention()):
        graph = same_as_runtime(legacy(module, torch.randn(BATCH, *SAMPLE)))
        parameters = {name for name, _ in module.named_parameters()}
        assert {node.name for node in graph.trainable} == parameters - {"scale"}
        assert not graph.made_up


def test_equal_models_become_equal_graphs() -> None:
    """The order of layers is that of inputs, not that of a set, which differs between processes."""
    nodes = [*(make("Exp", [name], [f"{name}2"]) for name in "abcde")]
    nodes += [make("Sum", [f"{name}2" for name in "dbeac"], ["w"]), make("Mul", ["x", "w"], ["y"])]
    graph = imported(model(nodes, (2, 5), {name: random(5) for name in "abcde"}))
    assert [node.name for node in graph if node.role == "parameter"] == [*"dbeac"]


def test_a_native_board_computes_the_bits_of_the_reference() -> None:
    torch.manual_seed(0)
    x, y = random(2 * BATCH, *SAMPLE), np.arange(2 * BATCH, dtype=np.int32) % 4
    for module in (Normed(weight_norm), Attention()):
        options = TrainingOptions(loss="cross-entropy", batch=BATCH)
        graph = api.load_graph(module, x[:BATCH], options)
        values = start_values(graph, 0)
        run = train(schedule(graph), (x, y), steps=2, shuffle=False, weights=values)
        for step, part in enumerate((slice(BATCH), slice(BATCH, None)), 1):
            made = run_step(graph, values | {"data": x[part], "label": y[part]}, step)
            values |= {it.updates: made[it.name] for it in graph if it.updates}
        for node in graph.trainable:
            assert run.weights[node.name].tobytes() == values[node.name].tobytes()


class Standardised(nn.Module):
    """A batchnorm standardises the weight. The legacy exporter can fold its mean and variance."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gain = nn.Conv1d(3, 6, 3), nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        rows = self.conv.weight.reshape(1, 6, -1)
        rows = functional.batch_norm(rows, None, None, weight=self.gain * 0.5, training=True)
        return functional.conv1d(x, rows.reshape(6, 3, 3), self.conv.bias).mean(2)


def test_an_exported_weight_is_standardised_by_its_own_mean() -> None:
    x = torch.randn(BATCH, *SAMPLE)
    graph = imported(legacy(Standardised(), x, do_constant_folding=True))
    weights = {it.name: random(*it.shape) for it in graph.trainable}
    _, here = answers(graph, x.numpy(), start_values(graph, 0) | weights)
    with pytest.warns(PoetWarning, match="exporter"):
        exported = poet.export(graph, start_values(graph, 0) | weights)
    assert np.allclose(by_runtime(exported, x.numpy()), here, atol=1e-5)


def test_a_batchnorm_without_scale_and_shift_can_be_frozen() -> None:
    kernels = [
        api.load_graph(
            Mixture(), torch.zeros(BATCH, *SAMPLE), TrainingOptions(batchnorm=how)
        ).kernels
        for how in ("train", "frozen")
    ]
    assert "batchnorm_stats" in kernels[0] - kernels[1]


def test_every_schedule_trains_the_same_bits(tmp_path: Path) -> None:
    """Recomputed, streamed, in slices, with tensors that stay, and after the board has ended."""
    torch.manual_seed(0)
    data = random(4 * BATCH, *SAMPLE), np.arange(4 * BATCH, dtype=np.int32) % 4
    options = TrainingOptions(loss="cross-entropy", batch=BATCH)
    graph = api.load_graph(Mixture(), data[0][:BATCH], options)
    how: dict[str, Any] = {"weights": start_values(graph, 0), "shuffle": False}
    expected = train(schedule(graph), data, **how)

    def encoded(method: str = "poet", board: Any = None, **limits: Any) -> Schedule:
        problem = poet.problem(graph, board or profile(), **limits)
        return poet.encode(graph, poet.solve(problem, method=method, work_limit=300, gap=0.1))

    least_bytes = api.smallest_ram_bytes(graph, profile())
    assert least_bytes < max(node.size_bytes for node in graph)
    smallest = encoded(ram=least_bytes)
    sliced = {"board": "nrf52840_dk", "streaming": False, "slice": "1ms"}
    for made in (
        smallest,
        encoded("poet-remat", ram="90%", streaming=False),
        encoded("poet-paging", ram="80%", streaming=False),
        encoded(ram="150%", commit_every=3),
        encoded("keep-everything", ram="200%", **sliced),
    ):
        run = train(made, data, **how)
        assert same(run, expected)
        assert [step.loss for step in run.steps] == [step.loss for step in expected.steps]
    card = tmp_path / "card.img"
    poet.prepare_storage(card, 256 * MIB)
    train(smallest, data, storage=card, steps=2, **how)
    assert same(train(smallest, data, storage=card, resume=True, shuffle=False), expected)
    with board(smallest, card) as connection:
        answers = poet.predict(smallest, data[0], connection=connection).outputs
    here = poet.predict(smallest, data[0], weights=expected.weights).outputs
    assert answers.tobytes() == here.tobytes()
    exported = poet.export(graph, expected.weights)
    assert np.allclose(by_runtime(exported, data[0][:BATCH]), here[:BATCH], atol=1e-5)
    again = imported(exported)  # the file knows which numbers are parameters
    assert [node.name for node in again.trainable] == [node.name for node in graph.trainable]


def test_what_no_rule_computes_stays_fixed() -> None:
    """A weight that such an operator computes is trained itself, in place of its parameters."""
    nodes = [
        make("Shrink", ["v"], ["w"], lambd=0.5),
        make("Gemm", ["x", "w"], ["h"], transB=1),
        make("Mul", ["h", "g"], ["y"]),
    ]
    graph = same_as_runtime(model(nodes, (2, 5), {"v": random(3, 5), "g": random(3)}))
    assert {node.name for node in graph.trainable} == {"w", "g"}


def test_parameters_that_are_trained_only_in_part_are_named() -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps, self.fc = nn.Parameter(torch.ones(5)), nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.fc(x * self.steps + self.steps.cumsum(0))
            return logits

    with pytest.warns(PoetWarning, match=r"not as in PyTorch: steps\. .*Convert"):
        graph = poet.load(Sums(), torch.zeros(1, 5), loss="mse")
    assert isinstance(graph, poet.Graph)
    assert graph.lost == ("steps",)


def test_a_tensor_is_not_trained_in_two_ways() -> None:
    nodes = [
        make("Exp", ["v"], ["w"]),
        make("Add", ["x", "w"], ["h"]),
        make("BatchNormalization", ["h", "w", "b", "b", "w"], ["y"]),
    ]
    with pytest.raises(BadInput, match=r"w is computed from parameters .* apart"):
        imported(model(nodes, (2, 5), {"v": random(5), "b": random(5)}))


def test_frequencies_of_a_file_stay_fixed() -> None:
    nodes = [
        make("Mul", ["places", "frequencies"], ["angles"]),
        make("Cos", ["angles"], ["turns"]),
        make("Mul", ["x", "gain"], ["scaled"]),
        make("Mul", ["scaled", "turns"], ["y"]),
    ]
    constants = {"places": random(3, 1), "frequencies": random(1, 5), "gain": random(5)}
    graph = imported(model(nodes, (2, 3, 5), constants))
    assert [node.name for node in graph.trainable] == ["gain"]
