"""Pairs: the gradients of one operator by its weight and by its input, which one nest computes.

In a cost graph, the input gradient comes right before the gradient of the weight. It has modes in
which it is *deferred*: the next statement computes it. That statement has a mode which *completes*
it. Both statements are one statement of a board.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from ..graph.graph import Graph, Node
from ..graph.operands import operator_of
from .nests import may_be_paired
from .priced_nest import PricedNest
from .problem import CostNode, Mode


def in_pair_order(graph: Graph) -> Graph:
    """Return the graph with each gradient of a weight right after the input gradient of its pair.

    Nodes between them do not read the weight, so they may come after its renewal.
    """
    nodes = list(graph)
    for second in graph:
        if second.stored or not may_be_paired(operator_of(second)):
            continue
        for i in range(nodes.index(second)):
            between = nodes[i + 1 : nodes.index(second)]
            used = any(second.inputs[2] in node.inputs for node in between)
            if _are_pair(nodes[i], second) and between and not used:
                nodes.remove(second)
                nodes.insert(i + 1, second)
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
        if second.stored or not may_be_paired(operator_of(second)):
            continue
        if _are_pair(first, second):
            yield first, second


def with_deferred(cost: CostNode, found: Sequence[PricedNest]) -> CostNode:
    """Return an input gradient with the modes in which one of the pairs computes it."""
    kinds = sorted({any(priced.nest.also) for priced in found})
    more = (Mode((), streamed, 0, 0.0, 0.0, 0.0, 0.0, deferred=True) for streamed in kinds)
    return replace(cost, modes=(*cost.modes, *more))
