"""States in which only large tensors count: every plan has a path that costs no more.

A small tensor is in RAM at no cost from its first computation on, and fills RAM only while a run
reads or makes it. What every plan pays for small tensors is a constant.
"""

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import replace
from functools import cached_property
from itertools import chain, combinations

from ...plan.problem import Output
from ..search import Task
from ..unavoidable import needed_whole
from .states import Run, StateProblem

Move = tuple[int, int]  # a stage, and the stage after the run


class LargeStates:
    """The states of a task without a deadline in which tensors of `large_bytes` and more count."""

    def __init__(self, task: Task, listed: Sequence[int], counted: Set[int]) -> None:
        """`listed`: tensors that have a bit, although only those in `counted` count.

        Searches with the same bits can be compared.
        """
        self.task, self.modes, self.graph = task, task.modes, task.modes.given
        nodes, graph = self.graph.nodes, self.graph
        self.modes_of = [
            *((i, m) for i in range(len(nodes)) for m in self.modes.plain[i]), *self.modes.fused
        ]  # fmt: skip
        self.listed = listed
        self.bit = {i: 1 << k for k, i in enumerate(listed) if i in counted}
        self.order = self.nodes_with_stages()
        self.stage = {i: stage for stage, i in enumerate(self.order)}
        # Tensors that a plan may put on storage, and the least that this costs:
        self.storing_uj = {
            i: self.modes.storing_uj[i]
            for i in self.bit
            if task.page and not nodes[i].stored and not nodes[i].keep
        }
        self.runs: list[Run] = []
        self.found: dict[tuple[object, ...], list[int]] = {}  # runs that differ in costs alone
        self.moves: list[list[tuple[int, int]]] = [[] for _ in self.order]
        for i in self.order:
            if i not in graph.unavoidable:
                self.add(Run(), [(self.stage[i], self.stage[i] + 1)])
        for i, m in self.modes_of:
            if i in self.stage:
                self.add_mode(i, m)

    def set_of(self, tensors: Iterable[int]) -> int:
        """Return the large ones of some tensors as a set."""
        return sum(self.bit[i] for i in set(tensors) if i in self.bit)

    def nodes_with_stages(self) -> list[int]:
        """Return the nodes whose computation may need or make a large tensor."""
        found: set[int] = set()
        for i, m in self.modes_of:
            made = [it.node for it in self.graph.outputs(i, m)]
            touched = {*self.graph.nodes[i].inputs_of(m), *made}
            if len(made) > 1 or not touched.isdisjoint(self.listed):
                found |= {i, *made}
        return sorted(found)

    @cached_property
    def constant(self) -> float:
        """Return what every plan pays in addition to its path.

        A plan may begin with large tensors in RAM, which its path pages in.
        """
        nodes, graph = self.graph.nodes, self.graph
        small: set[int] = set()
        total = 0.0
        for i in sorted(graph.unavoidable):
            small |= needed_whole(graph, i)
            if i not in self.stage:
                made = ((m, graph.outputs(i, m)) for m in self.modes.plain[i])
                costs = [nodes[i].mode(m).energy_uj + sum(map(self.kept_uj, it)) for m, it in made]
                total += min(costs, default=0.0)
        total += sum(nodes[i].page_in_uj for i in small - {*self.bit, *graph.starting})
        return total - sum(nodes[i].page_in_uj for i in graph.starting if i in self.bit)

    def kept_uj(self, made: Output) -> float:
        """Return the least that it costs to put a kept tensor on storage, when it is made first."""
        node, least_uj = self.graph.nodes[made.node], self.modes.storing_uj[made.node]
        if made.streamed or not node.keep:
            return 0.0
        if made.node in self.graph.may_commit:
            return min(least_uj, node.page_out_uj / self.graph.commit_every)
        return least_uj

    def add_mode(self, i: int, m: int) -> None:
        """Add the runs in which a mode computes its last nodes first, and the others again."""
        nodes, graph = self.graph.nodes, self.graph
        made, effect = graph.outputs(i, m), graph.effects["compute", i, m]
        after = self.stage[made[-1].node] + 1
        small = [j for j in set(effect.needs) if j not in self.bit]
        run = Run(
            needs=self.set_of(effect.needs),
            reads=self.set_of(effect.reads),
            absent=self.set_of(effect.absent),
            makes=self.set_of(effect.makes),
            drops=self.set_of(effect.drops),
            own_bytes=effect.own_bytes + sum(nodes[j].bytes for j in small),
        )
        for count in range(len(made) + 1):
            again, first = made[:count], made[count:]
            if again and (not self.task.recompute or any(nodes[it.node].once for it in again)):
                break
            # What is streamed again has been paid for at its first computation.
            paid = sum(it.streamed for it in again) / len(made)
            cost = effect.energy_uj * (1 - paid) + sum(map(self.kept_uj, first))
            if not first:
                may = any(self.task.may_recompute[j] for j in effect.makes if j in self.bit)
                moves = [(stage, stage) for stage in range(after, len(self.order))] if may else []
                self.add(replace(run, cost=cost), moves)
                break
            moves = [(self.stage[first[0].node], after)]
            streamed = self.set_of(it.node for it in first if it.streamed or nodes[it.node].keep)
            for stored in self.choices(first):
                more = sum(self.storing_uj[j] for j in stored)
                stores = streamed | self.set_of(stored)
                self.add(replace(run, cost=cost + more, stores=stores), moves)

    def choices(self, first: Sequence[Output]) -> Iterator[tuple[int, ...]]:
        """Yield the sets of tensors that may go to storage when they are made first."""
        may = [it.node for it in first if it.node in self.storing_uj and not it.streamed]
        yield from chain.from_iterable(combinations(may, n) for n in range(len(may) + 1))

    def add(self, run: Run, moves: Sequence[Move]) -> None:
        """Add a run, unless one costs and needs no more."""
        if not moves:
            return
        key = (*run.sets, *moves)
        for other in (self.runs[k] for k in self.found.get(key, ())):
            if other.own_bytes <= run.own_bytes and other.cost <= run.cost:
                return
        self.found.setdefault(key, []).append(len(self.runs))
        for stage, after in moves:
            self.moves[stage].append((len(self.runs), after))
        self.runs.append(run)

    @cached_property
    def problem(self) -> StateProblem:
        nodes, graph = self.graph.nodes, self.graph
        due = [0] * (len(self.order) + 1)
        for i in graph.unavoidable & self.stage.keys():
            for stage in range(self.stage[i] + 1):
                due[stage] |= self.set_of(needed_whole(graph, i))
        useful, usable = self.lives()
        return StateProblem(
            self.task.padded_ram_bytes,
            [nodes[i].bytes for i in self.listed],
            [nodes[i].page_in_uj for i in self.listed],
            self.runs,
            self.moves,
            due=due,
            useful=useful,
            usable=usable,
            storage=self.set_of(i for i in self.bit if nodes[i].stored),
        )

    def lives(self) -> tuple[list[int], list[int]]:
        """Return for each stage, and the end, what may still be of use in RAM and on storage."""
        nodes = self.graph.nodes
        again = {run for stage, moves in enumerate(self.moves) for run, to in moves if to == stage}
        chains = [self.runs[k] for k in sorted(again, reverse=True)]
        useful, usable = [0] * (len(self.order) + 1), [0] * (len(self.order) + 1)
        needs = reads = 0
        for stage in reversed(range(len(self.order))):
            firsts = [self.runs[run] for run, to in self.moves[stage] if to > stage]
            for run in firsts:
                needs, reads = needs | run.needs, reads | run.reads
            before = -1
            while before != needs:
                before = needs
                for run in chains:
                    if run.makes & needs:
                        needs, reads = needs | run.needs, reads | run.reads
            earlier = (i for i in self.bit if nodes[i].stored or i < self.order[stage])
            born = self.set_of(earlier)
            useful[stage], usable[stage] = needs & born, (needs | reads) & born
        return useful, usable
