"""Random pairs: nests that compute both gradients of one operator."""

import random
from dataclasses import dataclass, replace

import numpy as np
from poet_host.graph.graph import Graph, Node
from poet_host.plan.nests import Nest, NestedOperator
from poet_host.plan.parts import LawError
from poet_host.plan.plan import Plan, Statement
from poet_host.schedule.encode import encode
from poet_host.schedule.schedule import Schedule
from support.homes import some_staying
from support.kernel_cases import Case, make
from support.kernel_parts_cases import random_case
from support.nest_runs import computed
from support.nests import operator_of, random_loops, random_operands

KERNELS = {"conv2d": "conv2d_grad_weight", "linear": "linear_grad_weight"}


@dataclass(frozen=True)
class PairCase:
    """The gradients of one operator: of its weight (x, dy, w > w), of its input (dy, w > dx)."""

    weight: Case
    input: Case


def random_pair_case(name: str, seed: int) -> PairCase:
    rng = np.random.default_rng(seed)
    shape = random_case(KERNELS[name], rng)
    weight = make(
        KERNELS[name], dict(shape.attrs), seed % 2**31, sink="sgd", decay=0.1 * int(rng.integers(2))
    )
    given = make(f"{name}_grad_input", dict(shape.attrs), 1)
    inputs = [weight.inputs[1], weight.inputs[2].reshape(given.inputs[1].shape)]
    weight = replace(weight, attrs={**weight.attrs, "period": int(rng.integers(3))}, step=1)
    return PairCase(weight, replace(given, inputs=inputs))


def random_pair(rng: random.Random, case: PairCase) -> NestedOperator:
    """A pair that obeys all laws; about half of its operands stream."""
    operator = operator_of(case.weight)
    for _ in range(300):
        loops = tuple(loop for loop in random_loops(rng, operator) if loop.axis != "oh")
        cuts, rings = random_operands(rng, operator, (0, 1, 2, 3, 0), loops)
        cuts[2], rings[2] = cuts[3], rings[3]
        nest = Nest(loops, tuple(rings[:4]), also=tuple(rings[4:]))
        try:
            return NestedOperator(operator, tuple(cuts), nest)
        except LawError:
            continue
    return NestedOperator(operator, (None,) * 5, Nest((), (None,) * 4, also=(None,)))


def graph_of_pair(case: PairCase) -> Graph:
    """A graph that computes a pair: x is data, dy and w are parameters."""
    x, dy, w = case.weight.inputs
    nodes = (
        Node("x", x.shape, "data", start="zeros"),
        Node("dy", dy.shape, "parameter", start="zeros"),
        Node("w", w.shape, "parameter", start="zeros"),
        Node("dx", case.input.shape, "value", "forward", case.input.op, ("dy", "w"),
             case.input.attrs),
        Node("out", case.weight.shape, "value", "forward", case.weight.op, ("x", "dy", "w"),
             case.weight.attrs, "sgd", "w", "w"),
    )  # fmt: skip
    return Graph("pair", nodes, "x", "x", "x", "out")


def schedule_of_pair(
    case: PairCase, one: NestedOperator, queue: int = 8, staying: random.Random | None = None
) -> Schedule:
    """Page in what is whole, run the pair, and page out what is whole.

    With `staying`, some of what is whole stays in RAM, and every third step commits.
    """
    graph, rings, at = graph_of_pair(case), one.nest.rings, 0
    offsets: dict[str, int] = {}
    statements = []
    for name, ring in zip(("x", "dy", "w"), rings, strict=False):
        if ring is None:
            offsets[name] = at
            statements.append(Statement("page_in", name, at))
            at += graph[name].size_bytes
    also = at if rings[4] is None else None
    at += graph["dx"].size_bytes if rings[4] is None else 0
    new = (offsets["w"],) if "w" in offsets else ()
    statements.append(Statement("compute", "dx", also, at, mode=1, also_offsets=new))
    statements += [
        Statement("page_out", name)
        for name, ring in (("out", rings[3]), ("dx", rings[4]))
        if ring is None
    ]
    plan = Plan("feasible", at + one.workspace_bytes, statements=tuple(statements))
    plan = some_staying(plan, graph, staying) if staying else plan
    names = ("x", "dy", "w", "out", "dx")
    cuts = {name: cut for name, cut in zip(names, one.cuts, strict=True) if cut}
    return encode(graph, plan, queue_capacity=queue, cuts=cuts, nests={("dx", 1): one.nest})


def run_pair(case: PairCase, one: NestedOperator, **named: object) -> tuple[np.ndarray, np.ndarray]:
    """The new weight and the input gradient that the C runtime computes as a pair."""
    schedule = schedule_of_pair(case, one, int(str(named.get("queue", 8))))
    shapes = {"out": case.weight.shape, "dx": case.input.shape}
    return computed(case.weight, schedule, shapes, **named)
