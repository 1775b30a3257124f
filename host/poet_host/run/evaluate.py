"""Loss and accuracy of trained weights, computed on a board or by the reference kernels.

On a board, the host starts each operator in the arena and serves as the storage. The card is not
used: an evaluation changes nothing that training has committed, and needs no card. Weights stay in
the arena if the arena has room for all of them.

If the forward pass does not fit the arena, the host computes it instead, with the same bits: on a
native board with enough RAM, or by the reference kernels if this computer runs no native board.
"""

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from ..baselines.registry import plan_by
from ..data.classes import NO_NAMES, Classes
from ..data.datasets import Dataset
from ..data.fitted import FittedData
from ..device.board import Board
from ..device.device import Device, Progress, connect
from ..errors import BadInput, PoetError, PoetWarning
from ..graph.graph import Graph, Node
from ..graph.weights import Array, Weights, weight_nodes
from ..plan.keepall import keep_everything
from ..plan.plan import Plan, Statement, start_offsets
from ..plan.pricing import cost_graph
from ..plan.problem import CostGraph, Problem
from ..profile.measure import probe_record
from ..profile.profile import estimate_profile
from ..reference.inference import inference, logits
from ..reference.step import run_kernel, run_step
from ..sim.native import NativeBoard
from ..solver.settings import Settings

PLANNING_LIMIT_S = 30.0
PLANNING_GAP = 0.5

Half = Literal["held-out", "training"]
Computer = Literal["board", "host"]


def accuracy(graph: Graph, weights: Weights, x: Array, y: Array) -> float:
    """Return the share of samples (0 to 1) whose label has the largest logit."""
    return share_right(logits(graph, weights, x), y)


def share_right(answers: Array, y: Array) -> float:
    """Return the share of samples (0 to 1) whose label has the largest logit in `answers`."""
    return float(np.mean(answers.reshape(*y.shape, -1).argmax(axis=-1) == y))


def held_out_accuracy(graph: Graph, weights: Weights, dataset: Dataset) -> float | None:
    """Return the accuracy on held-out samples.

    Return None if no samples are held out, or if labels are not classes.
    """
    if dataset.x_test is None or dataset.y_test is None or graph[graph.label].dtype != "int32":
        return None
    return accuracy(graph, weights, dataset.x_test, dataset.y_test)


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    `loss` is the mean over the samples. `accuracy` is None if labels are not classes. `time_us` is
    the time of all operators for all samples, by the board's clock. It is None if the host computed
    the result (`computed_on`). `answers` are the logits.
    """

    model: str
    board: str
    data: str
    half: Half
    samples: int
    loss: float
    accuracy: float | None
    time_us: float | None
    answers: Array = field(repr=False)
    classes: Classes = NO_NAMES
    computed_on: Computer = "board"

    def __repr__(self) -> str:
        right = "" if self.accuracy is None else f", accuracy {self.accuracy:.1%}"
        place = self.board if self.computed_on == "board" else "the host"
        return (
            f"<Evaluation {self.model} on {place}: {self.samples:,} samples, "
            f"loss {self.loss:.4f}{right}>"
        )

    def to_json(self) -> dict[str, Any]:
        names = [name for name in self.__dataclass_fields__ if name != "answers"]
        return {**{name: getattr(self, name) for name in names}, "classes": list(self.classes)}


def evaluate(
    device: Device,
    weights: Weights,
    data: FittedData,
    half: Half | None,
    samples: int | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Evaluate weights on a board, with the training samples or the held-out samples of `data`.

    `half` chooses between the two; half_of explains its default. Only the first `samples` of them
    are used, or all if `samples` is None. If the forward pass does not fit the board's arena, the
    host computes it, and a PoetWarning says so. Raises BadInput if there are no such samples, and
    PoetError if the loss is not finite.
    """
    if samples is not None and samples < 1:
        raise BadInput(f"{samples} samples cannot be evaluated: choose 1 sample or more")
    graph, half = data.graph, half_of(data, half)
    x, y = (data.x_test, data.y_test) if half == "held-out" else (data.x, data.y)
    assert x is not None
    assert y is not None
    x, y = x[:samples], y[:samples]
    _check_weights(graph, weights)
    answers, losses = [], []
    with _forward(device, inference(graph), weights) as forward:
        for start in range(0, len(x), graph.batch):
            part = slice(start, start + graph.batch)
            answer, loss = forward.run(x[part], y[part])
            answers.append(answer)
            losses.append(loss * len(answer))
            if progress:
                progress(min(start + graph.batch, len(x)), len(x))
    loss = sum(losses) / len(x)
    if not isfinite(loss):
        raise PoetError(
            f"the loss of {graph.name} on {data.name} is not finite: train the model with a lower "
            "learning rate, or check the data"
        )
    found = np.concatenate(answers)
    classes = graph[graph.label].dtype == "int32"
    on_board = isinstance(forward, _OnDevice) and forward.device is device
    return Evaluation(
        graph.name, device.board.name, data.name, half, len(x), loss,
        share_right(found, y) if classes else None,
        device.us(forward.ticks) if on_board else None, found, data.classes,
        "board" if on_board else "host",
    )  # fmt: skip


