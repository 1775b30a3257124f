"""PyTorch modules whose gradients or tensors change in ways that no ONNX file states."""

from typing import Any

import numpy as np
import poet_host as poet
import pytest
import torch
from poet_host.graph.graph import Graph
from poet_host.graph.weights import from_named, start_values
from poet_host.reference.step import run_step
from torch import Tensor, nn
from torch.nn.utils import parametrizations

X = torch.linspace(-1, 1, 24).reshape(4, 6)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = nn.Sequential(nn.Linear(6, 6), nn.ReLU()), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.between(self.backbone(x)))
        return y

    def between(self, x: Tensor) -> Tensor:
        return x


class WithoutGradients(Plain):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.backbone(x)
        y: Tensor = self.head(x)
        return y


class Detached(Plain):
    def between(self, x: Tensor) -> Tensor:
        return x.detach()


class Product(Plain):
    def between(self, x: Tensor) -> Tensor:
        return x * x.detach()


class DataOfWeight(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.backbone(x), self.head.weight.data)


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> Tensor:
        return given[0] * 1

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return -gradients[0]


class Reversed(Plain):
    def between(self, x: Tensor) -> Tensor:
        y: Tensor = Reverse.apply(x)
        return y


class HookOfTensor(Plain):
    def between(self, x: Tensor) -> Tensor:
        x.register_hook(lambda gradient: gradient * 0)
        return x


