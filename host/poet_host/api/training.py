"""Train and evaluate on a board, and write cards for boards that train without a host."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ..card.card import read_weights, resumed
from ..card.card_check import check
from ..card.card_device import CardDevice, job_room_bytes, partition_blocks
from ..card.card_export import Exported, exported
from ..card.card_report import CardReport
from ..card.job import JobState, check_room, job_size, make_job, read_job, sample_orders, write_job
from ..card.parts import own_schedule
from ..card.weights import SavedWeights, facts_of_weights, write_tensors
from ..data.facts import DataFacts
from ..data.fitted import FittedData, adapted
from ..device.device import Progress
from ..errors import BadInput
from ..files import target
from ..graph.weights import Weights
from ..run.evaluate import Evaluation, Half, evaluate as evaluate_on
from ..run.predict import Prediction, predict as predict_on
from ..run.run import Run
from ..run.session import Files
from ..run.train import BeforeMoving, OnStep, Training, load_schedule, prepare_board
from ..run.validate import patience_for
from ..schedule.decode import decode
from ..schedule.schedule import Schedule
from ..schedule.slots import job_block
from ..sim.native import BLOCK_BYTES, PARTITION_START
from .connection import Card, Connection
from .inputs import Data, as_dataset, as_schedule, as_weights, fitted as as_fitted, rate_of
from .session import check_last, check_training, run_training, task_of, training_session

_MIN_IMAGE_BYTES = 64 << 20  # minimum size of a new card image, which is a sparse file
_MIB = 1 << 20


def train(
    schedule: Schedule | str | Path,
    connection: Connection,
    data: Data,
    *,
    epochs: int = 1,
    steps: int | None = None,
    shuffle: bool | None = None,
    learning_rate: float | None = None,
    lr: float | None = None,
    momentum: float | None = None,
    weight_decay: float | None = None,
    lr_schedule: str | None = None,
    warmup: int | None = None,
    seed: int = 0,
    weights: Weights | str | Path | None = None,
    first_step: int = 0,
    resume: bool = False,
    erase_card: bool = False,
    before_moving: BeforeMoving | None = None,
    commit_every: int | None = None,
    best_weights: str | Path | None = None,
    patience: int | str | None = None,
    on_step: OnStep | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Run:
    """Train on a board for `epochs` epochs, or until step `steps`.

    By default, training starts from the weights in the model's .onnx file, or from random weights
    that `seed` determines. If `weights` are given, it starts from them: they have been trained for
    `first_step` steps. If that is 0, the optimiser is new. If `resume` is True, it starts from the
    weights on the card, which are those after the last complete step.

    `shuffle`: whether each epoch visits the samples in a new random order (None: as the data says,
    and shuffled if it does not). `learning_rate` (or `lr`), `momentum` and `weight_decay` replace
    those of the schedule, as `poet-host train` does. `lr_schedule` changes the learning rate during
    the training: "constant", "step:EVERY[:FACTOR]" (it is multiplied by FACTOR, by default 0.1,
    after every EVERY steps), "cosine[:STEPS[:END]]" or "linear[:STEPS[:END]]" (it changes to END
    times itself, by default 0, within STEPS steps, by default until the end). In the `warmup` steps
    before, it grows from 1 / warmup times itself. A resumed training needs the same options again.

    `erase_card` erases the board's card first. `on_step` is called after every step. If `stopped()`
    is true after a step, the run ends there. `before_moving` is called before the card's weights
    are written in another layout. If `before_moving` is None, a temporary file keeps the weights.
    A schedule without storage commits its weights after every `commit_every` steps (None: 100), and
    at the end. With storage, the schedule itself contains this number, and BadInput is raised.

    After each epoch, this computer validates the weights with the held-out samples, and keeps those
    with the lowest loss in the file `best_weights`. With `patience`, a number of epochs, training
    ends after so many epochs without better weights. "5:accuracy" compares accuracies instead. A
    resumed training continues with the weights in that file; a new one deletes an older file.

    Raises BadInput if the data or the weights do not fit, or if weights on the card would be lost;
    Diverged if the loss or a parameter is not finite; LinkBroken if the board no longer answers.
    """
    rates = {
        "learning_rate": rate_of(learning_rate, lr), "momentum": momentum,
        "weight_decay": weight_decay, "lr_schedule": lr_schedule, "warmup": warmup,
    }  # fmt: skip
    task = task_of(
        schedule, data, rates, epochs=epochs, steps=steps, shuffle=shuffle, seed=seed,
        weights=weights, first_step=first_step, resume=resume,
    )  # fmt: skip
    if patience is not None and best_weights is None:
        raise BadInput("`patience` needs a file for the best weights: pass `best_weights`")
    by = None if best_weights is None else patience_for(task.data, patience)
    files = Files(
        best=None if best_weights is None else Path(best_weights),
        continues=resume or first_step > 0,
    )
    given = Path(weights) if isinstance(weights, str | os.PathLike) else None
    if given and files.best and not files.continues and target(given) == target(files.best):
        raise BadInput(
            f"{given}: a new training deletes its `best_weights` first, but `weights` names the "
            "same file: name another file for `best_weights`"
        )
    with training_session(
        task, connection, files, erase_card=erase_card, commit_every=commit_every, patience=by,
        before_moving=before_moving,
    ) as session:  # fmt: skip
        return run_training(session, connection, task.last, stopped, on_step)


def begin_training(
    schedule: Schedule | str | Path,
    connection: Connection,
    data: Data,
    *,
    seed: int = 0,
    weights: Weights | str | Path | None = None,
) -> Training:
    """Send schedule and weights to a board, and return a Training, whose `step` trains one batch.

    Trainings on several boards can take turns. The options and errors are those of `train`.
    """
    task = task_of(schedule, data, seed=seed, weights=weights)
    with training_session(task, connection, Files()) as session:
        return session.training


def evaluate(
    schedule: Schedule | str | Path,
    connection: Connection,
    data: Data,
    *,
    weights: Weights | str | Path | None = None,
    half: Half | None = None,
    samples: int | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Compute loss and accuracy on the board, by the schedule's forward program.

    If `weights` is None, the weights on the card are used. Others are written to the card, without
    a commit: the weights on it stay. They are refused if the card holds another model. `half` is
    "held-out" (the default if samples are held out) or "training". `samples` limits the evaluation
    to this number of samples, from the first one on.
    """
    schedule = as_schedule(schedule)
    fitted = as_fitted(data, schedule.graph)
    given, facts = _given(schedule, connection, weights)
    fitted = adapted(fitted, facts)
    return evaluate_on(connection.device, schedule, given, fitted, half, samples, progress)


