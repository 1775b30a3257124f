"""The training loop: a schedule, a data set and a board, and in the end the weights.

The board commits every step, so whatever happens here, its storage holds the weights of
the last step that ended; `resume` goes on from them.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from ..data.classes import NO_NAMES, Classes
from ..data.datasets import Dataset, batch_of_step, fit_named
from ..device.board import Board
from ..device.device import TENSOR, Device
from ..errors import BadInput, BoardError, LinkBroken, PoetError
from ..graph.graph import Graph
from ..graph.weights import start_values
from ..profile.profile import board_power
from ..schedule.schedule import Schedule
from .card import read_weights, resumed, storage_info, write_note
from .energy import energy_uj, planned_part
from .run import Array, Ended, Run, Step, Weights
from .trace import Trace
from .weights import SavedWeights

Batch = tuple[tuple[int, bytes], ...]
"""Numbers of tensors, and what they hold."""
OnStep = Callable[[Step, int], None]
"""Called after every step with it and the number of the last one."""


class Diverged(PoetError):
    """The loss of step `step`, or a parameter after it, was not finite. The board committed the
    step before; `run` has its weights, and the steps that were made.
    """

    def __init__(self, step: int, run: Run) -> None:
        super().__init__(
            f"training diverged at step {step}: the loss or a parameter is not finite. Lower the "
            "learning rate (--lr), or normalise the data (--normalize standard)"
        )
        self.step, self.run = step, run


class Training:
    """A run in progress: one `step()` after the other, then `finish()`.

    Batches follow from (seed, step). Starting weights are `weights` (by node name; missing
    ones and momentum start as the graph says), as they are after `first_step` steps, or, with
    `resume`, those that the board has committed. Two of them may take turns, each on a board of
    its own. `classes` are the names that `weights` were trained with, if any.

    Where the card has the same model in another layout, `before_moving` is called with its weights
    and step before they are written again.
    """

    def __init__(
        self,
        device: Device,
        board: Board,
        schedule: Schedule,
        dataset: Dataset,
        *,
        seed: int = 0,
        weights: Weights | None = None,
        first_step: int = 0,
        resume: bool = False,
        classes: Classes = NO_NAMES,
        before_moving: Callable[[Weights, int], None] | None = None,
    ) -> None:
        if resume and weights is not None:
            raise BadInput("a resumed run goes on from the board's weights: give it no others")
        self.device, self.board, self.schedule, self.seed = device, board, schedule, seed
        self.power = board_power(board)
        self.graph = schedule.graph
        self.data, self.committed = take_up(
            device, schedule, dataset, seed, weights, first_step, resume, classes, before_moving
        )
        self.classes = self.data.classes
        self.done: list[Step] = []
        self._sent: int | None = None  # the step whose batch the board has
        self._refused: BoardError | None = None  # what it said of the next one
        self._numbers = {name: number for number, name in enumerate(schedule.names)}
        self.trace = Trace(schedule, self.graph, device.info.trace_capacity)

    def step(self, *, more: bool = False) -> Step:
        """Train one batch. Raises Diverged, LinkBroken; the step before stays committed.

        If `more` steps follow, the next batch is sent while the board computes this one; raises
        BoardError, when this one is done, if the board could not take it.
        """
        device, step = self.device, self.committed
        self._refused = None
        # Before the step: a board may wait for what it is asked to take meanwhile.
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
            raise Diverged(step + 1, self.finish("not_finite")) from error
        except LinkBroken as error:
            raise LinkBroken(
                f"{error}; the weights of step {step} or {step + 1} are safe on the board's "
                "storage: connect it again and train with --resume"
            ) from error
        self.done.append(_step(device, result))
        self.committed += 1
        if self._refused is not None:
            raise self._refused
        return self.done[-1]

    def _batch(self, step: int) -> Batch:
        x, y = batch_of_step(self.data, self.graph.batch, self.seed, step)
        numbers = self._numbers
        return (numbers[self.graph.data], x.tobytes()), (numbers[self.graph.label], y.tobytes())

    def _send(self, step: int, batch: Batch) -> None:
        self._sent = None
        for number, data in batch:
            self.device.write(TENSOR, number, data)
        self._sent = step

    def _send_ahead(self, step: int, batch: Batch) -> None:
        try:
            self._send(step, batch)
        except BoardError as error:
            if error.name != "busy":  # as where inputs have one slot: they go between the steps
                self._refused = error

    def finish(self, ended: Ended = "done") -> Run:
        """Read the weights back, and put together what was measured."""
        traced = self.trace.traced(self.device)
        energy = [energy_uj(step, self.power) for step in self.done]
        planned = [planned_part(step, self.power) for step in self.done]
        plan = self.schedule.meta["plan"]
        return Run(
            model=self.graph.name,
            board=self.board.name,
            data=self.data.name,
            seed=self.seed,
            batch=self.graph.batch,
            plan_crc=self.schedule.header.crc,
            schedule_bytes=len(self.schedule.plan_part),
            ended=ended,
            steps=tuple(self.done),
            trace=traced,
            energy_uj=median(above for above, _ in energy) if energy else None,
            total_energy_uj=median(total for _, total in energy) if energy else None,
            deadline_us=plan.get("deadline_us"),
            predicted_time_us=plan.get("time_us"),
            predicted_energy_uj=plan.get("energy_uj"),
            measured_time_us=median(time_us for time_us, _ in planned) if planned else None,
            measured_energy_uj=median(uj for _, uj in planned) if planned else None,
            weights=SavedWeights(read_weights(self.device, self.schedule), self.classes),
            classes=self.classes,
        )


def train(
    training: Training,
    steps: int,
    on_step: OnStep | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Run:
    """Train until `steps` steps are committed on the board.

    When `stopped()` is true after a step, the run ends there as "interrupted".
    """
    while training.committed < steps:
        step = training.step(more=training.committed + 1 < steps)
        if on_step:
            on_step(step, steps)
        if stopped() and training.committed < steps:
            return training.finish("interrupted")
    return training.finish()


def take_up(
    device: Device,
    schedule: Schedule,
    dataset: Dataset,
    seed: int,
    weights: Weights | None,
    first_step: int,
    resume: bool,
    classes: Classes,
    before_moving: Callable[[Weights, int], None] | None = None,
) -> tuple[Dataset, int]:
    """Load the schedule and have the board commit what training starts with, as Training says.

    Returns the data set in the graph's types, its classes numbered as the weights know them, and
    the committed step.
    """
    graph = schedule.graph
    if not resume:
        data = fit_named(dataset, graph, classes, is_trained=weights is not None)
        data = replace(data, classes=data.classes or classes)
        begin(device, graph, schedule, seed, weights, first_step, data.classes)
        return data, first_step
    found = resumed(device, schedule)
    data = fit_named(dataset, graph, found.classes)
    names = data.classes or found.classes
    if found.weights is not None:
        if before_moving:
            before_moving(found.weights, found.step)
        begin(device, graph, schedule, seed, found.weights, found.step, names)
    elif names and not found.classes:
        write_note(device, graph, schedule, names)
        load(device, schedule)
    return replace(data, classes=names), found.step


def load(device: Device, schedule: Schedule) -> None:
    """Bring the schedule to a board that has storage; weights stay as they are."""
    storage_info(device)
    device.load(schedule.model_part, schedule.plan_part)


def begin(
    device: Device,
    graph: Graph,
    schedule: Schedule,
    seed: int,
    weights: Weights | None,
    step: int,
    classes: Classes = NO_NAMES,
) -> None:
    """Load the schedule and write what every parameter and state starts with: those of `step`."""
    values = starting_values(graph, seed, weights)
    storage_info(device)
    write_note(device, graph, schedule, classes)
    load(device, schedule)
    for number, name in enumerate(schedule.names):
        if name in values:
            device.write(TENSOR, number, values[name].tobytes())
    device.begin(step)


def starting_values(graph: Graph, seed: int, weights: Weights | None) -> Mapping[str, Array]:
    """Start values of all parameters and states, `weights` in place of those that it names.

    Raises BadInput for a name or shape that the graph does not have, or numbers not finite.
    """
    values = dict(start_values(graph, seed))
    for name, array in (weights or {}).items():
        if name not in values:
            raise BadInput(f"weights: {graph.name} has no parameter {name}; it has {_some(values)}")
        if array.shape != values[name].shape:
            raise BadInput(
                f"weights: {name} has shape {array.shape}, {graph.name} has {values[name].shape}"
            )
        if not np.isfinite(array).all():
            raise BadInput(f"weights: {name} of {graph.name} holds NaN or infinity")
        values[name] = np.ascontiguousarray(array, dtype=np.float32)
    return values


def _some(names: Mapping[str, Array]) -> str:
    return ", ".join(list(names)[:6]) + (", ..." if len(names) > 6 else "")


def _step(device: Device, result: Any) -> Step:
    return Step(
        step=result.step,
        loss=result.loss,
        time_us=device.us(result.ticks),
        compute_us=device.us(result.compute_ticks),
        transfer_us=device.us(result.transfer_ticks),
        commit_us=device.us(result.commit_ticks),
        asleep_us=device.us(result.asleep_ticks),
        reading_us=device.us(result.reading_ticks),
        writing_us=device.us(result.writing_ticks),
        serving_us=device.us(result.serving_ticks),
        overhead_asleep_us=device.us(result.overhead_asleep_ticks),
        overhead_reading_us=device.us(result.overhead_reading_ticks),
        overhead_writing_us=device.us(result.overhead_writing_ticks),
        peak_bytes=result.peak_bytes,
    )
