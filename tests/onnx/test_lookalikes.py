"""Models that look like a known function until the numbers differ."""

from typing import Any

import numpy as np
import poet_host as poet
import pytest
import torch
from onnx import helper
from poet_host.errors import BadInput
from support.onnx_judge import GAIN, IMAGE, imported, learns_as_in_pytorch
from support.onnx_models import model
from torch import Tensor, nn

TOKENS = torch.arange(12).reshape(2, 6)


class Texts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Parameter(torch.randn(60, 8)), nn.Linear(8, 3)

    def embedded(self, tokens: Tensor, **options: Any) -> Tensor:
        return self.layer(nn.functional.embedding(tokens, self.table, **options).mean(1))


class Signed(Texts):
    """The sample texts with which the importer tries conditions have small tokens."""

    def forward(self, tokens: Tensor) -> Tensor:
        y = self.embedded(tokens)
        return torch.where(tokens.sum(1, keepdim=True) > 50, y, -y)


class Limited(Texts):
    def forward(self, tokens: Tensor) -> Tensor:
        return self.embedded(torch.minimum(tokens, torch.tensor([9, 19, 29, 39, 49, 59])))


class ByFrequency(Texts):
    def forward(self, tokens: Tensor) -> Tensor:
        return self.embedded(tokens, scale_grad_by_freq=True)


class StepsFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.layer, self.head = nn.Linear(4, 4), nn.LSTM(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.before(x))[0])


@pytest.mark.parametrize(
    ("module", "example", "words"),
    [
        (Signed(), TOKENS, "the condition depends on tokens"),
        (Limited(), TOKENS, "is computed from tokens"),
        (ByFrequency().eval(), TOKENS, "scale_grad_by_freq=True"),
        (StepsFirst(), torch.randn(10, 2, 4), "LSTM walks along the first axis"),
    ],
)
def test_what_would_be_another_function_is_refused(
    module: nn.Module, example: Tensor, words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        poet.load(module, example, loss="mse")


class LimitedGelu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.gelu(self.layer(x))
        return torch.where(y > 6, torch.tensor(6.0), y)


class OwnNorm(nn.Module):
    """`shift` begins with zeros, so its sign does not show in the first results."""

    def __init__(self, sign: int) -> None:
        super().__init__()
        self.layer, self.sign = nn.Linear(6, 8), sign
        self.scale, self.shift = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        d = h - h.mean(-1, keepdim=True)
        n = d / torch.sqrt((d * d).mean(-1, keepdim=True) + 1e-5) * self.scale
        return n + self.shift if self.sign > 0 else n - self.shift


@pytest.mark.parametrize(
    ("module", "kernels"),
    [
        (LimitedGelu(), {"gelu", "clip_grad"}),
        (OwnNorm(1), {"layernorm_grad_weight"}),
        (OwnNorm(-1), {"layernorm", "sub"}),
    ],
)
def test_a_function_is_known_by_all_its_numbers(module: nn.Module, kernels: set[str]) -> None:
    graph = poet.load(module, torch.randn(4, 6), batch=4, loss="mse")
    assert isinstance(graph, poet.Graph)
    assert kernels <= {node.op for node in graph}
    assert ("sub" in kernels) == ("sub" in {node.op for node in graph})


class ScaledGelu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.log_gain = nn.Linear(6, 8), nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.gelu(self.layer(x)) * self.log_gain.exp()


def test_parameters_without_an_effect_at_the_start_are_trained() -> None:
    assert "gelu" in {node.op for node in learns_as_in_pytorch(ScaledGelu(), torch.randn(4, 6))}
    make = helper.make_node
    nodes = [
        make("Mul", ["x", "gain"], ["s"]),
        make("Greater", ["s", "zero"], ["condition"]),
        make("Mul", ["s", "above"], ["p"]),
        make("Mul", ["s", "below"], ["n"]),
        make("Where", ["condition", "p", "n"], ["y"]),
    ]
    ones = np.ones((4, 1, 1), np.float32)
    constants = GAIN | {"zero": np.float32(0), "above": ones, "below": ones.copy()}
    graph = imported(model(nodes, IMAGE, constants))
    assert {node.name for node in graph.trainable} == {"gain", "above", "below"}
