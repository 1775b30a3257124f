"""Keep-everything: the plan with unlimited RAM that all others are measured against."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..errors import BadInput
from .placement import arrange
from .plan import Op, Plan, Statement
from .problem import CostGraph, Problem
from .verify import verify

METHOD = "keep-everything"


def keep_everything(graph: CostGraph) -> Plan:
    """Every node once in order; every tensor stays in RAM from its first use to its last.

    A computed tensor is freed after its last use, at once if nobody uses it; a stored one
    is paged in right before its first use; a kept one is paged out when it is computed.
    Nothing is paged otherwise, except that a tensor which another node overwrites while it
    is still needed is paged in again. The plan is placed; `peak_bytes` is its height.

    Raises BadInput if such a tensor exists in a graph without storage.
    """
    statements = _Walk(graph).statements()
    placement = arrange(graph, statements, 0)
    plan = Plan(
        status="feasible",
        ram_bytes=placement.height_bytes,
        statements=placement.statements,
        method=METHOD,
        initial_offsets=placement.initial_offsets,
    )
    totals = verify(Problem(graph, placement.height_bytes), plan)
    return replace(
        plan,
        energy_uj=totals.energy_uj,
        time_us=totals.time_us,
        total_energy_uj=totals.total_energy_uj,
        peak_bytes=totals.peak_bytes,
    )


@dataclass
class _Walk:
    """One pass over the graph that knows which tensors somebody still wants."""

    graph: CostGraph
    out: list[Statement] = field(default_factory=list)
    ram: set[int] = field(default_factory=set)

    def statements(self) -> list[Statement]:
        nodes = self.graph.nodes
        last_use = self._last_uses()
        if not self.graph.storage:
            self.ram = {i for i, node in enumerate(nodes) if node.stored}
            self._free([i for i in sorted(self.ram) if last_use[i] < 0])
        page_out = self._pages()
        for i, node in enumerate(nodes):
            if node.stored:
                continue
            self._check_overwriting(i, last_use)
            inputs = list(dict.fromkeys(node.inputs))
            for j in inputs:
                if j not in self.ram:
                    self._emit("page_in", j)
                    self.ram.add(j)
            self._emit("compute", i)
            self.ram.add(i)
            if node.overwrites is not None:
                self.ram.discard(node.overwrites)
            self._free([j for j in inputs if j in self.ram and last_use[j] <= i])
            if i in page_out:
                self._emit("page_out", i)
            self._free([i] if last_use[i] < 0 else [])
        return self.out

    def _last_uses(self) -> list[int]:
        """The last node that uses each tensor; -1: none. Without storage, `keep` is a use."""
        end = len(self.graph.nodes)
        last = [end if node.keep and not self.graph.storage else -1 for node in self.graph.nodes]
        for j, node in enumerate(self.graph.nodes):
            for i in node.inputs:
                last[i] = max(last[i], j)
        return last

    def _pages(self) -> set[int]:
        """Computed tensors that must be on storage: kept, or used after being overwritten."""
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
            f'{self.graph.name}, node "{node.name}": overwrites "{over}", which is needed '
            "later, and without storage it cannot be paged in again"
        )

    def _free(self, tensors: Sequence[int]) -> None:
        for i in tensors:
            self._emit("free", i)
            self.ram.discard(i)

    def _emit(self, op: Op, i: int) -> None:
        self.out.append(Statement(op, self.graph.nodes[i].name))
