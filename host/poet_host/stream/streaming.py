"""Add to a cost graph the modes in which operators stream their operands part by part."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from math import prod
from typing import Any

import numpy as np

from ..device.board import load_board
from ..graph.cuts import BLOCK, TRAILER, Cut
from ..graph.graph import Graph, Node
from ..graph.kept_slabs import renews_some_rows
from ..graph.operands import Sizes, operator_of, part_of
from ..graph.work import work_of_part
from ..packing.blocks import ALIGNMENT
from ..plan.infeasible import largest_operator_bytes
from ..plan.nests import Nest
from ..plan.parts import LawError, fit_statistics, in_parts
from ..plan.pricing import cost_graph
from ..plan.problem import Also, CostGraph, CostNode, Mode, Problem, Streaming
from ..profile.profile import Profile, signature
from ..profile.transfer import Lane
from .cutting import choose_cuts
from .in_place import with_modes_in_place
from .nest_search import NestSearch
from .nest_traffic import Array, Prices
from .pairs import in_pair_order, pairs_of, statistics_of
from .priced_nest import PricedNest

PART_BYTES = (16_384, 12_288, 8_192, 6_144, 4_096, 3_072, 2_048, 1_024, 512)
"""Sizes of parts that are tried: whole blocks of storage, the largest first."""
PARTS_IN_RAM = 6  # two slots for each of three operands
SMALL_PART_BYTES = 2_048  # parts of this size and smaller ones are tried for every budget


def with_streaming(problem: Problem, graph: Graph) -> Problem:
    """Return the problem with modes in which the operators of `graph` stream.

    The problem must have a profile. Parts of tensors have the largest size at which six parts fit
    the RAM, and each operator fits it. If there is no such size, the cuts and modes are those that
    need the least RAM. Otherwise, the problem has all modes that no other mode dominates. The modes
    in place come last (`with_modes_in_place`). The nodes are in the order of `in_pair_order`.
    """
    assert problem.profile is not None
    graph, given = in_pair_order(graph), problem.graph
    commit_every = given.commit_every if given.starting else None
    most_bytes = max(problem.ram_bytes // PARTS_IN_RAM, SMALL_PART_BYTES)
    tried: list[_CutGraph] = []
    for part_bytes in (size for size in PART_BYTES if size <= most_bytes):
        slabs = load_board(problem.profile.board).table_slabs
        cuts = choose_cuts(graph, part_bytes, slabs)
        tried.append(_CutGraph(graph, problem.profile, cuts, commit_every))
        if tried[-1].need_bytes <= problem.ram_bytes:
            found = tried[-1].priced(lambda search: search.best(problem.ram_bytes))
            break
    else:
        least = min(tried, key=lambda cut_graph: cut_graph.need_bytes)
        found = least.priced(NestSearch.smallest)
    costs, streaming = found
    return with_modes_in_place(replace(problem, graph=costs, streaming=streaming), graph)


def with_nests(problem: Problem, graph: Graph, cuts: Mapping[str, Cut]) -> Problem:
    """Return the problem with modes in which operators of `graph` stream tensors with these cuts.

    Raises LawError if some operator can use a tensor neither whole nor in a nest.
    """
    assert problem.profile is not None
    cut_graph = _CutGraph(graph, problem.profile, cuts, None)
    if lost := [name for name in cuts.keys() - cut_graph.cuts.keys() if graph[name].stored]:
        raise LawError("cut", f"no operator of {graph.name} can use {lost[0]}")
    costs, streaming = cut_graph.priced(lambda search: search.best(problem.ram_bytes))
    return with_modes_in_place(replace(problem, graph=costs, streaming=streaming), graph)


class _CutGraph:
    """A graph whose tensors are cut, and the searches for nests of its operators."""

    def __init__(
        self, graph: Graph, profile: Profile, cuts: Mapping[str, Cut], commit_every: int | None
    ) -> None:
        self.graph, self.profile = graph, profile
        board = load_board(profile.board)
        self.estimate, self.table_slabs = board.estimate, board.table_slabs
        self.cuts = cuts
        self._cache: dict[object, NestSearch | None] = {}
        self.searches = self._searches()
        while unfit := self._unfit():
            self.cuts = {name: cut for name, cut in self.cuts.items() if name not in unfit}
            self.searches = self._searches()
        self.costs = cost_graph(graph, profile, cuts=self.cuts, commit_every=commit_every)
        self.by_rows = {node.name: self._search_by_rows(node) for node in graph}
        self.pairs = {node.name: self._pair_search(first, node) for first, node in pairs_of(graph)}
        self.statistics = {
            node.name: (self._statistics_search(node, stats), stats.name)
            for node, stats in statistics_of(graph)
        }

    def _names(self, node: Node) -> list[str]:
        """Return the inputs, then the output; for a renewed tensor, the stored tensor."""
        return [self.graph[name].updates or name for name in (*node.inputs, node.name)]

    def _needs_nest(self, name: str) -> bool:
        """Return whether a kernel can use the tensor only part by part, in a nest."""
        return name in self.cuts and not self.cuts[name].is_row_major

    def _unfit(self) -> set[str]:
        """Return the tensors that some operator can use neither whole nor in a nest."""
        return {
            name
            for node in self.graph
            if not node.stored and self.searches.get(node.name) is None
            for name in self._names(node)
            if self._needs_nest(name)
        }

    def _searches(self) -> dict[str, NestSearch | None]:
        """Return the search of each operator that has cut operands; None if it has no nest."""
        searches = {}
        for node in self.graph:
            cuts = () if node.stored else tuple(map(self.cuts.get, self._names(node)))
            if any(cuts):
                searches[node.name] = self._search(node, cuts)
        return searches

    def _search_by_rows(self, node: Node) -> NestSearch | None:
        """Return the search for nests in which each step of a walk reads its weight in parts."""
        if node.stored or not operator_of(node).has_steps:
            return None
        return self._search(node, tuple(map(self.cuts.get, self._names(node))), by_rows=True)

    def _pair_search(self, first: Node, node: Node) -> NestSearch | None:
        """Return the search for pairs of two gradients; None if no pair is possible."""
        cuts = tuple(map(self.cuts.get, (*self._names(node), first.name)))
        return self._search(node, cuts, first) if cuts[2] else None

    def _statistics_search(self, node: Node, stats: Node) -> NestSearch | None:
        """Return the search for nests that also compute the statistics; None: none is possible."""
        alone = self.searches.get(node.name)
        if alone is None:
            return None
        if not fit_statistics(alone.operator, alone.parts[-1], self.cuts.get(stats.name)):
            return None
        return self._search(node, tuple(alone.cuts), statistics=stats)

    def _search(
        self,
        node: Node,
        cuts: tuple[Cut | None, ...],
        first: Node | None = None,
        statistics: Node | None = None,
        by_rows: bool = False,
    ) -> NestSearch | None:
        """Return the search for nests of a node; None: no nest. Operators of a kind share it.

        The nests may also compute another node. `first`: the input gradient of a pair.
        `statistics`: those of the node's output. `by_rows`: see NestTraffic.
        """
        over = node.overwrites and node.inputs.index(node.overwrites)
        same = tuple(map(node.inputs.index, node.inputs))  # which inputs are one tensor
        kind = (node.updates is not None, first is not None, statistics is not None, by_rows)
        key = (signature(node), tuple(sorted(node.attrs.items())), over, same, cuts, kind)
        if key not in self._cache:
            self._cache[key] = self._new_search(node, cuts, first, statistics, by_rows)
        return self._cache[key]

    def _new_search(
        self,
        node: Node,
        cuts: tuple[Cut | None, ...],
        first: Node | None,
        statistics: Node | None,
        by_rows: bool,
    ) -> NestSearch | None:
        profile = self.profile
        try:
            prices = _prices(profile, node, self.estimate.piece_us)
            if first is not None:
                pages = _prices(profile, first, self.estimate.piece_us)
                turns = (prices.turns[0], pages.turns[0])
                prices = replace(prices, store_also=pages.store, turns=turns)
            search = NestSearch(
                operator_of(node), cuts, prices, node.inputs, self.table_slabs,
                statistics is not None, by_rows,
            )  # fmt: skip
        except LawError:
            return None
        cell_us = self.estimate.cell_us
        time_us = sum(
            _cells_us(it, profile, search, cell_us) for it in (node, first) if it is not None
        )
        if statistics is not None:
            time_us += _statistics_us(statistics, profile, search, cell_us)
        around_us = profile.statements.stream_us + profile.statements.free_us
        trailers_us, trailers_uj = _trailers(search, prices, profile.power.compute_uw)
        energy_uj = time_us * profile.power.compute_uw / 1e6 + trailers_uj
        search.prices = replace(
            prices,
            kernel_us=time_us + trailers_us + around_us,
            kernel_uj=energy_uj + profile.around_uj(around_us),
        )
        return search if search.is_possible else None

    @cached_property
    def need_bytes(self) -> int:
        """Return the RAM of the operator that needs the most, each in its smallest mode."""
        costs, _ = self.priced(NestSearch.smallest)
        return largest_operator_bytes(costs, ALIGNMENT)

    def priced(
        self, nests_of: Callable[[NestSearch], list[PricedNest]]
    ) -> tuple[CostGraph, Streaming]:
        """Return the cost graph with a mode for each nest that streams, and the nests.

        If operands are cut so that no kernel can use them whole, mode 0 is a nest, too.
        """
        known: dict[int, list[PricedNest]] = {}

        def nests_by(search: NestSearch | None) -> list[PricedNest]:
            if search is not None and id(search) not in known:
                known[id(search)] = nests_of(search)
            return known[id(search)] if search is not None else []

        fuses = nests_of is not NestSearch.smallest  # whether nests may compute two nodes
        nests: dict[tuple[str, int], Nest] = {}
        nodes: list[CostNode] = []
        for cost in self.costs.nodes:
            pairs = nests_by(self.pairs.get(cost.name)) if fuses else []
            if pairs:
                nodes[-1] = self._add_modes(nodes[-1], pairs, nests, cost)
            found = nests_by(self.searches.get(cost.name))
            found = [*found, *filter(_reads_rows, nests_by(self.by_rows[cost.name]))]
            made_cost = self._with_modes(cost, found, nests)
            search, stats = self.statistics.get(cost.name, (None, ""))
            if search is not None and fuses:
                streams = [p for p in nests_by(search) if any(p.nest.operands)]
                made_cost = self._add_modes(made_cost, streams, nests, statistics=stats)
            nodes.append(made_cost)
        return replace(self.costs, nodes=tuple(nodes)), Streaming(self.cuts, nests)

    def _with_modes(
        self, cost: CostNode, priced: list[PricedNest], nests: dict[tuple[str, int], Nest]
    ) -> CostNode:
        """Return `cost` with a mode for each nest that streams. Add the nests to `nests`."""
        node = self.graph[cost.name]
        if not node.stored and any(map(self._needs_nest, self._names(node))):
            wholes = [p for p in priced if not any(p.nest.operands)]
            if not wholes:
                raise LawError("cut", f"no nest computes {node.name} with all operands in RAM")
            whole = min(wholes, key=lambda p: (p.wall_us, not p.nest.in_place))
            nests[node.name, 0] = whole.nest
            cost = replace(
                cost, time_us=whole.wall_us, energy_uj=whole.energy_uj,
                workspace_bytes=whole.workspace_bytes,
                overwrites=cost.overwrites if whole.nest.in_place else None,
            )  # fmt: skip
        return self._add_modes(cost, [p for p in priced if any(p.nest.operands)], nests)

    def _add_modes(
        self,
        cost: CostNode,
        priced_nests: list[PricedNest],
        nests: dict[tuple[str, int], Nest],
        second: CostNode | None = None,
        statistics: str = "",
    ) -> CostNode:
        """Return `cost` with a mode for each nest. Add the nests to `nests`.

        `second`: the gradient of a weight, if the nests compute it together with `cost`.
        `statistics`: those of the output, if the nests compute them, too.
        """
        index = self.costs.index
        last = cost if second is None else second  # what the nest's own operator computes
        node = self.graph[last.name]
        over = None if node.overwrites is None else index[node.overwrites]
        modes = list(cost.modes)
        for priced in priced_nests:
            rings = priced.nest.operands
            streamed = [index[name] for name, r in zip(node.inputs, rings, strict=False) if r]
            is_streamed = rings[-1] is not None
            more: dict[str, Any] = {"overwrites": over if priced.nest.in_place else None}
            if second is not None:
                also = (Also(index[second.name], is_streamed),)
                is_streamed = any(priced.nest.also)
                more = {"inputs": second.inputs, "also": also}
            if statistics:
                more |= {"inputs": cost.inputs, "also": (Also(index[statistics], False),)}
            modes.append(
                Mode(
                    tuple(dict.fromkeys(streamed)),
                    is_streamed,
                    priced.workspace_bytes,
                    priced.time_us,
                    priced.transfer_us,
                    priced.wall_us,
                    priced.energy_uj,
                    priced.moved_in_bytes,
                    priced.moved_out_bytes,
                    **more,
                )
            )
            nests[cost.name, len(modes)] = priced.nest
        return replace(cost, modes=tuple(modes))


def _reads_rows(priced: PricedNest) -> bool:
    """Return whether an operand of a layer along time streams in rows."""
    axes = [loop.axis for loop in priced.nest.loops]
    return any("k" in axes[: ring.depth] for ring in priced.nest.operands if ring)


def _prices(profile: Profile, node: Node, piece_us: float) -> Prices:
    """Return the prices of transfers of pieces of tensors that have several pieces.

    The kernel has no price yet.
    """
    power = profile.power
    turn_us = profile.turn_us("renewed" if node.updates else "page")

    def transfers(lane: Lane, storage_uw: float, sizes: Sizes) -> Array:
        time_us, cpu_us = lane.pieces_us(sizes)
        energy_uj = (time_us * storage_uw + (cpu_us + piece_us) * power.compute_uw) / 1e6
        return np.stack([time_us, cpu_us, energy_uj])

    return Prices(
        lambda sizes: transfers(profile.page_in, power.page_in_uw, sizes),
        lambda sizes: transfers(profile.page_out, power.page_out_uw, sizes),
        0.0,
        0.0,
        piece_us,
        turns=((turn_us, turn_us * power.page_out_uw / 1e6),),
    )


def _trailers(search: NestSearch, prices: Prices, compute_uw: float) -> tuple[float, float]:
    """Return time (us) and energy (uJ) for the trailers of pieces that a nest does not renew.

    The nest reads their trailers in the current slot and in the next one, and writes the latter.
    """
    cut = search.cuts[-1]
    if not search.used_rows or not renews_some_rows(search.operator) or cut is None:
        return 0.0, 0.0
    pieces = len(cut.piece_sizes)
    block = np.array(BLOCK)
    read, write = prices.load(block), prices.store(block)
    lane_us, _, energy_uj = -(-pieces // (BLOCK // TRAILER)) * (2 * read + write)
    time_us = pieces * prices.piece_us
    return float(lane_us + time_us), float(energy_uj + time_us * compute_uw / 1e6)


def _cells_us(node: Node, profile: Profile, search: NestSearch, cell_us: float) -> float:
    """Return the time of all cells, which differ in size at the edges.

    `cell_us`: the time of a cell in addition to that of its kernel.
    """
    operator = operator_of(node)
    steps = {
        axis: (size, search.cells.get(axis, size))
        for axis, size in search.visited.items()
        if axis != "pass"  # each pass takes half of the time
    }
    total = 0.0
    for extents, number in in_parts(steps):
        summed = (axis for axis in extents if axis in operator.summed)
        ends = prod(extents[axis] / search.sizes[axis] for axis in summed)
        part = part_of(node, extents)
        total += number * (cell_us + profile.kernel_us(part, partial(work_of_part, part, ends)))
    return total


def _statistics_us(node: Node, profile: Profile, search: NestSearch, cell_us: float) -> float:
    """Return the time of the statistics of all parts of the output of `search`.

    `cell_us`: see `_cells_us`.
    """
    axes = zip("nchw", search.axes[-1], search.parts[-1], strict=True)
    total = 0.0
    for extents, number in in_parts({axis: (a.size, part) for axis, a, part in axes}):
        n, c, h, _ = extents.values()
        part = part_of(node, {"n": n, "c": c, "h": h})
        ends = n * h / (int(node.attrs["n"]) * int(node.attrs["h"]))
        total += number * (cell_us + profile.kernel_us(part, partial(work_of_part, part, ends)))
    return total
