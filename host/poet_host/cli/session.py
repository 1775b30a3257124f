"""The work of `train` after each step: log, report, validate and save weights."""

from math import isfinite
from pathlib import Path

from .. import api
from ..errors import PoetError
from ..files import write_whole
from ..graph.weights import Weights
from ..run.log import Log
from ..run.run import Run, Step
from ..run.train import Training
from ..run.validate import Validated, validate
from .console import Report, say, to_json


class Session:
    """Logs steps, reports progress, validates after epochs, and saves weights during training."""

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
        self.per_epoch = training.data.steps_per_epoch
        self.validations: list[Validated] = []
        self.best: Validated | None = None  # the validation with the lowest loss
        self.report: Report | None = None
        self.write_error = ""  # why weights could not be saved during training; empty: no error
        self._save_weights, self._best_path, self._save_every = save_weights, best, save_every
        self._losses: list[float] = []  # losses of the steps so far in this epoch

    def load_best(self) -> None:
        """Validate the best weights of the previous run.

        After this call, only weights with a lower loss replace them.
        """
        assert self._best_path is not None
        weights = api.load_weights(self._best_path, self.training.graph)
        step = api.step_of_weights(self._best_path)
        self.best = self._validated(weights, step)

    def say_unused(self, last: int, steps: int | None) -> None:
        """Print how many samples each epoch omits, and whether no step is left to train."""
        data, batch = self.training.data, self.training.graph.batch
        unused = len(data.x) - self.per_epoch * batch
        if unused and steps is None:
            which = "other ones in each epoch" if data.shuffle else "always the last ones"
            say(
                f"each epoch omits {unused:,} of {len(data.x):,} samples ({which}), which do not "
                f"fill a batch of {batch:,}"
            )
        if self.begun >= last:
            say(f"nothing to train: step {self.begun:,} is done, and the last step is {last:,}")

    def on_step(self, step: Step, last: int) -> None:
        """Log, report, validate and save after a step.

        Logging comes first, so that the log contains every step that the screen has shown.
        """
        self.log.step(step)
        self._losses.append(step.loss)
        text = f"loss {step.loss:.4f}"
        is_epoch = step.step % self.per_epoch == 0
        if is_epoch:
            mean = sum(self._losses) / len(self._losses)
            text = f"epoch {step.step // self.per_epoch}, mean loss {mean:.4f}"
            self._losses = []
        is_saved = self._save_every and step.step % self._save_every == 0
        if is_saved or (is_epoch and self._best_path):
            weights = self.training.weights()
            if is_saved and step.step < last:
                self._checkpoint(self._save_weights, weights, step.step)
            if is_epoch and self._best_path:
                text += self._validate(weights, step.step)
        if self.report:
            self.report(step.step, last, text, is_epoch)

    def _validate(self, weights: Weights, step: int) -> str:
        assert self._best_path is not None
        result = self._validated(weights, step)
        self.validations.append(result)
        self.log.validated(result)
        if isfinite(result.loss) and (self.best is None or result.loss < self.best.loss):
            self.best = result
            self._checkpoint(self._best_path, weights, step)
        accuracy = "" if result.accuracy is None else f", accuracy {result.accuracy:.1%}"
        return f", validation loss {result.loss:.4f}{accuracy}"

    def _validated(self, weights: Weights, step: int) -> Validated:
        training = self.training
        return validate(training.graph, weights, training.data, step // self.per_epoch, step)

    def _checkpoint(self, path: Path, weights: Weights, step: int) -> None:
        """Save weights. If that fails, training continues, and the command fails at its end."""
        try:
            self._save(path, weights, step)
        except PoetError as error:
            if not self.write_error:
                say(f"weights not saved: {error}")
            self.write_error = str(error)

    def _save(self, path: Path, weights: Weights, step: int) -> None:
        api.save_weights(path, self.training.graph, weights, step, self.training.classes)

    def save(self, run: Run, run_path: Path | None) -> None:
        """Save the run, and the weights after its last complete step.

        No weights are saved if step 1 diverged.
        """
        written: list[Path | None] = []
        done = run.last_step or self.begun
        if done or run.ended != "not_finite":
            self._save(self._save_weights, run.weights, done)
            written.append(self._save_weights)
        if run_path:
            write_whole(run_path, to_json(run.to_json()))
            written.append(run_path)
        if self.best:
            written.append(self._best_path)
        if written:
            say(f"wrote {' and '.join(map(str, written))}")

    def to_json(self) -> dict[str, object]:
        best = self.best and {**self.best.to_json(), "file": str(self._best_path)}
        return {
            "steps": self.training.committed,
            "validation": [result.to_json() for result in self.validations],
            "best": best,
        }
