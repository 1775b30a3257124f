"""Loss and accuracy of trained weights, computed on a board or by the reference kernels.

On a board, the host starts each operator in the arena and serves as the storage. The card is not
used: an evaluation changes nothing that training has committed, and needs no card. Weights stay in
the arena if the arena has room for all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, Literal, get_args

import numpy as np

from ..baselines.registry import plan_by
from ..data.classes import NO_NAMES, Classes
from ..data.datasets import Dataset
from ..data.fitted import FittedData
from ..device.board import Board
from ..device.device import Device, Progress
from ..errors import BadInput, Infeasible, PoetError
from ..graph.graph import Graph, Node
from ..graph.weights import weight_nodes
from ..plan.keepall import keep_everything
from ..plan.plan import Plan, Statement, start_offsets
from ..plan.pricing import cost_graph
from ..plan.problem import CostGraph, Problem
from ..profile.measure import probe_record
from ..profile.profile import estimate_profile
from ..reference.inference import inference, logits
from ..solver.settings import Settings
from .run import Array, Weights

PLANNING_LIMIT_S = 30.0
PLANNING_GAP = 0.5

Half = Literal["held-out", "training"]


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
    """The result of an evaluation on a board.

    `loss` is the mean over the samples. `accuracy` is None if labels are not classes. `time_us` is
    the time of all operators for all samples, by the board's clock. `answers` are the logits.
    """

    model: str
    board: str
    data: str
    half: Half
    samples: int
    loss: float
    accuracy: float | None
    time_us: float
    answers: Array = field(repr=False)
    classes: Classes = NO_NAMES

    def __repr__(self) -> str:
        right = "" if self.accuracy is None else f", accuracy {self.accuracy:.1%}"
        return (
            f"<Evaluation {self.model} on {self.board}: {self.samples:,} samples, "
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
    are used, or all if `samples` is None. Raises BadInput if there are no such samples, Infeasible
    if the model's forward part does not fit the board's arena, and PoetError if the loss is not
    finite.
    """
    if samples is not None and samples < 1:
        raise BadInput(f"{samples} samples cannot be evaluated: choose 1 sample or more")
    graph, half = data.graph, half_of(data, half)
    x, y = (data.x_test, data.y_test) if half == "held-out" else (data.x, data.y)
    assert x is not None
    assert y is not None
    x, y = x[:samples], y[:samples]
    forward = _Forward(device, inference(graph), weights)
    answers, losses = [], []
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
    return Evaluation(
        graph.name, device.board.name, data.name, half, len(x), loss,
        share_right(found, y) if classes else None, device.us(forward.ticks), found,
        data.classes,
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


def _planned(graph: Graph, board: Board, arena_bytes: int) -> tuple[CostGraph, Plan]:
    """Plan the forward operators within the arena. All weights stay in the arena if they fit."""
    profile = estimate_profile(board)
    weights = {node.name for node in weight_nodes(graph)}
    costs = cost_graph(graph, profile, storage=False)
    costs = replace(
        costs, nodes=tuple(replace(node, keep=node.name in weights) for node in costs.nodes)
    )
    plan = keep_everything(costs)
    if (plan.peak_bytes or 0) > arena_bytes:
        costs = cost_graph(graph, profile)
        plan = keep_everything(costs)
    if (plan.peak_bytes or 0) > arena_bytes:
        settings = Settings(PLANNING_LIMIT_S, PLANNING_GAP)
        plan = plan_by("poet", Problem(costs, arena_bytes), settings)
    if not plan.statements:
        raise Infeasible(
            f"{graph.name} cannot be evaluated within the board's {arena_bytes:,} bytes of RAM: "
            "use a board with more RAM, or solve the model with a smaller --batch",
            plan.smallest_ram_bytes,
        )
    return costs, plan


class _Forward:
    """Runs the forward part of a model on a board, batch by batch."""

    def __init__(self, device: Device, graph: Graph, weights: Weights) -> None:
        _check_weights(graph, weights)
        self.device, self.graph = device, graph
        costs, plan = _planned(graph, device.board, int(device.info.arena_bytes) // 4 * 4)
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
        filler = np.zeros(batch - count, dtype=np.intp)  # the first sample again
        chosen = np.concatenate([np.arange(count), filler])
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
            samples = int(node.attrs["n"]) * count // self.graph.batch
            node = replace(node, attrs={**node.attrs, "n": samples})
        places = [at[name] for name in node.inputs]
        workspace = statement.workspace_offset or 0
        self.ticks += self.device.probe_op(probe_record(node), [*places, at[node.name], workspace])