def _check_weights(graph: Graph, weights: Weights) -> None:
    for node in weight_nodes(graph):
        if node.name not in weights:
            raise BadInput(
                f"weights: {node.name} of {graph.name} is missing: use a file with all weights of "
                "the model"
            )
        if weights[node.name].shape != node.shape:
            raise BadInput(
                f"weights: {node.name} has shape {weights[node.name].shape}, but {graph.name} "
                f"needs shape {node.shape}: use weights of this model"
            )


def half_of(dataset: Dataset, half: Half | None) -> Half:
    """Return which samples of the data to use: "training" or "held-out".

    This is `half`, unless it is None. None means "held-out" if the data has held-out samples,
    otherwise "training". Raises BadInput if the data does not have the chosen samples.
    """
    if half not in (None, *get_args(Half)):
        raise BadInput(f"`half` ({half!r}) is unknown: choose one of {', '.join(get_args(Half))}")
    if dataset.x_test is not None:
        return half or "held-out"
    if half == "held-out":
        raise BadInput(f"data {dataset.name}: no samples are held out. Set --test-split")
    return "training"


def _with_all_weights(graph: Graph, board: Board) -> tuple[CostGraph, Plan]:
    """Plan the forward operators so that everything, with all weights, stays in the arena."""
    weights = {node.name for node in weight_nodes(graph)}
    costs = cost_graph(graph, estimate_profile(board), storage=False)
    costs = replace(
        costs, nodes=tuple(replace(node, keep=node.name in weights) for node in costs.nodes)
    )
    return costs, keep_everything(costs)


def _planned(
    graph: Graph, board: Board, arena_bytes: int, whole: tuple[CostGraph, Plan]
) -> tuple[CostGraph, Plan]:
    """Plan the forward operators within the arena. `whole` is the plan if it fits.

    The plan has no statements if no plan is found.
    """
    costs, plan = whole
    if (plan.peak_bytes or 0) > arena_bytes:
        costs = cost_graph(graph, estimate_profile(board))
        plan = keep_everything(costs)
    if (plan.peak_bytes or 0) > arena_bytes:
        settings = Settings(PLANNING_LIMIT_S, PLANNING_GAP)
        plan = plan_by("poet", Problem(costs, arena_bytes), settings)
    return costs, plan


@contextmanager
def _forward(
    device: Device, graph: Graph, weights: Weights
) -> Iterator["_OnDevice | _ByReference"]:
    """Yield what runs the forward part of a model: the board `device`, or the host."""
    arena_bytes = int(device.info.arena_bytes) // 4 * 4
    whole = _with_all_weights(graph, device.board)
    costs, plan = _planned(graph, device.board, arena_bytes, whole)
    if plan.statements:
        yield _OnDevice(device, graph, weights, costs, plan)
        return
    warnings.warn(
        f"the forward pass of {graph.name} does not fit the board's {arena_bytes:,} bytes of RAM: "
        "this computer evaluates it, to the same bits",
        PoetWarning,
        stacklevel=6,  # the line that calls poet.evaluate
    )
    costs, plan = whole
    assert plan.peak_bytes is not None
    with ExitStack() as stack:
        forward: _OnDevice | _ByReference
        try:
            board = stack.enter_context(NativeBoard(Path(os.devnull), plan.peak_bytes))
            native = stack.enter_context(connect(board.port))
        except PoetError:  # on Windows, or without a C compiler
            forward = _ByReference(graph, weights)
        else:
            forward = _OnDevice(native, graph, weights, costs, plan)
        yield forward


