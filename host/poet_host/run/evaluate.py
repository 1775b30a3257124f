"""How good trained weights are on data, computed here by the reference kernels."""

import numpy as np

from ..graph.evaluate import logits
from ..graph.graph import Graph
from .data import Dataset
from .run import Array, Weights


def accuracy(graph: Graph, weights: Weights, x: Array, y: Array) -> float:
    """Share of samples (0 to 1) whose largest logit is that of their label."""
    answers = logits(graph, weights, x).reshape(*y.shape, -1)
    return float(np.mean(answers.argmax(axis=-1) == y))


def held_out_accuracy(graph: Graph, weights: Weights, dataset: Dataset) -> float | None:
    """Accuracy on the samples held out; None if there are none, or labels are no classes."""
    if dataset.x_test is None or dataset.y_test is None or graph[graph.label].dtype != "int32":
        return None
    return accuracy(graph, weights, dataset.x_test, dataset.y_test)
