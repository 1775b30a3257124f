"""The chain of a training: what to train, its checks, its beginning, its steps and its files."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from tempfile import gettempdir
from typing import Any

from ..card.card import check_replaceable, held, nothing_held
from ..card.note import note_content
from ..card.weights import save_weights
from ..data.fitted import FittedData, adapted
from ..device.device import NOTHING_COMMITTED
from ..errors import BadInput
from ..graph.graph import Graph
from ..graph.weights import Weights, check_starting_values
from ..profile.profile import board_power
from ..run.best import Best, Patience
from ..run.log import Log
from ..run.run import Run
from ..run.session import Files, Session
from ..run.train import (
    COMMIT_EVERY,
    BeforeMoving,
    Diverged,
    OnStep,
    StartingPoint,
    Training,
    train as train_until,
)
from ..schedule.rates import with_rates
from ..schedule.schedule import Schedule
from .connection import Card, Connection
from .inputs import Data, as_schedule, as_weights, fitted as as_fitted


@dataclass(frozen=True)
class Task:
    """What to train, from which weights, and until which step."""

    schedule: Schedule
    data: FittedData
    start: StartingPoint
    last: int


def task_of(
    schedule: Schedule | str | Path,
    data: Data,
    rates: Mapping[str, Any],
    *,
    epochs: int,
    steps: int | None,
    shuffle: bool | None,
    seed: int,
    weights: Weights | str | Path | None,
    first_step: int,
    resume: bool,
) -> Task:
    """Return the task of `train`. `rates`: see with_rates."""
    schedule = as_schedule(schedule)
    fitted = as_fitted(data, schedule.graph, shuffle)
    last = last_step(fitted, epochs, steps)
    schedule = with_rates(schedule, last, **rates)
    given = None if weights is None else as_weights(weights, schedule.graph)
    return Task(schedule, fitted, StartingPoint(seed, given, first_step, resume), last)


def last_step(data: FittedData, epochs: int, steps: int | None) -> int:
    """Return the last step: `steps`, or the last step of epoch `epochs` if `steps` is None."""
    count, what = (epochs, "epochs") if steps is None else (steps, "steps")
    if not isinstance(count, int) or count < 1:
        raise BadInput(f"{what} must be a whole number of 1 or more, not {count!r}")
    return epochs * data.steps_per_epoch if steps is None else steps


def check_countable(data: FittedData, last: int) -> None:
    """Raise BadInput for a last step that boards cannot count."""
    if last >= NOTHING_COMMITTED:
        most = NOTHING_COMMITTED - 1
        raise BadInput(
            f"training would end after step {last:,}, but boards count at most {most:,} steps: "
            f"train for at most {most // data.steps_per_epoch:,} epochs"
        )


def check_training(
    schedule: Schedule,
    connection: Connection | Card,
    data: FittedData,
    start: StartingPoint,
    erase_card: bool,
) -> int | None:
    """Raise BadInput if training would fail, before anything is written or erased.

    Raises BadInput, too, if training would delete weights on the card that the user may need. It
    may delete them in three cases: `erase_card` is True, this connection has trained them, or they
    belong to the same model as `start.weights`, which have been trained for one step or more. In
    the last case, returns for how many steps the weights on the card were trained, otherwise None.
    """
    graph, device = schedule.graph, connection.device
    if start.resume:
        found = held(device)
        if found is None:
            raise nothing_held(graph)
        note_content(schedule, adapted(data, found.facts).facts)
        return None
    facts = adapted(data, start.facts, is_trained=start.weights is not None).facts
    note_content(schedule, facts)
    check_starting_values(graph, start.weights)
    if erase_card:
        return None
    return check_replaceable(device, schedule, connection.written, start.first_step)


def begin(
    task: Task,
    connection: Connection,
    *,
    erase_card: bool,
    before_moving: BeforeMoving | None,
    commit_every: int,
    checked: Callable[[int | None], object] = lambda replaced: None,
) -> Training:
    """Check whether training can begin, and send schedule and weights to the board.

    `checked` is called before anything is written or erased, with the result of `check_training`.
    """
    schedule, data, start = task.schedule, task.data, task.start
    check_countable(data, task.last)
    checked(check_training(schedule, connection, data, start, erase_card))
    before_moving = before_moving or Backup(schedule.graph)
    if erase_card:
        connection.device.format()
    try:
        training = Training(connection.device, schedule, data, start, before_moving, commit_every)
    except BaseException as error:
        if isinstance(before_moving, Backup):
            before_moving.name_in(error)
        raise
    if isinstance(before_moving, Backup):
        before_moving.remove()
    return training


def run_training(
    training: Training,
    connection: Connection,
    last: int,
    on_step: OnStep | None,
    stopped: Callable[[], bool],
    best: Best | None = None,
) -> Run:
    """Train until step `last`. `on_step` logs, validates and saves: see run.session."""
    is_final = (lambda: best.is_final) if best else (lambda: False)
    try:
        run = train_until(training, last, on_step, stopped, is_final)
    except Diverged:  # the exception holds the run and its weights
        connection.written = (training.schedule.model.crc, training.committed)
        raise
    connection.written = (training.schedule.model.crc, training.committed)
    return run


@contextmanager
def training_session(
    task: Task,
    connection: Connection,
    files: Files,
    about: Mapping[str, Any],
    *,
    erase_card: bool,
    commit_every: int | None,
    say: Callable[[str], object],
    patience: Patience,
) -> Iterator[Session]:
    """Begin a training with its log, and yield its session. `about` goes to the log.

    An exception that leaves the `with` block ends the log. `say` is called with messages.
    """
    start, device = task.start, connection.device
    with Log(files.log, files.continues) as log:
        log.check()

        def checked(replaced: int | None) -> None:
            if replaced is not None:
                say(
                    f"replacing the weights of step {replaced:,} on the card by those of step "
                    f"{start.first_step:,}"
                )
            begun = device.info.committed_step if start.resume else start.first_step
            power = board_power(connection.board, task.schedule.model.storage)
            log.begin(about, begun, task.data.steps_per_epoch, power)

        training = begin(
            task, connection, erase_card=erase_card, checked=checked,
            before_moving=Backup(task.schedule.graph, files.weights, say),
            commit_every=commit_every or COMMIT_EVERY,
        )  # fmt: skip
        yield Session(training, log, files, say, patience)


class Backup:
    """A file that keeps a card's weights while the card is written in another layout.

    If `path` is None, the file is temporary. `report` is called with a message about the file.
    """

    def __init__(
        self,
        graph: Graph,
        path: Path | None = None,
        report: Callable[[str], object] = lambda text: None,
    ) -> None:
        self._graph, self._path, self._report = graph, path, report
        self._is_temporary = path is None
        # Number of steps that the weights in the file were trained for. None: no file yet.
        self._step: int | None = None

    def __call__(self, weights: Weights, step: int) -> None:
        path = self._path or Path(gettempdir()) / f"poet-weights-{token_hex(8)}.safetensors"
        save_weights(path, self._graph, weights, step, mode=0o600 if self._is_temporary else None)
        self._path, self._step = path, step
        self._report(f"{self._path} holds the weights of step {step} while the card is rewritten")

    def name_in(self, error: BaseException) -> None:
        """Add the path of this backup to the error, if the card may have lost its weights."""
        if self._step is not None:
            error.args = (
                f"{error}; the card may have lost its weights of step {self._step}. To continue, "
                "train with --resume, another file for --save-weights, and --load-weights "
                f"{self._path}",
            )

    def remove(self) -> None:
        """Delete the file if it is temporary. Call this once the card holds the weights again."""
        if self._is_temporary and self._path is not None:
            self._path.unlink(missing_ok=True)
