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
        missing: set[int] = set()
        todo = [i for i in wanted if self._lacks(i)]
        while todo:
            i = todo.pop()
            if i in missing:
                continue
            missing.add(i)
            if i not in self.written:
                todo += [j for j in self.graph.nodes[i].inputs if self._lacks(j)]
        for i in sorted(missing):
            self.run("page_in" if i in self.written else "compute", i)
        return missing

    def _lacks(self, i: int) -> bool:
        """Return whether `ensure` must bring a tensor into RAM.

        completion.py pages in stored tensors. So it does with a result that another node overwrote,
        and that must be computed only once.
        """
        node = self.graph.nodes[i]
        was_lost = node.once and i in self.done and i not in self.written
        return not (node.stored or was_lost or i in self.have)
