"""Compare the outputs of a model with labels: loss, classes that are right, errors of values."""

from dataclasses import dataclass

import numpy as np

from ..graph.weights import Array

MOST_CLASSES = 100  # with a confusion matrix


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """How well outputs fit labels. A field is None where labels do not have it.

    Labels of classes have accuracies (shares, 0 to 1). Other labels have the errors of values.
    """

    loss: float  # mean of cross-entropy or of squared error; not finite if an output is not
    accuracy: float | None = None
    # Share of the labels of each class that are right, or None for a class without labels.
    class_accuracy: tuple[float | None, ...] | None = None
    # Number of labels of class i (first index) with output j; for at most MOST_CLASSES classes.
    confusion: tuple[tuple[int, ...], ...] | None = None
    auc: float | None = None  # area under the ROC curve; for two classes which both have labels
    mae: float | None = None  # mean absolute error
    rmse: float | None = None  # root of the mean squared error


def metrics(outputs: Array, labels: Array) -> Metrics:
    """Compare `outputs` with `labels` (samples, ...).

    Labels are classes (integers), with the logits of C classes for each label as outputs, or values
    (float32), with one output for each.
    """
    if labels.dtype.kind == "f":
        errors = outputs.reshape(-1).astype(np.float64) - labels.reshape(-1)
        square = float(np.mean(np.square(errors)))
        return Metrics(loss=square, mae=float(np.mean(np.abs(errors))), rmse=square**0.5)
    rows, labels = outputs.reshape(labels.size, -1).astype(np.float64), labels.reshape(-1)
    found, classes = rows.argmax(axis=1), rows.shape[1]
    right = np.bincount(labels[found == labels], minlength=classes)
    counts = np.bincount(labels, minlength=classes)
    confusion = None
    if classes <= MOST_CLASSES:
        pairs = np.bincount(labels * classes + found, minlength=classes**2)
        confusion = tuple(map(tuple, pairs.reshape(classes, classes).tolist()))
    return Metrics(
        loss=_cross_entropy(rows, labels), accuracy=float(np.mean(found == labels)),
        class_accuracy=tuple(
            part / count if count else None
            for part, count in zip(right.tolist(), counts.tolist(), strict=True)
        ),
        confusion=confusion,
        auc=_auc(rows, labels == 1) if classes == 2 else None,
    )  # fmt: skip


def probabilities(outputs: Array) -> Array:
    """Return the softmax of logits (..., classes), as float32."""
    with np.errstate(under="ignore"):
        powers = np.exp(outputs.astype(np.float64) - outputs.max(axis=-1, keepdims=True))
    result: Array = (powers / powers.sum(axis=-1, keepdims=True)).astype(np.float32)
    return result


def _cross_entropy(rows: Array, labels: Array) -> float:
    with np.errstate(invalid="ignore"):  # infinite logits make the loss NaN
        rows = rows - rows.max(axis=1, keepdims=True)
        chosen = rows[np.arange(len(rows)), labels]
        return float(np.mean(np.log(np.exp(rows).sum(axis=1)) - chosen))


def _auc(rows: Array, positive: Array) -> float | None:
    """Return the share of pairs (positive, negative) with the greater score for the positive.

    The score is the difference of the two logits in a row. A pair of equal scores counts half.
    """
    with np.errstate(invalid="ignore"):
        scores = rows[:, 1] - rows[:, 0]
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    p, n = int(positive.sum()), int((~positive).sum())
    return float((ranks[positive].sum() - p * (p + 1) / 2) / (p * n)) if p and n else None
