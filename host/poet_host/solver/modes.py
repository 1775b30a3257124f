"""The modes that a search uses, and what they have in common.

A node may be computed in several modes (plan/problem.py). In some of them, operands are streamed:
they stay on storage. The search leaves out a mode that no plan of least value needs. For a node
without modes, mode 0 is the only mode, and all its inputs are needed whole. Modes that compute
several nodes are taken apart (apart.py).
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from copy import copy
from dataclasses import replace
from functools import cached_property

from ..plan.events import Event
from ..plan.problem import CostGraph, Mode
from .apart import Group, Member, taken_apart
from .ways import Way, least_of

Strict = Mapping[int, Set[int]]
"""Inputs by node. Recomputations of the node need these inputs. See `Modes.relaxed`."""


class Modes:
    """The usable modes of each node of a graph, as the models see it. Sequences are by node."""

    def __init__(
        self,
        graph: CostGraph,
        fits: Callable[[int, int], bool] = lambda j, m: True,
        *,
        page: bool = True,
        timed: bool = True,
    ) -> None:
        """Choose the modes.

        `fits`: whether the budget holds what node j needs in RAM in mode m. `page` False: only kept
        tensors are written to storage. `timed` False: time does not matter.
        """
        self.given, self.page, self.timed = graph, page, timed

        def may_use(j: int, m: int) -> bool:
            return self._is_able(j, m) and fits(j, m)

        kept = [self._kept(j, may_use) for j in range(len(graph.nodes))]
        self.apart = taken_apart(graph, kept)
        self.graph = self.apart.graph  # as the models see it
        self.exact = self  # the modes before `relaxed`
        # Modes that compute one node. Their numbers are the same in both graphs.
        self.plain = tuple(
            tuple(m for m in numbers if not node.mode(m).also)
            for node, numbers in zip(graph.nodes, kept, strict=True)
        )
        self.usable = tuple(self._usable(j) for j in range(len(graph.nodes)))

    @cached_property
    def fused(self) -> tuple[Member, ...]:
        """Return the usable modes that compute several nodes, each with the node that has it."""
        every = (fused for group in self.apart.groups for fused in group.closing.values())
        return tuple(dict.fromkeys(every))

    @cached_property
    def groups_of(self) -> dict[int, list[Group]]:
        """Return the groups by their last members."""
        groups: dict[int, list[Group]] = {}
        for group in self.apart.groups:
            groups.setdefault(group.last, []).append(group)
        return groups

    @cached_property
    def _meant(self) -> dict[Member, Event | None]:
        closings = ((g.last, k, one) for g in self.apart.groups for k, one in g.closing.items())
        meant: dict[Member, Event | None] = {
            (j, k): Event("compute", *one) for j, k, one in closings
        }
        meant |= {member: None for group in self.apart.groups for member in group.waiting}
        return meant | dict.fromkeys(self.apart.left_out.items())

    def event_of(self, j: int, m: int) -> Event | None:
        """Return the event of a first computation in mode m, as models see it; None: no event."""
        return self._meant.get((j, m), Event("compute", j, m))

    def firsts(self, events: Sequence[Event]) -> dict[int, int]:
        """Return the mode in which each node is computed first, as the models see it."""
        modes: dict[int, int] = {}
        for op, i, mode in events:
            if op != "compute":
                continue
            fused = self.given.nodes[i].mode(mode).also
            for j, m in self._members(i, mode, modes) if fused else ((i, mode),):
                modes.setdefault(j, m)
        return self.apart.left_out | modes

    def _members(self, i: int, mode: int, done: Container[int]) -> Iterable[Member]:
        """Return the modes of a model that stand for a fused mode, or else for a better one."""
        better = (m for j, m in self.fused if j == i and self._dominates(i, m, mode))
        for m in (mode, *better):
            if members := self.apart.members_of((i, m), done):
                return members
        made = (out.node for out in self.given.outputs(i, mode))
        return [(j, self.usable[j][0]) for j in made if self.usable[j]]

    def relaxed(self, strict: Strict) -> "Modes":
        """Return the modes as if recomputations needed only the inputs in `strict`.

        A node with several ways needs all its inputs if it is in `strict`. Otherwise its
        recomputations cost what its cheapest way costs.
        """
        modes = copy(self)
        for name in ("ways", "least_way", "again"):
            modes.__dict__.pop(name, None)
        modes.ways = tuple(
            self._relaxed_ways(j, strict.get(j)) for j in range(len(self.graph.nodes))
        )
        return modes

    def _relaxed_ways(self, j: int, strict: Set[int] | None) -> tuple[Way, ...]:
        least = self.least_way[j]
        if least is None or (strict is not None and not self.has_one_way[j]):
            return self.ways[j]
        whole = tuple(i for i in least.whole if strict is not None and i in strict)
        return (replace(least, whole=whole, streamed=()),)

    def _kept(self, j: int, may_use: Callable[[int, int], bool]) -> tuple[int, ...]:
        """Return the modes of node j that a plan of least value may need."""
        node = self.given.nodes[j]
        if not node.modes:
            return () if node.stored else (0,)
        able = [m for m in self.given.runnable(j) if may_use(j, m)]
        kept: list[int] = []
        for m in sorted(able, key=lambda m: (*_costs(node.mode(m)), m)):
            if not any(self._dominates(j, other, m) for other in kept):
                kept.append(m)
        return tuple(sorted(kept))

    def _usable(self, j: int) -> tuple[int, ...]:
        more = {self.apart.left_out[j]} if j in self.apart.left_out else set()
        for group in self.apart.groups:
            more |= {m for i, m in group.waiting if i == j}
            more |= group.closing.keys() if group.last == j else set()
        return (*self.plain[j], *sorted(more))

    def _is_able(self, j: int, m: int) -> bool:
        """Return whether the operands that mode m streams can be on storage."""
        nodes, mode = self.given.nodes, self.given.nodes[j].mode(m)
        made = (out.node for out in self.given.outputs(j, m) if out.streamed)
        streamed = [*mode.streamed_inputs, *made]
        return self.page or all(nodes[i].stored or nodes[i].keep for i in streamed)

    def need_bytes(self, j: int, m: int) -> int:
        """Return the bytes in RAM that computing node j in mode m needs at once."""
        nodes, whole = self.graph.nodes, set(self.graph.nodes[j].whole_inputs(m))
        return self.graph.own_bytes(j, m) + sum(nodes[i].bytes for i in whole)

    def _dominates(self, j: int, a: int, b: int) -> bool:
        """Return whether mode a replaces mode b in every plan, at no cost."""
        node = self.given.nodes[j]
        one, other = node.mode(a), node.mode(b)
        return (
            _operands(one) == _operands(other)
            and set(node.whole_inputs(a)) == set(node.whole_inputs(b))
            and one.workspace_bytes <= other.workspace_bytes
            and one.energy_uj <= other.energy_uj
            and (not self.timed or (one.wall_us <= other.wall_us and (b != 0 or a == 0)))
        )

    def instead_of(self, j: int, m: int) -> int:
        """Return a usable mode that replaces mode m of node j in every plan, at no cost."""
        if m in self.usable[j]:
            return m
        return next((k for k in self.plain[j] if self._dominates(j, k, m)), self.usable[j][0])

    def way_of(self, j: int, event: Event) -> int:
        """Return the index of a way that computes node j again like the event, or better."""
        ways = self.ways[j]
        mine = self._way(j, event.node, [event.mode])
        same = [
            w
            for w, way in enumerate(ways)
            if (set(way.streamed), set(way.whole)) == (set(mine.streamed), set(mine.whole))
        ]
        better = (w for w, way in enumerate(ways) if self._is_better(way, mine))
        return same[0] if same else next(better, 0)

    def lanes_us(self, j: int, m: int) -> tuple[float, float]:
        """Return for how long mode m of node j occupies the processor and the transfer lane."""
        wall_us = self.graph.nodes[j].mode(m).wall_us
        return wall_us, wall_us if m else 0.0

    @cached_property
    def wanted(self) -> tuple[tuple[int, ...], ...]:
        """Return the inputs that at least one mode needs in RAM."""
        return tuple(
            tuple(i for i in node.all_inputs if any(i in node.whole_inputs(m) for m in usable))
            for node, usable in zip(self.graph.nodes, self.usable, strict=True)
        )

    @cached_property
    def needed(self) -> tuple[frozenset[int], ...]:
        """Return the inputs that every mode needs in RAM."""
        nodes = self.graph.nodes
        return tuple(
            frozenset(i for i in wanted if all(i in nodes[j].whole_inputs(m) for m in usable))
            for j, (usable, wanted) in enumerate(zip(self.usable, self.wanted, strict=True))
        )

    @cached_property
    def whole(self) -> tuple[tuple[int, ...], ...]:
        """Return the modes whose output is in RAM."""
        return self._by_output(streamed=False)

    @cached_property
    def streaming(self) -> tuple[tuple[int, ...], ...]:
        """Return the modes whose output is streamed."""
        return self._by_output(streamed=True)

    def _by_output(self, *, streamed: bool) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(
                m
                for m in usable
                if node.mode(m).streamed_output == streamed and m != self.apart.left_out.get(j)
            )
            for j, (node, usable) in enumerate(zip(self.graph.nodes, self.usable, strict=True))
        )

    @cached_property
    def overwritten(self) -> tuple[frozenset[int], ...]:
        """Return the inputs that a mode overwrites, in RAM or on storage."""
        taken = (
            {node.mode(m).overwrites for m in usable}
            for node, usable in zip(self.graph.nodes, self.usable, strict=True)
        )
        return tuple(frozenset(i for i in over if i is not None) for over in taken)

    def certainly_stored(self, i: int) -> bool:
        """Return whether tensor i is on storage after its first computation, in every plan."""
        graph = self.graph
        is_streamed = not self.whole[i] and i not in self.apart.left_out
        is_stored = graph.nodes[i].stored and i not in graph.may_be_old
        return graph.storage and (is_stored or i in graph.always_written or is_streamed)

    @cached_property
    def storing_uj(self) -> tuple[float, ...]:
        """Return the least energy that puts a tensor in RAM on storage.

        It is a page-out, or a recomputation that streams its output.
        """
        return tuple(
            min([node.page_out_uj, *(way.energy_uj for way in self._streaming_ways(j))])
            for j, node in enumerate(self.graph.nodes)
        )

    @cached_property
    def storing_us(self) -> tuple[tuple[float, float], ...]:
        """Return the least times in both lanes that put a tensor in RAM on storage."""
        times_us = []
        for j, node in enumerate(self.graph.nodes):
            walls = [way.processor_us for way in self._streaming_ways(j)]
            times_us.append((min([node.page_out_cpu_us, *walls]), min([node.page_out_us, *walls])))
        return tuple(times_us)

    def runs_again(self, j: int) -> Iterator[tuple[tuple[int, ...], int, int | None]]:
        """Yield for each mode that computes node j again in RAM: the inputs that must be in RAM,
        the bytes of output and workspace, and the input whose memory the output takes over.

        What the mode computes in addition to node j is not counted.
        """
        modes = [(j, [m]) for m in self.plain[j] if not self.given.nodes[j].mode(m).streamed_output]
        for i, (m,) in (*modes, *self._fused_again(j, streamed=False)):
            node = self.given.nodes[i]
            over = next(out.overwrites for out in self.given.outputs(i, m) if out.node == j)
            own_bytes = node.mode(m).workspace_bytes
            own_bytes += self.given.nodes[j].bytes if over is None else 0
            whole = node.whole_inputs(m)
            yield whole, own_bytes, over if over in whole else None

    def _streaming_ways(self, j: int) -> list[Way]:
        """Return the ways to compute node j again whose result goes to storage."""
        if self.graph.nodes[j].once:
            return []
        own = [self._way(j, j, [m]) for m in self.streaming[j] if m in self.plain[j]]
        return own + [self._way(j, *fused) for fused in self._fused_again(j, streamed=True)]

    def _fused_again(self, j: int, *, streamed: bool) -> list[tuple[int, list[int]]]:
        """Return the modes of several nodes that compute node j again."""
        nodes = self.given.nodes
        return [
            (i, [m])
            for i, m in self.fused
            for made in self.given.outputs(i, m)
            if made.node == j and made.streamed == streamed
            if not any(nodes[out.node].once for out in self.given.outputs(i, m))
        ]

    def cost_uj(self, j: int, m: int) -> float:
        """Return the energy of the first computation in mode m, with the page-out of a kept tensor.

        A recomputation that streams the tensor may replace the page-out.
        """
        node = self.graph.nodes[j]
        paged_out = j in self.graph.always_written and not node.mode(m).streamed_output
        return node.mode(m).energy_uj + (self.storing_uj[j] if paged_out else 0.0)

    @cached_property
    def ways(self) -> tuple[tuple[Way, ...], ...]:
        """Return the ways to compute each node again."""
        return tuple(self._ways(j) for j in range(len(self.graph.nodes)))

    def _ways(self, j: int) -> tuple[Way, ...]:
        node = self.graph.nodes[j]
        groups: dict[tuple[frozenset[int], frozenset[int]], list[int]] = {}
        for m in self.plain[j]:
            if not node.mode(m).streamed_output:
                operands = frozenset(node.mode(m).streamed_inputs), frozenset(node.whole_inputs(m))
                groups.setdefault(operands, []).append(m)
        ways = [self._way(j, j, modes) for modes in groups.values()]
        ways += [self._way(j, *fused) for fused in self._fused_again(j, streamed=False)]
        ways.sort(key=lambda way: (way.energy_uj, len(way.whole)))
        return tuple(
            way
            for k, way in enumerate(ways)
            if not any(self._is_better(other, way) for other in ways[:k])
        )

    def _way(self, j: int, i: int, modes: Sequence[int]) -> Way:
        """Return the way of modes of node i that compute node j."""
        node = self.given.nodes[i]
        best = min(modes, key=lambda m: (node.mode(m).energy_uj, m))
        walls = [(node.mode(m).wall_us, node.mode(m).wall_us if m else 0.0) for m in modes]
        share = len(self.given.outputs(i, best))
        return Way(
            i,
            best,
            tuple(dict.fromkeys(node.whole_inputs(best))),
            node.mode(best).streamed_inputs,
            node.mode(best).energy_uj / share,
            min(processor_us for processor_us, _ in walls) / share,
            min(transfers_us for _, transfers_us in walls) / share,
        )

    def _is_better(self, one: Way, other: Way) -> bool:
        """Return whether a way costs no more than another one and needs no more, in every plan."""
        return (
            set(one.whole) <= set(other.whole)
            and all(i in other.streamed or self.certainly_stored(i) for i in one.streamed)
            and one.energy_uj <= other.energy_uj
            and (not self.timed or one.processor_us <= other.processor_us)
            and (not self.timed or one.transfers_us <= other.transfers_us)
        )

    @cached_property
    def has_one_way(self) -> tuple[bool, ...]:
        """Return whether a node has at most one way, which streams nothing."""
        return tuple(not any(way.streamed for way in w) and len(w) < 2 for w in self.exact.ways)

    @cached_property
    def least_way(self) -> tuple[Way | None, ...]:
        """Return a way that is at least as good as all ways; None if a node has none."""
        return tuple(least_of(ways) if ways else None for ways in self.ways)

    @cached_property
    def again(self) -> tuple[tuple[int, ...], ...]:
        """Return the inputs that at least one way needs in RAM."""
        return tuple(
            tuple(dict.fromkeys(i for way in ways for i in way.whole)) for ways in self.ways
        )


def _costs(mode: Mode) -> tuple[int, float, float]:
    return mode.workspace_bytes, mode.energy_uj, mode.wall_us


def _operands(mode: Mode) -> tuple[object, ...]:
    return frozenset(mode.streamed_inputs), mode.streamed_output, mode.overwrites, mode.also
