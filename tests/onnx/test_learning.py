"""Modules with operators that are rewritten: 20 steps as in PyTorch, and the way to ONNX."""

from math import prod

import pytest
import torch
from support.onnx_judge import learns_as_in_pytorch, same_as_runtime, with_gain
from torch import Tensor, nn


class Sirens(nn.Module):
    """Sines and cosines of arguments up to 200, as of coordinates."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(2, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sin(30 * self.a(x))
        y = torch.cos(self.b(y)) + torch.sin(x.sum(1, keepdim=True) * 64)
        z: Tensor = self.c(y)
        return z


class Transposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.ConvTranspose2d(3, 4, 3, dilation=2, padding=1)
        self.b = nn.ConvTranspose2d(4, 2, (2, 3), (1, 2), (0, 1), (0, 1), dilation=(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(torch.relu(self.a(x)))
        return y


class AtBounds(nn.Module):
    """The least number that a clamp passes, and norms of rows of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.gain = nn.Linear(2, 2, bias=False), nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        rows = self.a(torch.relu(x))
        y: Tensor = nn.functional.normalize(rows) + rows.norm(dim=1, keepdim=True)
        return y + self.gain.clamp(min=0) * x


class Shared(nn.Module):
    """One slope and one gain, each read in two shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.act = nn.Conv2d(2, 3, 3), nn.Linear(3, 3), nn.PReLU()
        self.gain = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.act(self.a(x)) * self.gain.view(1, 3, 1, 1)
        return self.gain * self.act(self.b(y.mean((2, 3))))


class Largest(nn.Module):
    """The maximum of each channel. At the start, some numbers are equally large."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.shift, self.head = nn.Parameter(torch.zeros(*sizes)), nn.Linear(sizes[0], 2)
        self.pool = (nn.AdaptiveMaxPool1d if len(sizes) == 2 else nn.AdaptiveMaxPool2d)(1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.pool(x + self.shift).flatten(1))
        return y


@pytest.mark.parametrize("sizes", [(3, 600), (2, 260, 270)])
def test_the_first_maximum_of_many_numbers_has_the_gradient(sizes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = (torch.rand(2, *sizes) > 1 - 10 / prod(sizes[1:])).float()
    learns_as_in_pytorch(Largest(*sizes), x)
    same_as_runtime(with_gain("ReduceMax", x.shape, axes=[-1]))
    same_as_runtime(with_gain("GlobalMaxPool", x.shape))


CASES = {Sirens: (4, 2), Transposed: (2, 3, 5, 6), AtBounds: (8, 2), Shared: (4, 2, 5, 5)}


@pytest.mark.parametrize("module_of", CASES)
def test_a_module_learns_as_in_pytorch(module_of: type[nn.Module]) -> None:
    torch.manual_seed(0)
    module, x = module_of(), torch.randn(CASES[module_of])
    with torch.no_grad():
        for weight in module.parameters():
            weight.mul_(0.5)
    learns_as_in_pytorch(module, x, rate=0.01)
