"""Outputs of trained weights, computed on a board or by the reference kernels, and their metrics.

On a board, the host starts each operator in the arena and serves as the storage. The card is not
used: an evaluation changes nothing that training has committed, and needs no card. Weights stay in
the arena if the arena has room for all of them.

If the forward pass does not fit the arena, the host computes it instead, with the same bits: on a
native board with enough RAM, or by the reference kernels if this computer runs no native board.
"""

import os
import warnings
from collections.abc import Iterator
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
from ..graph.graph import Graph
from ..graph.weights import Array, Weights, weight_nodes
from ..plan.keepall import keep_everything
from ..plan.plan import Plan, Statement, start_offsets
from ..plan.pricing import cost_graph
from ..plan.problem import CostGraph, Problem
from ..profile.measure import probe_record
from ..profile.profile import estimate_profile
from ..reference.inference import answer_shape, inference, logits
from ..sim.native import NativeBoard
from ..solver.settings import Settings
from .metrics import Metrics, metrics

PLANNING_LIMIT_S = 30.0
PLANNING_GAP = 0.5

Half = Literal["held-out", "training"]
Computer = Literal["board", "host"]


def accuracy(graph: Graph, weights: Weights, x: Array, y: Array) -> float:
    """Return the share of samples (0 to 1) whose label has the largest logit.

    `x` are samples as the network gets them: normalised, if the weights need that.
    """
    return float(np.mean(logits(graph, weights, x).reshape(*y.shape, -1).argmax(axis=-1) == y))


def held_out_accuracy(graph: Graph, weights: Weights, dataset: Dataset) -> float | None:
    """Return the accuracy on held-out samples.

    Return None if no samples are held out, or if labels are not classes.
    """
    if dataset.x_test is None or dataset.y_test is None or graph[graph.label].dtype != "int32":
        return None
    return accuracy(graph, weights, dataset.x_test, dataset.y_test)


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The outputs of a model for samples.

    `outputs` has the shape (samples, ...): logits of classes, or values. `time_us` is the time of
    all operators for all samples, by the board's clock. It is None if the host computed them
    (`computed_on`).
    """

    outputs: Array = field(repr=False)
    computed_on: Computer = "host"
    time_us: float | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class Evaluation(Answers, Metrics):
    """The result of an evaluation: the outputs, and how well they fit the labels."""

    model: str
    board: str
    data: str
    half: Half
    samples: int
    classes: Classes = NO_NAMES

    def __repr__(self) -> str:
        right = "" if self.accuracy is None else f", accuracy {self.accuracy:.1%}"
        place = self.board if self.computed_on == "board" else "the host"
        return (
            f"<Evaluation {self.model} on {place}: {self.samples:,} samples, "
            f"loss {self.loss:.4f}{right}>"
        )

    def to_json(self) -> dict[str, Any]:
        names = [name for name in self.__dataclass_fields__ if name != "outputs"]
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
    are used, or all if `samples` is None. Raises BadInput if there are no such samples, and
    PoetError if the loss is not finite.
    """
    graph, half = data.graph, half_of(data, half)
    x, y = (data.x_test, data.y_test) if half == "held-out" else (data.x, data.y)
    assert x is not None
    assert y is not None
    x, y = x[: check_samples(samples)], y[:samples]
    found = answers(device, graph, weights, x, progress)
    result = metrics(found.outputs, y)
    if not isfinite(result.loss):
        raise not_finite(graph, data.name)
    return Evaluation(
        **vars(found), **vars(result), model=graph.name, board=device.board.name, data=data.name,
        half=half, samples=len(x), classes=data.classes,
    )  # fmt: skip


