"""Inference: the logits of a trained graph, with running statistics and without dropout."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..graph.graph import Graph, Node
from ..graph.in_place import in_place
from ..graph.operators import OPERATORS
from ..isa import attributes, axes, kernels
from .floats import Array
from .step import run_kernel

_CHUNK = 64  # samples to compute at once: limits the memory for large models


def evaluation(graph: Graph) -> tuple[Node, ...]:
    """Return the forward operators that compute the logits, in execution order.

    Batchnorm reads its running statistics. Dropout is left out. The operators have the batch size
    of training.
    """
    # Running statistics replace batch statistics. The input of a dropout replaces its output.
    instead = {node.inputs[0]: node.inputs[1] for node in graph if node.op == "batchnorm_running"}
    nodes: list[Node] = []
    for node in graph:
        if node.phase == "forward" and node.name not in instead:
            node = replace(_reading(node, instead), overwrites=None)
            if node.op == "dropout":
                instead[node.name] = node.inputs[0]
            else:
                nodes.append(node)
    outputs = [target.output for target in graph.targets] or [graph.logits]
    outputs = [instead.get(name, name) for name in outputs]
    needed = set(outputs)
    for node in reversed(nodes):
        needed |= set(node.inputs) if node.name in needed else set()
    found = [node for node in nodes if node.name in needed]
    if graph.targets:
        found += _joined(graph, outputs)
    return tuple(found)


def _reading(node: Node, instead: Mapping[str, str]) -> Node:
    """Return the node with other inputs, by the names of its own."""
    return replace(node, inputs=tuple(instead.get(name, name) for name in node.inputs))


def _joined(graph: Graph, outputs: list[str]) -> Iterator[Node]:
    """Yield nodes whose last one has all outputs of each sample, one after the other in a row."""
    whole, before = outputs[0], prod(graph.targets[0].output_shape)
    for number, target in enumerate(graph.targets[1:], 1):
        size = prod(target.output_shape)
        spec = OPERATORS["concat"].spec((graph.batch, before), (graph.batch, size), 1)
        attrs = {name: spec.fields[name] for name in attributes("concat", "none")}
        name, inputs = f"outputs:{number}", (whole, outputs[number])
        yield Node(name, spec.shape, "value", "forward", "concat", inputs, attrs)
        whole, before = name, before + size


def forward_graph(graph: Graph, *, of_batch: bool = False, one: Graph | None = None) -> Graph:
    """Return the inference as a graph whose last node, the logits, a board computes.

    It has all stored nodes of `graph`, in the same order, then its own data: one sample, or a batch
    of training if some operator mixes samples. With `of_batch`, its data is that of training.
    `one`: the same model with a batch of one sample, for a model whose operators mix samples.
    """
    nodes, stored = evaluation(graph), tuple(node for node in graph if node.stored)
    data = graph[graph.data]
    if not of_batch:
        given = graph.data
        if takes_any_number(graph, nodes):
            nodes = tuple(map(_of_one_sample, nodes))
            data = _of_one_sample(data)
        elif one is not None:
            nodes, data, given = _of_other(one, graph), one[one.data], one.data
        data = replace(data, name=_free_name(graph))
        nodes = tuple(_reading(node, {given: data.name}) for node in nodes)
        stored = (*stored, data)
    last = nodes[-1].name
    return replace(
        graph, nodes=(*stored, *in_place(nodes)), data=data.name, logits=last, loss=last, origin=b""
    )


def _of_one_sample(node: Node) -> Node:
    attrs = {**node.attrs, "n": 1} if node.attrs else node.attrs
    return replace(node, shape=(1, *node.shape[1:]), attrs=attrs)


def _of_other(one: Graph, graph: Graph) -> tuple[Node, ...]:
    """Return the forward operators of `one`. They read the stored nodes of `graph`.

    A node with zeros for each sample of a batch is cut to its first row.
    """
    nodes, rows = evaluation(one), dict[str, Node]()
    for name in sorted({name for node in nodes for name in node.inputs} - {one.data}):
        if name in one.by_name and one[name].stored and graph[name].shape != one[name].shape:
            count, *row = graph[name].shape
            attrs = {"n": 1, "c": count, "h": prod(row), "w": 1, "k": 1, "oh": 0}
            rows[name] = Node(f"{name}:row", (1, *row), "value", "forward", "slice", (name,), attrs)
    names = {name: row.name for name, row in rows.items()}
    return (*rows.values(), *(_reading(node, names) for node in nodes))


def is_own_data(graph: Graph) -> bool:
    """Return whether a `forward_graph` has data of its own: its last stored node."""
    *_, last = (node.name for node in graph if node.stored)
    return last == graph.data


def _free_name(graph: Graph) -> str:
    name = "sample"
    while name in graph.by_name:
        name += "_"
    return name


def logits(graph: Graph, values: Mapping[str, NDArray[Any]], x: NDArray[Any]) -> NDArray[Any]:
    """Return the logits of data `x` (samples, ...), for any number of samples: see `by_output`.

    `values` are parameters and running statistics by node name.
    """
    nodes = evaluation(graph)
    any_number = takes_any_number(graph, nodes)
    size = _CHUNK if any_number else graph.batch
    answers = [np.zeros((0, *answer_shape(graph)), dtype=np.float32)]
    for i in range(0, len(x), size):
        part = x[i : i + size]
        missing = 0 if any_number else size - len(part)
        filled = np.concatenate([part, np.repeat(part[-1:], missing, axis=0)])
        answers.append(_run(graph, nodes, values, filled, any_number)[: len(part)])
    return by_output(graph, np.concatenate(answers))


def by_output(graph: Graph, answers: Array) -> NDArray[Any]:
    """Return the logits (samples, ...); of a model with several outputs, as records (samples,)."""
    if not graph.targets:
        return answers
    kind = np.dtype([(target.name, "<f4", target.output_shape) for target in graph.targets])
    return answers.view(kind).reshape(len(answers))


def takes_any_number(graph: Graph, nodes: tuple[Node, ...]) -> bool:
    """Return True if every operator computes row i of its output from sample i alone.

    `nodes`: the operators of the graph's `evaluation`.
    """
    from_data = {graph.data}
    for node in nodes:
        kernel = kernels()[node.op]
        letters = kernel.letters + kernel.output
        in_rows = {letter for letter in letters if axes(letter)[0] == "n"}
        if "ORDER" in kernel.rules or (node.attrs.get("variant") and {*"ABR"} & in_rows):
            return False  # the operator moves, repeats or sums rows
        if any("n" in axes(letter) for letter in {*letters} - in_rows):
            return False
        operands = zip(kernel.letters, node.inputs, strict=False)
        if not all(name in from_data for letter, name in operands if letter in in_rows):
            return False
        if kernel.output not in in_rows or not node.attrs["n"] == node.shape[0] == graph.batch:
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
    return answer.reshape(len(x), *answer_shape(graph))


def answer_shape(graph: Graph) -> tuple[int, ...]:
    """Return the shape of the logits of one sample.

    If the first axis of the graph's logits is not the batch axis, or if there are several outputs,
    the returned shape has one axis, whose size is the number of logits of one sample.
    """
    if graph.targets:
        return (sum(prod(target.output_shape) for target in graph.targets),)
    count, *shape = graph[graph.logits].shape
    if count == graph.batch:
        return tuple(shape)
    return (count * prod(shape) // graph.batch,)
