"""The training loop: a schedule, a data set and a board, and in the end the weights.

The board commits every step, so whatever happens here, its storage holds the weights of
the last step that ended; `resume` goes on from them.
"""

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import numpy as np

from ..device.board import Board
from ..device.device import NOTHING_COMMITTED, TENSOR, Device, board_error
from ..errors import BadInput, BoardError, LinkBroken, PoetError
from ..graph.graph import Graph, Node
from ..graph.weights import start_values
from ..profile.profile import board_power
from ..schedule.recover import graph_of
from ..schedule.schedule import Schedule
from .data import Dataset, batch_of_step, fit
from .energy import energy_uj
from .run import Array, Ended, Run, Step, Weights
from .trace import Trace

Batch = tuple[tuple[int, bytes], ...]
"""Numbers of tensors, and what they hold."""
OnStep = Callable[[Step, int], None]
"""Called after every step with it and the number of the last one."""


class NotFinite(PoetError):
    """The loss was NaN or infinite. `run` has the weights of the last good step."""

    def __init__(self, message: str, run: Run) -> None:
        super().__init__(message)
        self.run = run


class Training:
    """A run in progress: one `step()` after the other, then `finish()`.

    Batches follow from (seed, step). Starting weights are `weights` (by node name; missing
    ones and momentum start as the graph says), as they are after `first_step` steps, or, with
    `resume`, those that the board has committed. Two of them may take turns, each on a board of
    its own.
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
    ) -> None:
        if resume and weights is not None:
            raise BadInput("a resumed run goes on from the board's weights: give it no others")
        self.device, self.board, self.schedule, self.seed = device, board, schedule, seed
        self.power = board_power(board)
        self.graph = graph_of(schedule)
        self.data = fit(dataset, self.graph)
        if resume:
            self.committed = resumed(device, schedule)
        else:
            self.committed = begin(device, self.graph, schedule, seed, weights, first_step)
        self.done: list[Step] = []
        self._sent: int | None = None  # the step whose batch the board has
        self._refused: BoardError | None = None  # what it said of the next one
        self._numbers = {name: number for number, name in enumerate(schedule.names)}
        self.trace = Trace(schedule, self.graph, device.info.trace_capacity)

    def step(self, *, more: bool = False) -> Step:
        """Train one batch. Raises NotFinite, LinkBroken; the step before stays committed.

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
            raise NotFinite(f"step {step + 1}: {error}", self.finish("not_finite")) from error
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
            weights=read_weights(self.device, self.schedule),
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


def resumed(device: Device, schedule: Schedule) -> int:
    """Load the schedule, to go on with what the board has committed: after which step.

    Raises BadInput if it has committed nothing, or another model.
    """
    info = _with_storage(device)
    if info.committed_step == NOTHING_COMMITTED or info.committed_model != schedule.model.crc:
        raise BadInput(
            f"the board's storage holds no trained weights of {schedule.meta['graph']['name']} as "
            "this schedule has it: name the schedule that trained them, or train anew"
        )
    device.load(schedule.model_part, schedule.plan_part)
    return int(info.committed_step)


def load(device: Device, schedule: Schedule) -> None:
    """Bring the schedule to a board that has storage; weights stay as they are."""
    _with_storage(device)
    device.load(schedule.model_part, schedule.plan_part)


def begin(
    device: Device,
    graph: Graph,
    schedule: Schedule,
    seed: int,
    weights: Weights | None,
    step: int,
) -> int:
    """Load the schedule and write what every parameter and state starts with: those of `step`."""
    load(device, schedule)
    values = starting_values(graph, seed, weights)
    for number, name in enumerate(schedule.names):
        if name in values:
            device.write(TENSOR, number, values[name].tobytes())
    device.begin(step)
    return step


def _with_storage(device: Device) -> Any:
    info = device.hello()
    if info.storage_status:
        raise board_error(info.storage_status, 0, "to use its card")
    return info


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


def read_weights(device: Device, schedule: Schedule) -> dict[str, Array]:
    """All parameters and states of the last committed step, by node name."""
    return {
        node.name: _values(node, device.read(TENSOR, number, node.size_bytes))
        for number, node in enumerate(graph_of(schedule).nodes)
        if node.role in ("parameter", "state")
    }


def _values(node: Node, data: bytes) -> Array:
    return np.frombuffer(data, dtype="<f4").reshape(node.shape)


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
        peak_bytes=result.peak_bytes,
    )
