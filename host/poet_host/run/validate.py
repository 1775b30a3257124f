"""Validation: the host computes loss and accuracy of weights on held-out samples."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..data.datasets import Dataset
from ..graph.graph import Graph
from ..graph.weights import Array, Weights
from ..reference.inference import logits
from .evaluate import share_right


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
    answers = logits(graph, weights, dataset.x_test)
    if graph[graph.label].dtype != "int32":
        return Validated(epoch, step, _mean_square(answers, dataset.y_test), None)
    loss = _cross_entropy(answers, dataset.y_test)
    return Validated(epoch, step, loss, share_right(answers, dataset.y_test))


def _mean_square(answers: Array, y: Array) -> float:
    difference = answers.reshape(len(y), -1).astype(np.float64) - y.reshape(len(y), -1)
    return float(np.mean(np.square(difference)))


def _cross_entropy(answers: Array, y: Array) -> float:
    rows = answers.reshape(y.size, -1).astype(np.float64)
    with np.errstate(invalid="ignore"):  # infinite logits make the loss NaN
        rows = rows - rows.max(axis=1, keepdims=True)
        chosen = rows[np.arange(y.size), y.reshape(-1)]
        return float(np.mean(np.log(np.exp(rows).sum(axis=1)) - chosen))