def answers(
    device: Device | None,
    graph: Graph,
    weights: Weights,
    x: Array,
    progress: Progress | None = None,
) -> Answers:
    """Return the outputs of a model for `x` (samples, ...), computed on a board.

    If the forward pass does not fit the board's arena, the host computes it, and a PoetWarning says
    so. If `device` is None, the host computes it too. The bits are the same.
    """
    _check_weights(graph, weights)
    weights = {
        node.name: np.ascontiguousarray(weights[node.name], "<f4") for node in weight_nodes(graph)
    }
    if device is None:
        return Answers(outputs=logits(graph, weights, x))
    parts = []
    with _forward(device, inference(graph), weights) as forward:
        for start in range(0, len(x), graph.batch):
            parts.append(forward.run(x[start : start + graph.batch]))
            if progress:
                progress(min(start + graph.batch, len(x)), len(x))
    outputs = np.concatenate(parts).reshape(len(x), *answer_shape(graph))
    if isinstance(forward, _OnDevice) and forward.device is device:
        return Answers(outputs=outputs, computed_on="board", time_us=device.us(forward.ticks))
    return Answers(outputs=outputs)


def check_samples(samples: int | None) -> int | None:
    """Return the number of samples to use (None: all). Raises BadInput if it is below 1."""
    if samples is not None and samples < 1:
        raise BadInput(f"{samples} samples cannot be evaluated: choose 1 sample or more")
    return samples


def not_finite(graph: Graph, data: str) -> PoetError:
    return PoetError(
        f"an output of {graph.name} for {data} is not finite: train the model with a lower "
        "learning rate, or check the data"
    )


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
        raise BadInput(
            f"data {dataset.name}: no samples are held out. Set --test-split, or omit --half"
        )
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


class _ByReference:
    """Runs the forward part of a model by the reference kernels, batch by batch."""

    def __init__(self, graph: Graph, weights: Weights) -> None:
        self.graph, self._weights = graph, weights

    def run(self, x: Array) -> Array:
        """Return the outputs for the samples `x`, which are at most one batch."""
        return logits(self.graph, self._weights, x).reshape(len(x), -1)


class _OnDevice:
    """Runs the forward part of a model on a board, batch by batch."""

    def __init__(
        self, device: Device, graph: Graph, weights: Weights, costs: CostGraph, plan: Plan
    ) -> None:
        self.device, self.graph = device, graph
        self.statements = plan.statements
        self.ticks = 0
        self._stored = {node.name: weights[node.name].tobytes() for node in weight_nodes(graph)}
        starts = start_offsets(costs, plan)
        self._start = {name: offset for name, offset in starts.items() if offset is not None}
        for name in self._start.keys() & self._stored.keys():
            device.probe_write(self._start[name], self._stored[name])

    def run(self, x: Array) -> Array:
        """Return the outputs for the samples `x`, which are at most one batch."""
        filled = np.concatenate([x, np.repeat(x[:1], self.graph.batch - len(x), axis=0)])
        data = np.ascontiguousarray(filled).tobytes()
        storage = {**self._stored, self.graph.data: data}
        at = dict(self._start)
        if self.graph.data in at:
            self.device.probe_write(at[self.graph.data], data)
        for statement in self.statements:
            self._execute(statement, at, storage)
            if statement.op == "compute" and statement.node == self.graph.logits:
                size_bytes = self.graph[statement.node].size_bytes
                found = self.device.probe_read(at[statement.node], size_bytes)
        return np.frombuffer(found, "<f4").reshape(self.graph.batch, -1)[: len(x)]

    def _execute(self, statement: Statement, at: dict[str, int], storage: dict[str, bytes]) -> None:
        node = self.graph[statement.node]
        if statement.offset is not None:
            at[node.name] = statement.offset
        if statement.op == "compute":
            places = [at[name] for name in node.inputs]
            workspace = statement.workspace_offset or 0
            record = probe_record(node)
            self.ticks += self.device.probe_op(record, [*places, at[node.name], workspace])
        elif statement.op == "page_in":
            self.device.probe_write(at[node.name], storage[node.name])
        elif statement.op == "page_out":
            storage[node.name] = self.device.probe_read(at[node.name], node.size_bytes)
