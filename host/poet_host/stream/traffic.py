"""What a step moves to and from storage, and the least that its operators move alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

from ..graph.graph import Graph, Node
from ..graph.kept_slabs import STEPS, renews_some_rows
from ..graph.operands import operator_of
from ..graph.work import work_of
from ..plan.plan import Plan, moved_bytes
from ..plan.problem import CostGraph, Problem


@dataclass(frozen=True)
class Traffic:
    """What a step moves to and from storage, if operators stream."""

    streamed: int  # operators that run in a mode other than 0
    computed: int  # operators that run, recomputations included
    moved_in_bytes: int
    moved_out_bytes: int
    least_bytes: int | None  # that operators move alone; None for a cost graph


def traffic_of(graph: Graph | CostGraph, problem: Problem, plan: Plan) -> Traffic | None:
    """Return what a step of `plan` moves; None if no operator streams."""
    computes = [statement for statement in plan.statements if statement.op == "compute"]
    streamed = sum(statement.mode > 0 for statement in computes)
    if not streamed:
        return None
    least = least_moved_bytes(graph, plan.ram_bytes) if isinstance(graph, Graph) else None
    return Traffic(streamed, len(computes), *moved_bytes(problem.graph, plan), least)


def least_moved_bytes(graph: Graph, ram_bytes: int) -> int:
    """Return the least bytes that the operators of a step read and write in `ram_bytes` of RAM.

    Each operator reads its operands from storage, and its result goes there. Plans that keep
    results in RAM for the next operators can move less.
    """
    return sum(_operator_bytes(node, graph, ram_bytes) for node in graph if not node.stored)


def _operator_bytes(node: Node, graph: Graph, ram_bytes: int) -> int:
    """Return the larger one of two bounds.

    Each operand is moved once. Or, for products: with S words of RAM, M multiply-accumulates move
    at least 2 M / sqrt(R S) words, in the leading term (Hong and Kung, STOC 1981). A sliding window
    uses each input R times (Chen et al., HPCA 2020).
    """
    work = work_of(node, graph)
    attrs = node.attrs
    area = _product(attrs, "kernel_h", "kernel_w") / _product(attrs, "stride_h", "stride_w")
    words = 2 * work.macs / sqrt(max(area, 1.0) * ram_bytes / 4)
    operands = work.bytes
    if renews_some_rows(operator_of(node)):  # at least three rows: all tokens may be equal
        operands -= 2 * (node.size_bytes - STEPS * node.size_bytes // int(attrs["k"]))
    return max(operands, int(4 * words))


def _product(attrs: Mapping[str, int | float], one: str, other: str) -> float:
    return (attrs.get(one) or 1) * (attrs.get(other) or 1)
