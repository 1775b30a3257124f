"""Options of the training step, with PyTorch as the judge: 20 steps, the weights, a resumed run."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import poet_host as poet
import pytest
import torch
from poet_host.errors import BadInput, PoetWarning
from poet_host.graph.graph import Graph
from poet_host.graph.weights import start_values
from poet_host.reference.inference import logits
from poet_host.reference.step import run_step
from poet_host.run.run import Run
from support.command import Command
from support.whole_runs import same, schedule, train
from torch import Tensor, nn

BATCH, STEPS, CLASSES, RATE = 4, 20, 3, 0.05
Judge = Callable[[nn.Module, Any, Any], list[float]]


class Small(nn.Module):
    """A convolution, a linear layer on a sequence, and one on a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1, stride=2)
        self.mix = nn.Linear(4, 6)
        self.fc = nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv(x)).flatten(2).transpose(1, 2)
        return self.fc(torch.relu(self.mix(x)).flatten(1))


def samples() -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((BATCH * STEPS, 2, 4, 4), dtype=np.float32)
    return x, rng.integers(0, CLASSES, len(x))


def module() -> Small:
    torch.manual_seed(2)
    return Small()


def loaded(**options: Any) -> Graph:
    graph = poet.load(module(), torch.zeros(BATCH, 2, 4, 4), batch=BATCH, lr=RATE, **options)
    assert isinstance(graph, Graph)
    return graph


def trained(graph: Graph, card: Path) -> Run:
    """The run of STEPS steps. A run that another plan resumes in its middle has the same bits."""
    data, how = samples(), {"shuffle": False, "seed": 5}
    run = train(schedule(graph), data, steps=STEPS, **how)
    half = train(schedule(graph), data, storage=card, steps=STEPS // 2, **how)
    tight = schedule(graph, "70%", "capuchin")
    rest = train(tight, data, storage=card, steps=STEPS, resume=True, **how)
    assert [s.loss for s in run.steps] == [s.loss for s in (*half.steps, *rest.steps)]
    assert same(run, rest)
    return run


def judged(
    net: nn.Module, by: torch.optim.Optimizer, change: Callable[[], Any], accumulate: int = 1
) -> list[float]:
    """The losses of PyTorch. `change` is called between the gradients and the update."""
    x, y = map(torch.tensor, samples())
    losses = []
    for step in range(1, STEPS + 1):
        batch = slice(BATCH * (step - 1), BATCH * step)
        loss = nn.functional.cross_entropy(net(x[batch]), y[batch])
        (loss / accumulate).backward()
        losses.append(loss.item())
        if step % accumulate == 0:
            change()
            by.step()
            by.zero_grad()
    return losses


def compare(run: Run, losses: list[float], net: nn.Module) -> None:
    np.testing.assert_allclose([s.loss for s in run.steps], losses, rtol=1e-4)
    for name, value in net.named_parameters():
        if name in run.weights:
            np.testing.assert_allclose(run.weights[name], value.detach(), rtol=1e-4, atol=1e-5)


class Adapted(nn.Module):
    """A layer with an adapter, as PEFT computes it: base(x) + B(A(x)) * alpha / rank."""

    def __init__(self, base: nn.Linear | nn.Conv2d, name: str, first: Any, rank: int) -> None:
        super().__init__()
        low = torch.tensor(first[f"{name}.lora_A.weight"])
        high = torch.tensor(first[f"{name}.lora_B.weight"])
        assert not high.any()
        bound = 1 / low[0].numel() ** 0.5  # kaiming_uniform_(A, a=sqrt(5)), as PEFT
        assert 0.5 * bound < low.abs().max() <= bound
        self.base = base.requires_grad_(False)
        self.lora_A = nn.ParameterDict({"weight": low})
        self.lora_B = nn.ParameterDict({"weight": high})

    def forward(self, x: Tensor) -> Tensor:
        low, high = self.lora_A["weight"], self.lora_B["weight"]
        if isinstance(self.base, nn.Linear):
            return self.base(x) + 2 * nn.functional.linear(nn.functional.linear(x, low), high)
        conv = self.base
        down = nn.functional.conv2d(x, low, None, conv.stride, conv.padding)
        return conv(x) + 2 * nn.functional.conv2d(down, high)


def test_adapters_train_as_in_peft_and_are_merged(
    tmp_path: Path, card: Path, poet_host: Command
) -> None:
    graph = loaded(train="lora:2:4, fc.bias, !conv*")
    assert {node.name for node in graph.trainable if node.role == "parameter"} == {
        "fc.bias", *(f"{name}.lora_{which}.weight" for name in ("mix", "fc") for which in "AB")
    }  # fmt: skip
    graph = loaded(train="lora:2:4", optimizer="adam")
    run = trained(graph, card)
    net, first = module(), start_values(graph, 5)
    for name in ("conv", "mix", "fc"):
        setattr(net, name, Adapted(getattr(net, name), name, first, 2))
    by = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=RATE)
    compare(run, judged(net, by, lambda: None), net)

    made, x = schedule(graph), samples()[0]
    made.save(tmp_path / "m.poet")
    poet.save_weights(tmp_path / "w.safetensors", graph, run.weights, STEPS)
    files = (tmp_path / "m.poet", "--weights", tmp_path / "w.safetensors")
    assert poet_host("export", *files, "-o", tmp_path / "m.onnx").code == 0
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    name = session.get_inputs()[0].name
    outputs = [session.run(None, {name: x[i : i + BATCH]})[0] for i in (0, BATCH)]
    answers = poet.predict(made, x[:8], weights=run.weights).outputs
    np.testing.assert_allclose(np.concatenate(outputs), answers, rtol=1e-5, atol=1e-5)


