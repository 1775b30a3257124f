"""Random cost graphs and random legal plans of them: walks of a machine that never breaks a law."""

import random
from collections.abc import Iterable

from poet_host.plan.plan import Plan, Statement
from poet_host.plan.problem import CostGraph, CostNode


def random_cost_graph(rng: random.Random, nodes: int) -> CostGraph:
    """A graph with stored, kept, overwriting and once-only nodes, workspaces and odd sizes."""
    made: list[CostNode] = []
    overwritten: set[int] = set()
    for i in range(nodes):
        name = f"n{i}"
        usable = [j for j in range(i) if j not in overwritten]
        if i == 0 or rng.random() < 0.25 or not usable:
            made.append(CostNode(name, (), 4 * rng.randint(1, 64), stored=True))
            continue
        inputs = tuple(rng.choice(usable) for _ in range(rng.randint(1, min(4, len(usable)))))
        overwrites, size_bytes = None, rng.randint(1, 256)
        if rng.random() < 0.3:
            overwrites = rng.choice(inputs)
            size_bytes = made[overwrites].bytes
            overwritten.add(overwrites)
        made.append(
            CostNode(
                name,
                inputs,
                size_bytes,
                keep=rng.random() < 0.3,
                once=rng.random() < 0.2,
                overwrites=overwrites,
                workspace_bytes=rng.choice((0, 0, 4, 7, 40)),
            )
        )
    return CostGraph("random", tuple(made))


class Walk:
    """Makes statements for a cost graph; whatever it does is legal."""

    def __init__(self, graph: CostGraph, rng: random.Random, spread: int = 64) -> None:
        self.graph, self.rng, self.spread = graph, rng, spread
        self.number = {node.name: i for i, node in enumerate(graph.nodes)}
        self.ram: dict[int, tuple[int, int]] = {}
        self.storage = {i for i, node in enumerate(graph.nodes) if node.stored}
        self.done: set[int] = set()
        self.statements: list[Statement] = []
        # A node needed by one that runs once must stay reachable until then.
        self.fragile = {i for i, node in enumerate(graph.nodes) if node.once}

    def plan(self) -> Plan:
        for i, node in enumerate(self.graph.nodes):
            if node.stored:
                continue
            self._wander(self.rng.randint(0, 3))
            self._compute(i, 0)
            if node.keep or node.once or self.rng.random() < 0.3:
                self._page_out(i)
            self._free_some(self.rng.choice((0.0, 0.3, 1.0)))
        self._wander(3)
        return Plan(
            "feasible", 1 << 20, None, 1.0, 1.0, 0.0, 1.0, 1.0, None, 0.0, tuple(self.statements)
        )

    def _size(self, i: int) -> int:
        return -(-self.graph.nodes[i].bytes // 4) * 4

    def _free_offset(self, size_bytes: int) -> int:
        """A legal offset: the lowest, right above something, or anywhere."""
        taken = sorted(self.ram.values())
        starts = [0, *[end for _, end in taken]]
        high = max(starts)
        starts += [4 * self.rng.randint(0, (high + self.spread) // 4) for _ in range(2)]
        fits = [s for s in starts if all(e <= s or s + size_bytes <= b for b, e in taken)]
        return min(fits) if self.rng.random() < 0.5 else self.rng.choice(fits)

    def _wander(self, times: int) -> None:
        for _ in range(times):
            choice = self.rng.random()
            absent = [i for i in self.storage if i not in self.ram]
            pages = [i for i in self.ram if not self.graph.nodes[i].stored]
            again = [i for i in self.done - set(self.ram) if not self.graph.nodes[i].once]
            if choice < 0.4 and absent:
                self._page_in(self.rng.choice(sorted(absent)))
            elif choice < 0.7 and pages:
                self._page_out(self.rng.choice(sorted(pages)))
            elif choice < 0.9 and again:
                self._compute(self.rng.choice(sorted(again)), 0)
            else:
                self._free_some(0.3)

    def _free_some(self, likely: float) -> None:
        for i in self.rng.sample(sorted(self.ram), len(self.ram)):
            if self.rng.random() < likely and self._safe_without(i):
                self._free(i)

    def _free(self, i: int) -> None:
        del self.ram[i]
        self.statements.append(Statement("free", self.graph.nodes[i].name))

    def _safe_without(self, i: int) -> bool:
        return i in self.storage or i not in self.fragile

    def _page_in(self, i: int) -> None:
        offset = self._free_offset(self._size(i))
        self.ram[i] = (offset, offset + self._size(i))
        self.statements.append(Statement("page_in", self.graph.nodes[i].name, offset))

    def _page_out(self, i: int) -> None:
        if i in self.ram:
            self.storage.add(i)
            self.statements.append(Statement("page_out", self.graph.nodes[i].name))

    def _compute(self, i: int, depth: int) -> None:
        node = self.graph.nodes[i]
        number = self.rng.randint(0, len(node.modes)) if node.modes else 0
        mode = node.mode(number)
        if depth > 60:
            raise StuckError
        for _ in range(20):
            self._write(j for j in mode.streamed_inputs if j in self.ram)
            missing = [j for j in dict.fromkeys(node.whole_inputs(number)) if j not in self.ram]
            missing += [j for j in mode.streamed_inputs if j not in self.storage]
            if not missing:
                break
            j = missing[0]
            if j in self.storage and (self.rng.random() < 0.7 or self.graph.nodes[j].stored):
                self._page_in(j)
            elif self.graph.nodes[j].once or self.graph.nodes[j].stored:
                if j not in self.storage:
                    raise StuckError
                self._page_in(j)
            else:
                self._compute(j, depth + 1)
        else:
            raise StuckError
        if i in self.ram and not mode.streamed_output:
            return
        if node.once and i in self.done:
            return
        workspace, place = None, None
        if mode.streamed_output:
            for j in {i, mode.overwrites} & self.ram.keys():
                self._free(j)
        if mode.workspace_bytes:
            size_bytes = -(-mode.workspace_bytes // 4) * 4
            workspace = self._free_offset(size_bytes)
            self.ram[-1] = (workspace, workspace + size_bytes)
        if mode.streamed_output:
            self.storage.add(i)
        elif mode.overwrites is None:
            offset = self._free_offset(self._size(i))
            place = (offset, offset + self._size(i))
        else:
            place = self.ram.pop(mode.overwrites)
        self.ram.pop(-1, None)
        if place is not None:
            self.ram[i] = place
        self.done.add(i)
        offset = None if place is None else place[0]
        self.statements.append(Statement("compute", node.name, offset, workspace, number))
        if node.once:
            self._page_out(i)

    def _write(self, tensors: Iterable[int]) -> None:
        for j in tensors:
            if j not in self.storage:
                self._page_out(j)


class StuckError(Exception):
    """This walk overwrote something that it needs and cannot have again."""


def random_plan(graph: CostGraph, rng: random.Random, spread: int = 64) -> Plan | None:
    try:
        return Walk(graph, rng, spread).plan()
    except StuckError:
        return None
