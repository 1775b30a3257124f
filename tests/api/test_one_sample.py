"""Inferences of one sample by models whose operators mix the samples of a batch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import poet_host as poet
import pytest
import torch
from poet_host import api
from poet_host.graph.weights import start_values
from poet_host.profile.profile import estimate_profile
from poet_host.reference.inference import evaluation, logits, takes_any_number
from support import whole_runs as runs
from torch import Tensor, nn

STEPS, FEATURES, CLASSES = 9, 4, 3


class Dilated(nn.Module):
    """The phases of a dilated convolution become samples."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(FEATURES, 6, 3, padding=2, dilation=2)
        self.norm, self.fc = nn.BatchNorm1d(6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.fc(torch.relu(self.norm(self.conv(x.transpose(1, 2)))).mean(2))
        return found


class Recurrent(nn.Module):
    """Time is the first axis, and the states before the first step are a stored batch."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer = kind(FEATURES, 5, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(10, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.fc(self.layer(x)[0][:, -1])
        return found


@pytest.mark.parametrize(
    ("module", "loss"),
    [(Dilated(), "cross-entropy"), (Recurrent(nn.GRU), "bce"), (Recurrent(nn.LSTM), "mse")],
    ids=["dilated", "gru", "lstm"],
)
def test_an_inference_takes_one_sample(module: nn.Module, loss: str) -> None:
    graph: Any = poet.load(module, torch.zeros(1, STEPS, FEATURES), batch=4, loss=loss)
    assert not takes_any_number(graph, evaluation(graph))
    schedule = runs.schedule(graph)
    forward = schedule.needed_forward()
    assert forward.graph.batch == 1
    assert [node.name for node in forward.graph if node.stored][:-1] == [
        node.name for node in graph if node.stored
    ]
    x = np.random.default_rng(0).standard_normal((6, STEPS, FEATURES)).astype(np.float32)
    values = start_values(graph, 1)
    with runs.board(schedule) as board:
        found = poet.predict(schedule, x, weights=values, connection=board)
    assert np.array_equal(found.outputs, logits(graph, values, x))


class Mixing(nn.Module):
    """Each output depends on all samples of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.fc(x - x.mean(0, keepdim=True))
        return found


def test_a_model_that_mixes_samples_has_the_outputs_of_its_batches(tmp_path: Path) -> None:
    graph: Any = poet.load(Mixing(), torch.zeros(1, FEATURES), batch=4)
    schedule = runs.schedule(graph)
    assert schedule.needed_forward().graph.batch == 4
    x = np.random.default_rng(0).standard_normal((6, FEATURES)).astype(np.float32)
    values = start_values(graph, 1)
    with runs.board(schedule) as board:
        found = poet.predict(schedule, x, weights=values, connection=board)
    assert np.array_equal(found.outputs, logits(graph, values, x))
    with pytest.raises(poet.BadInput, match="mixes the samples"):
        poet.write_package(schedule, tmp_path / "mixing", name="mixing")


def test_without_a_card_an_inference_reads_none_if_steps_have_slices() -> None:
    graph: Any = poet.load("lenet-digits")
    profile = estimate_profile(api.load_board("mkr1000"))
    found = []
    for limit in (None, "2ms"):
        problem = poet.problem(graph, profile, ram="100%", storage=False, slice=limit)
        forward = poet.encode(graph, poet.solve(problem)).needed_forward()
        found.append([forward.meta["plan"][key] for key in ("time_us", "total_energy_uj")])
    assert problem.streaming
    assert problem.streaming.nests
    assert found[0] == found[1]


def test_a_package_states_the_order_of_recurrent_weights(tmp_path: Path) -> None:
    graph: Any = poet.load(Recurrent(nn.GRU), torch.zeros(1, STEPS, FEATURES), batch=2)
    profile = estimate_profile(api.load_board("mkr1000"))
    plan = poet.solve(poet.problem(graph, profile, ram="100%", storage=False))
    poet.write_package(poet.encode(graph, plan), tmp_path / "gru", name="gru")
    layouts = json.loads((tmp_path / "gru" / "package.json").read_text())["tensor_layouts"]
    rolled = {"shape": [15, 5], "transposed": False, "rolled": 5}
    assert layouts["layer.weight_hh_l0"] == rolled
    assert "layer.weight_ih_l0" not in layouts