def test_adapters_of_built_in_models_are_merged(tmp_path: Path, poet_host: Command) -> None:
    graph, plain = poet.load("resnet-digits", train="lora:2:4"), poet.load("resnet-digits")
    assert isinstance(graph, Graph)
    assert isinstance(plain, Graph)
    values = start_values(graph, 1)
    rng = np.random.default_rng(2)
    for name, value in values.items():
        if ".lora_B." in name:
            values[name] = 0.1 * rng.standard_normal(value.shape, np.float32)
    schedule(graph).save(tmp_path / "m.poet")
    poet.save_weights(tmp_path / "w.safetensors", graph, values, 7)
    files = (tmp_path / "m.poet", "--weights", tmp_path / "w.safetensors")
    assert "NAME.safetensors" in poet_host("export", *files, "-o", tmp_path / "m.onnx").err
    merged = tmp_path / "merged.safetensors"
    assert poet_host("export", *files, "-o", merged).code == 0
    x = rng.standard_normal(plain[plain.data].shape, np.float32)
    found = logits(plain, poet.load_weights(merged, plain), x)
    np.testing.assert_allclose(found, logits(graph, values, x), rtol=1e-4, atol=1e-4)
    assert not np.allclose(found, logits(plain, start_values(plain, 1), x), atol=0.01)


def test_adapters_begin_on_weights_that_were_trained_without(tmp_path: Path) -> None:
    plain = loaded(optimizer="momentum")
    whole = start_values(plain, 0)
    poet.save_weights(tmp_path / "plain.safetensors", plain, whole, 3)
    graph = loaded(train="lora:2", optimizer="momentum")
    found = poet.load_weights(tmp_path / "plain.safetensors", graph)
    assert set(found) == {node.name for node in plain if node.role == "parameter"}


@pytest.mark.parametrize(
    "train", ["lora:0", "lora:x", "lora:2:-1", "lora:2:nan", "lora:2,lora:3", "lora:2,all", "lora:"]
)
def test_wrong_adapters_are_refused(train: str) -> None:
    with pytest.raises(BadInput, match="lora"):
        loaded(train=train)


CLIPPED: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "by norm": (
        {"clip_norm": 0.2, "optimizer": "momentum", "weight_decay": 0.01},
        lambda p: torch.optim.SGD(p, RATE, 0.9, weight_decay=0.01),
        lambda p: nn.utils.clip_grad_norm_(p, 0.2),
    ),
    "by norm, now and then": (
        {"clip_norm": 0.8, "optimizer": "adam"},
        lambda p: torch.optim.Adam(p, RATE), lambda p: nn.utils.clip_grad_norm_(p, 0.8),
    ),
    "by value": (
        {"clip_value": 0.05, "optimizer": "sgd"},
        lambda p: torch.optim.SGD(p, RATE), lambda p: nn.utils.clip_grad_value_(p, 0.05),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CLIPPED)
def test_gradients_are_clipped_as_in_pytorch(name: str, card: Path) -> None:
    options, by, change = CLIPPED[name]
    graph = loaded(**options)
    run, net = trained(graph, card), module()
    plain = judged(module(), by([*module().parameters()]), lambda: None)
    compare(run, judged(net, by([*net.parameters()]), lambda: change([*net.parameters()])), net)
    assert run.steps[-1].loss != pytest.approx(plain[-1], rel=1e-3)
    found = poet.summary(graph)
    sizes = [node.size_bytes for node in graph.trainable if node.role == "parameter"]
    assert found.waiting_bytes == (sum(sizes) if "clip_norm" in options else max(sizes))
    limits = {key: limit for key, limit in options.items() if key.startswith("clip")}
    assert {key: found.rates.get(key) for key in limits} == pytest.approx(limits)


def test_gradients_of_norm_zero_stay() -> None:
    """No gradient passes weights of zero."""
    graph = loaded(clip_norm=1.0, train="mix.*")
    first = start_values(graph, 0)
    first["fc.weight"] = np.zeros_like(first["fc.weight"])
    run = train(schedule(graph), samples(), steps=1, weights=first)
    assert all((run.weights[name] == first[name]).all() for name in ("mix.weight", "mix.bias"))


def test_two_limits_are_refused() -> None:
    with pytest.raises(BadInput, match="clip_norm"):
        loaded(clip_norm=1.0, clip_value=1.0)


