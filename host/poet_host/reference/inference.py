"""Evaluation: what a trained graph answers, with running statistics and without dropout."""

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..graph.graph import Graph, Node
from .step import run_kernel

Array = NDArray[np.float32]

_CHUNK = 64  # samples at a time: bounds the memory of large models
_BY_SAMPLE = {
    *("conv2d", "linear", "batchnorm", "relu", "relu6", "clip", "sigmoid", "tanh", "gelu"),
    *("maxpool2d", "avgpool2d", "global_avgpool", "add", "scale"),
}


def evaluation(graph: Graph) -> tuple[Node, ...]:
    """The forward operators that logits need, in order, as inference runs them.

    Batchnorm reads its running statistics and dropout is left out. Dimensions are still those
    of the training batch.
    """
    return _towards(graph, graph.logits)[0]


def inference(graph: Graph) -> Graph:
    """The same as a graph of its own, with the loss behind them and what they read before."""
    nodes, instead = _towards(graph, graph.loss)
    read = {graph.data, graph.label, *(name for node in nodes for name in node.inputs)}
    return replace(
        graph,
        nodes=(*(node for node in graph if node.stored and node.name in read), *nodes),
        logits=instead.get(graph.logits, graph.logits),
        origin=b"",
    )


def _towards(graph: Graph, wanted: str) -> tuple[tuple[Node, ...], dict[str, str]]:
    """The operators that `wanted` needs, and which tensor each that is left out has instead."""
    # Batch statistics, and the output of a dropout, have another tensor in their place.
    instead = {node.inputs[0]: node.inputs[1] for node in graph if node.op == "batchnorm_running"}
    nodes: list[Node] = []
    for node in graph:
        if node.phase == "forward" and node.name not in instead:
            inputs = tuple(instead.get(name, name) for name in node.inputs)
            if node.op == "dropout":
                instead[node.name] = inputs[0]
            else:
                nodes.append(replace(node, inputs=inputs))
    needed = {instead.get(wanted, wanted)}
    for node in reversed(nodes):
        needed |= set(node.inputs) if node.name in needed else set()
    return tuple(node for node in nodes if node.name in needed), instead


def logits(graph: Graph, values: Mapping[str, NDArray[Any]], x: NDArray[Any]) -> Array:
    """What the loss would be computed from, (samples, ...), for any number of samples.

    `values` holds parameters and running statistics by node name; `x` is (samples, ...).
    """
    nodes = evaluation(graph)
    any_number = _takes_any_number(graph, nodes)
    size = _CHUNK if any_number else graph.batch
    answers = [np.zeros((0, *_answer(graph)), dtype=np.float32)]
    for i in range(0, len(x), size):
        part = x[i : i + size]
        missing = 0 if any_number else size - len(part)
        filled = np.concatenate([part, np.repeat(part[-1:], missing, axis=0)])
        answers.append(_run(graph, nodes, values, filled, any_number)[: len(part)])
    return np.concatenate(answers)


def _takes_any_number(graph: Graph, nodes: tuple[Node, ...]) -> bool:
    """Is `n` the samples in every operator, so that there may be more of them?"""
    from_data = {graph.data}
    for node in nodes:
        repeats = node.op in ("add", "scale") and node.attrs.get("variant")
        samples = node.attrs.get("n") == node.shape[0] == graph.batch
        if node.op not in _BY_SAMPLE or repeats or not samples:
            return False
        if from_data.isdisjoint(node.inputs):
            return False
        from_data.add(node.name)
    return True


def _run(
    graph: Graph,
    nodes: tuple[Node, ...],
    values: Mapping[str, NDArray[Any]],
    x: NDArray[Any],
    any_number: bool,
) -> Array:
    found: dict[str, Any] = {**values, graph.data: x}
    for node in nodes:
        found[node.name] = run_kernel(
            node.op,
            node.sink,
            {**node.attrs, "n": len(x)} if any_number else node.attrs,
            [found[name] for name in node.inputs],
            0,
            shape=(len(x), *node.shape[1:]) if any_number else node.shape,
        )
    answer: Array = found[nodes[-1].name]
    return answer.reshape(len(x), *_answer(graph))


def _answer(graph: Graph) -> tuple[int, ...]:
    """Shape of what one sample gets; of rows that are no samples, all of its numbers."""
    count, *shape = graph[graph.logits].shape
    if count == graph.batch:
        return tuple(shape)
    return (count * prod(shape) // graph.batch,)
