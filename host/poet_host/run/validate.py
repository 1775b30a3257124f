"""Validation: the host computes loss and accuracy of weights on held-out samples."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..data.datasets import Dataset
from ..graph.graph import Graph
from ..graph.weights import Weights
from ..reference.inference import logits
from .metrics import measured


@dataclass(frozen=True)
class Validated:
    """The validation of the weights after a step.

    `loss` is the mean over the held-out samples. It may be infinite or NaN. `accuracy` (0 to 1) is
    None if labels are not classes.
    """

    epoch: int
    step: int
    loss: float
    accuracy: float | None

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "loss": self.loss if np.isfinite(self.loss) else None}


def validate(graph: Graph, weights: Weights, dataset: Dataset, epoch: int, step: int) -> Validated:
    """Return the loss and accuracy of weights on held-out samples. `dataset` must fit `graph`."""
    assert dataset.x_test is not None
    assert dataset.y_test is not None
    found = measured(graph, logits(graph, weights, dataset.x_test), dataset.y_test)
    return Validated(epoch, step, found.loss, found.accuracy)
