"""Metrics of outputs: against definitions written in another way, and scikit-learn."""

from typing import Any

import numpy as np
import pytest
from poet_host.graph.losses import Loss
from poet_host.run.metrics import MOST_CLASSES, metrics, probabilities
from sklearn import metrics as judge

RNG = np.random.default_rng(8)


def drawn(count: int, classes: int) -> tuple[Any, Any]:
    logits = RNG.standard_normal((count, classes)).astype(np.float32).round(1)  # with ties
    return logits, RNG.integers(0, classes, count).astype(np.int32)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_classes_are_judged_as_scikit_learn_judges_them(classes: int) -> None:
    logits, labels = drawn(500, classes)
    found, chosen = metrics(logits, labels), logits.argmax(axis=1)
    assert found.accuracy == judge.accuracy_score(labels, chosen)
    wanted = judge.confusion_matrix(labels, chosen, labels=range(classes))
    assert found.confusion == tuple(map(tuple, wanted.tolist()))
    shares = judge.recall_score(labels, chosen, average=None)
    assert found.class_accuracy == pytest.approx(shares.tolist())
    softmax = probabilities(logits)
    assert found.loss == pytest.approx(judge.log_loss(labels, softmax), rel=1e-5)
    assert (found.mae, found.rmse) == (None, None)
    if classes == 2:
        scores = logits[:, 1].astype(float) - logits[:, 0]
        assert found.auc == pytest.approx(judge.roc_auc_score(labels, scores))
    else:
        assert found.auc is None


def test_labels_without_weight_have_no_loss() -> None:
    logits, labels = drawn(6, 2)
    loss = Loss("cross-entropy", {"class_weights": (1.0, 0.0)})
    weightless = metrics(logits, np.ones_like(labels), loss)
    assert weightless.accuracy == np.mean(logits.argmax(1) == 1)
    ignored = metrics(logits, np.full_like(labels, 2), loss)
    assert (weightless.loss, ignored.loss, ignored.accuracy) == (0.0, 0.0, None)


def test_each_position_of_a_sequence_is_a_label() -> None:
    logits, labels = drawn(60, 4)
    as_texts = metrics(logits.reshape(12, 5, 4), labels.reshape(12, 5))
    assert as_texts == metrics(logits, labels)


def test_a_class_without_labels_has_no_accuracy_and_no_area() -> None:
    logits, labels = drawn(50, 2)
    found = metrics(logits, np.zeros_like(labels))
    assert found.auc is None
    assert found.class_accuracy == (found.accuracy, None)
    many, few = drawn(20, MOST_CLASSES + 1)
    assert metrics(many, few).confusion is None
    assert len(metrics(many, few).class_accuracy or ()) == MOST_CLASSES + 1


def test_values_have_errors() -> None:
    outputs, labels = RNG.random((2, 30, 4), dtype=np.float32)
    found = metrics(outputs, labels)
    assert found.mae == pytest.approx(judge.mean_absolute_error(labels, outputs))
    square = judge.mean_squared_error(labels, outputs)
    assert (found.loss, found.rmse) == pytest.approx((square, square**0.5))
    assert (found.accuracy, found.confusion, found.auc) == (None, None, None)


def test_large_logits_have_probabilities() -> None:
    found = probabilities(np.array([[1e30, -1e30], [700, 700], [-800, 0]], np.float32))
    assert found.tolist() == [[1, 0], [0.5, 0.5], [0, 1]]
    assert metrics(np.array([[1e30, -1e30]], np.float32), np.array([1])).loss == pytest.approx(2e30)
    assert np.isnan(metrics(np.array([[np.inf, 0]], np.float32), np.array([1])).loss)
