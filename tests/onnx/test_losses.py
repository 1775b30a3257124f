"""Losses, as texts and as objects of PyTorch, which judges 20 steps of a native board, weights,
a resumed run."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import poet_host as poet
import pytest
import torch
from poet_host.data.classes import Classes
from poet_host.data.facts import DataFacts
from poet_host.data.fitted import adapted, fit
from poet_host.errors import BadInput
from poet_host.graph.graph import Graph
from support.whole_runs import board, schedule
from torch import Tensor, nn
from torch.nn import functional

RATE, BATCH, STEPS = 0.2, 4, 20
Judge = Callable[[Tensor, Tensor], Tensor]


def values(rng: np.random.Generator, *shape: int) -> Any:
    return 2 * rng.standard_normal(shape, dtype=np.float32)


def bits(rng: np.random.Generator, *shape: int) -> Any:
    return rng.integers(0, 2, shape).astype(np.float32)


def linear() -> nn.Module:
    return nn.Linear(6, 3)


def one() -> nn.Module:
    return nn.Linear(6, 1)


def pixels() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 3, 1), nn.Softmax(1))


def steps() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 3, 3, padding=1))


def of_chances(y: Tensor, t: Tensor) -> Tensor:
    return functional.nll_loss(y.log(), t.long())


LOSSES: dict[str, tuple[Callable[[], nn.Module], Any, Judge]] = {
    "bce": (linear, lambda rng, n: bits(rng, n, 3), functional.binary_cross_entropy_with_logits),
    "bce of one label": (
        lambda: nn.Sequential(one(), nn.Sigmoid()),
        lambda rng, n: bits(rng, n, 1), functional.binary_cross_entropy,
    ),
    "bce:pos_weight=2.5": (
        linear, lambda rng, n: bits(rng, n, 3),
        nn.BCEWithLogitsLoss(pos_weight=torch.tensor(2.5)),
    ),
    "bce:pos_weight=1,2.5,0.5": (
        linear, lambda rng, n: bits(rng, n, 3),
        nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1, 2.5, 0.5])),
    ),
    "mse": (linear, lambda rng, n: values(rng, n, 3), nn.MSELoss()),
    "l1": (linear, lambda rng, n: values(rng, n, 3), nn.L1Loss()),
    "huber:delta=0.5": (linear, lambda rng, n: values(rng, n, 3), nn.HuberLoss(delta=0.5)),
    "smooth-l1:beta=0.25": (linear, lambda rng, n: values(rng, n, 3), nn.SmoothL1Loss(beta=0.25)),
    "cross-entropy": (pixels, lambda rng, n: rng.integers(0, 3, (n, 2, 3)), of_chances),
    "cross-entropy:class_weights=1,0.25,3:label_smoothing=0.1": (
        linear, lambda rng, n: rng.integers(0, 3, n), nn.CrossEntropyLoss(
            torch.tensor([1, 0.25, 3]), label_smoothing=0.1
        ),
    ),
    "cross-entropy:label_smoothing=0.2": (
        linear, lambda rng, n: rng.integers(0, 3, n), nn.CrossEntropyLoss(label_smoothing=0.2)
    ),
    "cross-entropy:class_weights=1,2,0:ignore_index=255": (
        pixels, lambda rng, n: rng.choice([0, 1, 2, 255], (n, 2, 3)),
        lambda y, t: functional.nll_loss(
            y.log(), t.long(), torch.tensor([1.0, 2, 0]), ignore_index=255
        ),
    ),
    "cross-entropy:axis=1": (
        steps, lambda rng, n: rng.integers(0, 3, (n, 6)), nn.CrossEntropyLoss(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_trains_as_in_pytorch(name: str) -> None:
    make, labels, judge = LOSSES[name]
    torch.manual_seed(1)
    rng = np.random.default_rng(1)
    module, text = make(), name.partition(" ")[0]
    x = rng.standard_normal((BATCH * STEPS, 6), dtype=np.float32)
    y = labels(rng, len(x))
    example = torch.tensor(x[:BATCH])
    loss = judge if isinstance(judge, nn.Module) else text
    graph = poet.load(module, example, batch=BATCH, loss=loss, learning_rate=RATE)
    assert isinstance(graph, Graph)
    made = schedule(graph)
    assert poet.summary(made.graph).loss == text.partition(":axis")[0]
    how: dict[str, Any] = {"shuffle": False}
    with board(made) as connection:
        run = poet.train(made, connection, (x, y), steps=STEPS, **how)
    with board(made) as connection:
        half = poet.train(made, connection, (x, y), steps=STEPS // 2, **how)
        rest = poet.train(made, connection, (x, y), steps=STEPS, resume=True, **how)
        found = poet.evaluate(made, connection, (x, y))
    answers = poet.predict(made, x, weights=run.weights)
    assert [s.loss for s in run.steps] == [s.loss for s in (*half.steps, *rest.steps)]
    wanted, by = [], torch.optim.SGD(module.parameters(), RATE)
    for at in range(0, len(x), BATCH):
        found_loss = judge(
            module(torch.tensor(x[at : at + BATCH])), torch.tensor(y[at : at + BATCH])
        )
        by.zero_grad()
        found_loss.backward()
        by.step()
        wanted.append(found_loss.item())
    np.testing.assert_allclose([s.loss for s in run.steps], wanted, rtol=1e-5)
    for key, value in module.named_parameters():
        mine = run.weights[key].reshape(value.shape)
        np.testing.assert_allclose(mine, value.detach(), rtol=1e-4, atol=1e-6)
        assert run.weights[key].tobytes() == rest.weights[key].tobytes()
    outputs = module(torch.tensor(x))
    if text.startswith("bce"):
        chances = outputs if isinstance(module, nn.Sequential) else outputs.sigmoid()
        np.testing.assert_allclose(answers.probabilities, chances.detach(), rtol=1e-5)
    elif y.dtype == np.int64:
        last = (
            outputs.softmax(1).movedim(1, -1) if len(outputs.shape) < 4 else outputs.movedim(1, -1)
        )
        np.testing.assert_allclose(answers.probabilities, last.detach(), rtol=1e-4, atol=1e-6)
    else:
        np.testing.assert_allclose(answers.outputs, outputs.detach(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.loss, judge(outputs, torch.tensor(y)).item(), rtol=1e-4)


@pytest.mark.parametrize(
    "text", ["huber:delta=0", "huber:delta", "bce:delta=1", "hinge", "huber:", "mse:weight=2"]
)
def test_a_wrong_option_of_a_loss_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=text.partition(":")[0]):
        poet.load(linear(), torch.zeros(2, 6), loss=text)


WRONG: dict[str, Any] = {
    "with reduction='mean'": nn.MSELoss(reduction="sum"),
    "type KLDivLoss cannot be trained": nn.KLDivLoss(),
    "type function cannot be trained": functional.l1_loss,
    "without `weight`": nn.BCEWithLogitsLoss(torch.ones(3)),
    "as one number or a vector": nn.BCEWithLogitsLoss(pos_weight=torch.ones(3, 1)),
    "`pos_weight` are 2": nn.BCEWithLogitsLoss(pos_weight=torch.ones(2)),
    "must be a number above 0": {"output": nn.SmoothL1Loss(beta=0)},
}


@pytest.mark.parametrize("message", WRONG)
def test_a_loss_of_pytorch_that_cannot_be_trained_is_refused(message: str) -> None:
    with pytest.raises(BadInput, match=message):
        poet.load(linear(), torch.zeros(2, 6), loss=WRONG[message])


def test_a_batch_whose_labels_are_all_ignored_changes_nothing() -> None:
    torch.manual_seed(1)
    rng, module = np.random.default_rng(1), linear()
    x, y = rng.standard_normal((12, 6), dtype=np.float32), rng.integers(0, 3, 12)
    y[4:8] = 255
    loss = "cross-entropy:class_weights=1,2,3:ignore_index=255"
    graph = poet.load(module, torch.zeros(4, 6), batch=4, loss=loss, learning_rate=RATE)
    assert isinstance(graph, Graph)
    made, how = schedule(graph), {"shuffle": False, "learning_rate": RATE}
    with board(made) as connection:
        run = poet.train(made, connection, (x, y), steps=3, **how)  # type: ignore[arg-type]
    assert run.steps[1].loss == 0
    kept = [i for i in range(12) if not 4 <= i < 8]
    with board(made) as connection:
        other = poet.train(made, connection, (x[kept], y[kept]), steps=2, **how)  # type: ignore[arg-type]
    for name, value in other.weights.items():
        assert value.tobytes() == run.weights[name].tobytes()


def test_labels_that_the_loss_ignores_may_have_a_name() -> None:
    graph = poet.load(linear(), torch.zeros(2, 6), loss="cross-entropy:ignore_index=2")
    assert isinstance(graph, Graph)
    data = poet.Dataset("named", np.zeros((4, 6), np.float32), np.array([0, 1, 2, 1]),
                        classes=("cat", "dog", "unknown"))  # type: ignore[arg-type]  # fmt: skip
    facts = DataFacts(classes=Classes(("dog", "cat", "unknown")))
    assert adapted(fit(data, graph), facts).y.tolist() == [1, 0, 3, 0]
    for known in (facts, DataFacts()):
        with pytest.raises(BadInput, match="ignores all labels in y"):
            adapted(fit(replace(data, y=np.full(4, 2)), graph), known)
    # The number is that of a class of the weights: in later data, it may be that of another class.
    for labels, names, expected in (
        ([0, 1, 1], ("cat", "unknown"), [1, 3, 3]), ([0, 0, 0], ("dog",), [0, 0, 0]),
        ([2, 1, 0], ("unknown", "cat", "dog"), [0, 1, 3]),
    ):  # fmt: skip
        x = np.zeros((3, 6), np.float32)
        later = poet.Dataset("later", x, np.array(labels), classes=Classes(names))
        found = adapted(fit(later, graph), facts)
        assert found.y.tolist() == adapted(found, facts).y.tolist() == expected
    least = poet.load(linear(), torch.zeros(2, 6), loss=f"cross-entropy:ignore_index={-(2**31)}")
    assert isinstance(least, Graph)
    assert str(-(2**31)) in poet.summary(least).loss
