"""PyTorch -> ONNX -> native board -> safetensors -> PyTorch, compared with training in PyTorch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import poet_host as poet
import pytest
import torch
from poet_host.data.datasets import Dataset, load_data
from poet_host.data.fitted import batch_of_step, fit
from poet_host.graph.graph import Graph
from poet_host.graph.weights import start_values, to_named
from poet_host.reference.inference import logits
from poet_host.run.run import Run
from safetensors.torch import load_file
from support import whole_runs as runs
from support.onnx_models import BuiltIn, Depthwise, Residual, Transformer, by_dynamo, legacy

STEPS = 20
BATCH = 4

# What a module starts from, and the optimiser with which it is trained on both sides.
CASES: dict[str, tuple[Callable[[], torch.nn.Module], str, float]] = {
    "residual": (Residual, "momentum", 0.05),
    "depthwise": (Depthwise, "sgd", 0.05),
    "transformer": (Transformer, "momentum", 0.03),
    "built-in": (BuiltIn, "adam", 0.003),
}


def data_for(module: torch.nn.Module) -> Dataset:
    """The digits, as images or, every other pixel of every other row, as tokens 0 to 16."""
    digits = load_data("digits")
    if not isinstance(module, Transformer | BuiltIn):
        return digits
    tokens = (digits.x[:, 0, ::2, ::2] * 16).astype(np.int32)
    return Dataset("tokens", tokens.reshape(len(tokens), 16), digits.y)


def example(module: torch.nn.Module) -> torch.Tensor:
    x = data_for(module).x[:1]
    return torch.tensor(x, dtype=torch.int64 if x.dtype == np.int32 else torch.float32)


def torch_optimiser(module: torch.nn.Module, name: str, rate: float) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam(module.parameters(), rate)
    return torch.optim.SGD(module.parameters(), rate, momentum=0.9 if name == "momentum" else 0.0)


def torch_losses(
    module: torch.nn.Module, graph: Graph, optimiser: torch.optim.Optimizer
) -> list[float]:
    """What PyTorch's training of the same batches loses, step by step."""
    dataset = fit(data_for(module), graph)
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


def on_board(module: torch.nn.Module, graph: Graph) -> Run:
    """Trained on the native board."""
    return runs.train(runs.schedule(graph), data=data_for(module), steps=STEPS)


def predicted(model: bytes, x: Any) -> Any:
    """By ONNX Runtime, sample by sample: the model keeps the batch that it was exported with."""
    session = onnxruntime.InferenceSession(model)
    info = session.get_inputs()[0]
    x = x.astype(np.int64) if x.dtype == np.int32 else x
    return np.concatenate([session.run(None, {info.name: x[i : i + 1]})[0] for i in range(len(x))])


def assert_comes_back(
    module: torch.nn.Module, fresh: torch.nn.Module, graph: Graph, path: Path, case: str
) -> None:
    """Train on both sides; weights and answers are those of PyTorch."""
    run = on_board(module, graph)
    start = start_values(graph, 0)
    still = [n.name for n in graph.trainable if (run.weights[n.name] == start[n.name]).all()]
    assert set(still) <= {"attention.k.bias"}  # softmax takes no notice of it
    losses = torch_losses(module, graph, torch_optimiser(module, *CASES[case][1:]))
    assert [step.loss for step in run.steps] == pytest.approx(losses, abs=1e-4)

    poet.save_weights(path, graph, run.weights)
    named = {n: v for n, v in load_file(path).items() if ":" not in n}
    missing = fresh.load_state_dict(named, strict=False)
    assert not missing.unexpected_keys
    assert all(name.endswith("num_batches_tracked") for name in missing.missing_keys)
    # Adam makes whole steps of gradients that are nothing but rounding, as those of keys' biases.
    for name, value in module.state_dict().items() if CASES[case][1] != "adam" else ():
        assert name not in named or np.allclose(named[name], value, atol=2e-4), name

    x = fit(data_for(module), graph).x[:16]
    answers = logits(graph, run.weights, x)
    inputs = torch.tensor(x, dtype=torch.int64 if x.dtype == np.int32 else torch.float32)
    assert np.allclose(fresh.eval()(inputs).detach(), answers, atol=1e-4)
    trained = poet.export(graph, poet.load_weights(path, graph))
    assert np.allclose(predicted(trained, x), answers, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("exporter", [legacy, by_dynamo])
@pytest.mark.parametrize("case", ["residual", "depthwise", "transformer"])
def test_a_trained_model_equals_one_trained_by_pytorch(
    case: str, exporter: Callable[..., bytes], tmp_path: Path
) -> None:
    torch.manual_seed(1)
    module_of, optimizer, rate = CASES[case]
    module = module_of()
    path = tmp_path / "mine.onnx"
    # The new exporter folds batchnorm into convolutions unless an option prevents it.
    folding = {"optimize": False} if exporter is by_dynamo and case != "transformer" else {}
    path.write_bytes(exporter(module, example(module), **folding))
    graph = poet.load(path, batch=BATCH, optimizer=optimizer, learning_rate=rate)
    assert_comes_back(module, module_of(), graph, tmp_path / "w.safetensors", case)


@pytest.mark.parametrize("case", CASES)
def test_a_module_is_loaded(case: str, tmp_path: Path) -> None:
    torch.manual_seed(2)
    module_of, optimizer, rate = CASES[case]
    module = module_of()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    graph = poet.load(module, example(module), batch=BATCH, optimizer=optimizer, learning_rate=rate)
    after = module.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    named = to_named(graph, start_values(graph, 0))
    for name, value in after.items():
        assert name.endswith("num_batches_tracked") or np.array_equal(named[name], value)
    if case == "built-in":
        assert_comes_back(module, module_of(), graph, tmp_path / "w.safetensors", case)
