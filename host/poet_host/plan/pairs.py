"""Pairs: the gradients of one operator by its weight and by its input, which one nest computes.

In a cost graph, the input gradient comes right before the gradient of the weight. It has modes in
which it is *deferred*: the next statement computes it. That statement has a mode which *completes*
it. Both statements are one statement of a board.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Protocol, TypeVar

from ..graph.graph import Graph, Node
from ..graph.operands import operator_of
from .nests import may_be_paired
from .priced_nest import PricedNest
from .problem import CostNode, Mode


class Action(Protocol):
    """A statement of a plan, or an event of a search."""

    @property
    def op(self) -> str: ...

    @property
    def node(self) -> object: ...


A = TypeVar("A", bound=Action)


def with_pairs_together(actions: Iterable[A], mode_of: Callable[[A], Mode]) -> list[A]:
    """Move each deferred computation right before the one that completes it, which comes later.

    What happens to its output follows after both. No other order needs less RAM.
    """
    together: list[A] = []
    held: list[A] = []  # actions on the tensor whose computation is deferred, in order
    for action in actions:
        computes = action.op == "compute"
        if computes and mode_of(action).deferred:
            held.append(action)
        elif held and computes and mode_of(action).completes is not None:
            together += [held[0], action, *held[1:]]
            held = []
        elif held and action.node == held[0].node:
            held.append(action)
        else:
            together.append(action)
    return together + held


def in_pair_order(graph: Graph) -> Graph:
    """Return the graph with each gradient of a weight right after the input gradient of its pair.

    Nodes between them do not read the weight, so they may come after its renewal.
    """
    nodes = list(graph)
    names = [node.name for node in nodes]
    for second in graph:
        if second.stored or not may_be_paired(operator_of(second)):
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
        if second.stored or not may_be_paired(operator_of(second)):
            continue
        if _are_pair(first, second):
            yield first, second


def with_deferred(cost: CostNode, found: Sequence[PricedNest]) -> CostNode:
    """Return an input gradient with the modes in which one of the pairs computes it."""
    kinds = sorted({any(priced.nest.also) for priced in found})
    more = (Mode((), streamed, 0, 0.0, 0.0, 0.0, 0.0, deferred=True) for streamed in kinds)
    return replace(cost, modes=(*cost.modes, *more))
