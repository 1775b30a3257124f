"""The chain of a training: what to train, its checks, its beginning, its steps and its files."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from tempfile import gettempdir
from types import MappingProxyType
from typing import Any

from .. import isa
from ..card.card import check_replaceable, continued, has_weights
from ..card.note import note_content
from ..card.weights import save_weights
from ..data.fitted import FittedData, adapted
from ..device.answers import board_error
from ..device.device import NOTHING_COMMITTED
from ..errors import BadInput, PoetWarning
from ..graph.graph import Graph
from ..graph.weights import Weights, check_continued, check_starting_values
from ..profile.profile import board_power
from ..run.log import Log
from ..run.run import Run, Step
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
from ..run.validate import Patience
from ..schedule.rates import with_rates
from ..schedule.schedule import Schedule
from ..schedule.slots import DATA_BLOCK
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
    rates: Mapping[str, Any] = MappingProxyType({}),
    *,
    epochs: int = 1,
    steps: int | None = None,
    shuffle: bool | None = None,
    seed: int,
    weights: Weights | str | Path | None,
    first_step: int = 0,
    resume: bool = False,
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


def check_last(graph: Graph, data: FittedData, first: int, last: int) -> None:
    """Raise BadInput for a last step that boards cannot count.

    Issue a PoetWarning if no step after `first`, up to `last`, updates weights.
    """
    if last >= NOTHING_COMMITTED:
        most = NOTHING_COMMITTED - 1
        raise BadInput(
            f"training would end after step {last:,}, but boards count at most {most:,} steps: "
            f"train for at most {most // data.steps_per_epoch:,} epochs"
        )
    batches = graph.batches_per_update
    update = (first // batches + 1) * batches  # the next one
    if first < last < update:
        warnings.warn(
            f"this run changes no weight: weights are updated after every {batches:,} batches, but "
            f"it trains only from step {first + 1:,} to step {last:,}. Train until step "
            f"{update:,}, or continue later with --resume",
            PoetWarning,
            stacklevel=2,
        )


def check_training(
    schedule: Schedule,
    connection: Connection | Card,
    data: FittedData,
    start: StartingPoint,
    erase_card: bool,
) -> int | None:
    """Raise BadInput if training would fail, before anything is written or erased.

    Raises BoardError for a schedule that the board cannot load. Raises BadInput, too, if training
    would delete weights on the card that the user may need. It may delete them in three cases:
    `erase_card` is True, the connection's last training returned them, or they belong to the same
    model as `start.weights`, which have been trained for one step or more. In the last case,
    returns for how many steps the weights on the card were trained, otherwise None.
    """
    graph, device, replaced = schedule.graph, connection.device, None
    if start.resume:
        if erase_card:
            raise BadInput("--resume needs the weights on the card: omit --erase-card")
        note_content(schedule, adapted(data, continued(device, schedule).facts).facts)
    else:
        facts = adapted(data, start.facts, is_trained=start.weights is not None).facts
        note_content(schedule, facts)
        check_starting_values(graph, start.weights)
        if start.weights is not None:
            check_continued(graph, start.weights, start.first_step)
        if not erase_card:
            replaced = check_replaceable(device, schedule, connection.written, start.first_step)
    if isinstance(connection, Connection):
        info = connection.device.info
        _check_fits(schedule, info, erase_card or not has_weights(info))
    return replaced


def _check_fits(schedule: Schedule, info: Any, is_blank: bool) -> None:
    """Raise the BoardError with which a board would refuse to load the schedule.

    `info`: the board's HELLO. `is_blank`: whether the schedule will lay out the card.
    """
    model, header = schedule.model, schedule.header
    codes = isa.by_name("ERROR")
    limits = [
        ("table_small", len(model.tensors), info.tensor_capacity),
        ("arena_small", header.arena_bytes, info.arena_bytes),
        ("table_small", header.resident_max, info.resident_capacity),
        ("table_small", header.queue_max, info.queue_capacity),
    ]
    if model.storage and info.storage_status == codes["no_storage"].code:
        limits.append(("no_storage", 1, 0))
    elif is_blank and model.storage and info.storage_blocks:  # 0: `format` refuses the card
        limits.append(("storage_small", DATA_BLOCK + model.data_blocks, info.storage_blocks))
    for name, needed, available in limits:
        if needed > available:
            raise board_error(codes[name].code, needed, "load")


def commit_interval(schedule: Schedule, commit_every: int | None) -> int:
    """Return after how many steps a training commits.

    Raises BadInput if `commit_every` is given and the schedule contains this number itself.
    """
    every = schedule.header.commit_every if schedule.model.storage else COMMIT_EVERY
    if commit_every is None:
        return every
    if commit_every < 1:
        raise BadInput(f"`commit_every` must be at least 1, not {commit_every}")
    if schedule.model.storage:
        raise BadInput(
            f"--commit-every: the schedule of {schedule.graph.name} uses a card, and commits after "
            f"every {every:,} steps. Give the option to `solve`, or solve with --no-storage"
        )
    return commit_every


@contextmanager
def training_session(
    task: Task,
    connection: Connection,
    files: Files,
    about: Mapping[str, Any] = MappingProxyType({}),
    *,
    erase_card: bool = False,
    commit_every: int | None = None,
    patience: Patience | None = None,
    before_moving: BeforeMoving | None = None,
    say: Callable[[str], object] | None = None,
) -> Iterator[Session]:
    """Check whether training can begin, send schedule and weights, and yield the session.

    `about` goes to the log, which an exception that leaves the `with` block ends. `say` is called
    with messages; see Session for None.
    """
    schedule, data, start, device = task.schedule, task.data, task.start, connection.device
    report = say or (lambda text: None)
    every = commit_interval(schedule, commit_every)
    with Log(files.log, files.continues) as log:
        log.check()
        if start.resume:
            device.keep(if_possible=True)  # lost steps are trained again
        begun = device.hello().committed_step if start.resume else start.first_step
        check_last(schedule.graph, data, begun, task.last)
        replaced = check_training(schedule, connection, data, start, erase_card)
        if replaced is not None:
            report(
                f"replacing the weights of step {replaced:,} on the card by those of step "
                f"{start.first_step:,}"
            )
        power = board_power(connection.board, schedule.model.storage)
        log.begin(about, begun, data.steps_per_epoch, power)
        if erase_card:
            device.format()
        connection.written = None  # the user has no copy of the weights until the training ends
        backup = _backup(schedule.graph, files.weights, report)
        with nullcontext(before_moving) if before_moving else backup as keep:
            training = Training(device, schedule, data, start, keep, every)
        yield Session(training, log, files, say, patience)


def run_training(
    session: Session,
    connection: Connection,
    last: int,
    stopped: Callable[[], bool],
    on_step: OnStep | None = None,
) -> Run:
    """Train until step `last`. `on_step` is called after every step, before `session.on_step`."""
    training = session.training

    def after_step(step: Step, last: int) -> None:
        if on_step:
            on_step(step, last)
        session.on_step(step, last)

    try:
        run = train_until(training, last, after_step, stopped, session.is_final)
    except Diverged:  # the exception holds the run and its weights
        connection.written = (training.schedule.model.crc, training.committed)
        raise
    connection.written = (training.schedule.model.crc, training.committed)
    return run


@contextmanager
def _backup(
    graph: Graph, path: Path | None, report: Callable[[str], object]
) -> Iterator[BeforeMoving]:
    """Provide a callback that keeps a card's weights in a file while the card is rewritten.

    If `path` is None, the file is temporary. If the block fails, the error names the file.
    """
    file = path or Path(gettempdir()) / f"poet-weights-{token_hex(8)}.safetensors"
    kept: int | None = None  # step of the weights in the file; None: no file yet

    def keep(weights: Weights, step: int) -> None:
        nonlocal kept
        save_weights(file, graph, weights, step, mode=None if path else 0o600)
        kept = step
        report(f"{file} holds the weights of step {step} while the card is rewritten")

    try:
        yield keep
    except BaseException as error:
        if kept is not None:
            error.args = (
                f"{error}; the card may have lost its weights of step {kept}. To continue, train "
                f"with --resume, another file for --save-weights, and --load-weights {file}",
            )
        raise
    if path is None:
        file.unlink(missing_ok=True)