def predict(
    schedule: Schedule | str | Path,
    data: Data,
    *,
    weights: Weights | str | Path | None = None,
    connection: Connection | None = None,
    half: Half | None = None,
    samples: int | None = None,
    progress: Progress | None = None,
) -> Prediction:
    """Return what a trained model answers for samples: classes with probabilities, or values.

    `data` is that of `train`, but labels are not used and may be missing: an array is the samples.
    Samples are normalised as those that trained the weights. `connection` is the board that
    computes; None: this computer computes, to the same bits. If `weights` is None, those on the
    board's card are used. `half`, `samples`: see `evaluate`. Raises PoetError if an output is not
    finite.
    """
    schedule = as_schedule(schedule)
    given, facts = _given(schedule, connection, weights)
    found = as_dataset(data, schedule.graph, labels=False)
    device = connection.device if connection else None
    return predict_on(device, schedule, given, facts, found, half, samples, progress)


def _given(
    schedule: Schedule, connection: Connection | None, weights: Weights | str | Path | None
) -> tuple[Weights | None, DataFacts]:
    """Return the weights, or None if the board has committed them, and the facts of their data."""
    if weights is not None:
        given = as_weights(weights, schedule.graph)
        return given, facts_of_weights(given)
    if connection is None:
        raise BadInput("name the weights: pass `weights`, or a `connection` to their board")
    found = resumed(connection.device, schedule, load=False)
    return found.weights, found.facts


