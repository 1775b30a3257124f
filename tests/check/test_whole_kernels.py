"""Large models under keep-everything: their weights, which every other plan must reach too."""

import numpy as np
import pytest
import torch
from poet_host import api
from poet_host.data.datasets import load_data
from poet_host.data.fitted import batch_of_step, fit
from poet_host.graph.models import MODELS
from poet_host.graph.weights import start_values
from poet_host.run.run import weights_sha256
from support import whole_runs as runs
from support.torch_model import torch_forward, torch_values

STEPS = 3


@pytest.mark.slow
def test_resnet18_trains_as_pytorch_does() -> None:
    graph = api.load_graph("resnet18")
    run = runs.train(runs.schedule(graph), runs.IMAGES, steps=STEPS)
    data, model = fit(load_data(runs.IMAGES), graph), MODELS["resnet18"].forward(1)
    values = torch_values(model, start_values(graph, 0))
    weights = [value for value in values.values() if value.requires_grad]
    optimiser = torch.optim.SGD(weights, MODELS["resnet18"].optimiser.learning_rate)
    losses = []
    for step in range(STEPS):
        loss = torch_forward(model, values, *batch_of_step(data, 1, 0, step))[graph.loss]
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    np.testing.assert_allclose([step.loss for step in run.steps], losses, atol=1e-4)
    assert weights_sha256(run.weights) == runs.RESNET18_SHA256


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "data", "wanted"),
    [
        (
            "vgg16-cifar",
            runs.IMAGES,
            "c718051bf6738381cf20a6bdd1d6109cc8c90150480116da8996e6524a5600c4",
        ),
        (
            "bert-tiny",
            "tokens:128:30522:10",
            "a54d2247b344d388358f723057bb0f9f02a8185b5520ec0bc9ad5a2a284cd4a7",
        ),
    ],
)
def test_the_weights_of_two_steps(name: str, data: str, wanted: str) -> None:
    run = runs.train(runs.schedule(api.load_graph(name)), data, steps=2)
    assert weights_sha256(run.weights) == wanted
