"""Operators that one nest computes together.

A pair is the gradients of one operator by its weight and by its input. In a cost graph, the input
gradient comes right before the gradient of the weight. It has modes that compute the gradient of
the weight too (`Mode.also`). A convolution has modes that compute the statistics of its output too.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from ..graph.graph import Graph, Node
from ..graph.operands import operator_of


def in_pair_order(graph: Graph) -> Graph:
    """Return the graph with each gradient of a weight right after the input gradient of its pair.

    A gradient of a weight renews the weight. So it stays if a node between both reads the weight.
    """
    nodes = list(graph)
    names = [node.name for node in nodes]
    for second in graph:
        if second.stored or not operator_of(second).may_be_paired:
            continue
        at = names.index(second.name)
        for i in range(at - 1):
            between = nodes[i + 1 : at]
            if _are_pair(nodes[i], second) and not any(
                second.inputs[2] in node.inputs for node in between
            ):
                nodes.insert(i + 1, nodes.pop(at))
                names.insert(i + 1, names.pop(at))
                break
    return replace(graph, nodes=tuple(nodes))


def _are_pair(first: Node, second: Node) -> bool:
    return (
        first.op == second.op.replace("_weight", "_input")
        and first.inputs == second.inputs[1:]
        and second.overwrites == second.inputs[2]
    )


def pairs_of(graph: Graph) -> Iterator[tuple[Node, Node]]:
    """Yield each input gradient with the gradient of the weight that follows it."""
    for first, second in pairwise(graph):
        if not second.stored and operator_of(second).may_be_paired and _are_pair(first, second):
            yield first, second


def statistics_of(graph: Graph) -> Iterator[tuple[Node, Node]]:
    """Yield each operator with the next node, if that computes the statistics of its output."""
    for first, second in pairwise(graph):
        follows = second.op == "batchnorm_stats" and second.inputs == (first.name,)
        if follows and not first.stored and operator_of(first).has_statistics:
            yield first, second
