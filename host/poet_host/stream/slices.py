"""Operators in slices: nests whose operands are all whole in RAM, for operators over a limit."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations, product
from math import inf, prod

from ..device.board import Estimate, load_board
from ..graph.graph import Graph, Node
from ..graph.operands import Operator, operator_of, part_of
from ..graph.work import Work, in_tiles, work_of_part
from ..plan.nests import Loop, Nest, NestedOperator
from ..plan.parts import LawError, in_parts
from ..plan.problem import CostNode, Problem, Streaming
from ..profile.profile import Profile

MOST_CELLS = 128  # of an operator
Steps = dict[str, int]  # by axis


def with_slices(problem: Problem, graph: Graph, limit_us: float) -> Problem:
    """Return the problem in which an operator over the limit runs as a nest, with whole operands.

    The nest is the fastest one whose cells take at most `limit_us` each; if there is none, the one
    with the shortest cells. It takes the place of mode 0 and of modes in place. An operator of
    which no nest fits the RAM stays whole. With storage, `graph` is in the order of
    `in_pair_order`.
    """
    assert problem.profile is not None
    prices = _Prices(problem.profile, load_board(problem.profile.board).estimate)
    streaming = problem.streaming or Streaming({}, {})
    nests, slices, nodes = dict(streaming.nests), dict[str, float](), []
    known: dict[object, _Sliced | None] = {}
    for cost in problem.graph.nodes:
        node = graph[cost.name]
        if not node.stored and (cost.name, 0) not in nests:
            longest_us = cost.time_us + prices.cell_us(node, 1.0)[0] - prices.kernel_us(node)
            if longest_us > limit_us:
                names = {*node.inputs, *(() if node.overwrites else (node.name,))}
                left_bytes = problem.ram_bytes - sum(graph[name].size_bytes for name in names)
                key = (node.op, node.sink, tuple(sorted(node.attrs.items())), left_bytes)
                if key not in known:
                    known[key] = _best(node, prices, limit_us, left_bytes)
                if found := known[key]:
                    whole = (k for k, mode in enumerate(cost.all_modes) if not mode.streams)
                    nests |= {(cost.name, number): found.nest for number in whole}
                    longest_us = found.longest_us
                    cost = _in_slices(cost, prices, node, found)
            slices[cost.name] = max(round(longest_us, 1), 0.1)
        nodes.append(cost)
    costs = replace(problem.graph, nodes=tuple(nodes))
    streaming = replace(streaming, nests=nests, slice_us=limit_us, slices=slices)
    return replace(problem, graph=costs, streaming=streaming)


@dataclass(frozen=True)
class _Sliced:
    """A nest of an operator, with its workspace and the times of its longest and of all cells."""

    nest: Nest
    workspace_bytes: int
    longest_us: float
    time_us: float


@dataclass(frozen=True)
class _Prices:
    profile: Profile
    estimate: Estimate

    def kernel_us(self, node: Node) -> float:
        return self.profile.kernel_us(node, partial(work_of_part, node, 1.0))

    def cell_us(self, part: Node, ends: float) -> tuple[float, float]:
        """Return the most and the likely time of a cell. `ends`: see `work_of_part`."""

        def work() -> Work:
            found = work_of_part(part, ends)
            return replace(found, macs=round(found.macs * in_tiles(part, self.estimate.tile)))

        time_us = self.profile.kernel_us(part, work)
        around_us = self.estimate.cell_us
        most = self.estimate.slices.get(part.op, 1.0)
        return around_us + most * time_us, around_us + time_us


def _in_slices(cost: CostNode, prices: _Prices, node: Node, found: _Sliced) -> CostNode:
    more_us = found.time_us - prices.kernel_us(node)
    own = replace(
        cost,
        time_us=cost.time_us + more_us,
        energy_uj=cost.energy_uj + more_us * prices.profile.power.compute_uw / 1e6,
        workspace_bytes=found.workspace_bytes,
    )
    modes = (
        it if it.streams else replace(own.mode(0), overwrites=it.overwrites) for it in own.modes
    )
    return replace(own, modes=tuple(modes))


def _best(node: Node, prices: _Prices, limit_us: float, most_bytes: int) -> _Sliced | None:
    operator = operator_of(node)
    most_cells, best, best_value = MOST_CELLS, None, (True, inf, inf)
    for cells, steps in sorted(_steps(operator), key=lambda it: it[0]):
        if cells > most_cells:
            break
        longest_us, time_us = _times(node, operator, steps, prices)
        over_us = max(longest_us - limit_us, 0.0)
        value = (over_us > 0, over_us, time_us)
        if value >= best_value:
            continue
        nest = Nest(tuple(Loop(*it) for it in steps.items()), (None,) * (len(node.inputs) + 1))
        try:
            nested = NestedOperator(operator, (None,) * len(nest.operands), nest)
        except LawError:
            continue
        if nested.workspace_bytes <= most_bytes:
            best, best_value = _Sliced(nest, nested.workspace_bytes, longest_us, time_us), value
            most_cells = min(most_cells, MOST_CELLS if over_us else 2 * cells)
    return best


def _steps(operator: Operator) -> Iterator[tuple[int, Steps]]:
    """Return steps along each axis, and along each two axes in both orders, with their cells."""
    axes = [axis for axis in operator.free_axes if operator.size(axis) > 1]
    sums = [axis for axis in operator.summed if operator.size(axis) > 1 and axis != "pass"]
    for number in (1, 2):
        for chosen in permutations((*axes, *sums), number):
            for steps in product(*(_sizes(operator.size(axis)) for axis in chosen)):
                made = dict(zip(chosen, steps, strict=True))
                cells = prod(-(-operator.size(axis) // step) for axis, step in made.items())
                if cells <= MOST_CELLS:
                    yield cells, made


def _sizes(size: int) -> list[int]:
    """Return the steps that differ in the number of cells: the largest ones."""
    return sorted({-(-size // count) for count in range(2, size + 1)})


def _times(node: Node, operator: Operator, steps: Steps, prices: _Prices) -> tuple[float, float]:
    """Return the time of the longest cell and of all cells."""
    longest_us = total_us = 0.0
    for extents, number in in_parts(
        {axis: (operator.size(axis), it) for axis, it in steps.items()}
    ):
        summed = (axis for axis in extents if axis in operator.summed)
        ends = prod(extents[axis] / operator.size(axis) for axis in summed)
        most_us, one_us = prices.cell_us(_inside(part_of(node, extents), extents), ends)
        longest_us = max(longest_us, most_us)
        total_us += one_us * number
    return longest_us, total_us


def _inside(part: Node, extents: Steps) -> Node:
    """Return the part of a convolution of which no row lies next to padding: it takes longest."""
    if not part.op.startswith("conv2d") or not {"h", "oh"} & {*extents}:
        return part
    kernel, stride, pad, h, oh = (
        int(part.attrs[name]) for name in ("kernel_h", "stride_h", "pad_h", "h", "oh")
    )
    if "oh" in extents:
        rows = {"h": (oh - 1) * stride + kernel, "pad_h": 0}
    else:
        rows = {"oh": h + kernel, "pad_h": pad + -(-(kernel - 1 - pad) // stride) * stride}
    return replace(part, attrs={**part.attrs, **rows})
