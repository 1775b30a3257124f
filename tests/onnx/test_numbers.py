"""PyTorch modules that take numbers from tensors, which a trace would hold as constants."""

from typing import Any

import poet_host as poet
import pytest
import torch
from torch import Tensor, nn

X = torch.linspace(-1, 1, 24).reshape(4, 6)


class Plain(nn.Module):
    limits: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, 6), nn.Linear(6, 2)
        self.alpha = nn.Parameter(torch.tensor(6.0))
        self.register_buffer("limits", torch.tensor([6.0, 2.0]))
        self.largest: Any = None

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.between(self.first(x)))
        return y

    def between(self, x: Tensor) -> Tensor:
        return x


class Scaled(Plain):
    def between(self, x: Tensor) -> Tensor:
        return x / x.abs().max().item()


class Bytes(Plain):
    def forward(self, x: Tensor) -> Tensor:
        if x.max() > 1:
            x = x / 255
        return super().forward(x)


class Clamped(Plain):
    def between(self, x: Tensor) -> Tensor:
        return torch.clamp(x, max=self.alpha.item())


class Counted(Plain):
    def between(self, x: Tensor) -> Tensor:
        return x * int((x > 0).sum())


class InNumpy(Plain):
    def between(self, x: Tensor) -> Tensor:
        return x / float(x.detach().numpy().max())


class Written(Plain):
    def between(self, x: Tensor) -> Tensor:
        kept = torch.zeros(6)
        kept[0] = x.sum()
        return x * float(kept[0])


class Dropped(Plain):
    rate = 0.5

    def between(self, x: Tensor) -> Tensor:
        skip = self.training and torch.rand([]) < self.rate
        return x if skip else x.tanh()


@pytest.mark.parametrize("kind", [Scaled, Bytes, Clamped, Counted, InNumpy, Written, Dropped])
def test_a_number_of_the_example_is_refused(kind: type[Plain]) -> None:
    with pytest.raises(poet.BadInput, match=f"model {kind.__name__}: .*number from a tensor"):
        poet.load(kind(), X)


class OfBuffer(Plain):
    def between(self, x: Tensor) -> Tensor:
        limits = self.limits + torch.arange(2)
        return x.clamp(max=limits[0].item()) if limits[1] > 0 else x


class OfShape(Plain):
    def between(self, x: Tensor) -> Tensor:
        if x.shape[0] > 2 and len(x) and x.size(1) == 6 and torch.ones_like(x).all():
            x = x * x.shape[1]
        return x


class Checked(Plain):
    def forward(self, x: Tensor) -> Tensor:
        if (x < -1).any() or x.isnan().any():
            raise ValueError("the data must be at least -1")
        assert (x <= 1).all()
        return super().forward(x)


class Logged(Plain):
    def between(self, x: Tensor) -> Tensor:
        self.largest = x.abs().max().item()
        return x


class NeverDropped(Dropped):
    rate = 0.0


@pytest.mark.parametrize("kind", [OfBuffer, OfShape, Checked, Logged, NeverDropped])
def test_a_number_that_varies_no_output_is_loaded(kind: type[Plain]) -> None:
    poet.load(kind(), X)


def test_a_branch_by_chance_is_loaded_in_eval_mode() -> None:
    poet.load(Dropped().eval(), X)


def test_a_scripted_module_is_loaded() -> None:
    poet.load(torch.jit.script(Plain().first), X, loss="mse")
