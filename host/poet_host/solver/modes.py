"""The modes that a search uses, and what they have in common.

A node may be computed in several modes (plan/problem.py). In some of them, operands are streamed:
they stay on storage. The search leaves out a mode that no plan of least value needs. For a node
without modes, mode 0 is the only mode, and all its inputs are needed whole.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property

from ..plan.problem import CostGraph, Mode

Strict = Mapping[int, Set[int]]
"""Inputs by node. Recomputations of the node need these inputs. See `Modes.relaxed`."""


@dataclass(frozen=True)
class Way:
    """A way to compute a node again, so that its result is in RAM: the modes that stream the same
    inputs. Each cost is the least of these modes.
    """

    mode: int  # the one of least energy
    whole: tuple[int, ...]  # the inputs that must be in RAM
    streamed: tuple[int, ...]
    energy_uj: float
    processor_us: float
    transfers_us: float  # in which the transfer lane is occupied


class Modes:
    """The usable modes of each node of a graph. Sequences are by node."""

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
        self.graph, self.page, self.timed = graph, page, timed
        self.exact = self  # the modes before `relaxed`
        self.usable = tuple(self._usable(j, fits) for j in range(len(graph.nodes)))

    def relaxed(self, strict: Strict) -> "Modes":
        """Return the modes as if recomputations needed only the inputs in `strict`.

        A node with modes needs all its inputs if it is in `strict`. Otherwise its recomputations
        cost what its cheapest way costs.
        """
        found = copy(self)
        for name in ("ways", "least_way", "again"):
            found.__dict__.pop(name, None)
        found.ways = tuple(
            self._relaxed_ways(j, strict.get(j)) for j in range(len(self.graph.nodes))
        )
        return found

    def _relaxed_ways(self, j: int, strict: Set[int] | None) -> tuple[Way, ...]:
        least = self.least_way[j]
        if least is None or (self.graph.nodes[j].modes and strict is not None):
            return self.ways[j]
        whole = tuple(i for i in least.whole if strict is not None and i in strict)
        return (replace(least, whole=whole, streamed=()),)

    def _usable(self, j: int, fits: Callable[[int, int], bool]) -> tuple[int, ...]:
        node = self.graph.nodes[j]
        if not node.modes:
            return () if node.stored else (0,)
        able = [m for m in self.graph.runnable(j) if self._is_able(j, m) and fits(j, m)]
        kept: list[int] = []
        for m in sorted(able, key=lambda m: (*_costs(node.mode(m)), m)):
            if not any(self._dominates(j, other, m) for other in kept):
                kept.append(m)
        return tuple(sorted(kept))

    def _is_able(self, j: int, m: int) -> bool:
        """Return whether the operands that mode m streams can be on storage."""
        nodes, mode = self.graph.nodes, self.graph.nodes[j].mode(m)
        streamed = [*mode.streamed_inputs, *([j] if mode.streamed_output else [])]
        return self.page or all(nodes[i].stored or nodes[i].keep for i in streamed)

    def need_bytes(self, j: int, m: int) -> int:
        """Return the bytes in RAM that computing node j in mode m needs at once."""
        nodes = self.graph.nodes
        return nodes[j].own_bytes(m) + sum(nodes[i].bytes for i in set(nodes[j].whole_inputs(m)))

    def _dominates(self, j: int, a: int, b: int) -> bool:
        """Return whether mode a replaces mode b in every plan, at no cost."""
        node = self.graph.nodes[j]
        one, other = node.mode(a), node.mode(b)
        return (
            _operands(one) == _operands(other)
            and one.workspace_bytes <= other.workspace_bytes
            and one.energy_uj <= other.energy_uj
            and (not self.timed or (one.wall_us <= other.wall_us and (b != 0 or a == 0)))
        )

    def instead_of(self, j: int, m: int) -> int:
        """Return a usable mode that replaces mode m of node j in every plan, at no cost."""
        if m in self.usable[j]:
            return m
        return next((it for it in self.usable[j] if self._dominates(j, it, m)), self.usable[j][0])

    def way_of(self, j: int, m: int) -> int:
        """Return the index of a way that computes node j again like mode m, or better."""
        node, ways = self.graph.nodes[j], self.ways[j]
        streamed = set(node.mode(m).streamed_inputs)
        same = [w for w, way in enumerate(ways) if set(way.streamed) == streamed]
        mine = self._way(j, [m])
        better = (w for w, way in enumerate(ways) if self._is_better(way, mine))
        return same[0] if same else next(better, 0)

    def lanes_us(self, j: int, m: int) -> tuple[float, float]:
        """Return for how long mode m of node j occupies the processor and the transfer lane."""
        wall_us = self.graph.nodes[j].mode(m).wall_us
        return wall_us, wall_us if m else 0.0

    @cached_property
    def wanted(self) -> tuple[tuple[int, ...], ...]:
        """Return the inputs that at least one mode needs in RAM."""
        nodes = self.graph.nodes
        return tuple(
            tuple(
                dict.fromkeys(
                    i
                    for i in (*nodes[j].inputs, *self.completed(j))
                    if any(i in nodes[j].whole_inputs(m) for m in usable)
                )
            )
            for j, usable in enumerate(self.usable)
        )

    def completed(self, j: int) -> set[int]:
        """Return the nodes that modes of node j compute too."""
        found = {self.graph.nodes[j].mode(m).completes for m in self.usable[j]}
        return {i for i in found if i is not None}

    def partners(self, j: int, m: int) -> tuple[int, ...]:
        """Return the modes of node j that complete the node before, which is deferred in mode m."""
        before, node = self.before[j], self.graph.nodes[j]
        deferred = self.graph.nodes[before].mode(m)
        return tuple(
            k
            for k in self.usable[j]
            if deferred.deferred
            and node.mode(k).completes == before
            and node.mode(k).completes_streamed == deferred.streamed_output
        )

    @cached_property
    def before(self) -> tuple[int, ...]:
        """Return for each node the last computed node before it; -1 if there is none."""
        last = [-1]
        for i, node in enumerate(self.graph.nodes):
            last.append(last[-1] if node.stored else i)
        return tuple(last[:-1])

    @property
    def has_pairs(self) -> bool:
        return self.alone != self.usable

    @cached_property
    def alone(self) -> tuple[tuple[int, ...], ...]:
        """Return the modes that are not one half of a pair."""
        nodes = self.graph.nodes
        return tuple(
            tuple(m for m in usable if not node.mode(m).is_paired) if node.modes else usable
            for node, usable in zip(nodes, self.usable, strict=True)
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
            tuple(m for m in usable if node.mode(m).streamed_output == streamed)
            for node, usable in zip(self.graph.nodes, self.usable, strict=True)
        )

    @cached_property
    def overwritten(self) -> tuple[frozenset[int], ...]:
        """Return the inputs that a mode overwrites, in RAM or on storage."""
        found = (
            {node.mode(m).overwrites for m in usable}
            for node, usable in zip(self.graph.nodes, self.usable, strict=True)
        )
        return tuple(frozenset(i for i in over if i is not None) for over in found)

    def certainly_stored(self, i: int) -> bool:
        """Return whether tensor i is on storage after its first computation, in every plan."""
        node = self.graph.nodes[i]
        return self.graph.storage and (node.stored or node.keep or not self.whole[i])

    @cached_property
    def storing_uj(self) -> tuple[float, ...]:
        """Return the least energy that puts a tensor in RAM on storage.

        It is a page-out, or a recomputation that streams its output.
        """
        return tuple(
            min([node.page_out_uj, *(node.mode(m).energy_uj for m in self._again(j, streaming))])
            for j, (node, streaming) in enumerate(
                zip(self.graph.nodes, self.streaming, strict=True)
            )
        )

    @cached_property
    def storing_us(self) -> tuple[tuple[float, float], ...]:
        """Return the least times in both lanes that put a tensor in RAM on storage."""
        found = []
        for j, node in enumerate(self.graph.nodes):
            walls = [node.mode(m).wall_us for m in self._again(j, self.streaming[j])]
            found.append((min([node.page_out_cpu_us, *walls]), min([node.page_out_us, *walls])))
        return tuple(found)

    def _again(self, j: int, modes: Iterable[int]) -> Iterable[int]:
        return () if self.graph.nodes[j].once else (m for m in modes if m in self.alone[j])

    @cached_property
    def first_uj(self) -> tuple[float, ...]:
        """Return the least energy of a first computation, with the page-out of a kept tensor."""
        return tuple(
            min((self.cost_uj(j, m) for m in usable), default=0.0)
            for j, usable in enumerate(self.usable)
        )

    def cost_uj(self, j: int, m: int) -> float:
        """Return the energy of the first computation in mode m, with the page-out of a kept tensor.

        A recomputation that streams the tensor may replace the page-out.
        """
        node = self.graph.nodes[j]
        paged_out = node.keep and self.graph.storage and not node.mode(m).streamed_output
        return node.mode(m).energy_uj + (self.storing_uj[j] if paged_out else 0.0)

    @cached_property
    def first_us(self) -> tuple[float, ...]:
        """Return the least time of a first computation."""
        return tuple(
            min((node.mode(m).wall_us for m in usable), default=0.0)
            for node, usable in zip(self.graph.nodes, self.usable, strict=True)
        )

    @cached_property
    def ways(self) -> tuple[tuple[Way, ...], ...]:
        """Return the ways to compute each node again."""
        return tuple(self._ways(j) for j in range(len(self.graph.nodes)))

    def _ways(self, j: int) -> tuple[Way, ...]:
        node = self.graph.nodes[j]
        groups: dict[frozenset[int], list[int]] = {}
        for m in self.whole[j]:
            if m not in self.alone[j]:
                continue
            groups.setdefault(frozenset(node.mode(m).streamed_inputs), []).append(m)
        ways = [self._way(j, modes) for modes in groups.values()]
        ways.sort(key=lambda way: (way.energy_uj, len(way.whole)))
        return tuple(
            way
            for k, way in enumerate(ways)
            if not any(self._is_better(other, way) for other in ways[:k])
        )

    def _way(self, j: int, modes: Sequence[int]) -> Way:
        node = self.graph.nodes[j]
        best = min(modes, key=lambda m: (node.mode(m).energy_uj, m))
        times = [self.lanes_us(j, m) for m in modes]
        return Way(
            best,
            tuple(dict.fromkeys(node.whole_inputs(best))),
            node.mode(best).streamed_inputs,
            node.mode(best).energy_uj,
            min(processor_us for processor_us, _ in times),
            min(transfers_us for _, transfers_us in times),
        )

    def _is_better(self, one: Way, other: Way) -> bool:
        """Return whether a way costs no more than another one and needs no more, in every plan."""
        return (
            set(one.whole) <= set(other.whole)
            and all(self.certainly_stored(i) for i in one.streamed if i in other.whole)
            and one.energy_uj <= other.energy_uj
            and (
                not self.timed
                or (
                    one.processor_us <= other.processor_us
                    and one.transfers_us <= other.transfers_us
                )
            )
        )

    @cached_property
    def least_way(self) -> tuple[Way | None, ...]:
        """Return a way that is at least as good as all ways; None if a node has none."""
        return tuple(_least(ways) if ways else None for ways in self.ways)

    @cached_property
    def again(self) -> tuple[tuple[int, ...], ...]:
        """Return the inputs that at least one way needs in RAM."""
        return tuple(
            tuple(dict.fromkeys(i for way in ways for i in way.whole)) for ways in self.ways
        )


def _least(ways: Sequence[Way]) -> Way:
    first = ways[0]
    if len(ways) == 1:
        return first
    return Way(
        first.mode,
        tuple(i for i in first.whole if all(i in way.whole for way in ways)),
        tuple(i for i in first.streamed if all(i in way.streamed for way in ways)),
        min(way.energy_uj for way in ways),
        min(way.processor_us for way in ways),
        min(way.transfers_us for way in ways),
    )


def _costs(mode: Mode) -> tuple[int, float, float]:
    return mode.workspace_bytes, mode.energy_uj, mode.wall_us


def _operands(mode: Mode) -> tuple[object, ...]:
    pair = mode.deferred, mode.completes, mode.completes_streamed
    return frozenset(mode.streamed_inputs), mode.streamed_output, mode.overwrites, *pair
