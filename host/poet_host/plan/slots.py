"""Slots: the places in a step at which an operator may run.

Stage t of a step ends with the first computation of operator t, which must happen. Before
it, a stage offers optional slots in which earlier results may be computed again. Which
slots are offered decides which plans the slot model (milp.py) can express.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .problem import CostGraph

UNLIMITED = 1 << 30


@dataclass(frozen=True)
class Slot:
    """Operator `node` may run here; it must unless `optional`."""

    node: int
    optional: bool


@dataclass(frozen=True)
class Reach:
    """Which recomputations each stage offers.

    `ancestors`: at most so many recomputed operators in a chain down to the stage's
    operator; None: every earlier operator. `passes`: how often the stage's list is offered,
    each time in execution order.
    """

    ancestors: int | None = UNLIMITED
    passes: int = 1


def recomputable(graph: CostGraph, *, recompute: bool, page: bool, deadline: bool) -> list[bool]:
    """Which nodes a plan of least energy may compute again.

    Without a deadline, a node whose result costs no more to write and read than to compute
    is never worth computing again: page it out at its first computation (nothing if it is
    kept on storage anyway) and in where it was recomputed. That needs no input in RAM and
    no workspace, hence never more memory.
    """
    return [
        recompute
        and not node.stored
        and not node.once
        and not (
            page
            and not deadline
            and node.energy_uj >= node.page_in_uj + (0.0 if node.keep else node.page_out_uj)
        )
        for node in graph.nodes
    ]


def offer(graph: CostGraph, again: Sequence[bool], reach: Reach) -> list[Slot]:
    """The slots of all stages in order.

    Without storage, a last stage brings back what has to be in RAM at the end.
    """
    slots: list[Slot] = []
    previous: set[int] = set()
    for index, node in enumerate(graph.nodes):
        if node.stored:
            continue
        if any(i not in previous and not graph.nodes[i].stored for i in node.inputs):
            slots += _stage(graph, index, node.inputs, again, reach)
        elif reach.ancestors is None:
            slots += _stage(graph, index, (), again, reach)
        slots.append(Slot(index, optional=False))
        previous = {index, *node.inputs} - {node.overwrites}
    if not graph.storage:
        kept = [i for i, node in enumerate(graph.nodes) if node.keep]
        slots += _stage(graph, len(graph.nodes), kept, again, reach)
    return slots


def _stage(
    graph: CostGraph, index: int, wanted: Iterable[int], again: Sequence[bool], reach: Reach
) -> list[Slot]:
    """Optional slots of the stage that ends with operator `index` and needs `wanted`."""
    if reach.ancestors is None:
        found = {i for i in range(index) if again[i]}
    else:
        found = _ancestors(graph, wanted, again, reach.ancestors)
    return [Slot(i, optional=True) for i in sorted(found)] * reach.passes


def _ancestors(
    graph: CostGraph, wanted: Iterable[int], again: Sequence[bool], depth: int
) -> set[int]:
    """Recomputable nodes that give `wanted` through at most `depth` recomputations in a row."""
    found: set[int] = set()
    border = {i for i in wanted if again[i]}
    while border and depth > 0:
        found |= border
        border = {i for j in border for i in graph.nodes[j].inputs if again[i]} - found
        depth -= 1
    return found
