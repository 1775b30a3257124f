"""Compare the outputs of a model with labels: loss, classes that are right, errors of values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ..graph.graph import Graph
from ..graph.losses import Loss, loss_of, parse_loss
from ..graph.weights import Array

MOST_CLASSES = 100  # with a confusion matrix
MSE = Loss("mse")


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """How well outputs fit labels. A field is None where labels do not have it.

    Labels of classes and of binary cross-entropy have accuracies (shares, 0 to 1). Other labels
    have the errors of values.
    """

    loss: float  # mean of the model's loss function; not finite if an output is not
    accuracy: float | None = None
    # Share of the labels of each class that are right, or None for a class without labels.
    class_accuracy: tuple[float | None, ...] | None = None
    # Number of labels of class i (first index) with output j; for at most MOST_CLASSES classes.
    confusion: tuple[tuple[int, ...], ...] | None = None
    # Area under the ROC curve, for two classes which both have labels. With the loss bce, the mean
    # over the labels of which both values occur.
    auc: float | None = None
    mae: float | None = None  # mean absolute error
    rmse: float | None = None  # root of the mean squared error
    # Those of each output of a model with several, whose `loss` is the weighted sum of all losses.
    by_output: "Mapping[str, Metrics]" = field(default_factory=dict)


def measured(graph: Graph, outputs: Array, labels: Array) -> Metrics:
    """Compare the outputs of a model (`reference.inference.logits`) with labels (samples, ...)."""
    if not graph.targets:
        return metrics(outputs, labels, loss_of(graph))
    found = {
        it.name: metrics(outputs[it.name], labels[it.name], parse_loss(it.criterion))
        for it in graph.targets
    }
    return Metrics(
        loss=sum(it.weight * found[it.name].loss for it in graph.targets), by_output=found
    )


def metrics(outputs: Array, labels: Array, loss: Loss = MSE) -> Metrics:
    """Compare `outputs` with `labels` (samples, ...).

    Labels are classes (integers), with the logits of C classes for each label as outputs, or values
    (float32), with one output for each. Labels of class C are ignored. `loss` is that of the model.
    """
    if labels.dtype.kind == "f":
        return _of_values(outputs.reshape(labels.shape).astype(np.float64), labels, loss)
    rows, labels = outputs.reshape(labels.size, -1).astype(np.float64), labels.reshape(-1)
    classes = rows.shape[1]
    rows, labels = rows[labels < classes], labels[labels < classes]
    found = rows.argmax(axis=1)
    right = np.bincount(labels[found == labels], minlength=classes)
    counts = np.bincount(labels, minlength=classes)
    confusion = None
    if classes <= MOST_CLASSES:
        pairs = np.bincount(labels * classes + found, minlength=classes**2)
        confusion = tuple(map(tuple, pairs.reshape(classes, classes).tolist()))
    return Metrics(
        loss=_cross_entropy(rows, labels, loss),
        accuracy=float(np.mean(found == labels)) if labels.size else None,
        class_accuracy=tuple(
            part / count if count else None
            for part, count in zip(right.tolist(), counts.tolist(), strict=True)
        ),
        confusion=confusion,
        auc=_auc(_differences(rows), labels == 1) if classes == 2 else None,
    )  # fmt: skip


def _of_values(outputs: Array, labels: Array, loss: Loss) -> Metrics:
    errors = np.abs(outputs - labels)
    if loss.name == "bce":
        positive = labels.reshape(len(labels), -1) >= 0.5
        columns = zip(outputs.reshape(positive.shape).T, positive.T, strict=True)
        areas = [area for pair in columns if (area := _auc(*pair)) is not None]
        hits = labels * np.asarray(loss.options.get("pos_weight", 1.0))
        return Metrics(
            loss=float(np.mean(np.logaddexp(0, outputs) * (1 - labels + hits) - hits * outputs)),
            accuracy=float(np.mean((outputs > 0).reshape(positive.shape) == positive)),
            auc=float(np.mean(areas)) if areas else None,
        )
    mae, square = float(np.mean(errors)), float(np.mean(np.square(errors)))
    found = {"mse": square, "l1": mae}.get(loss.name)
    if found is None:
        beta = float(loss.options.get("beta", 1.0))
        near = np.minimum(errors, float(loss.options.get("delta", beta)))
        found = float(np.mean(near * (errors - near / 2))) / beta
    return Metrics(loss=found, mae=mae, rmse=square**0.5)


def probabilities(outputs: Array) -> Array:
    """Return the softmax of logits (..., classes), as float32."""
    with np.errstate(under="ignore"):
        powers = np.exp(outputs.astype(np.float64) - outputs.max(axis=-1, keepdims=True))
    result: Array = (powers / powers.sum(axis=-1, keepdims=True)).astype(np.float32)
    return result


def _cross_entropy(rows: Array, labels: Array, loss: Loss) -> float:
    smoothing = loss.options.get("label_smoothing", 0.0)
    weights = np.asarray(loss.options.get("class_weights", np.ones(rows.shape[1])))
    with np.errstate(invalid="ignore"):  # infinite logits make the loss NaN
        rows = rows - rows.max(axis=1, keepdims=True)
        each = np.log(np.exp(rows).sum(axis=1, keepdims=True)) - rows
        total = np.sum(each[np.arange(len(rows)), labels] * weights[labels]) * (1 - smoothing)
        if smoothing:
            total += np.sum(each @ weights) * smoothing / rows.shape[1]
        # The least divisor is that of boards: all labels may be ignored, or have the weight 0.
        return float(total / max(weights[labels].sum(), 1e-30))


def _differences(rows: Array) -> Array:
    with np.errstate(invalid="ignore"):
        result: Array = rows[:, 1] - rows[:, 0]
        return result


def _auc(scores: Array, positive: Array) -> float | None:
    """Return the share of pairs (positive, negative) with the greater score for the positive.

    A pair of equal scores counts half.
    """
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    p, n = int(positive.sum()), int((~positive).sum())
    return float((ranks[positive].sum() - p * (p + 1) / 2) / (p * n)) if p and n else None
