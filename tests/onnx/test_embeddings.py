"""Tables of nn.Embedding: PyTorch gives the row `padding_idx` no gradient, and so do boards."""

from collections.abc import Callable
from typing import Any

import numpy as np
import poet_host as poet
import pytest
import torch
from poet_host.graph.graph import Graph
from poet_host.graph.weights import start_values
from poet_host.onnx import pytorch
from poet_host.reference.step import run_step
from support.whole_runs import schedule, train
from torch import Tensor, nn

BATCH, LENGTH, STEPS, WORDS, WIDTH, RATE = 2, 4, 20, 7, 5, 0.05
PADDING = 1


class Text(nn.Module):
    """Two embeddings, each used for two texts. The second one may use the table of the first."""

    def __init__(self, is_tied: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=PADDING)
        self.words_1 = nn.Embedding(WORDS, WIDTH, padding_idx=-1)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if is_tied:
            self.words_1.weight = self.head.weight = self.words.weight

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        x = self.words(one) + self.words(other) + self.words_1(one)
        return self.head(torch.tanh(x + self.words_1(other)).mean(1))


OPTIMISERS: dict[str, tuple[dict[str, Any], Callable[..., torch.optim.Optimizer]]] = {
    "sgd": ({}, lambda p: torch.optim.SGD(p, RATE)),
    "momentum": (
        {"momentum": 0.9, "weight_decay": 0.1},
        lambda p: torch.optim.SGD(p, RATE, 0.9, weight_decay=0.1),
    ),
    "adamw": (
        {"optimizer": "adamw", "weight_decay": 0.1},
        lambda p: torch.optim.AdamW(p, RATE, weight_decay=0.1),
    ),
}


def module(is_tied: bool) -> Text:
    torch.manual_seed(4)
    net = Text(is_tied)
    nn.init.normal_(net.words.weight)  # the row for padding, too
    return net


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("is_tied", [False, True])
def test_rows_for_padding_train_as_in_pytorch(name: str, is_tied: bool) -> None:
    options, by = OPTIMISERS[name]
    net, rng = module(is_tied), np.random.default_rng(6)
    tokens = rng.integers(0, WORDS, (2, BATCH * STEPS, LENGTH))
    assert all((tokens == row).any() for row in (PADDING, WORDS - 1))
    y = rng.integers(0, WORDS, BATCH * STEPS)
    example = tuple(map(torch.tensor, tokens[:, :BATCH]))
    graph = poet.load(net, example, batch=BATCH, lr=RATE, **options)
    assert isinstance(graph, Graph)
    x = tuple(tokens.astype(np.int32))
    run = train(schedule(graph), (x, y), steps=STEPS, shuffle=False)

    first, optimiser, losses = start_values(graph, 0), by(net.parameters()), []
    values = first
    for begin in range(0, BATCH * STEPS, BATCH):
        at = slice(begin, begin + BATCH)
        loss = nn.functional.cross_entropy(
            net(*map(torch.tensor, tokens[:, at])), torch.tensor(y[at])
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        row = np.concatenate([part[at] for part in x], 1).view(np.float32)
        given = {graph.data: row, graph.label: y[at].astype(np.int32)}
        found = run_step(graph, {**values, **given}, begin // BATCH + 1)
        values = values | {node.updates: found[node.name] for node in graph if node.updates}
    assert all(run.weights[key].tobytes() == values[key].tobytes() for key in run.weights)
    np.testing.assert_allclose([step.loss for step in run.steps], losses, rtol=1e-4)
    for key, weight in net.named_parameters():
        np.testing.assert_allclose(run.weights[key], weight.detach(), rtol=1e-4, atol=1e-5)
    stays = (run.weights["words.weight"] == first["words.weight"]).all(1)
    assert stays[PADDING] == (name == "sgd" and not is_tied)
    assert not np.delete(stays, PADDING).any()


class Functional(nn.Module):
    """The same table with two rows for padding, and without one."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Parameter(torch.ones(WORDS, WIDTH)), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        use = nn.functional.embedding
        return self.head(
            (use(x, self.table) + use(x, self.table, 0) + use(x, self.table, 3)).mean(1)
        )


def rows(net: nn.Module, *example: Tensor) -> list[tuple[str, Any]]:
    """The inputs of all gradients of tables, with their rows for padding, from 1."""
    graph = poet.load(net, example)
    assert isinstance(graph, Graph)
    nodes = [node for node in graph if node.op == "embedding_grad"]
    return sorted((node.inputs[0], node.attrs["padding"]) for node in nodes)


def test_both_exporters_show_rows_for_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(BATCH, LENGTH).long()
    for _ in range(2):
        assert rows(module(is_tied=True), x, x) == [
            ("one", PADDING + 1), ("one", WORDS), ("other", PADDING + 1), ("other", WORDS)
        ]  # fmt: skip
        assert rows(Functional(), x) == [("data", 0), ("data", 1), ("data", 4)]
        monkeypatch.setattr(pytorch, "_by_older_exporter", pytorch._by_newer_exporter)


@pytest.mark.parametrize("option", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_options_that_change_the_training_are_refused(option: dict[str, Any]) -> None:
    net = nn.Sequential(nn.Embedding(WORDS, WIDTH, **option), nn.Flatten(), nn.Linear(WIDTH, 2))
    with pytest.raises(poet.BadInput, match="embedding 0 has `max_norm` or"):
        poet.load(net, torch.zeros(BATCH, 1).long())


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(2, momentum=None), nn.LSTM(4, 3, proj_size=2),
        nn.InstanceNorm1d(4, track_running_stats=True),
    ],
)  # fmt: skip
def test_options_that_no_file_states_are_refused(layer: nn.Module) -> None:
    net = nn.Sequential(nn.Linear(4, 4), layer)
    with pytest.raises(poet.BadInput, match=f"{type(layer).__name__} 1 has .*without this option"):
        poet.load(net, torch.zeros(2, 4))


class Calling(nn.Module):
    def __init__(self, function: Any, **options: Any) -> None:
        super().__init__()
        self.conv, self.function, self.options = nn.Conv2d(1, 1, 1), function, options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.function(self.conv(x), **self.options)
        return y


@pytest.mark.parametrize(
    ("net", "option"),
    [
        (nn.Sequential(nn.Conv2d(1, 1, 1), nn.Softplus(3, threshold=1)), "softplus .*threshold=1"),
        (nn.Sequential(nn.Conv2d(1, 1, 1), nn.AvgPool2d(2, divisor_override=3)), "override=3"),
        (Calling(nn.functional.softplus, threshold=1), "softplus with threshold=1"),
        (Calling(nn.functional.avg_pool2d, kernel_size=2, divisor_override=3), "avg_pool2d with"),
    ],
)
def test_options_of_functions_that_no_file_states_are_refused(net: nn.Module, option: str) -> None:
    with pytest.raises(poet.BadInput, match=f"calls .*{option}.*without this option"):
        poet.load(net, torch.zeros(2, 1, 4, 4), loss="mse")
    poet.load(Calling(nn.functional.avg_pool2d, kernel_size=2), torch.zeros(2, 1, 4, 4), loss="mse")
