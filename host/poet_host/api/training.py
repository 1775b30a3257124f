"""Training and evaluation on a board, and cards by which a board trains alone."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import mkstemp

from ..data.classes import NO_NAMES
from ..data.datasets import Dataset, check_seed, fit, fit_named, steps_per_epoch
from ..device.device import NOTHING_COMMITTED, Progress
from ..errors import BadInput
from ..graph.graph import Graph
from ..run.card import check_replaceable, held, nothing_held, read_weights, resumed
from ..run.evaluate import Evaluation, Half
from ..run.evaluate import evaluate as evaluate_on
from ..run.job import JobState, check_room, make_job, read_job, write_job
from ..run.run import Run, Weights
from ..run.train import Diverged, OnStep, Training, starting_values, take_up
from ..run.train import load as load_schedule
from ..run.train import train as train_until
from ..run.weights import SavedWeights, classes_of_weights, save_weights
from ..schedule.schedule import Schedule
from .connection import Connection
from .inputs import Data, as_dataset, as_schedule, as_weights

_MIN_IMAGE_BYTES = 64 << 20  # of a new card image, which takes disk space as it fills
_MIB = 1 << 20
_RESERVED_BYTES = 4 * _MIB  # of a card: what precedes the tensors, with a margin


def train(
    schedule: Schedule | str | Path,
    connection: Connection,
    data: Data,
    *,
    epochs: int = 1,
    steps: int | None = None,
    seed: int = 0,
    weights: Weights | str | Path | None = None,
    first_step: int = 0,
    resume: bool = False,
    erase_card: bool = False,
    before_moving: Callable[[Weights, int], None] | None = None,
    on_step: OnStep | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Run:
    """Train on a board for `epochs` epochs or until step `steps`; for the rest see start_training.

    `on_step` is called after every step; when `stopped()` is true after a step, the run ends there.
    Raises Diverged if the loss or a parameter is not finite, LinkBroken if the board is gone.
    """
    schedule = as_schedule(schedule)
    dataset = _fitting_data(data, schedule.graph)
    last = last_step(dataset, schedule, epochs, steps)
    training = start_training(
        schedule, connection, dataset,
        seed=seed, weights=weights, first_step=first_step, resume=resume, erase_card=erase_card,
        before_moving=before_moving,
    )  # fmt: skip
    try:
        run = train_until(training, last, on_step, stopped)
    except Diverged:  # which has the run
        connection.written = (schedule.model.crc, training.committed)
        raise
    connection.written = (schedule.model.crc, training.committed)
    return run


def start_training(
    schedule: Schedule | str | Path,
    connection: Connection,
    data: Data,
    *,
    seed: int = 0,
    weights: Weights | str | Path | None = None,
    first_step: int = 0,
    resume: bool = False,
    erase_card: bool = False,
    before_moving: Callable[[Weights, int], None] | None = None,
) -> Training:
    """Bring schedule and starting weights to a board; see Training.

    `schedule` may be a .poet file, `weights` a .safetensors file; `data`: see inputs. Raises
    BadInput if the card holds weights that this would lose, unless `erase_card`.
    """
    schedule = as_schedule(schedule)
    graph = schedule.graph
    dataset = _fitting_data(data, graph)
    given = None if weights is None else as_weights(weights, graph)
    check_training(
        schedule, connection, dataset,
        seed=seed, weights=given, first_step=first_step, resume=resume, erase_card=erase_card,
    )  # fmt: skip
    if erase_card:
        connection.device.format()
    rescue = before_moving or Rescue(graph)
    try:
        training = Training(
            connection.device,
            connection.board,
            schedule,
            dataset,
            seed=seed,
            weights=given,
            first_step=first_step,
            resume=resume,
            classes=classes_of_weights(given),
            before_moving=rescue,
        )
    except BaseException as error:
        if isinstance(rescue, Rescue):
            rescue.name_in(error)
        raise
    if isinstance(rescue, Rescue):
        rescue.remove()
    return training


class Rescue:
    """A file for weights while they move on a card, which then has none that are whole.

    Without a `path` the file is temporary. `report` is called with a sentence about it.
    """

    def __init__(
        self,
        graph: Graph,
        path: Path | None = None,
        report: Callable[[str], object] = lambda text: None,
    ) -> None:
        self._graph, self._path, self._report = graph, path, report
        self._is_temporary = path is None
        self._step: int | None = None  # of the weights that are in the file

    def __call__(self, weights: Weights, step: int) -> None:
        if self._path is None:
            handle, name = mkstemp(prefix="poet-weights-", suffix=".safetensors")
            os.close(handle)
            self._path = Path(name)
        save_weights(self._path, self._graph, weights, step)
        self._step = step
        self._report(f"the weights of step {step} are saved in {self._path}, and move on the card")

    def name_in(self, error: BaseException) -> None:
        """Let an error say where the weights are, if they had begun to move."""
        if self._step is not None:
            error.args = (
                f"{error}; the card may have lost the weights of step {self._step}. Go on with "
                f"--resume and --load-weights, and save to another file: they are in {self._path}",
            )

    def remove(self) -> None:
        """The weights have moved: a temporary file is needed no more."""
        if self._is_temporary and self._path is not None:
            self._path.unlink(missing_ok=True)


def check_training(
    schedule: Schedule,
    connection: Connection,
    dataset: Dataset,
    *,
    seed: int = 0,
    weights: Weights | None = None,
    first_step: int = 0,
    resume: bool = False,
    erase_card: bool = False,
) -> int | None:
    """Raise BadInput for what start_training refuses, before anything is written or erased.

    That is also a card with weights that would be lost. Not lost are those that training begins
    with (`resume`), and those that this connection has trained, which its caller has. Where it goes
    on from a file, after `first_step` steps, weights of the same model are replaced: then the
    result is the step of those on the card.
    """
    check_seed(seed)
    if not 0 <= first_step < NOTHING_COMMITTED:
        raise BadInput(f"first_step {first_step}: give the number of steps that are done")
    graph, device = schedule.graph, connection.device
    if resume:
        found = held(device)
        if found is None:
            raise nothing_held(graph)
        fit_named(dataset, graph, found.note.classes if found.note else NO_NAMES)
        return None
    fit_named(dataset, graph, classes_of_weights(weights), is_trained=weights is not None)
    starting_values(graph, seed, weights)
    if erase_card:
        return None
    return check_replaceable(device, schedule, connection.written, first_step)


def last_step(dataset: Dataset, schedule: Schedule, epochs: int, steps: int | None) -> int:
    """The step at which training for `epochs` epochs or until step `steps` ends."""
    count, what = (epochs, "epochs") if steps is None else (steps, "steps")
    if not isinstance(count, int) or count < 1:
        raise BadInput(f"{count!r} {what}: give a whole number from 1")
    return epochs * steps_per_epoch(dataset, schedule.graph.batch) if steps is None else steps


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
    """Loss and accuracy, computed on the board, of `weights` or of those that it has committed.

    Of the samples held out, or of the training samples where none are or `half` says so; of the
    first `samples` of them. Changes nothing that is committed.
    """
    schedule = as_schedule(schedule)
    graph = schedule.graph
    dataset = as_dataset(data)
    classes = NO_NAMES
    if weights is None:
        found = resumed(connection.device, schedule)
        weights, classes = found.weights or read_weights(connection.device, schedule), found.classes
    given = as_weights(weights, graph)
    dataset = fit_named(dataset, graph, classes or classes_of_weights(given))
    return evaluate_on(
        connection.device, connection.board, graph, given, dataset, half, samples, progress
    )


def write_card(
    schedule: Schedule | str | Path,
    connection: Connection,
    data: Data,
    *,
    epochs: int = 1,
    steps: int | None = None,
    seed: int = 0,
    weights: Weights | str | Path | None = None,
    first_step: int = 0,
    resume: bool = False,
    erase_card: bool = False,
    progress: Progress | None = None,
) -> JobState:
    """Put on a board's card what it needs to train alone until step `steps`, or for `epochs`
    epochs: schedule, starting weights and data. The other options are as train's.

    The board begins when it is switched on and no host speaks to it. Raises BadInput if the data
    does not fit, nothing is left to train, or the card holds weights that this would lose (unless
    `erase_card`).
    """
    schedule = as_schedule(schedule)
    graph, device = schedule.graph, connection.device
    dataset = _fitting_data(data, graph)
    last = last_step(dataset, schedule, epochs, steps)
    given = None if weights is None else as_weights(weights, graph)
    check_training(
        schedule, connection, dataset,
        seed=seed, weights=given, first_step=first_step, resume=resume, erase_card=erase_card,
    )  # fmt: skip
    first, names = first_step, classes_of_weights(given)
    if resume:
        found = resumed(device, schedule)
        first, names = found.step, found.classes
        if found.weights is not None:
            raise BadInput(
                "the card has another layout than this schedule. First go on with `train --resume` "
                "for a step, which writes the weights again"
            )
    if first >= last:
        raise BadInput(f"nothing is left to train: step {first} is done, {last} is the last one")
    is_trained = resume or given is not None
    dataset = fit_named(dataset, graph, names, is_trained=is_trained)
    job = make_job(schedule, dataset, seed, first, last - first)
    if erase_card:
        device.format()
    if not resume:
        load_schedule(device, schedule)
    check_room(device, job)
    take_up(device, schedule, dataset, seed, given, first, resume, names)
    write_job(device, job, progress)
    state = read_job(device)
    assert state is not None
    return replace(state, classes=dataset.classes or names)


def card_image_bytes(schedule: Schedule, dataset: Dataset, seed: int, first: int, last: int) -> int:
    """Bytes of a new card image for a job that trains steps `first` + 1 to `last`."""
    job = make_job(schedule, dataset, seed, first, last - first)
    needed = _RESERVED_BYTES + 512 * schedule.model.data_blocks + job.size_bytes
    return max(_MIN_IMAGE_BYTES, -(-needed // _MIB) * _MIB)


def read_card(
    schedule: Schedule | str | Path, connection: Connection
) -> tuple[JobState | None, Weights]:
    """How far a board has come alone, with the losses of its steps, and its weights."""
    schedule = as_schedule(schedule)
    device = connection.device
    found = resumed(device, schedule)
    weights = found.weights or SavedWeights(read_weights(device, schedule), found.classes)
    return read_job(device), weights


def _fitting_data(data: Data, graph: Graph) -> Dataset:
    return fit(as_dataset(data), graph)
