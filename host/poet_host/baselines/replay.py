"""Replay: the events of a step so far, and the computed tensors that are in RAM after them."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..plan.events import Event
from ..plan.plan import Op
from ..plan.problem import CostGraph


@dataclass
class Replay:
    """A step whose computations are appended one by one.

    Stored tensors are left out: completion.py adds their transfers.
    """

    graph: CostGraph
    events: list[Event] = field(default_factory=list)
    have: set[int] = field(default_factory=set)  # in RAM
    done: set[int] = field(default_factory=set)  # computed at least once
    written: set[int] = field(default_factory=set)  # tensors paged out; `ensure` pages them in

    def run(self, op: Op, i: int) -> None:
        self.events.append(event := Event(op, i))
        effect = self.graph.effects[event]
        self.done.update(effect.makes)
        self.have.update(effect.makes)
        self.have.difference_update(effect.drops)

    def ensure(self, wanted: Iterable[int]) -> set[int]:
        """Bring `wanted` into RAM. Return all tensors that are paged in or recomputed for this."""
        nodes = self.graph.nodes
        missing: set[int] = set()
        todo = [i for i in wanted if not nodes[i].stored and i not in self.have]
        while todo:
            i = todo.pop()
            if i in missing:
                continue
            missing.add(i)
            if i not in self.written:
                todo += [j for j in nodes[i].inputs if not nodes[j].stored and j not in self.have]
        for i in sorted(missing):
            self.run("page_in" if i in self.written else "compute", i)
        return missing
