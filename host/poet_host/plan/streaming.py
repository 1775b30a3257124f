"""Add to a cost graph the modes in which operators stream their operands part by part."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from ..errors import BadInput
from ..graph.cuts import Cut
from ..graph.cutting import choose_cuts
from ..graph.graph import Graph, Node
from ..graph.operands import operator_of
from ..graph.work import Work, count
from ..profile.profile import Lane, Profile, moved_bytes, signature
from .keepall import last_uses
from .nest_search import NestSearch, PricedNest
from .nest_traffic import Array, Prices, Sizes
from .nests import LawError
from .placed_plan import PlacedPlan, realise
from .plan import Op, Plan, Statement
from .pricing import cost_graph
from .problem import CostGraph, CostNode, Mode, Problem

PARTS_IN_RAM = 6  # two slots for each of three operands
GREEDY_LIMIT_S = 20.0
MOST_PART_BYTES = 16_376  # 32 blocks of storage with a trailer


@dataclass(frozen=True)
class Streaming:
    """A cost graph with modes that stream."""

    costs: CostGraph
    cuts: Mapping[str, Cut]  # of tensors, by node
    nests: Mapping[tuple[str, int], "PricedNest"]  # by node and number of a mode


def stream(graph: Graph, profile: Profile, ram_bytes: int) -> Streaming:
    """Return the costs of `graph` on the profile's board, with modes that need at most `ram_bytes`.

    Tensors are cut into parts of which six fit the RAM. A mode is left out only if another mode
    with the same streamed operands needs no more workspace, time and energy. If operands are cut so
    that no kernel can use them whole, mode 0 is a nest, too.
    """
    cuts = choose_cuts(graph, min(ram_bytes // PARTS_IN_RAM, MOST_PART_BYTES))
    costs = cost_graph(graph, profile)
    cache: dict[object, list[PricedNest]] = {}
    while True:
        found: dict[str, list[PricedNest]] = {}
        unfit: set[str] = set()
        for node in graph:
            if node.stored:
                continue
            names = [graph[name].updates or name for name in (*node.inputs, node.name)]
            chosen = tuple(cuts.get(name) for name in names)
            if not any(chosen):
                continue
            key = (signature(node), tuple(sorted(node.attrs.items())), node.updates is not None,
                   node.overwrites and node.inputs.index(node.overwrites), chosen)  # fmt: skip
            if key not in cache:
                cache[key] = _nests(node, graph, profile, chosen, ram_bytes)
            found[node.name] = cache[key]
            odd = {name for name in names if name in cuts and not cuts[name].is_row_major}
            if odd and not any(not any(priced.nest.operands) for priced in cache[key]):
                unfit |= odd
        if not unfit:
            break
        cuts = {name: cut for name, cut in cuts.items() if name not in unfit}
    nests: dict[tuple[str, int], PricedNest] = {}
    nodes = [
        _with_modes(node, graph[node.name], graph, costs, cuts, found.get(node.name, []), nests)
        for node in costs.nodes
    ]
    return Streaming(replace(costs, nodes=tuple(nodes)), cuts, nests)


def _nests(
    node: Node, graph: Graph, profile: Profile, cuts: tuple[Cut | None, ...], ram_bytes: int
) -> list[PricedNest]:
    try:
        search = NestSearch(operator_of(node), cuts, _prices(profile, node, 0.0, 0.0))
    except LawError:
        return []
    time_us = _kernel_us(node, graph, profile, search)
    around_us = profile.statements.compute_us + profile.statements.free_us
    energy_uj = (time_us + around_us) * profile.power.compute_uw / 1e6
    search.prices = _prices(profile, node, time_us + around_us, energy_uj)
    return search.best(ram_bytes)


def _prices(profile: Profile, node: Node, kernel_us: float, kernel_uj: float) -> Prices:
    power = profile.power
    turn_us = 0.0 if node.updates else profile.page_turn_us

    def lane(lane: Lane, storage_uw: float, more_us: float, sizes: Sizes) -> Array:
        moved = moved_bytes(sizes)  # type: ignore[arg-type]
        rest = sizes % 512
        time_us = lane.base_us + lane.us_per_byte * moved + lane.us_per_rest_byte * rest + more_us
        cpu_us = lane.cpu_base_us + lane.cpu_us_per_byte * moved + lane.cpu_us_per_rest_byte * rest
        energy = (time_us * storage_uw + cpu_us * power.compute_uw) / 1e6
        return np.stack([time_us, cpu_us, energy])

    return Prices(
        lambda sizes: lane(profile.page_in, power.page_in_uw, 0.0, sizes),
        lambda sizes: lane(profile.page_out, power.page_out_uw, turn_us, sizes),
        kernel_us,
        kernel_uj,
    )


def _kernel_us(node: Node, graph: Graph, profile: Profile, search: NestSearch) -> float:
    """Return the time of the kernel for all cells, which differ in size at the edges."""
    sides = []
    for axis, size in search.sizes.items():
        cell = search.cells.get(axis, size)
        sides.append(
            [(axis, cell, size // cell), *([(axis, size % cell, 1)] if size % cell else [])]
        )
    total = 0.0
    for combination in product(*sides):
        attrs, number = dict(node.attrs), 1
        for axis, extent, times in combination:
            if axis == "groups":
                for name in "ck":
                    attrs[name] = int(attrs[name]) * extent // int(attrs["groups"])
            attrs[axis] = extent
            number *= times
        total += number * _cell_us(replace(node, attrs=attrs), graph, profile)
    return total


def _cell_us(part: Node, graph: Graph, profile: Profile) -> float:
    measured = profile.operators.get(signature(part))
    if measured:
        return measured.time_us
    operator = operator_of(part)
    elements = 0
    for i in range(operator.input_count + 1):
        extents = [axis.size for axis in operator.operand(i)]
        elements += int(np.prod(extents))
    macs, flops, loops = (count(part.op, part.attrs, unit) for unit in ("macs", "flops", "loops"))
    work = Work(macs, flops, 4 * elements, loops)
    rates = profile.fitted.get(part.op) or profile.fitted.get("") or profile.rates
    return rates.time_us(work)


def _with_modes(
    cost: CostNode,
    node: Node,
    graph: Graph,
    costs: CostGraph,
    cuts: Mapping[str, Cut],
    found: list[PricedNest],
    nests: dict[tuple[str, int], PricedNest],
) -> CostNode:
    """Return `cost` with a mode for each nest that streams. Add the nests to `nests`."""
    names = [graph[name].updates or name for name in (*node.inputs, node.name)]
    if any(name in cuts and not cuts[name].is_row_major for name in names) and not node.stored:
        alone = (priced for priced in found if not any(priced.nest.operands))
        whole = min(alone, key=lambda priced: (priced.wall_us, not priced.nest.in_place))
        nests[node.name, 0] = whole
        cost = replace(
            cost, time_us=whole.wall_us, energy_uj=whole.energy_uj,
            workspace_bytes=whole.workspace_bytes,
            overwrites=cost.overwrites if whole.nest.in_place else None,
        )  # fmt: skip
    modes: list[Mode] = []
    over = None if node.overwrites is None else costs.index[node.overwrites]
    for priced in found:
        rings = priced.nest.operands
        if not any(rings):
            continue
        streamed = [
            costs.index[name] for name, ring in zip(node.inputs, rings, strict=False) if ring
        ]
        modes.append(
            Mode(
                tuple(dict.fromkeys(streamed)),
                rings[-1] is not None,
                priced.workspace_bytes,
                priced.time_us,
                priced.transfer_us,
                priced.wall_us,
                priced.energy_uj,
                priced.moved_in_bytes,
                priced.moved_out_bytes,
                over if priced.nest.in_place else None,
            )
        )
        nests[node.name, len(modes)] = priced
    return replace(cost, modes=tuple(modes))


def greedy_plan(problem: Problem) -> Plan:
    """Make a plan that keeps nothing in RAM from one operator to the next.

    Each operator runs in the mode that moves the fewest bytes and fits the RAM. Raises BadInput,
    which names the operator, if no mode fits.
    """
    graph = problem.graph
    last = last_uses(graph)
    out: list[Statement] = []

    def emit(op: Op, i: int, mode: int = 0) -> None:
        out.append(Statement(op, graph.nodes[i].name, mode=mode))

    for i, node in enumerate(graph.nodes):
        if node.stored:
            continue
        needed = node.keep or last[i] >= 0
        best: tuple[float, float, int] | None = None
        for number, mode in graph.runnable(i).items():
            whole = node.whole_inputs(number)
            ram = sum(graph.nodes[j].bytes for j in whole) + node.own_bytes(number)
            moved = mode.moved_in_bytes + mode.moved_out_bytes
            moved += sum(graph.nodes[j].bytes for j in whole)
            moved += node.bytes if needed and not mode.streamed_output else 0
            if ram <= problem.ram_bytes and (best is None or (moved, mode.wall_us) < best[:2]):
                best = (moved, mode.wall_us, number)
        if best is None:
            raise BadInput(
                f"{graph.name}, node {node.name}: no mode fits {problem.ram_bytes:,} bytes of RAM"
            )
        number = best[2]
        whole = node.whole_inputs(number)
        for j in whole:
            emit("page_in", j)
        emit("compute", i, number)
        mode = node.mode(number)
        if needed and not mode.streamed_output:
            emit("page_out", i)
        for j in whole:
            if j != node.taken(number):
                emit("free", j)
        if not mode.streamed_output:
            emit("free", i)
    plan = realise(problem, out, placed=True, time_limit_s=GREEDY_LIMIT_S, effort="none")
    if not isinstance(plan, PlacedPlan):
        raise BadInput(f"{graph.name}: no placement of the greedy plan fits the RAM")
    return plan.as_plan(problem)
