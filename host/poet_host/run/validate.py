"""Validation: the host computes loss and accuracy of weights on held-out samples."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from ..data.datasets import Dataset
from ..errors import BadInput
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


@dataclass(frozen=True)
class Patience:
    """Which weights are better, and after how many epochs without better ones training stops."""

    epochs: int | None = None  # None: training does not stop early
    by: Literal["loss", "accuracy"] = "loss"

    def score(self, found: Validated) -> float:
        """Return a number that is larger for better weights. It may be NaN."""
        return -found.loss if self.by == "loss" else float(found.accuracy or 0.0)


def patience_for(data: Dataset, given: int | str | None) -> Patience:
    """Return the patience that `given` states: N, "N:loss" or "N:accuracy".

    Raises BadInput if it states none, or if the data has no held-out samples to validate with.
    """
    count, _, by = ("" if given is None else str(given)).partition(":")
    is_count = given is None or (count.isdecimal() and 1 <= int(count) < 2**31)
    if not is_count or by not in ("", "loss", "accuracy"):
        raise BadInput(
            f"`patience` is {given!r}: write a number of epochs, 1 or more, such as 5 or 5:accuracy"
        )
    if data.y_test is None:
        raise BadInput(f"data {data.name}: validation needs held-out samples. Set --test-split")
    if by == "accuracy" and data.y_test.dtype.kind not in "iu":
        raise BadInput(
            f"`patience` is {given!r}, but the labels of {data.name} are not classes of one "
            f"output: write {count}"
        )
    return Patience(int(count) if count else None, "accuracy" if by == "accuracy" else "loss")