def write_card(
    schedule: Schedule | str | Path,
    connection: Connection | Card,
    data: Data,
    *,
    epochs: int = 1,
    steps: int | None = None,
    shuffle: bool | None = None,
    learning_rate: float | None = None,
    lr: float | None = None,
    momentum: float | None = None,
    weight_decay: float | None = None,
    lr_schedule: str | None = None,
    warmup: int | None = None,
    seed: int = 0,
    weights: Weights | str | Path | None = None,
    first_step: int = 0,
    resume: bool = False,
    erase_card: bool = False,
    progress: Progress | None = None,
) -> JobState:
    """Write schedule, starting weights and data to a card, so that a board with it trains alone.

    `connection`: a board that contains the card, or an open card. The board will train until step
    `steps`, or for `epochs` epochs. The other options are those of `train`. The board begins when
    it is switched on and no host sends requests. Raises BadInput if the data does not fit the
    model, if no step is left to train, or if weights on the card would be lost.
    """
    rates = {
        "learning_rate": rate_of(learning_rate, lr), "momentum": momentum,
        "weight_decay": weight_decay, "lr_schedule": lr_schedule, "warmup": warmup,
    }  # fmt: skip
    task = task_of(
        schedule, data, rates, epochs=epochs, steps=steps, shuffle=shuffle, seed=seed,
        weights=weights, first_step=first_step, resume=resume,
    )  # fmt: skip
    schedule, device = task.schedule, connection.device
    fitted, start, last = task.data, task.start, task.last
    decode(schedule)  # a card without a board does not check the plan
    sample_orders(schedule)  # raises BadInput before anything is written
    check_training(schedule, connection, fitted, start, erase_card)
    first, facts = first_step, start.facts
    if resume:
        found = resumed(device, schedule, load=False)
        if found.weights is not None:
            raise BadInput(
                "the weights on the card have the layout or the rates of another schedule. Save "
                "them with `card read --save-weights FILE`, and add --load-weights FILE to --resume"
            )
        with own_schedule(device, schedule):  # a load may go back to the step before
            first, facts = int(device.hello().committed_step), found.facts
    if first >= last:
        raise BadInput(
            f"nothing is left to train: step {first:,} is already done, and training ends after "
            f"step {last:,}. Allow more steps or epochs"
        )
    fitted = adapted(fitted, facts, is_trained=resume or start.weights is not None)
    steps_left, batch, blocks = last - first, schedule.graph.batch, partition_blocks(device)
    check_room(fitted, batch, steps_left, job_room_bytes(schedule.model, blocks))  # before erasing
    check_last(schedule.graph, fitted, first, last)
    job = make_job(schedule, fitted, seed, first, steps_left, progress)
    if erase_card:
        device.format()
    load_schedule(device, schedule)
    check_room(fitted, batch, steps_left, device.job_room())  # a store may be smaller
    prepare_board(device, schedule, fitted, start)
    write_job(device, job, progress)
    state = read_job(device)
    assert state is not None
    return replace(state, classes=fitted.classes)


def card_image_bytes(schedule: Schedule, data: FittedData, steps: int) -> int:
    """Return the size of a new card image in bytes, for a job that trains `steps` steps.

    Raises BadInput if no card has room for the job.
    """
    check_room(data, schedule.graph.batch, steps, job_room_bytes(schedule.model))
    before = PARTITION_START + job_block(schedule.model.data_blocks)
    needed = before * BLOCK_BYTES + job_size(data, schedule.graph.batch, steps).size_bytes
    return max(_MIN_IMAGE_BYTES, -(-needed // _MIB) * _MIB)


def read_card(
    schedule: Schedule | str | Path, connection: Connection | Card
) -> tuple[JobState | None, SavedWeights]:
    """Return progress and losses of training without a host, and the weights on the card."""
    schedule, device = as_schedule(schedule), connection.device
    found = resumed(device, schedule, load=False)
    if found.weights is not None:  # the schedule on the card is loaded
        return read_job(device), found.weights
    with own_schedule(device, schedule):
        weights = SavedWeights(read_weights(device, schedule), found.facts)
        return read_job(device), weights


def check_card(
    card: str | Path,
    *,
    schedule: Schedule | str | Path | None = None,
    progress: Progress | None = None,
) -> CardReport:
    """Read everything on a card image, or on the device of a card, and report what is whole.

    `schedule`: the schedule that trained the weights, needed only if the model part of the card is
    damaged. Raises BadInput if the card has no store of this storage format.
    """
    with CardDevice(card) as file:
        return check(file, None if schedule is None else as_schedule(schedule), progress)


def export_card(
    card: str | Path,
    path: str | Path,
    *,
    schedule: Schedule | str | Path | None = None,
    prior: bool = False,
) -> Exported:
    """Write the weights of a card image, or of the device of a card, to a .safetensors file.

    `schedule`: a schedule of the model, needed only if the card has no note with the names of the
    weights. If `prior` is True, the weights of the step before the committed step are written.
    Raises Damaged if the weights are not whole; then no file is written.
    """
    with CardDevice(card) as file:
        found = exported(file, None if schedule is None else as_schedule(schedule), prior=prior)
    write_tensors(path, found.model, found.tensors, found.step, found.facts)
    return found