class HookOfParameter(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.head.weight.register_hook(lambda gradient: gradient * 0)


class HookOfModule(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.head.register_full_backward_hook(lambda module, before, after: None)


STOPS = {
    WithoutGradients: "no_grad", Detached: "detach", Product: "detach", DataOfWeight: "detach",
    Reversed: "Reverse", HookOfTensor: "register_hook", HookOfParameter: "head.weight",
    HookOfModule: "Linear head",
}  # fmt: skip


@pytest.mark.parametrize("kind", STOPS)
def test_a_stopped_or_changed_gradient_is_refused(kind: type[Plain]) -> None:
    with pytest.raises(poet.BadInput, match=f"model {kind.__name__}: .*{STOPS[kind]}"):
        poet.load(kind(), X)


@pytest.mark.parametrize("kind", [WithoutGradients, Detached, Product, Reversed])
def test_a_stop_after_frozen_parameters_changes_nothing(kind: type[Plain]) -> None:
    module = kind()
    poet.load(module, X, train="head.*")
    assert all(it.requires_grad for it in module.parameters())
    module.backbone.requires_grad_(False)
    poet.load(module, X)


class DetachedOutput(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.detach()).detach()


class OfData(Plain):
    """Its parameter has the name of an input."""

    def __init__(self) -> None:
        super().__init__()
        self.data = nn.Parameter(torch.ones(6))

    def between(self, x: Tensor) -> Tensor:
        return (x * self.data).detach()


@pytest.mark.parametrize(
    ("kind", "train"),
    [
        (Detached, "lora:2"), (Detached, "lora:2,!head.weight"), (DetachedOutput, "lora:2"),
        (Detached, "backbone.0.bias"), (OfData, "Mul.*"),
    ],
)  # fmt: skip
def test_a_stop_is_refused_whatever_is_trained(kind: type[Plain], train: str) -> None:
    with pytest.raises(poet.BadInput, match="detach"):
        poet.load(kind(), X, train=train)


def test_an_adapter_after_a_stop_changes_nothing() -> None:
    poet.load(Detached(), X, train="lora:2,!backbone.*")


def test_a_hook_of_a_tensor_without_a_trained_gradient_changes_nothing() -> None:
    poet.load(HookOfTensor(), X, train="head.*")


class OneSample(nn.Module):
    """Works with a batch of one sample only."""

    def __init__(self, is_detached: bool) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(6, 4, batch_first=True), nn.Linear(4, 2)
        self.is_detached = is_detached

    def forward(self, x: Tensor) -> Tensor:
        last = self.gru(x, torch.zeros(1, 1, 4))[0][:, -1]
        y: Tensor = self.head(last.detach() if self.is_detached else last)
        return y


def test_a_module_for_one_sample_is_checked() -> None:
    poet.load(OneSample(False), X[None])
    with pytest.raises(poet.BadInput, match="detach"):
        poet.load(OneSample(True), X[None])


class FailsWithGradients(Plain):
    def between(self, x: Tensor) -> Tensor:
        if not torch.jit.is_tracing():
            raise ValueError("only a trace works")
        return x


def test_a_module_that_cannot_be_checked_is_refused() -> None:
    with pytest.raises(poet.BadInput, match="only a trace works"):
        poet.load(FailsWithGradients(), X)


class TwoOutputs(Plain):
    def forward(self, x: Tensor) -> Any:
        x = self.backbone(x)
        return self.head(x), x.detach()


def test_a_detached_output_with_a_loss_is_refused() -> None:
    poet.load(TwoOutputs(), X, loss="output1=mse")
    for loss in ("mse", "output2=mse"):
        with pytest.raises(poet.BadInput, match="detach"):
            poet.load(TwoOutputs(), X, loss=loss)


class Harmless(Plain):
    """Stops gradients, but has them all: a shape, a mask, and an output that no loss reads."""

    def forward(self, x: Tensor) -> Any:
        x = self.backbone(x)
        with torch.no_grad():
            mask = (x > 0).float()
        return self.head(x * mask)[:, : x.detach().numpy().shape[1]], x.detach()


def test_a_stop_that_no_trained_gradient_passes_changes_nothing() -> None:
    poet.load(Harmless(), X, loss="output1=mse")


class Average(nn.Module):
    """Subtracts an average that it keeps itself."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.mul_(0.5).add_(x.detach().mean(0), alpha=0.5)
        return x - self.mean


class Clamped(Plain):
    def between(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.head.weight.clamp_(-0.1, 0.1)
        return x


class ClampedData(Plain):
    """Its weights are already in the range."""

    def between(self, x: Tensor) -> Tensor:
        self.head.weight.data.clamp_(-1, 1)
        return x


class ClampedFrozen(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.head.weight.requires_grad_(False)

    def between(self, x: Tensor) -> Tensor:
        self.head.weight.detach()[:1].clamp_(-1, 1)
        return x


class MaskedData(Plain):
    def between(self, x: Tensor) -> Tensor:
        self.head.weight.data *= torch.ones(6)
        return x


class AssignedData(Plain):
    def between(self, x: Tensor) -> Tensor:
        self.head.weight.data = torch.renorm(self.head.weight, 2, 0, 10.0)
        return x


class Warmup(Plain):
    """Scales by an integer that it counts."""

    step: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("step", torch.tensor(0))

    def between(self, x: Tensor) -> Tensor:
        self.step += 1
        return x * (self.step / 1000).clamp(max=1)


class Carried(Plain):
    """Keeps a tensor for its next call, in a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.zeros(6)

    def between(self, x: Tensor) -> Tensor:
        x = x + self.last
        self.last = x.detach().mean(0)
        return x


class Kept(Plain):
    """Keeps a tensor that it does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.total = torch.zeros(6)

    def between(self, x: Tensor) -> Tensor:
        self.total = self.total + x.detach().sum(0)
        return x


class WrittenCopy(Plain):
    """Changes a copy of its weights only."""

    def between(self, x: Tensor) -> Tensor:
        self.head.weight.data.clone().clamp_(-1, 1)
        return x


def known() -> nn.Linear:
    """Return a layer whose norm still changes in the 16th step of its iteration."""
    torch.manual_seed(0)
    return nn.Linear(6, 6)


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (Average(), "1.mean"), (Clamped(), "1.head.weight"),
        (Warmup(), "1.step"), (Carried(), "1.last"),
        (ClampedData(), "1.head.weight"), (ClampedFrozen(), "1.head.weight"),
        (MaskedData(), "1.head.weight"), (AssignedData(), "1.head.weight"),
        (nn.utils.spectral_norm(known()), "1.weight_[uv]"),
        (parametrizations.spectral_norm(known()), "1.parametrizations.weight.0._[uv]"),
    ],
)  # fmt: skip
def test_a_tensor_that_forward_changes_is_refused(layer: nn.Module, name: str) -> None:
    with pytest.raises(poet.BadInput, match=f"changes {name}"):
        poet.load(nn.Sequential(nn.Linear(6, 6), layer), X, loss="mse")


@pytest.mark.parametrize(
    "layer",
    [
        nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(0.5)),
        nn.Sequential(Kept(), nn.Linear(2, 6)),
        nn.Sequential(WrittenCopy(), nn.Linear(2, 6)),
        parametrizations.weight_norm(nn.Linear(6, 6)),
        parametrizations.spectral_norm(nn.Linear(6, 6)).eval(),
        nn.Sequential(*[nn.Linear(6, 6)] * 2),
    ],
)  # fmt: skip
def test_layers_that_renew_no_tensor_in_training_are_loaded(layer: nn.Module) -> None:
    poet.load(nn.Sequential(nn.Linear(6, 6), layer, nn.Linear(6, 2)), X)


class Twice(nn.Linear):
    def forward(self, input: Tensor) -> Any:
        x = super().forward(input)
        return x, x


def test_a_tensor_that_is_returned_twice_has_two_losses() -> None:
    module = Twice(6, 3)
    y = np.array([0, 1, 2, 0], np.int32)
    graph = poet.load(
        module, X, batch=4, loss="output1=cross-entropy output2=cross-entropy:weight=0.5"
    )
    assert isinstance(graph, Graph)
    given = {graph.data: X.numpy(), graph.label: np.stack([y, y], 1)}
    found = run_step(graph, {**start_values(graph, 0), **given}, 1)
    loss = nn.functional.cross_entropy(module(X)[0], torch.tensor(y).long()).item()
    np.testing.assert_allclose(found[graph.loss], 1.5 * loss, rtol=1e-5)


def test_weights_of_pytorch_may_hold_a_tied_tensor_under_each_name() -> None:
    module = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    module[2].weight = module[0].weight
    graph = poet.load(module, X, loss="mse")
    assert isinstance(graph, Graph)
    state = {name: value.numpy() for name, value in module.state_dict().items()}
    values = from_named(graph, state)
    assert all((values[name] == state[name]).all() for name in values)
    for other in (state["2.weight"] + 1, np.zeros_like(state["2.weight"])):
        with pytest.raises(poet.BadInput, match=r"2\.weight"):
            from_named(graph, state | {"2.weight": other})
