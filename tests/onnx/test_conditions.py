"""Comparisons, and Where with any condition, judged by PyTorch and ONNX Runtime."""

import numpy as np
import poet_host as poet
import pytest
import torch
from onnx import helper
from support.onnx_judge import (
    answers,
    by_runtime,
    imported,
    learns_as_in_pytorch,
    random,
    same_as_runtime,
)
from support.onnx_models import model
from torch import Tensor, nn


class Conditions(nn.Module):
    """The layer `c` is only compared, so PyTorch does not train it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(6, 5) for _ in range(3))
        self.gain = nn.Parameter(torch.randn(1))

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = self.a(x), self.b(x), self.c(x)
        y = torch.where(c > 0.1, a, b * 2)
        y = torch.where((a < b) & ~(c >= 0) | (b <= -0.3), y, (b + 0.5) * 3)
        y = torch.where(torch.tensor([True, False, True, True, False]), y, self.gain)
        y = y + (c == 0).float() + torch.where(y > 0, y, 0.0) - torch.where(y[:1] > b, 1.0, 0.5)
        return torch.where(torch.isnan(y) | (y < -5), -5.0, y)


def test_conditions_learn_as_in_pytorch() -> None:
    graph = learns_as_in_pytorch(Conditions(), torch.randn(4, 6), rate=0.02)
    assert not any(node.updates and node.updates.startswith("c.") for node in graph)


def test_a_model_whose_parameters_are_only_compared_is_refused() -> None:
    class Compared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return torch.where(self.c(x) > 0, x, 0.0)

    with pytest.raises(poet.BadInput, match="train"):
        poet.load(Compared(), torch.randn(4, 6), loss="mse")


def test_where_does_not_spread_what_it_does_not_take() -> None:
    nodes = [
        helper.make_node("Mul", ["x", "gain"], ["scaled"]),
        helper.make_node("Greater", ["scaled", "zero"], ["positive"]),
        helper.make_node("Log", ["scaled"], ["log"]),
        helper.make_node("Where", ["positive", "log", "scaled"], ["y"]),
    ]
    data = model(nodes, (2, 8), {"gain": np.ones(8, np.float32), "zero": np.float32(0)})
    x = random(2, 8)
    x[0, :5] = [0, -0.0, np.inf, -np.inf, np.nan]
    _, y = answers(imported(data), x)
    assert np.allclose(y, by_runtime(data, x), equal_nan=True)
    assert np.isnan(y).sum() == 1


@pytest.mark.parametrize("op", ["Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"])
def test_comparisons_of_neighbouring_floats(op: str) -> None:
    """Also subnormal ones, with a constant and with a tensor."""
    near = np.float32([0, 1e-45, -1e-45, 1, np.nextafter(np.float32(1), np.float32(2)), -1])
    x = np.repeat(near, 6).reshape(6, 6)
    for other in (np.float32(1), np.float32(0), near):
        nodes = [
            helper.make_node("Mul", ["x", "gain"], ["scaled"]),
            helper.make_node(op, ["scaled", "other"], ["is"]),
            helper.make_node("Cast", ["is"], ["number"], to=1),
            helper.make_node("Add", ["number", "scaled"], ["y"]),
        ]
        constants = {"gain": np.ones(6, np.float32), "other": other}
        same_as_runtime(model(nodes, (6, 6), constants), x)
