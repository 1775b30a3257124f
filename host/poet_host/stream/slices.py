"""Operators in slices: nests whose operands are all whole in RAM, for operators over a limit."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod

from ..device.board import Estimate, load_board
from ..graph.graph import Graph, Node
from ..graph.operands import Operator, operator_of, part_of
from ..graph.work import work_of_part
from ..plan.nests import Loop, Nest, NestedOperator
from ..plan.parts import LawError
from ..plan.problem import CostNode, Problem, Streaming
from ..profile.profile import Profile

MOST_CELLS = 128  # of an operator
# The axis of the channels that a kernel computes several at a time.
MADE = {"conv2d": "k", "conv2d_grad_weight": "k", "conv2d_grad_input": "c"}
Steps = dict[str, int]  # by axis


def with_slices(problem: Problem, graph: Graph, limit_us: float) -> Problem:
    """Return the problem in which an operator over the limit runs as a nest, with whole operands.

    The nest is the fastest one whose cells take at most `limit_us` each; if there is none, the one
    with the shortest cells. It takes the place of mode 0. An operator of which no nest fits the RAM
    stays whole. `graph` is in the order of `in_pair_order`.
    """
    assert problem.profile is not None
    streaming = problem.streaming or Streaming({}, {})
    nests, nodes = dict(streaming.nests), []
    known: dict[object, tuple[Nest, int, float] | None] = {}
    for cost in problem.graph.nodes:
        node = graph[cost.name]
        if not node.stored and cost.time_us > limit_us and (cost.name, 0) not in nests:
            key = (node.op, node.sink, tuple(sorted(node.attrs.items())))
            if key not in known:
                names = {*node.inputs, *(() if node.overwrites else (node.name,))}
                left_bytes = problem.ram_bytes - sum(graph[name].size_bytes for name in names)
                known[key] = _best(node, problem.profile, limit_us, cost.time_us, left_bytes)
            if found := known[key]:
                nests[cost.name, 0] = found[0]
                cost = _in_slices(cost, problem.profile, *found)
        nodes.append(cost)
    costs = replace(problem.graph, nodes=tuple(nodes))
    streaming = replace(streaming, nests=nests, slice_us=limit_us)
    return replace(problem, graph=costs, streaming=streaming)


def _in_slices(
    cost: CostNode, profile: Profile, nest: Nest, workspace_bytes: int, time_us: float
) -> CostNode:
    more_uj = (time_us - cost.time_us) * profile.power.compute_uw / 1e6
    return replace(
        cost, time_us=time_us, energy_uj=cost.energy_uj + more_uj, workspace_bytes=workspace_bytes
    )


def _best(
    node: Node, profile: Profile, limit_us: float, whole_us: float, most_bytes: int
) -> tuple[Nest, int, float] | None:
    """Return the nest, its workspace of at most `most_bytes`, and its time."""
    operator = operator_of(node)
    estimate = load_board(profile.board).estimate
    kernel_us = profile.kernel_us(node, partial(work_of_part, node, 1.0))
    found: list[tuple[bool, float, float, Nest, int]] = []
    for steps in _steps(operator):
        cells = prod(-(-operator.size(axis) // step) for axis, step in steps.items())
        if cells > MOST_CELLS or cells == 1:
            continue
        longest_us, time_us = _times(node, operator, steps, profile, estimate)
        over_us = max(longest_us - limit_us, 0.0)
        if found and (over_us > 0, over_us, time_us) >= found[0][:3]:
            continue
        nest = Nest(tuple(Loop(*it) for it in steps.items()), (None,) * (len(node.inputs) + 1))
        try:
            nested = NestedOperator(operator, (None,) * len(nest.operands), nest)
        except LawError:
            continue
        if nested.workspace_bytes <= most_bytes:
            found = [(over_us > 0, over_us, time_us, nest, nested.workspace_bytes)]
    if not found:
        return None
    *_, time_us, nest, workspace_bytes = found[0]
    return nest, workspace_bytes, whole_us - kernel_us + time_us


def _steps(operator: Operator) -> Iterator[Steps]:
    """Return steps along each axis, and along each two axes in both orders."""
    axes = [axis for axis in operator.free_axes if operator.size(axis) > 1]
    sums = [axis for axis in operator.summed if operator.size(axis) > 1 and axis != "pass"]
    for number in (1, 2):
        for chosen in product((*axes, *sums), repeat=number):
            if len({*chosen}) < number:
                continue
            for steps in product(*(_sizes(operator.size(axis)) for axis in chosen)):
                yield dict(zip(chosen, steps, strict=True))


def _sizes(size: int) -> list[int]:
    """Return the steps that differ in the number of cells: the largest ones."""
    return sorted({-(-size // count) for count in range(2, size + 1)})


def _times(
    node: Node, operator: Operator, steps: Steps, profile: Profile, estimate: Estimate
) -> tuple[float, float]:
    """Return the time of the longest cell and of all cells."""
    sides = []
    for axis, step in steps.items():
        size = operator.size(axis)
        edges = [(axis, size % step, 1)] if size % step else []
        sides.append([(axis, step, size // step), *edges])
    longest_us = total_us = 0.0
    for combination in product(*sides):
        extents = {axis: extent for axis, extent, _ in combination}
        summed = (axis for axis in extents if axis in operator.summed)
        ends = prod(extents[axis] / operator.size(axis) for axis in summed)
        if (made := MADE.get(node.op)) in extents and not operator.is_grouped:
            tiles = -(-extents[made] // estimate.tile_channels)
            extents[made] = min(tiles * estimate.tile_channels, operator.size(made))
        part = part_of(node, extents)
        one_us = estimate.cell_us + profile.kernel_us(part, partial(work_of_part, part, ends))
        longest_us = max(longest_us, one_us)
        total_us += one_us * prod(times for *_, times in combination)
    return longest_us, total_us
