"""A GRU with an early reset trains exactly: PyTorch code of its cell is the judge.

The reset gate multiplies the state before the product, which is the default of ONNX.
"""

from typing import Any

import numpy as np
import pytest
import torch
from onnx import helper
from poet_host.errors import BadInput
from poet_host.graph.weights import start_values, to_named
from poet_host.reference.step import run_step
from support.onnx_judge import imported, random, same_as_runtime
from support.onnx_models import model
from torch import Tensor
from torch.nn import functional

BATCH, STEPS, FEATURES, UNITS, CLASSES, RATE = 3, 5, 4, 6, 3, 0.1
make = helper.make_node


def gru(inputs: list[str], outputs: list[str], direction: str = "forward") -> Any:
    name = f"/{outputs[-1]}/GRU"
    return make("GRU", inputs, outputs, name, hidden_size=UNITS, direction=direction)


def two_layers() -> bytes:
    """Both directions from trained states, then backwards: the mean and the last of its states."""
    nodes = [
        make("Transpose", ["x"], ["steps"], perm=[1, 0, 2]),
        gru(["steps", "w1", "r1", "b1", "", "before"], ["all", "first"], "bidirectional"),
        make("Transpose", ["all"], ["by_sample"], perm=[0, 2, 1, 3]),
        make("Reshape", ["by_sample", "joined"], ["rows"]),
        gru(["rows", "w2", "r2"], ["states", "second"], "reverse"),
        make("Squeeze", ["second", "zero"], ["end"]),
        make("ReduceMean", ["states"], ["mean"], axes=[0, 1], keepdims=0),
        make("Concat", ["end", "mean"], ["found"], axis=1),
        make("Gemm", ["found", "head.weight"], ["y"], transB=1),
    ]
    weights = {
        "w1": random(2, 3 * UNITS, FEATURES), "r1": random(2, 3 * UNITS, UNITS),
        "b1": random(2, 6 * UNITS), "before": random(2, BATCH, UNITS),
        "w2": random(1, 3 * UNITS, 2 * UNITS), "r2": random(1, 3 * UNITS, UNITS),
        "head.weight": random(CLASSES, 2 * UNITS),
        "joined": np.array([0, 0, -1]), "zero": np.array([0]),
    }  # fmt: skip
    return model(nodes, (BATCH, STEPS, FEATURES), weights)


def walk(x: Tensor, h: Tensor, w: dict[str, Tensor], ending: str, backward: bool) -> list[Tensor]:
    """The states (N, H) after each step. The gates are those of PyTorch: reset, update, new."""
    of_input, of_gates, of_new = (
        w[f"{part}_{ending}"] for part in ("weight_ih", "weight_hh_gates", "weight_hh_new")
    )
    zeros = torch.zeros(3 * UNITS)
    bias = w.get(f"bias_ih_{ending}", zeros) + w.get(f"bias_hh_{ending}", zeros)
    states = []
    for given in reversed(x) if backward else x:
        a = given @ of_input.T + bias
        reset, update = torch.sigmoid(a[:, : 2 * UNITS] + h @ of_gates.T).chunk(2, 1)
        new = torch.tanh(a[:, 2 * UNITS :] + (reset * h) @ of_new.T)
        h = (1 - update) * new + update * h
        states.append(h)
    return states[::-1] if backward else states


def judge(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    first = {name.removeprefix("first."): value for name, value in w.items()}
    second = {name.removeprefix("second."): value for name, value in w.items()}
    steps = x.transpose(0, 1)
    there = walk(steps, w["before"][0], first, "l0", backward=False)
    back = walk(steps, w["before"][1], first, "l0_reverse", backward=True)
    rows = torch.cat([torch.stack(there), torch.stack(back)], 2)
    states = walk(rows, torch.zeros(BATCH, UNITS), second, "l0", backward=True)
    return torch.cat([states[0], torch.stack(states).mean(0)], 1) @ w["head.weight"].T


@pytest.mark.parametrize("seed", range(3))
def test_it_trains_as_its_cell_in_pytorch(seed: int) -> None:
    torch.manual_seed(seed)
    graph = same_as_runtime(two_layers(), loss="cross-entropy", learning_rate=RATE)
    values = start_values(graph, 0)
    names = {node.name for node in graph.trainable}
    start = {name: torch.tensor(value) for name, value in to_named(graph, values).items()}
    own = {name: start[name].requires_grad_() for name in names}
    by = torch.optim.SGD(own.values(), RATE)
    for step in range(1, 21):
        x, label = torch.randn(BATCH, STEPS, FEATURES), torch.randint(CLASSES, (BATCH,))
        fed = {graph.data: x.numpy(), graph.label: label.numpy().astype(np.int32)}
        found = run_step(graph, {**values, **fed}, step)
        loss = functional.cross_entropy(judge(x, own), label)
        by.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        by.step()
        np.testing.assert_allclose(found[graph.loss].item(), loss.item(), rtol=1e-4)
        values |= {n.name: found[f"{n.name}:new"].reshape(n.shape) for n in graph.trainable}
    named = to_named(graph, values)
    for name, weight in own.items():
        np.testing.assert_allclose(named[name], weight.detach().numpy(), atol=1e-5)
    again = imported(graph.origin, loss="cross-entropy")
    assert {node.name for node in again.trainable} == names


def test_too_many_steps_for_a_schedule_are_refused() -> None:
    weights = {"w": random(1, 3 * UNITS, 2), "r": random(1, 3 * UNITS, UNITS)}
    steps = make("Transpose", ["x"], ["steps"], perm=[1, 0, 2])
    data = model([steps, gru(["steps", "w", "r"], ["y", "last"])], (1, 1_501, 2), weights)
    with pytest.raises(BadInput, match=r"1,501 steps .* use shorter sequences"):
        imported(data)
