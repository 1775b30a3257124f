"""The best weights of a training, by its held-out samples, and when to stop without better ones."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Literal

from ..card.weights import load_weights, step_of_weights
from ..data.datasets import Dataset
from ..errors import BadInput
from ..graph.weights import Weights
from .train import Training
from .validate import Validated, validate


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
    if by == "accuracy" and data.y_test.dtype.kind == "f":
        raise BadInput(
            f"`patience` is {given!r}, but the labels of {data.name} are not classes: write {count}"
        )
    return Patience(int(count) if count else None, "accuracy" if by == "accuracy" else "loss")


class Best:
    """Validates weights, and keeps the best ones in a file.

    `save` writes that file. If `continues` is True, the file is that of the previous run. The
    epochs without better weights are counted from the step of the file's weights. So a resumed
    training stops at the same step as one that was not interrupted.
    """

    def __init__(
        self,
        training: Training,
        path: Path,
        patience: Patience,
        save: Callable[[Path, Weights, int], object],
        continues: bool,
    ) -> None:
        self.path, self.patience = path, patience
        self.found: Validated | None = None  # that of the weights in the file
        self._training, self._save, self._begun = training, save, training.committed
        self._per_epoch = training.data.steps_per_epoch
        if continues and path.exists():
            weights = load_weights(path, training.graph)
            self.found = self._validated(weights, step_of_weights(path))
        known = self.found.step if self.found else 0
        if continues and self._begun > known and self._begun % self._per_epoch == 0:
            self.after(training.weights(), self._begun)  # the previous run may have ended before it

    def after(self, weights: Weights, step: int) -> Validated:
        """Validate `weights` after `step`, and save them if they are the best ones so far."""
        result = self._validated(weights, step)
        score = self.patience.score(result)
        better = self.found is None or score > self.patience.score(self.found)
        if isfinite(result.loss) and better:
            self.found = result
            self._save(self.path, weights, step)
        return result

    @property
    def is_final(self) -> bool:
        """Return whether training ends, because the last epochs gave no better weights."""
        if self.patience.epochs is None:
            return False
        since = self.found.step if self.found else self._begun
        epochs = self._training.committed // self._per_epoch - since // self._per_epoch
        return epochs >= self.patience.epochs

    def _validated(self, weights: Weights, step: int) -> Validated:
        training = self._training
        return validate(training.graph, weights, training.data, step // self._per_epoch, step)
