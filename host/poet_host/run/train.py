"""The training loop: run the steps of a schedule on a board, then read the weights.

The board commits the steps whose numbers are multiples of the plan's `commit_every`, so its storage
always holds the weights of the last committed step. A board without a card commits on request. A
resumed run continues from the committed weights.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from ..card.card import read_weights, resumed, storage_info
from ..card.card_device import AnyCard
from ..card.note import write_note
from ..card.weights import SavedWeights, facts_of_weights
from ..data.datasets import check_seed
from ..data.facts import DataFacts
from ..data.fitted import FittedData, adapted, batch_of_step
from ..device.device import NOTHING_COMMITTED, TENSOR, Device
from ..device.health import reset_text
from ..errors import BadInput, BoardError, LinkBroken, PoetError, PoetWarning
from ..graph.weights import Array, Weights, starting_values
from ..profile.profile import board_power
from ..schedule.schedule import Schedule
from .energy import mean_energy_uj, planned_part
from .run import Commit, Ended, Run, Step, timed
from .trace import Trace

COMMIT_EVERY = 100
"""Steps from one commit to the next, without storage.

Flash endures 10,000 erases (nRF52840) or 25,000 (SAM D21). With three slots, that is 3 million
steps or more.
"""
MOST_RETURNS = 3  # to one committed step, before a board that is reset again ends the run
Batch = tuple[tuple[int, bytes], ...]
"""Numbers of tensors, and the bytes of each."""
OnStep = Callable[[Step, int], None]
"""A callback after every step, with the step and the number of the last step."""
BeforeMoving = Callable[[Weights, int], None]
"""A callback with the weights of a card and their step, before they are written in another layout.
"""


class Diverged(PoetError):
    """The loss of step `step`, or a parameter after this step, was not finite.

    `run` has the weights of the last committed step, and the results of all steps up to that step.
    """

    def __init__(self, step: int, run: Run, held: int) -> None:
        super().__init__(
            f"training diverged at step {step}: the loss or a parameter is not finite. The last "
            f"committed weights are those of step {held}. Lower the learning rate (--lr), or "
            "normalise the data (--normalize standard)"
        )
        self.step, self.run = step, run


@dataclass(frozen=True)
class StartingPoint:
    """The weights from which training starts. Raises BadInput if a number is out of range."""

    seed: int = 0  # seed of new weights, and of the order of samples
    # First values of weights, by node name. Weights without an entry get new values.
    weights: Weights | None = field(default=None, repr=False)
    first_step: int = 0  # number of steps that `weights` have been trained for
    resume: bool = False  # True: start from the weights that the board has committed

    def __post_init__(self) -> None:
        check_seed(self.seed)
        if not 0 <= self.first_step < NOTHING_COMMITTED:
            raise BadInput(
                f"`first_step` ({self.first_step}) is out of range: pass the number of steps that "
                "the weights were trained for"
            )
        if self.first_step and self.weights is None:
            raise BadInput(
                f"`first_step` ({self.first_step}) is given without `weights`: pass the weights "
                "that were trained for so many steps, or omit `first_step`"
            )
        if self.resume and self.weights is not None:
            raise BadInput("a resumed run starts from the weights on the board: omit `weights`")

    @property
    def facts(self) -> DataFacts:
        """Return what `weights` keep of the data that they were trained with."""
        return facts_of_weights(self.weights)


class Training:
    """A run in progress: call `step` for each step, then `finish`.

    Several runs may take turns if each has its own board. If the card has the same model in another
    layout, `before_moving` is called, and then the weights are written in the new layout.

    A schedule without storage keeps the weights in RAM. The board then commits them after every
    `commit_every` steps, and at the end. If the power fails, the steps since then are lost.
    """

    def __init__(
        self,
        device: Device,
        schedule: Schedule,
        data: FittedData,
        start: StartingPoint | None = None,
        before_moving: BeforeMoving | None = None,
        commit_every: int = COMMIT_EVERY,
    ) -> None:
        start = start or StartingPoint()
        self.device, self.schedule, self.graph = device, schedule, schedule.graph
        self.seed, self.power = start.seed, board_power(device.board, schedule.model.storage)
        device.tensor_names = schedule.names
        self.data, self.committed = prepare_board(device, schedule, data, start, before_moving)
        self._first = self.saved = self.committed  # `saved`: last step that survives a power cut
        self.commit_every = schedule.header.commit_every if schedule.model.storage else commit_every
        self._lost_at: int | None = None  # step at which the board last went back
        self._returns = (0, 0)  # the committed step that the board last returned to, how often
        self.commits: list[Commit] = []
        self.done: list[Step] = []
        self.trace = Trace(schedule, self.graph, device.info.trace_capacity)
        self._loads = device.loads  # before each step, those of the device must be as many
        self._sent: int | None = None  # the step whose batch the board has received
        self._refused: BoardError | None = None  # why the board did not take the next batch

    def step(self, *, more: bool = False) -> Step:
        """Train one batch and return the measured step.

        If `more` is True, the next batch is sent while the board computes this step. If the board
        refuses the next batch, BoardError is raised after this step. Raises LinkBroken if the board
        no longer answers. If Diverged is raised, the last committed step stays committed. If the
        board was reset, or has lost a page of a step that follows uncommitted ones, the step after
        the last committed one is trained. PoetWarning says why. If this happens more than three
        times after the same committed step, BoardError is raised.
        """
        while True:
            try:
                return self._step(more=more)
            except BoardError as error:
                if not self._continues_after(error):
                    raise

    def _continues_after(self, error: BoardError) -> bool:
        """Go back to the committed step, if the board was reset or can compute its steps again.

        A board that has lost its schedule was reset.
        """
        info = self.device.hello()
        why = str(error)
        if not self.saved <= info.committed_step <= self.committed + 1:
            return False
        if not info.loaded_plan:
            why = reset_text(self.device.health())
            load_schedule(self.device, self.schedule)
        elif error.name != "page_damaged" or not self._can_go_back():
            return False
        at, count = self._returns
        count = count + 1 if at == info.committed_step else 1
        self._returns = info.committed_step, count
        if count > MOST_RETURNS:
            raise BoardError(
                f"{why}. The board has returned to step {info.committed_step} {count} times "
                "without a later commit: check its power and its card, or let it commit more "
                "often, then continue with --resume",
                error.name,
                error.detail,
            ) from error
        warnings.warn(
            f"{why}. Training continues after step {info.committed_step}", PoetWarning, stacklevel=3
        )
        self._go_back(min(int(info.committed_step), self.committed))
        return True

    def _go_back(self, step: int) -> None:
        self.committed = self.saved = step
        self.done = self.done[: max(0, step - self._first)]
        self._sent = None

    def _can_go_back(self) -> bool:
        """Return whether the board cannot repeat the step itself, and has not failed at it before.

        It cannot if the step before is not committed, or if it has a batch in RAM only.
        """
        header, at = self.schedule.header, self.committed
        is_first, self._lost_at = at != self._lost_at, at
        return (
            is_first and self.schedule.model.storage and (at > self.saved or header.home_count > 0)
        )

    def _find_saved(self) -> None:
        """Note the committed step with `_keep`, if weights were read after the last step.

        To read them, the board has committed its steps and loaded schedules. It needs a new batch.
        """
        if self._loads != self.device.loads:
            self._loads, self._sent = self.device.loads, None
            self._keep(int(self.device.hello().committed_step))

    def _keep(self, step: int) -> None:
        """Note the committed step. Raises BoardError if it is before the last step."""
        self.saved = step
        if step < self.committed:
            raise BoardError(
                f"the board has kept step {step:,}, but not step {self.committed:,}: it was reset, "
                "or its storage failed. Continue with --resume", "wrong_step", step,
            )  # fmt: skip

    def _step(self, *, more: bool) -> Step:
        device, step = self.device, self.committed
        self._find_saved()
        self._refused = None
        # Prepare the next batch now: while a step runs, the board may wait for the batch to arrive.
        following = self._batch(step + 1) if more else ()
        meanwhile = (lambda: self._send_ahead(step + 1, following)) if more else None
        try:
            if self._sent != step:
                self._send(step, self._batch(step))
            result = device.step(step + 1, *self.trace.window(step), meanwhile)
            self.trace.add(device.trace())
        except BoardError as error:
            if error.name != "not_finite":
                raise
            raise Diverged(step + 1, self.finish("not_finite"), self.saved) from error
        except LinkBroken as error:
            may_commit = self.schedule.model.storage and (step + 1) % self.commit_every == 0
            raise self._unlinked(error, step + 1 if may_commit else None) from error
        self.done.append(_step(device, result))
        self.committed += 1
        if self.committed % self.commit_every == 0:
            if self.schedule.model.storage:
                self.saved = self.committed
            else:
                self.save()
        if self._refused is not None:
            raise self._refused
        return self.done[-1]

    def _batch(self, step: int) -> Batch:
        x, y = batch_of_step(self.data, self.graph.batch, self.seed, step)
        numbers = self.schedule.numbers
        return (numbers[self.graph.data], x.tobytes()), (numbers[self.graph.label], y.tobytes())

    def _send(self, step: int, batch: Batch) -> None:
        self._sent = None
        for number, data in batch:
            tensor = self.schedule.model.tensors[number]
            self.device.write(TENSOR, number, tensor.in_order(data))
        self._sent = step

    def _send_ahead(self, step: int, batch: Batch) -> None:
        try:
            self._send(step, batch)
        except BoardError as error:
            if error.name != "busy":  # busy: the board has no space yet; send the batch later
                self._refused = error

    def save(self) -> None:
        """Let the board commit the last step. Raises BoardError if the board has lost steps."""
        self._find_saved()
        if self.saved == self.committed:
            return
        try:
            saved = self.device.save()
        except LinkBroken as error:
            raise self._unlinked(error, self.committed) from error
        self._keep(saved.step)
        if not self.schedule.model.storage:
            self.commits.append(Commit(saved.step, self.device.us(saved.ticks), saved.erases))

    def _unlinked(self, error: LinkBroken, other: int | None) -> LinkBroken:
        """Add to an error which weights the board holds: those of `other`, if it has saved them."""
        held = f"{self.saved}" if other is None else f"{self.saved} or {other}"
        return LinkBroken(
            f"{error}. The storage of the board holds the weights of step {held}: connect the "
            "board again and train with --resume"
        )

    def weights(self) -> SavedWeights:
        """Commit the weights on the board, and read them."""
        self.save()
        return SavedWeights(read_weights(self.device, self.schedule), self.data.facts)

    def finish(self, ended: Ended = "done") -> Run:
        """Read the weights from the board, and return them with all measurements.

        After a step with a loss that is not finite, they are those of the last committed step.
        """
        if ended == "not_finite":
            self._go_back(self.saved)
        weights = self.weights()
        planned_uj = [planned_part(step, self.power)[1] for step in timed(self.done)]
        energy = mean_energy_uj(self.done, self.commits, self.power) if planned_uj else (None, None)
        plan = self.schedule.meta["plan"]
        return Run(
            model=self.graph.name,
            board=self.device.board.name,
            data=self.data.name,
            seed=self.seed,
            batch=self.graph.batch,
            plan_crc=self.schedule.solved_crc,
            schedule_bytes=len(self.schedule.plan_part),
            ended=ended,
            steps=tuple(self.done),
            commits=tuple(self.commits),
            card_khz=int(self.device.health().card_khz),
            commit_every=self.commit_every,
            trace=self.trace.traced(self.device),
            energy_uj=energy[0],
            total_energy_uj=energy[1],
            deadline_us=plan.get("deadline_us"),
            predicted_time_us=plan.get("time_us"),
            predicted_energy_uj=plan.get("energy_uj"),
            measured_energy_uj=fmean(planned_uj) if planned_uj else None,
            weights=weights,
            classes=self.data.classes,
        )


def train(
    training: Training,
    steps: int,
    on_step: OnStep | None = None,
    stopped: Callable[[], bool] = lambda: False,
    is_final: Callable[[], bool] = lambda: False,
) -> Run:
    """Train until the board has committed `steps` steps.

    If `stopped()` is true after a step, the run ends there as "interrupted". If `is_final()` is
    true before a step, it ends as "no_improvement".
    """
    while training.committed < steps:
        if is_final():
            return training.finish("no_improvement")
        step = training.step(more=training.committed + 1 < steps)
        if on_step:
            on_step(step, steps)
        if stopped() and training.committed < steps:
            return training.finish("interrupted")
    return training.finish()


def prepare_board(
    device: AnyCard,
    schedule: Schedule,
    data: FittedData,
    start: StartingPoint,
    before_moving: BeforeMoving | None = None,
) -> tuple[FittedData, int]:
    """Load the schedule, and let the board commit the weights that training starts from.

    Returns the data set, with classes and normalisation of the weights, and the committed step.
    """
    if not start.resume:
        data = adapted(data, start.facts, is_trained=start.weights is not None)
        is_new = not start.first_step
        values = starting_values(schedule.graph, start.seed, start.weights, is_new=is_new)
        _commit(device, schedule, values, start.first_step, data.facts)
        return data, start.first_step
    found = resumed(device, schedule)
    data = adapted(data, found.facts)
    if found.weights is not None:
        if before_moving:
            before_moving(found.weights, found.step)
        values = starting_values(schedule.graph, start.seed, found.weights)
        _commit(device, schedule, values, found.step, data.facts)
    elif data.facts != found.facts:
        write_note(device, schedule, data.facts)
        load_schedule(device, schedule)
    return data, found.step


def load_schedule(device: AnyCard, schedule: Schedule) -> None:
    """Send the schedule to a board that has storage. The weights on its storage do not change."""
    storage_info(device)
    device.load(schedule.model_part, schedule.plan_part)


def _commit(
    device: AnyCard, schedule: Schedule, values: Mapping[str, Array], step: int, facts: DataFacts
) -> None:
    storage_info(device)
    write_note(device, schedule, facts)
    load_schedule(device, schedule)
    for name, number in schedule.numbers.items():
        if name in values:
            tensor = schedule.model.tensors[number]
            device.write(TENSOR, number, tensor.in_order(values[name].tobytes()))
    device.begin(step)


def _step(device: Device, result: Any) -> Step:
    """Return a poet_step_result as a Step. Its `x_ticks` become `x_us`."""
    row = result._asdict()
    del row["trace_records"]
    row["time_ticks"] = row.pop("ticks")
    for name in [name for name in row if name.endswith("_ticks")]:
        row[name.replace("_ticks", "_us")] = device.us(row.pop(name))
    return Step(**row)
