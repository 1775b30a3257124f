"""What a training does after each step: log, report, validate and save weights."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Protocol

from ..card.weights import load_weights, save_weights, step_of_weights
from ..errors import PoetError
from ..files import target
from ..graph.weights import Weights
from .evaluate import held_out_accuracy
from .log import Log
from .run import Run, Step, weights_sha256
from .train import Training
from .validate import Patience, Validated, validate


class Report(Protocol):
    """A callback that reports progress: `done` of `total` steps (0: unknown), and a text `word`.

    If stderr is not a terminal, the command line prints at most one line per minute. Calls with
    `is_line` print at most one line per second; the last of them is always printed.
    """

    def __call__(self, done: int, total: int, word: str = "", is_line: bool = False) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Files:
    weights: Path | None = None
    save_every: int | None = None  # number of steps after which `weights` is written, too
    best: Path | None = None  # the best weights by the held-out samples
    log: Path | None = None
    continues: bool = False  # True: `best` and `log` continue those of the previous run


class Session:
    """Logs steps, validates after epochs, and saves weights during training.

    Validates only if `files.best` is given. If weights cannot be saved, `warn` is called with the
    reason; without `warn`, PoetError is raised.
    """

    def __init__(
        self,
        training: Training,
        log: Log,
        files: Files,
        warn: Callable[[str], object] | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.training, self.log = training, log
        self.begun = training.committed
        self.per_epoch = training.data.steps_per_epoch
        self.validations: list[Validated] = []
        self.report: Report | None = None
        self.write_error = ""  # why weights could not be saved during training; empty: no error
        self._files, self._warn = files, warn
        self.patience = patience or Patience()
        self.best: Validated | None = None  # that of the weights in the file `files.best`
        if files.best and files.continues:
            self._continue(files.best)
        elif files.best and files.best.is_file():
            # A run that resumes this one must not take the best weights of another run for its own.
            with suppress(OSError):
                target(files.best).unlink()

    def _continue(self, path: Path) -> None:
        """Continue with the best weights of the previous run.

        The epochs without better weights are counted from their step. So a resumed training stops
        at the same step as one that was not interrupted. Weights of a later step are those of
        another run.
        """
        if path.exists() and (step := step_of_weights(path)) <= self.begun:
            self.best = self._validated(load_weights(path, self.training.graph), step)
        known = self.best.step if self.best else 0
        # The previous run may have ended before it validated its last epoch.
        if self.begun > known and self.begun % self.per_epoch == 0:
            self._keep_best(path, self.training.weights(), self.begun)

    def on_step(self, step: Step, last: int) -> None:
        """Log, report, validate and save after a step.

        Logging comes first, so that the log contains every step that the screen has shown.
        """
        self.log.step(step)
        text = f"loss {step.loss:.4f}"
        is_epoch = step.step % self.per_epoch == 0
        if is_epoch:
            # Without steps that the board lost, and repeated
            mean = fmean(it.loss for it in self.training.done[-self.per_epoch :])
            text = f"epoch {step.step // self.per_epoch}, mean loss {mean:.4f}"
        is_saved = self._files.save_every and step.step % self._files.save_every == 0
        path, best_path = self._files.weights, self._files.best
        if is_saved or (is_epoch and best_path):
            weights = self.training.weights()
            if path and is_saved and step.step < last:
                self._checkpoint(path, weights, step.step)
            if is_epoch and best_path:
                result = self._keep_best(best_path, weights, step.step)
                self.validations.append(result)
                self.log.validated(result)
                accuracy = "" if result.accuracy is None else f", accuracy {result.accuracy:.1%}"
                text += f", validation loss {result.loss:.4f}{accuracy}"
        if self.report:
            self.report(step.step, last, text, is_epoch)

    def _keep_best(self, path: Path, weights: Weights, step: int) -> Validated:
        """Validate `weights` after `step`, and save them if they are the best ones so far."""
        result, score = self._validated(weights, step), self.patience.score
        if isfinite(result.loss) and (self.best is None or score(result) > score(self.best)):
            self.best = result
            self._checkpoint(path, weights, step)
        return result

    def _validated(self, weights: Weights, step: int) -> Validated:
        training = self.training
        return validate(training.graph, weights, training.data, step // self.per_epoch, step)

    def is_final(self) -> bool:
        """Return whether training ends, because the last epochs gave no better weights."""
        if self.patience.epochs is None:
            return False
        since = self.best.step if self.best else self.begun
        epochs = self.training.committed // self.per_epoch - since // self.per_epoch
        return epochs >= self.patience.epochs

    def _checkpoint(self, path: Path, weights: Weights, step: int) -> None:
        """Save weights. If that fails, training continues, and the command fails at its end."""
        try:
            self._save(path, weights, step)
        except PoetError as error:
            if self._warn is None:
                raise
            if not self.write_error:
                self._warn(f"weights not saved: {error}")
            self.write_error = str(error)

    def _save(self, path: Path, weights: Weights, step: int) -> None:
        save_weights(path, self.training.graph, weights, step)

    def save(self, run: Run) -> Path | None:
        """Save the weights after the last complete step, and return their file.

        No weights are saved if step 1 diverged.
        """
        path, done = self._files.weights, run.last_step or self.begun
        if path is None or (not done and run.ended == "not_finite"):
            return None
        self._save(path, run.weights, done)
        return path

    def end(self, run: Run, error: str = "") -> float | None:
        """Write the end of the log, and return the accuracy on held-out samples.

        The accuracy is None if there are none, if labels are not classes, or after an `error`.
        """
        accuracy = None
        if not error:
            accuracy = held_out_accuracy(self.training.graph, run.weights, self.training.data)
        self.log.end(
            ended=run.ended, accuracy=accuracy, weights_sha256=weights_sha256(run.weights),
            **({"error": error} if error else {}),
        )  # fmt: skip
        return accuracy

    def to_json(self) -> dict[str, object]:
        return {
            "steps": self.training.committed,
            "validation": [result.to_json() for result in self.validations],
            "best": self.best and {**self.best.to_json(), "file": str(self._files.best)},
        }
