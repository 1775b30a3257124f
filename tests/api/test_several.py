"""Models with several inputs: PyTorch is the judge of losses, weights and answers."""

from pathlib import Path
from typing import Any

import numpy as np
import poet_host as poet
import pytest
import torch
from poet_host.api.inputs import fitted
from poet_host.errors import BadInput
from poet_host.graph.weights import start_values
from poet_host.reference.inference import logits
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
        schedule = poet.encode(graph, poet.solve(graph, "mkr1000", ram="80%"))
        run = poet.train(schedule, board, tmp_path / "data.npz", shuffle=False)
        answers = [
            poet.predict(schedule, data, weights=run.weights, connection=on).outputs
            for on in (board, None)
        ]
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    losses = []
    for i in range(0, BATCH * STEPS, BATCH):
        outputs = module(*(value[i : i + BATCH] for value in x.values()))
        loss = functional.cross_entropy(outputs, torch.from_numpy(data["y"][i : i + BATCH]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert np.allclose([step.loss for step in run.steps], losses, rtol=1e-5)
    for name, value in module.named_parameters():
        assert np.allclose(run.weights[name], value.detach(), atol=1e-6)
    assert np.array_equal(*answers)
    assert np.allclose(answers[0].reshape(-1, 3), module(*x.values()).detach(), atol=1e-5)


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