def _filled(count: int, batch: int) -> Array:
    """Return the indices of `count` samples, filled up to a batch with the first one."""
    return np.concatenate([np.arange(count), np.zeros(batch - count, dtype=np.intp)])


def _of_samples(node: Node, count: int, batch: int) -> Node:
    """Return the operator of the loss for the first `count` samples of a batch."""
    return replace(node, attrs={**node.attrs, "n": int(node.attrs["n"]) * count // batch})


class _ByReference:
    """Runs the forward part of a model by the reference kernels, batch by batch."""

    ticks = 0

    def __init__(self, graph: Graph, weights: Weights) -> None:
        self.graph = graph
        self._weights = {
            node.name: np.asarray(weights[node.name], "<f4") for node in weight_nodes(graph)
        }

    def run(self, x: Array, y: Array) -> tuple[Array, float]:
        """Return the logits and the mean loss of the samples `x`, which are at most one batch."""
        graph, count = self.graph, len(x)
        chosen = _filled(count, graph.batch)
        given = {graph.data: x[chosen], graph.label: y[chosen]}
        values = run_step(graph, {**self._weights, **given}, 1)
        node = graph[graph.loss]
        some = _of_samples(node, count, graph.batch)
        rows = int(node.attrs["n"])
        inputs = [values[name].reshape(rows, -1)[: some.attrs["n"]] for name in node.inputs]
        loss = run_kernel(node.op, node.sink, some.attrs, inputs, 1)
        return values[graph.logits].reshape(graph.batch, -1)[:count], float(loss.reshape(-1)[0])


class _OnDevice:
    """Runs the forward part of a model on a board, batch by batch."""

    def __init__(
        self, device: Device, graph: Graph, weights: Weights, costs: CostGraph, plan: Plan
    ) -> None:
        self.device, self.graph = device, graph
        self.statements = plan.statements
        self.ticks = 0
        self._stored = {
            node.name: np.ascontiguousarray(weights[node.name], dtype="<f4").tobytes()
            for node in weight_nodes(graph)
        }
        starts = start_offsets(costs, plan)
        self._start = {name: offset for name, offset in starts.items() if offset is not None}
        for name in self._start.keys() & self._stored.keys():
            device.probe_write(self._start[name], self._stored[name])

    def run(self, x: Array, y: Array) -> tuple[Array, float]:
        """Return the logits and the mean loss of the samples `x`, which are at most one batch."""
        count, batch = len(x), self.graph.batch
        chosen = _filled(count, batch)
        storage = {
            **self._stored,
            self.graph.data: np.ascontiguousarray(x[chosen]).tobytes(),
            self.graph.label: np.ascontiguousarray(y[chosen]).tobytes(),
        }
        at = dict(self._start)
        for name in (self.graph.data, self.graph.label):
            if name in at:
                self.device.probe_write(at[name], storage[name])
        found: dict[str, bytes] = {}
        for statement in self.statements:
            self._execute(statement, at, storage, count)
            if statement.op == "compute" and statement.node in (self.graph.logits, self.graph.loss):
                size_bytes = self.graph[statement.node].size_bytes
                found[statement.node] = self.device.probe_read(at[statement.node], size_bytes)
        answers = np.frombuffer(found[self.graph.logits], "<f4").reshape(batch, -1)[:count]
        loss = np.frombuffer(found[self.graph.loss], "<f4")[0]
        return answers, float(loss)

    def _execute(
        self, statement: Statement, at: dict[str, int], storage: dict[str, bytes], count: int
    ) -> None:
        node = self.graph[statement.node]
        if statement.offset is not None:
            at[node.name] = statement.offset
        if statement.op == "compute":
            self._compute(node, statement, at, count)
        elif statement.op == "page_in":
            self.device.probe_write(at[node.name], storage[node.name])
        elif statement.op == "page_out":
            storage[node.name] = self.device.probe_read(at[node.name], node.size_bytes)

    def _compute(self, node: Node, statement: Statement, at: Mapping[str, int], count: int) -> None:
        if node.name == self.graph.loss:  # the loss must be a mean over `count` samples
            node = _of_samples(node, count, self.graph.batch)
        places = [at[name] for name in node.inputs]
        workspace = statement.workspace_offset or 0
        self.ticks += self.device.probe_op(probe_record(node), [*places, at[node.name], workspace])
