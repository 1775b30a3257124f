"""What `train` does during training besides the steps: reports, checkpoints and validation."""

from math import isfinite
from pathlib import Path

from .. import api
from ..data.datasets import steps_per_epoch
from ..errors import PoetError
from ..files import write_whole
from ..run.card import read_weights
from ..run.log import Log
from ..run.run import Run, Step, Weights
from ..run.train import Training
from ..run.validate import Validated, validate
from .console import Report, say, to_json


class Session:
    """What happens during training besides the steps: reports, checkpoints and validation."""

    def __init__(
        self,
        training: Training,
        log: Log,
        save_weights: Path,
        best: Path | None,
        save_every: int | None,
    ) -> None:
        self.training, self.log = training, log
        self.begun = training.committed
        self.per_epoch = steps_per_epoch(training.data, training.graph.batch)
        self.validations: list[Validated] = []
        self.best: Validated | None = None  # of those, the one with the lowest loss
        self.report: Report | None = None
        self.unsaved = ""  # why a file could not be written during training
        self._save_weights, self._best_path, self._save_every = save_weights, best, save_every
        self._losses: list[float] = []  # of the epoch's steps so far

    def begin_with_best(self) -> None:
        """Keep the best weights of the run before until others are better."""
        assert self._best_path is not None
        weights = api.load_weights(self._best_path, self.training.graph)
        step = api.step_of_weights(self._best_path)
        self.best = self._validated(weights, step)

    def say_what_is_left(self, last: int, steps: int | None) -> None:
        data, batch = self.training.data, self.training.graph.batch
        left = len(data.x) - self.per_epoch * batch
        if left and steps is None:
            say(
                f"{left} of {len(data.x)} samples fill no batch of {batch}: "
                + ("every epoch leaves out others" if data.shuffle else "they are left out")
            )
        if self.begun >= last:
            say(f"nothing is left to train: step {self.begun} is done, {last} is the last one")

    def on_step(self, step: Step, last: int) -> None:
        """First on record, then on the screen."""
        self.log.step(step)
        self._losses.append(step.loss)
        word = f"loss {step.loss:.4f}"
        is_epoch = step.step % self.per_epoch == 0
        if is_epoch:
            mean = sum(self._losses) / len(self._losses)
            word = f"epoch {step.step // self.per_epoch}, mean loss {mean:.4f}"
            self._losses = []
        is_saved = self._save_every and step.step % self._save_every == 0
        if is_saved or (is_epoch and self._best_path):
            weights = read_weights(self.training.device, self.training.schedule)
            if is_saved and step.step < last:
                self._checkpoint(self._save_weights, weights, step.step)
            if is_epoch and self._best_path:
                word += self._validate(weights, step.step)
        if self.report:
            self.report(step.step, last, word, is_epoch)

    def _validate(self, weights: Weights, step: int) -> str:
        assert self._best_path is not None
        found = self._validated(weights, step)
        self.validations.append(found)
        self.log.validated(found)
        if isfinite(found.loss) and (self.best is None or found.loss < self.best.loss):
            self.best = found
            self._checkpoint(self._best_path, weights, step)
        accuracy = "" if found.accuracy is None else f", accuracy {found.accuracy:.1%}"
        return f", validation loss {found.loss:.4f}{accuracy}"

    def _validated(self, weights: Weights, step: int) -> Validated:
        training = self.training
        return validate(training.graph, weights, training.data, step // self.per_epoch, step)

    def _checkpoint(self, path: Path, weights: Weights, step: int) -> None:
        """Training goes on where a file cannot be written; the command fails in the end."""
        try:
            self._save(path, weights, step)
        except PoetError as error:
            if not self.unsaved:
                say(f"not saved: {error}")
            self.unsaved = str(error)

    def _save(self, path: Path, weights: Weights, step: int) -> None:
        api.save_weights(path, self.training.graph, weights, step, self.training.classes)

    def save(self, run: Run, run_path: Path | None) -> None:
        """Save the weights of the last good step, if there is one, and the run."""
        wrote: list[Path | None] = []
        done = run.last_step or self.begun
        if done or run.ended != "not_finite":
            self._save(self._save_weights, run.weights, done)
            wrote.append(self._save_weights)
        if run_path:
            write_whole(run_path, to_json(run.to_json()))
            wrote.append(run_path)
        if self.best:
            wrote.append(self._best_path)
        if wrote:
            say(f"wrote {' and '.join(map(str, wrote))}")

    def facts(self) -> dict[str, object]:
        best = self.best and {**self.best.to_json(), "file": str(self._best_path)}
        return {
            "steps": self.training.committed,
            "validation": [one.to_json() for one in self.validations],
            "best": best,
        }