ACCUMULATING: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, RATE, weight_decay=0.01),
    "momentum": lambda p: torch.optim.SGD(p, RATE, 0.9, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, RATE, 0.9, weight_decay=0.01, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, RATE, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, RATE),
    "rmsprop": lambda p: torch.optim.RMSprop(p, RATE, weight_decay=0.01),
}


@pytest.mark.parametrize("name", ACCUMULATING)
def test_gradients_of_several_batches_are_accumulated_as_in_pytorch(name: str) -> None:
    graph = loaded(optimizer=name, weight_decay=0.01, accumulate=3)
    (x, y), values, net = samples(), start_values(graph, 5), module()
    run = train(schedule(graph), (x, y), steps=STEPS, shuffle=False, seed=5)
    for step in range(STEPS):
        batch = slice(BATCH * step, BATCH * (step + 1))
        data = {graph.data: x[batch], graph.label: y[batch].astype(np.int32)}
        found = run_step(graph, {**values, **data}, step + 1)
        values |= {node.updates: found[node.name] for node in graph if node.updates}
    assert all(run.weights[key].tobytes() == values[key].tobytes() for key in values)
    compare(run, judged(net, ACCUMULATING[name]([*net.parameters()]), lambda: None, 3), net)


def test_an_accumulation_goes_on_after_a_resume_and_is_clipped_as_a_whole(card: Path) -> None:
    graph = loaded(optimizer="adam", accumulate=3, clip_norm=0.2)
    run, net = trained(graph, card), module()
    weights = [*net.parameters()]
    by = torch.optim.Adam(weights, RATE)
    compare(run, judged(net, by, lambda: nn.utils.clip_grad_norm_(weights, 0.2), 3), net)
    found = poet.summary(graph)
    assert found.accumulated_bytes == 4 * sum(weight.numel() for weight in weights)
    assert found.rates["accumulate"] == 3


def test_rates_count_updates() -> None:
    graph, net = loaded(accumulate=3), module()
    how = {"lr_schedule": "cosine", "warmup": 2}
    run = train(schedule(graph), samples(), steps=STEPS, shuffle=False, seed=5, **how)
    by = torch.optim.SGD([*net.parameters()], RATE)
    rates = torch.optim.lr_scheduler.SequentialLR(
        by,
        [
            torch.optim.lr_scheduler.LambdaLR(by, lambda done: (done + 1) / 2),
            torch.optim.lr_scheduler.CosineAnnealingLR(by, STEPS // 3 - 2),
        ],
        [2],
    )
    by.register_step_post_hook(lambda *_: rates.step())
    compare(run, judged(net, by, lambda: None, 3), net)


class TwoHeads(nn.Module):
    """Classes, and two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.classes, self.box = Small(), nn.Linear(3, CLASSES), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.tanh(self.body(x))
        return self.classes(x), self.box(x)


def test_gradients_of_several_losses_are_accumulated() -> None:
    torch.manual_seed(2)
    net, (x, y) = TwoHeads(), samples()
    box = np.random.default_rng(4).standard_normal((len(x), 2), np.float32)
    graph = poet.load(
        net, torch.zeros(BATCH, 2, 4, 4), batch=BATCH, lr=RATE, accumulate=3,
        optimizer="momentum", loss="output1=cross-entropy output2=mse:weight=0.25",
    )  # fmt: skip
    assert isinstance(graph, Graph)
    data = {"x": x, "output1": y, "output2": box}
    run = train(schedule(graph), data, steps=STEPS, shuffle=False)
    by, losses = torch.optim.SGD(net.parameters(), RATE, 0.9), []
    for step in range(STEPS):
        at = slice(BATCH * step, BATCH * (step + 1))
        classes, found = net(torch.tensor(x[at]))
        loss = nn.functional.cross_entropy(classes, torch.tensor(y[at]))
        loss = loss + 0.25 * nn.functional.mse_loss(found, torch.tensor(box[at]))
        (loss / 3).backward()
        losses.append(loss.item())
        if step % 3 == 2:
            by.step()
            by.zero_grad()
    compare(run, losses, net)


def test_a_run_without_an_update_is_announced(card: Path) -> None:
    plan = schedule(loaded(accumulate=3))
    with pytest.warns(PoetWarning, match="changes no weight"):
        run = train(plan, samples(), storage=card, steps=2, shuffle=False)
    first = start_values(plan.graph, 0)
    changed = [name for name, value in run.weights.items() if (value != first[name]).any()]
    assert changed
    assert all(name.endswith(":accumulated") for name in changed)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PoetWarning)
        train(plan, samples(), storage=card, steps=3, resume=True, shuffle=False)


def test_an_update_after_each_batch_accumulates_nothing() -> None:
    plain, one = schedule(loaded()), schedule(loaded(accumulate=1))
    assert one.to_bytes() == plain.to_bytes()


@pytest.mark.parametrize("wrong", [0, -1, 2.0, "3", True, 65537])
def test_wrong_numbers_of_batches_are_refused(wrong: Any) -> None:
    with pytest.raises(BadInput, match="accumulate"):
        loaded(accumulate=wrong)
