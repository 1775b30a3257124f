"""PyTorch -> ONNX -> native board -> safetensors -> PyTorch, beside PyTorch's own training."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import poet_host as poet
import pytest
import torch
import whole_runs as runs
from onnx_models import Depthwise, Residual, by_dynamo, legacy
from poet_host.graph.evaluate import logits
from poet_host.graph.graph import Graph
from poet_host.graph.weights import start_values
from poet_host.run.data import batch_of_step, fit, load_data
from poet_host.run.run import Run
from safetensors.torch import load_file

STEPS = 20
BATCH = 4


def torch_losses(module: torch.nn.Module, graph: Graph, optimiser: Any) -> list[float]:
    """What PyTorch's training of the same batches loses, step by step."""
    dataset = fit(load_data("digits"), graph)
    losses = []
    module.train()
    for step in range(STEPS):
        x, y = batch_of_step(dataset, graph.batch, 0, step)
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(
            module(torch.tensor(x)), torch.tensor(y, dtype=torch.int64)
        )
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def on_board(graph: Graph, **options: Any) -> Run:
    """Trained on the native board, in three quarters of what keep-everything needs."""
    return runs.train(runs.schedule(graph, "75%", "poet"), steps=STEPS, **options)


def predicted(model: bytes, x: Any) -> Any:
    """By ONNX Runtime, sample by sample: the model keeps the batch that it was exported with."""
    session = onnxruntime.InferenceSession(model)
    name = session.get_inputs()[0].name
    return np.concatenate([session.run(None, {name: x[i : i + 1]})[0] for i in range(len(x))])


@pytest.mark.parametrize("exporter", [legacy, by_dynamo])
@pytest.mark.parametrize("module_of", [Residual, Depthwise])
def test_a_model_comes_back_as_pytorch_would_have_trained_it(
    module_of: Callable[[], torch.nn.Module],
    exporter: Callable[..., bytes],
    tmp_path: Path,
) -> None:
    torch.manual_seed(1)
    module = module_of()
    path = tmp_path / "mine.onnx"
    # The new exporter folds batchnorm into convolutions unless it is told to leave them.
    folding = {"optimize": False} if exporter is by_dynamo else {}
    path.write_bytes(exporter(module, torch.zeros(1, 1, 8, 8), **folding))
    graph = poet.load(path, batch=BATCH, optimizer="momentum", learning_rate=0.05)

    run = on_board(graph)
    moved = {node.name for node in graph.trainable}
    assert all((run.weights[name] != start_values(graph, 0)[name]).any() for name in moved)
    losses = torch_losses(module, graph, torch.optim.SGD(module.parameters(), 0.05, momentum=0.9))
    assert [step.loss for step in run.steps] == pytest.approx(losses, abs=1e-4)

    poet.save_weights(tmp_path / "w.safetensors", graph, run.weights)
    saved = load_file(tmp_path / "w.safetensors")
    assert any(name.startswith("momentum:") for name in saved)
    named = {name: value for name, value in saved.items() if not name.startswith("momentum:")}
    restored = module_of()
    missing = restored.load_state_dict(named, strict=False).missing_keys
    assert all(name.endswith("num_batches_tracked") for name in missing)
    for name, value in module.state_dict().items():
        if name in named:
            assert np.allclose(named[name], value, atol=1e-4), name

    x = load_data("digits").x[:16]
    answers = logits(graph, run.weights, x)
    assert np.allclose(restored.eval()(torch.tensor(x)).detach(), answers, atol=1e-4)
    trained = poet.export(graph, poet.load_weights(tmp_path / "w.safetensors", graph))
    assert np.allclose(predicted(trained, x), answers, atol=1e-4)
