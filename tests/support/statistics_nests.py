"""Random nests of a convolution that also compute the statistics of its output."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from poet_host.graph.cuts import Cut
from poet_host.graph.graph import Graph, Node
from poet_host.plan.nests import Nest, NestedOperator
from poet_host.plan.parts import LawError
from poet_host.plan.plan import Plan, Statement
from poet_host.schedule.encode import encode
from poet_host.schedule.schedule import Schedule
from support.kernel_cases import Case, make
from support.kernel_parts_cases import random_case
from support.nest_runs import computed
from support.nests import operator_of, random_nest


@dataclass(frozen=True)
class StatisticsCase:
    """A convolution (x, w > y), and the statistics of y."""

    conv: Case
    stats: Case  # without its input, which is y


def random_statistics_case(seed: int) -> StatisticsCase:
    rng = np.random.default_rng(seed)
    conv = make("conv2d", dict(random_case("conv2d", rng).attrs), seed % 2**31, bias=False)
    return case_of(conv)


def case_of(conv: Case) -> StatisticsCase:
    n, k, h, w = conv.shape
    return StatisticsCase(
        conv, make("batchnorm_stats", {"n": n, "c": k, "h": h, "w": w, "variant": 0}, 1)
    )


def with_statistics(one: NestedOperator) -> NestedOperator | None:
    """The nest with statistics, which are cut like the channels; None: a law forbids it."""
    channels, part = one.axes[-1][1].size, one.parts[-1][1]
    cut = None if part == channels else Cut(4, (1, 2, channels), (1, 2, part))
    if cut is not None:
        cut = Cut(4, cut.size, cut.part, -(-channels // part))
    nest = Nest(one.nest.loops, one.nest.operands, one.nest.in_place, (), True)
    try:
        return NestedOperator(one.operator, (*one.cuts, cut), nest)
    except LawError:
        return None


def random_statistics(rng: random.Random, case: StatisticsCase) -> NestedOperator:
    """A nest that obeys all laws; about half of its operands stream."""
    operator = operator_of(case.conv)
    for _ in range(100):
        found = with_statistics(random_nest(rng, operator))
        if found is not None:
            return found
    whole = NestedOperator(operator, (None,) * 3, Nest((), (None,) * 3))
    found = with_statistics(whole)
    assert found is not None
    return found


def graph_of_statistics(case: StatisticsCase) -> Graph:
    """A graph that computes y, its statistics, and then both again for other tensors."""
    x, w = case.conv.inputs
    nodes = (
        Node("x", x.shape, "data", start="zeros"),
        Node("w", w.shape, "parameter", start="zeros"),
        Node("y", case.conv.shape, "value", "forward", "conv2d", ("x", "w"), case.conv.attrs),
        Node("stats", case.stats.shape, "value", "forward", "batchnorm_stats", ("y",),
             case.stats.attrs),
    )  # fmt: skip
    return Graph("statistics", nodes, "x", "x", "x", "stats")


def schedule_of_statistics(
    case: StatisticsCase, one: NestedOperator, queue: int = 8, before: Sequence[str] = ()
) -> Schedule:
    """Page in what is whole, run the nest, and page out what is whole.

    `before`: "alone": the convolution runs alone before; "both": the nest runs twice.
    """
    graph, rings, at = graph_of_statistics(case), one.nest.operands, 0
    statements = []
    for name, ring in zip(("x", "w"), rings, strict=False):
        if ring is None:
            statements.append(Statement("page_in", name, at))
            at += graph[name].size_bytes
    offset = at if rings[2] is None else None
    at += graph["y"].size_bytes if rings[2] is None else 0
    own = Statement("compute", "y", offset, at + graph["stats"].size_bytes, mode=1,
                    also_offsets=(at,))  # fmt: skip
    at += graph["stats"].size_bytes
    frees = [Statement("free", "y")] if rings[2] is None else []
    alone = Statement("compute", "y", offset, own.workspace_offset, mode=2)
    statements += [it for one_before in before for it in (
        (alone, *frees) if one_before == "alone" else (own, *frees, Statement("free", "stats"))
    )]  # fmt: skip
    statements += [own, Statement("page_out", "stats")]
    statements += [Statement("page_out", "y")] if rings[2] is None else []
    plan = Plan("feasible", at + one.workspace_bytes, statements=tuple(statements))
    names = ("x", "w", "y", "stats")
    cuts = {name: cut for name, cut in zip(names, one.cuts, strict=True) if cut}
    plain = Nest(one.nest.loops, one.nest.operands, one.nest.in_place)
    nests = {("y", 1): one.nest, ("y", 2): plain}
    return encode(graph, plan, queue_capacity=queue, cuts=cuts, nests=nests)


def run_statistics(
    case: StatisticsCase, one: NestedOperator, before: Sequence[str] = (), **named: object
) -> tuple[np.ndarray, np.ndarray]:
    """The output and its statistics that the C runtime computes in one nest."""
    schedule = schedule_of_statistics(case, one, int(str(named.get("queue", 8))), before)
    shapes = {"y": case.conv.shape, "stats": case.stats.shape}
    return computed(case.conv, schedule, shapes, **named)
