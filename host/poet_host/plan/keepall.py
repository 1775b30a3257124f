"""Keep-everything: the plan for unlimited RAM, with which all other plans are compared."""

from dataclasses import replace
from math import inf

from ..errors import BadInput
from .completion import complete
from .events import Event
from .placed_plan import PlacedPlan, finish
from .placement import arrange
from .plan import Plan, Statement
from .problem import CostGraph, Problem

METHOD = "keep-everything"


def keep_everything(graph: CostGraph) -> Plan:
    """Make the plan that computes every node once, in order, and keeps tensors to their last use.

    A computed tensor is freed after its last use, or at once if it has no use. A stored tensor is
    paged in before its first use. A tensor that must be on storage at the end is paged out. If a
    node overwrites a tensor before the tensor's last use, the tensor is paged out and in again.
    Nothing else is paged.

    The RAM of the plan is the height of its placement if every transfer takes place right where it
    is needed. Within this RAM, transfers start as early as those of other plans.

    Raises BadInput if a tensor is overwritten before its last use in a graph without storage.
    """
    placement = arrange(graph, kept_statements(graph), 0)
    problem = Problem(graph, placement.height_bytes)
    plan = finish(problem, placement, time_limit_s=inf, effort="little")
    assert isinstance(plan, PlacedPlan)  # not Excess: the placement fits, and there is no deadline
    return replace(plan.as_plan(problem), method=METHOD)


def kept_statements(graph: CostGraph) -> tuple[Statement, ...]:
    """Return the statements of keep-everything, in which no transfer starts early."""
    events = [Event("compute", i) for i, node in enumerate(graph.nodes) if not node.stored]
    kept = complete(graph, events, inf).statements
    if kept is not None:
        return kept
    last = last_uses(graph)
    name, over = next(
        (node.name, graph.nodes[node.overwrites].name)
        for i, node in enumerate(graph.nodes)
        if node.overwrites is not None and last[node.overwrites] > i
    )
    raise BadInput(
        f'{graph.name}, node "{name}": the node overwrites "{over}", but a later '
        f'node needs "{over}". Plan with storage, which can hold a copy of "{over}"'
    )


def last_uses(graph: CostGraph) -> list[int]:
    """Return for each tensor the index of the last node that uses it; -1 if no node does.

    Without storage, a tensor that must outlive the step stays in RAM to the end: the index is
    `len(graph.nodes)`.
    """
    end = len(graph.nodes)
    last = [end if node.keep and not graph.storage else -1 for node in graph.nodes]
    for j, node in enumerate(graph.nodes):
        for i in node.inputs:
            last[i] = max(last[i], j)
    return last
