"""Outputs of trained weights, which a board computes by the forward program of a schedule.

The board uses the weights that it has committed, or others that the host writes. It commits none.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal, get_args

import numpy as np

from ..card.card import Held, held
from ..card.parts import are_whole, parts_on, put_back, restoring
from ..data.classes import NO_NAMES, Classes
from ..data.datasets import Dataset
from ..data.fitted import FittedData, classes_of, fit_samples
from ..device.device import TENSOR, Device, Progress
from ..errors import BadInput, PoetError
from ..graph.graph import Graph, Node
from ..graph.weights import Array, Weights, weight_nodes
from ..reference.inference import answer_shape, by_output, evaluation, logits
from ..schedule.decode import Wait, decode
from ..schedule.model import FIXED, part_crc
from ..schedule.rates import with_rates_of
from ..schedule.schedule import Schedule
from .metrics import Metrics, measured

Half = Literal["held-out", "training"]


def accuracy(graph: Graph, weights: Weights, x: Array, y: Array) -> float:
    """Return the share of samples (0 to 1) whose label has the largest logit.

    `x` are samples as the network gets them: normalised, if the weights need that. Labels `y` that
    are not the number of a class are ignored. Raises BadInput if nothing remains, or if weights,
    samples or labels do not fit the graph.
    """
    if graph[graph.label].dtype != "int32":
        raise BadInput(f"the labels of {graph.name} are not classes: use `evaluate`")
    x = fit_samples(Dataset("given", x, y), "", x, graph, y)
    known = (y >= 0) & (y < classes_of(graph))
    if not known.any():
        raise BadInput(f"y: none of the {y.size:,} labels is a class of {graph.name}")
    read = {name for node in evaluation(graph) for name in node.inputs}
    weights = {name: np.asarray(weights[name], np.float32) for name in read & weights.keys()}
    _check_weights(graph, weights, [node for node in weight_nodes(graph) if node.name in read])
    rows = logits(graph, weights, x).reshape(*y.shape, -1)
    return float(np.mean(rows.argmax(axis=-1)[known] == y[known]))


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

    `outputs` has the shape (samples, ...): logits of classes, or values. If the model has several
    outputs, it has records, with a field for each output. `time_us` is the time of
    all inferences, by the board's clock; None if the host computed them.
    """

    outputs: Array = field(repr=False)
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
        return (
            f"<Evaluation {self.model} on {self.board}: {self.samples:,} samples, "
            f"loss {self.loss:.4f}{right}>"
        )

    def to_json(self) -> dict[str, Any]:
        names = self.__dataclass_fields__.keys() - {"outputs", "by_output"}
        found = {name: getattr(self, name) for name in names} | {"classes": list(self.classes)}
        by_output = {name: vars(one) for name, one in self.by_output.items()}
        return found | {"by_output": by_output} if by_output else found


def evaluate(
    device: Device,
    schedule: Schedule,
    weights: Weights | None,
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
    if graph[graph.label].dtype == "int32" and (y == classes_of(graph)).all():
        raise BadInput(f"data {data.name}: the loss ignores the labels of all {len(x)} samples")
    found = answers(device, schedule, weights, x, progress)
    result = measured(graph, found.outputs, y)
    if not isfinite(result.loss):
        raise not_finite(graph, data.name)
    return Evaluation(
        **vars(found), **vars(result), model=graph.name, board=device.board.name, data=data.name,
        half=half, samples=len(x), classes=data.classes,
    )  # fmt: skip


def answers(
    device: Device | None,
    schedule: Schedule,
    weights: Weights | None,
    x: Array,
    progress: Progress | None = None,
) -> Answers:
    """Return the outputs of a model for `x` (samples, ...), computed on a board.

    The board commits its completed steps first, and the schedule on its card is loaded at the end.
    `weights` None: those that the board has committed. Others are written to its storage, without a
    commit. Raises BadInput if they would overwrite what the storage holds. If `device` is None, the
    host computes with `weights`, to the same bits.
    """
    if weights is not None:
        _check_weights(schedule.graph, weights, weight_nodes(schedule.graph))
    if device is None:
        assert weights is not None
        return Answers(outputs=logits(schedule.graph, weights, x))
    device.keep()
    committed = held(device)
    before = parts_on(device) if committed else None
    if committed and before and part_crc(before[0]) == committed.model_crc != schedule.model.crc:
        schedule = with_rates_of(schedule, before[0]) or schedule  # of `train --lr`
    if weights is not None and committed and committed.model_crc != schedule.model.crc:
        raise BadInput(
            f"the storage of the board holds weights of {committed.described(schedule.graph)}. To "
            "keep them, evaluate with the schedule that trained them, or on another card"
        )
    crc = schedule.model.crc
    if committed and committed.model_crc == crc and not (before and are_whole(before, crc)):
        before = schedule.model_part, schedule.plan_part  # a power cut ended an evaluation
    forward = schedule.needed_forward()
    graph, numbers = forward.graph, forward.numbers
    data, answer = (forward.model.tensors[numbers[it]] for it in (graph.data, graph.logits))
    offsets = {it.node: it.offset for it in decode(forward) if not isinstance(it, Wait)
               if it.op == "compute"}  # fmt: skip
    at, batch = offsets[graph.logits], graph.batch
    assert at is not None
    parts, ticks = [], 0

    def restore() -> None:
        if before:
            put_back(device, before)

    with restoring(device, restore):
        _load(device, forward, weights, committed)
        for start in range(0, len(x), batch):
            some = x[start : start + batch]
            filled = np.concatenate([some, np.repeat(some[-1:], batch - len(some), axis=0)])
            device.write(TENSOR, numbers[graph.data], data.in_order(filled.tobytes()))
            ticks += device.step(start).ticks
            found = np.frombuffer(answer.row_major(device.probe_read(at, answer.size_bytes)), "<f4")
            parts.append(found.reshape(batch, -1)[: len(some)])
            if progress:
                progress(start + len(some), len(x))
    outputs = np.concatenate(parts).reshape(len(x), *answer_shape(schedule.graph))
    return Answers(outputs=by_output(schedule.graph, outputs), time_us=device.us(ticks))


def _load(device: Device, forward: Schedule, weights: Weights | None, card: Held | None) -> None:
    """Load the forward program, and write the weights that it reads. `card`: what it holds."""
    device.load(forward.model_part, forward.plan_part)
    if weights is None:
        return
    read = {name for node in forward.graph for name in node.inputs}
    for name, number in forward.numbers.items():
        if name not in weights or name not in read:
            continue
        tensor = forward.model.tensors[number]
        values = tensor.in_order(np.ascontiguousarray(weights[name], "<f4").tobytes())
        if not card or tensor.place != FIXED:
            device.write(TENSOR, number, values)
        elif not device.holds(TENSOR, number, values):
            raise BadInput(
                f"the frozen tensor {name} has other values on the board's storage, and writing it "
                "would end the training there: use another card"
            )


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


def _check_weights(graph: Graph, weights: Weights, nodes: Iterable[Node]) -> None:
    for node in nodes:
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
            f"data {dataset.name}: no samples are held out. Omit --half, or hold some out with "
            "--test-split of `train` and `evaluate`"
        )
    return "training"
