"""Keep-everything: the plan for unlimited RAM, with which all other plans are compared."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from ..errors import BadInput
from .effects import Contents
from .placed_plan import PlacedPlan, finish
from .placement import arrange
from .plan import Op, Plan, Statement
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


def kept_statements(graph: CostGraph) -> list[Statement]:
    """Return the statements of keep-everything, in which no transfer starts early."""
    return _Builder(graph).statements()


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


class _Builder:
    """Makes the statements of the keep-everything plan in one pass over the graph."""

    def __init__(self, graph: CostGraph) -> None:
        self.graph, self.contents = graph, Contents(graph)
        self.out: list[Statement] = []

    def statements(self) -> list[Statement]:
        nodes, ram, last_use = self.graph.nodes, self.contents.ram, last_uses(self.graph)
        self._emit("free", [i for i in sorted(ram) if last_use[i] < 0])
        page_out = self._paged_out()
        for i, node in enumerate(nodes):
            if node.stored:
                continue
            self._check_overwriting(i, last_use)
            inputs = list(dict.fromkeys(node.inputs))
            self._emit("page_in", [j for j in inputs if j not in ram])
            self._emit("compute", [i])
            self._emit("free", [j for j in inputs if j in ram and last_use[j] <= i])
            self._emit("page_out", [i] if i in page_out else [])
            self._emit("free", [i] if last_use[i] < 0 else [])
        return self.out

    def _paged_out(self) -> set[int]:
        """Return the computed tensors that the plan pages out.

        Each must be on storage at the end, or is needed after another node overwrote it.
        """
        nodes = self.graph.nodes
        pages = {i for i, node in enumerate(nodes) if node.keep and not node.stored}
        overwritten: set[int] = set()
        for node in nodes:
            pages |= {j for j in node.inputs if j in overwritten and not nodes[j].stored}
            if node.overwrites is not None:
                overwritten.add(node.overwrites)
        return pages if self.graph.storage else set()

    def _check_overwriting(self, i: int, last_use: Sequence[int]) -> None:
        node = self.graph.nodes[i]
        if node.overwrites is None or self.graph.storage or last_use[node.overwrites] <= i:
            return
        over = self.graph.nodes[node.overwrites].name
        raise BadInput(
            f'{self.graph.name}, node "{node.name}": the node overwrites "{over}", but a later '
            f'node needs "{over}". Plan with storage, which can hold a copy of "{over}"'
        )

    def _emit(self, op: Op, tensors: Sequence[int]) -> None:
        for i in tensors:
            self.out.append(Statement(op, self.graph.nodes[i].name))
            self.contents.change(self.graph.effects[op, i, 0])
