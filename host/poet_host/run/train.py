"""The training loop: a schedule, a data set and a board, and in the end the weights.

The board commits every step, so whatever happens here, its storage holds the weights of
the last step that ended; `resume` goes on from them.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..device.board import Board
from ..device.device import NOTHING_COMMITTED, TENSOR, Device, board_error
from ..errors import BadInput, BoardError, LinkBroken, PoetError
from ..graph.graph import Graph, Node
from ..graph.weights import start_values
from ..schedule.recover import graph_of
from ..schedule.schedule import Schedule
from .data import Dataset, batch_of_step, fit
from .run import Array, Ended, Run, Step, Weights
from .trace import Trace, energy_uj

OnStep = Callable[[Step, int], None]
"""Called after every step with it and the number of the last one."""


class NotFinite(PoetError):  # noqa: N818 (as in errors.py)
    """The loss was NaN or infinite. `run` has the weights of the last good step."""

    def __init__(self, message: str, run: Run) -> None:
        super().__init__(message)
        self.run = run


def train(
    device: Device,
    board: Board,
    schedule: Schedule,
    dataset: Dataset,
    *,
    steps: int,
    seed: int = 0,
    weights: Weights | None = None,
    resume: bool = False,
    on_step: OnStep | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Run:
    """Train until `steps` steps are committed on the board, and read the weights back.

    Batches follow from (seed, step). Starting weights are `weights` (by node name; missing
    ones and momentum start as the graph says) or, with `resume`, those that the board has
    committed. When `stopped()` is true after a step, the run ends there as "interrupted".
    Raises NotFinite when the loss is no number, LinkBroken when the board is gone.
    """
    graph = graph_of(schedule)
    data = fit(dataset, graph)
    info = device.hello()
    if info.storage_status:
        raise board_error(info.storage_status, 0, "to train")
    device.load(schedule.model_part, schedule.plan_part)
    first = _resumed(device, schedule) if resume else _begin(device, graph, schedule, seed, weights)
    numbers = {name: number for number, name in enumerate(schedule.names)}
    trace = Trace(schedule, graph, info.trace_capacity)
    done: list[Step] = []
    ended: Ended = "done"
    problem = ""
    try:
        for step in range(first, steps):
            x, y = batch_of_step(data, graph.batch, seed, step)
            device.write(TENSOR, numbers[graph.data], x.tobytes())
            device.write(TENSOR, numbers[graph.label], y.tobytes())
            window = trace.window(step)
            result = device.step(step + 1, *window)
            trace.add(device.trace())
            done.append(_step(device, result))
            if on_step:
                on_step(done[-1], steps)
            if stopped() and step + 1 < steps:
                ended = "interrupted"
                break
    except BoardError as error:
        if error.name != "not_finite":
            raise
        ended, problem = "not_finite", str(error)
    except LinkBroken as error:
        kept = first + len(done)
        raise LinkBroken(
            f"{error}; the weights of step {kept} or {kept + 1} are safe on the board's storage: "
            "connect it again and train with --resume"
        ) from error
    traced = trace.traced(device)
    energy = energy_uj(traced, done, board) if trace.is_complete else None
    run = Run(
        model=graph.name,
        board=board.name,
        data=data.name,
        seed=seed,
        batch=graph.batch,
        plan_crc=schedule.header.crc,
        schedule_bytes=len(schedule.plan_part),
        ended=ended,
        steps=tuple(done),
        trace=traced,
        energy_uj=energy and energy[0],
        total_energy_uj=energy and energy[1],
        weights=read_weights(device, schedule),
    )
    if ended == "not_finite":
        raise NotFinite(f"step {first + len(done) + 1}: {problem}", run)
    return run


def _resumed(device: Device, schedule: Schedule) -> int:
    info = device.hello()
    if info.committed_step == NOTHING_COMMITTED or info.committed_model != schedule.model.crc:
        raise BadInput(
            f"the board's storage holds no trained weights of {schedule.meta['graph']['name']} as "
            "this schedule has it: train without --resume"
        )
    return int(info.committed_step)


def _begin(
    device: Device, graph: Graph, schedule: Schedule, seed: int, weights: Weights | None
) -> int:
    """Write what every parameter and state starts with; the board commits it as step 0."""
    values = starting_values(graph, seed, weights)
    for number, name in enumerate(schedule.names):
        if name in values:
            device.write(TENSOR, number, values[name].tobytes())
    device.begin(0)
    return 0


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
        peak_bytes=result.peak_bytes,
    )
