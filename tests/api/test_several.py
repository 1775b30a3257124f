"""Models with several inputs or outputs: PyTorch is the judge of losses, weights and answers."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import poet_host as poet
import pytest
import torch
from poet_host.api.inputs import fitted
from poet_host.card.job import make_job
from poet_host.errors import BadInput
from poet_host.graph.weights import start_values
from poet_host.reference.inference import logits
from support.command import Command
from torch import Tensor, nn
from torch.nn import functional

BATCH, STEPS = 4, 6


class TextAndImage(nn.Module):
    """Reads tokens and an image."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.conv, self.head = nn.Embedding(20, 4), nn.Conv2d(1, 2, 3), nn.Linear(52, 3)

    def forward(self, tokens: Tensor, image: Tensor) -> Tensor:
        image = functional.relu(self.conv(image)).flatten(1)
        whole: Tensor = self.head(torch.cat([self.table(tokens).flatten(1), image], 1))
        return whole


class Detector(nn.Module):
    """Gives the probabilities of classes, and a box that depends on them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, stride=2), nn.BatchNorm2d(4)
        self.classes, self.box = nn.Linear(16, 3), nn.Linear(19, 4)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        x = functional.relu(self.norm(self.conv(image))).flatten(1)
        chances = torch.softmax(self.classes(x), 1)
        return chances, self.box(torch.cat([x, chances], 1))


class Masked(nn.Module):
    """Attention over tokens of which a mask hides some, as transformers write it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20, 6), nn.Linear(6, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.table(input_ids)
        low = (1.0 - attention_mask[:, None, :].float()) * torch.finfo(torch.float32).min
        whole: Tensor = self.head(torch.softmax(x @ x.transpose(1, 2) + low, -1) @ x)[:, 0]
        return whole


def arrays(module: nn.Module) -> dict[str, Any]:
    """Return samples by input, and labels as `y`."""
    rng, count = np.random.default_rng(0), BATCH * STEPS
    tokens = rng.integers(0, 20, (count, 5))
    found = {"tokens": tokens, "image": rng.standard_normal((count, 1, 6, 6), np.float32)}
    if isinstance(module, Masked):
        mask = np.arange(5) < rng.integers(1, 6, (count, 1))
        found = {"input_ids": tokens, "attention_mask": mask.astype(np.int64)}
    return {**found, "y": rng.integers(0, 3, count)}


def trained(module: nn.Module, x: dict[str, Any], loss_of: Callable[..., Tensor]) -> list[float]:
    """Train the module as the board does. `loss_of` takes outputs, and what selects a batch."""
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    losses = []
    for i in range(0, BATCH * STEPS, BATCH):
        outputs = module(*(value[i : i + BATCH] for value in x.values()))
        loss = loss_of(outputs, lambda labels, i=i: torch.from_numpy(labels[i : i + BATCH]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind", [TextAndImage, Masked])
def test_several_inputs_train_as_in_pytorch(tmp_path: Path, kind: type[nn.Module]) -> None:
    torch.manual_seed(1)
    module = kind()
    data = arrays(module)
    np.savez(tmp_path / "data.npz", **data)
    x = {name: torch.from_numpy(value) for name, value in data.items() if name != "y"}
    graph = poet.load(module, tuple(x.values()), batch=BATCH, lr=0.1)
    assert isinstance(graph, poet.Graph)
    before = logits(graph, start_values(graph, 0), fitted(data, graph).x)
    before = before.reshape(-1, 3)
    assert np.allclose(before, module(*x.values()).detach(), atol=1e-6)
    with poet.connect("native", arena_bytes="64KiB") as board:
        schedule = poet.encode(graph, poet.solve(graph, "mkr1000", ram="100%"))
        run = poet.train(schedule, board, tmp_path / "data.npz", shuffle=False)
        answers = [
            poet.predict(schedule, data, weights=run.weights, connection=on).outputs
            for on in (board, None)
        ]
    losses = trained(module, x, lambda y, part: functional.cross_entropy(y, part(data["y"])))
    assert np.allclose([step.loss for step in run.steps], losses, rtol=1e-5)
    for name, value in module.named_parameters():
        assert np.allclose(run.weights[name], value.detach(), atol=1e-6)
    assert np.array_equal(*answers)
    assert np.allclose(answers[0].reshape(-1, 3), module(*x.values()).detach(), atol=1e-5)
    samples = make_job(schedule, fitted(data, graph), seed=0, first=0, steps=1).samples
    row, label = (fitted(data, graph).x[0].tobytes(), fitted(data, graph).y[0].tobytes())
    assert samples.startswith(row + label)


def test_samples_of_several_inputs_come_in_many_forms(tmp_path: Path) -> None:
    module = TextAndImage()
    data = arrays(module)
    tokens, image, y = data.values()
    graph = poet.load(module, tuple(map(torch.from_numpy, (tokens, image))), batch=BATCH)
    assert isinstance(graph, poet.Graph)
    pairs = torch.utils.data.StackDataset(
        torch.utils.data.StackDataset(*map(torch.from_numpy, (tokens, image))), torch.from_numpy(y)
    )
    for name, array in data.items():
        np.save(tmp_path / f"{name}.npy", array)
        np.save(tmp_path / f"{name}_test.npy", array)
    forms = [
        data, tmp_path, ({"image": image, "tokens": tokens}, y), ((tokens, image), y),
        pairs, torch.utils.data.DataLoader(pairs, 7),
    ]  # fmt: skip
    found = [fitted(form, graph) for form in forms]
    assert all(np.array_equal(it.x, found[0].x) for it in found)
    row = found[0].x[1].tobytes()
    assert row == tokens[1].astype("<i4").tobytes() + image[1].tobytes()
    assert found[1].x_test is not None
    wrong = {
        "there is no array image": {"tokens": tokens, "y": y},
        r"image has shape \(24, 6, 6\)": data | {"image": image[:, 0]},
        "token 20 of sample 0": data | {"tokens": tokens * 0 + 20},
        "image holds NaN": data | {"image": image * np.nan},
        "tokens has float64|tokens holds float64": data | {"tokens": tokens / 2},
        "23 in image": data | {"image": image[1:]},
        "tokens": {"x": image, "y": y},
    }
    for message, given in wrong.items():
        np.savez(tmp_path / "data.npz", **given)
        for form in (tmp_path / "data.npz", given):
            with pytest.raises(BadInput, match=message):
                fitted(form, graph)


class Named(nn.Module):
    """Has inputs with the names that data give to samples and labels."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        whole: Tensor = self.head(x * y)
        return whole


def test_an_input_named_as_labels_gets_another_name() -> None:
    graph = poet.load(Named(), (torch.zeros(2, 3), torch.zeros(2, 3)), loss="mse")
    assert isinstance(graph, poet.Graph)
    assert [part.name for part in graph.inputs] == ["x", "y_2"]


def test_samples_of_an_input_named_as_samples_come_in_the_same_forms() -> None:
    graph = poet.load(Named(), (torch.zeros(2, 3), torch.zeros(2, 3)), loss="mse")
    parts = {"x": np.ones((4, 3), np.float32), "y_2": np.full((4, 3), 2, np.float32)}
    y = np.zeros((4, 2), np.float32)
    forms: list[Any] = [parts | {"y": y}, (parts, y), {"x": parts, "y": y}]
    forms += [{"x": tuple(parts.values()), "y": y}]
    rows = {fitted(form, graph).x.tobytes() for form in forms}
    assert rows == {np.hstack([*parts.values()]).tobytes()}


class TwoHeads(nn.Module):
    """Its joined outputs need more blocks of a card than a training step of the first head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 3), nn.Linear(8, 1000)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.first(x), self.second(x)


def test_a_card_has_room_for_joined_outputs_larger_than_a_step(tmp_path: Path) -> None:
    torch.manual_seed(1)
    rng = np.random.default_rng(0)
    data = {"x": rng.standard_normal((4, 8), np.float32), "output1": np.array([0, 1, 2, 0])}
    data["output2"] = np.full(4, 7)
    graph = poet.load(TwoHeads(), torch.from_numpy(data["x"]), batch=1, train="first.*")
    assert isinstance(graph, poet.Graph)
    poet.encode(graph, poet.solve(graph, "mkr1000")).save(tmp_path / "model.poet")
    schedule = poet.Schedule.load(tmp_path / "model.poet")
    assert schedule.forward
    with poet.connect("native", arena_bytes="64KiB") as board:
        run = poet.train(schedule, board, data)
        found = poet.predict(schedule, data, weights=run.weights, connection=board).outputs
    assert np.array_equal(found, poet.predict(schedule, data, weights=run.weights).outputs)


def test_several_outputs_train_as_in_pytorch(tmp_path: Path, poet_host: Command) -> None:
    torch.manual_seed(1)
    module, rng, count = Detector().train(), np.random.default_rng(0), BATCH * STEPS
    image = rng.standard_normal((count, 1, 6, 6), np.float32)
    chances, box = rng.integers(0, 3, count), rng.standard_normal((count, 4), np.float32)
    np.savez(tmp_path / "data.npz", x=image, output1=chances, output2=box)
    x = torch.from_numpy(image)
    loss = {"output1": "cross-entropy", "output2": "huber:delta=0.5:weight=0.25"}
    graph = poet.load(module, x, batch=BATCH, lr=0.1, loss=loss)
    assert isinstance(graph, poet.Graph)
    assert poet.summary(graph).loss == " ".join(f"{name}={one}" for name, one in loss.items())
    schedule = poet.encode(graph, poet.solve(graph, "mkr1000", ram="100%"))
    schedule.save(tmp_path / "model.poet")
    schedule = poet.Schedule.load(tmp_path / "model.poet")
    assert schedule.graph.targets == graph.targets
    with poet.connect("native", arena_bytes="64KiB") as board:
        run = poet.train(schedule, board, tmp_path / "data.npz", shuffle=False)
        found = poet.evaluate(schedule, board, tmp_path / "data.npz", weights=run.weights)
        on_board = poet.predict(schedule, {"x": image}, weights=run.weights, connection=board)
    answer = poet.predict(schedule, {"x": image}, weights=run.weights)
    assert np.array_equal(answer.outputs, on_board.outputs)

    def loss_of(outputs: tuple[Tensor, Tensor], part: Callable[[Any], Tensor]) -> Tensor:
        first = functional.nll_loss(torch.log(outputs[0]), part(chances))
        return first + 0.25 * functional.huber_loss(outputs[1], part(box), delta=0.5)

    np.savez(tmp_path / "named.npz", image=image, output1=chances, output2=box)
    with pytest.raises(BadInput, match="there is no array x"):
        fitted(tmp_path / "named.npz", graph)
    np.savez(tmp_path / "alone.npz", x=image)
    with pytest.raises(BadInput, match="add the arrays output1, output2"):
        fitted(tmp_path / "alone.npz", graph)
    losses = trained(module, {"image": x}, loss_of)
    assert np.allclose([step.loss for step in run.steps], losses, rtol=1e-5)
    for name, value in module.named_parameters():
        assert np.allclose(run.weights[name], value.detach(), atol=1e-6)
    expected = [value.detach() for value in module.eval()(x)]
    whole = loss_of(tuple(expected), torch.from_numpy)  # type: ignore[arg-type]
    assert found.loss == pytest.approx(whole.item(), rel=1e-5)
    assert found.by_output["output1"].accuracy == np.mean(expected[0].argmax(1).numpy() == chances)
    poet.save_weights(tmp_path / "w.safetensors", graph, run.weights, STEPS)
    printed = poet_host(
        "evaluate", tmp_path / "model.poet", "--port", "native", "--data", tmp_path / "data.npz",
        "--weights", tmp_path / "w.safetensors",
    )  # fmt: skip
    mae = f"{found.by_output['output2'].mae:.4f}"
    assert [mae] == re.findall(r"output2: mean absolute error +(\S+)", printed.out)
    answer.save(tmp_path / "answer.npz")
    with np.load(tmp_path / "answer.npz") as saved:
        assert np.allclose(
            torch.softmax(torch.from_numpy(saved["output1"]), 1), expected[0], atol=1e-5
        )
        assert np.allclose(saved["output2"], expected[1], atol=1e-5)
    with pytest.raises(BadInput, match="npz"):
        answer.save(tmp_path / "answer.csv")


def test_single_labels_of_an_output_may_be_ignored(tmp_path: Path) -> None:
    x, box = torch.zeros(8, 1, 6, 6), torch.zeros(8, 4)
    loss = "output1=cross-entropy:ignore_index=-100 output2=mse"
    graph = poet.load(Detector(), x[:2], batch=2, loss=loss)
    assert isinstance(graph, poet.Graph)

    def forms(chances: Tensor) -> list[Any]:
        outputs = torch.utils.data.StackDataset(output1=chances, output2=box)
        pairs = torch.utils.data.StackDataset(x, outputs)
        np.savez(tmp_path / "d.npz", x=x, output1=chances, output2=box)
        loader = torch.utils.data.DataLoader(pairs, 2)
        return [pairs, iter(pairs), loader, (x, (chances, box)), tmp_path / "d.npz"]

    for form in forms(torch.tensor([-100, -100, 0, 1, 2, -100, 0, 1])):
        assert fitted(form, graph).y["output1"].tolist() == [3, 3, 0, 1, 2, 3, 0, 1]
    for form in forms(torch.full((8,), -100)):
        with pytest.raises(BadInput, match="ignores all labels in output1"):
            fitted(form, graph)


class Dilated(nn.Module):
    """Has three outputs, of operators that mix samples."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv1d(2, 6, 3, padding=2, dilation=2)
        self.heads = nn.ModuleList(nn.Linear(6, count) for count in (3, 2, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        h = functional.relu(self.body(x)).mean(2)
        return tuple(head(h) for head in self.heads)


def test_three_outputs_of_operators_that_mix_samples_answer_one_sample() -> None:
    torch.manual_seed(1)
    module, x = Dilated(), torch.randn(4, 2, 8)
    loss = "output1=cross-entropy output2=mse output3=mse"
    graph = poet.load(module, x, batch=4, loss=loss)
    assert isinstance(graph, poet.Graph)
    schedule = poet.encode(graph, poet.solve(graph, "mkr1000", ram="100%"))
    answer = poet.predict(schedule, x.numpy(), weights=start_values(graph, 0))
    for name, wanted in zip(answer.outputs.dtype.names or (), module(x), strict=True):
        assert np.allclose(answer.outputs[name].reshape(wanted.shape), wanted.detach(), atol=1e-6)
    for of_one in ("predicted", "probabilities", "names"):
        with pytest.raises(BadInput, match=r"outputs\['output1'\]"):
            getattr(answer, of_one)


def test_a_batchnorm_that_is_used_twice_is_named() -> None:
    class Siamese(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.norm = nn.Linear(6, 4), nn.BatchNorm1d(4)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.norm(self.body(a)) - self.norm(self.body(b))

    x = torch.zeros(4, 6)
    with pytest.raises(BadInput, match=r"norm\.running is renewed twice .* `batchnorm` to frozen"):
        poet.load(Siamese(), (x, x), batch=4, loss="mse")


def test_outputs_without_a_named_loss_are_left_out() -> None:
    module, x = Detector(), torch.zeros(2, 1, 6, 6)
    graph = poet.load(module, x, loss="output2=l1")
    assert isinstance(graph, poet.Graph)
    assert graph.targets == ()
    assert graph[graph.label].shape == (1, 4)
    for loss, message in (
        ("output3=mse", "output3"),
        ("output1=mse output1=l1", "two losses"),
        ("output1=mse:weight=0", "weight"),
        ("none", "none"),
    ):
        with pytest.raises(BadInput, match=message):
            poet.load(module, x, loss=loss)
