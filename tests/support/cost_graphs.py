"""Random cost graphs and problems for planners, and graphs that defeated some planner."""

import random
from dataclasses import replace
from itertools import count
from typing import Any

from poet_host.plan.problem import CostGraph, CostNode, Problem
from poet_host.solver.policy import DEFAULT_POLICY
from support.oracle import cheapest, fastest, smallest_ram_bytes


def general(seed: int, most_nodes: int = 9) -> CostGraph:
    """Any directed acyclic graph: half without storage, cheap recomputation, wide sizes."""
    rng = random.Random(f"general {seed}")
    storage = rng.random() < 0.5
    nodes: list[CostNode] = []
    overwritten: set[int] = set()
    total = rng.randint(max(2, most_nodes - 3), most_nodes)
    large = rng.randrange(1, total)  # drives others out of RAM
    for i in range(total):
        stored = rng.random() < 0.15
        usable = [j for j in range(i) if j not in overwritten and j != large]
        most = (0, 1) if i == large else (0, 1, 1, 2, 3)
        inputs = [] if stored else rng.sample(usable, min(len(usable), rng.choice(most)))
        overwrites = None
        if inputs and rng.random() < 0.15:
            overwrites = rng.choice(inputs)
            overwritten.add(overwrites)
        size = 24 if i == large else 2 ** rng.randint(0, 3) - rng.randint(0, 1)
        nodes.append(
            CostNode(
                name=f"n{i}",
                inputs=tuple(inputs),
                bytes=size if overwrites is None else nodes[overwrites].bytes,
                energy_uj=float(rng.choice((0, 1, 1, 2, 3, 5, 8, 20))),
                time_us=float(rng.choice((0, 1, 2, 3, 5, 8))),
                workspace_bytes=rng.choice((0, 0, 0, 1, 3)),
                stored=stored,
                keep=rng.random() < 0.15,
                overwrites=overwrites,
                once=not stored and rng.random() < 0.15,
                **_transfers(rng),
            )
        )
    return CostGraph(f"general {seed}", tuple(nodes), storage)


def training(seed: int, most_nodes: int = 9) -> CostGraph:
    """A chain with skips, its backward pass, and parameters that are updated in place."""
    rng = random.Random(f"training {seed}")
    storage = rng.random() < 0.7
    nodes: list[CostNode] = []

    def add(name: str, inputs: list[int], size: int, **flags: Any) -> int:
        costs: dict[str, Any] = {
            "energy_uj": float(rng.randint(1, 9)),
            "time_us": float(rng.randint(1, 9)),
            "workspace_bytes": rng.choice((0, 0, 2)),
            **_transfers(rng),
        }
        made = CostNode(name, tuple(dict.fromkeys(inputs)), size, **(costs | flags))
        nodes.append(made)
        return len(nodes) - 1

    layers = max(1, (most_nodes - rng.randint(1, 3)) // 2)
    forward = [add("x", [], rng.randint(1, 8), stored=True, workspace_bytes=0)]
    weights: dict[int, int] = {}
    for k in range(layers):
        inputs = [forward[-1]]
        if k > 1 and rng.random() < 0.4:
            inputs.append(rng.choice(forward[:-1]))
        if len(nodes) + 2 * (layers - k) + 2 < most_nodes and rng.random() < 0.6:
            weights[k] = add(f"w{k}", [], rng.randint(1, 6), stored=True, workspace_bytes=0)
            inputs.append(weights[k])
        forward.append(add(f"f{k}", inputs, rng.randint(1, 8)))
    gradient = forward[-1]
    for k in reversed(range(layers)):
        w = weights.get(k)
        if w is not None and len(nodes) < most_nodes - k:
            size = nodes[w].bytes
            flags = {"overwrites": w, "keep": True, "once": True}
            update = [gradient, forward[k], w]
            if k > 0:
                inputs = [gradient, w]
                gradient = add(f"g{k}", inputs, nodes[forward[k]].bytes)
            add(f"u{k}", update, size, **flags)
        elif len(nodes) < most_nodes:
            inputs = [gradient, forward[k]]
            gradient = add(f"g{k}", inputs, nodes[forward[k]].bytes)
    return CostGraph(f"training {seed}", tuple(nodes), storage)


def _transfers(rng: random.Random) -> dict[str, float]:
    keys = ("page_in_us", "page_out_us", "page_in_uj", "page_out_uj")
    costs = {key: float(rng.choice((0, 1, 1, 2, 3, 5, 9))) for key in keys}
    share = rng.choice((0.0, 0.0, 0.5))
    return costs | {
        "page_in_cpu_us": share * costs["page_in_us"],
        "page_out_cpu_us": share * costs["page_out_us"],
    }


def problem_of(graph: CostGraph, seed: int) -> Problem:
    """A budget between what the largest operator needs and everything at once."""
    rng = random.Random(f"budget {seed}")
    sizes = [node.bytes for node in graph.nodes]
    least = max(
        sum(sizes[j] for j in node.inputs)
        + (0 if node.overwrites is not None or node.stored else node.bytes)
        + node.workspace_bytes
        for node in graph.nodes
    )
    if not graph.storage:
        least = max(least, sum(node.bytes for node in graph.nodes if node.stored))
    most = max(least, sum(sizes) // 2)
    return Problem(graph, rng.choice((least, least, rng.randint(least, most))))


def random_cost_graph(seed: int, most_nodes: int = 9) -> CostGraph:
    """General and training-like graphs in turn."""
    return (general if seed % 2 else training)(seed, most_nodes)


def random_problem(seed: int, most_nodes: int = 9) -> Problem:
    """A random cost graph and a random budget for it, without a deadline."""
    return problem_of(random_cost_graph(seed, most_nodes), seed)


def beyond_exhaustive(problem: Problem) -> Problem:
    """The same problem with more nodes, all free and of 0 bytes, than exhaustive search takes."""
    most = DEFAULT_POLICY.max_exact_nodes
    free = tuple(CostNode(f"free {i}", (), 0, once=True) for i in range(most))
    nodes = (*problem.graph.nodes, *free)
    return replace(problem, graph=replace(problem.graph, nodes=nodes))


def contrary(seed: int, most_nodes: int = 9, storage_share: float = 0.5) -> CostGraph:
    """What is cheap is slow: costs over three decades, sizes from 0, everything at once.

    Directed acyclic graphs whose early results are wanted late; some tensors are needed after
    they were overwritten, some parameters are kept as they are.
    """
    rng = random.Random(f"contrary {seed}")
    storage = rng.random() < storage_share
    nodes: list[CostNode] = []
    for i in range(rng.randint(max(2, most_nodes - 2), most_nodes)):
        stored = rng.random() < 0.12
        usable = list(range(i))
        if rng.random() < 0.9:  # otherwise something overwritten may be wanted again
            usable = [j for j in usable if all(node.overwrites != j for node in nodes)]
        inputs: list[int] = []
        if usable and not stored:
            inputs += usable[-1:] if rng.random() < 0.7 else []
            inputs += rng.sample(usable, min(len(usable), rng.choice((0, 1, 1, 2))))
            inputs = list(dict.fromkeys(inputs))
        overwrites = rng.choice(inputs) if inputs and rng.random() < 0.1 else None
        size = rng.choice((0, 1, 2, 3, 5, 8, 13, 24, 40))
        quick_us = 10 ** rng.uniform(-1, 1)
        share = rng.choice((0.0, 0.0, 0.3, 1.0, 1.5))
        transfers = {}
        for way in ("in", "out"):
            us = 10 ** rng.uniform(-1, 1.5)
            transfers[f"page_{way}_us"] = us
            transfers[f"page_{way}_uj"] = rng.choice((0.1, 3.0 / us, 3.0 / us, us))
            transfers[f"page_{way}_cpu_us"] = share * us
        nodes.append(
            CostNode(
                name=f"n{i}",
                inputs=tuple(inputs),
                bytes=size if overwrites is None else nodes[overwrites].bytes,
                energy_uj=rng.choice((3.0 / quick_us, 3.0 / quick_us, 10 ** rng.uniform(-1, 1))),
                time_us=rng.choice((quick_us, quick_us, quick_us, 0.0)),
                workspace_bytes=rng.choice((0, 0, 0, 0, 2, 9)) if not stored else 0,
                stored=stored,
                keep=rng.random() < 0.12,
                overwrites=overwrites,
                once=not stored and rng.random() < 0.08,
                **transfers,
            )
        )
    return CostGraph(f"contrary {seed}", tuple(nodes), storage)


def swept(seed: int, most_nodes: int = 9, storage_share: float = 0.3) -> CostGraph:
    """A large node sweeps RAM, so that much is computed again at once, in an order of its own.

    Sizes decide the order in which small results of large sources fit, seldom that of the graph.
    """
    rng = random.Random(f"swept {seed}")
    storage = rng.random() < storage_share
    total = rng.randint(most_nodes - 2, most_nodes)
    late = rng.randint(1, 3)
    nodes: list[CostNode] = []
    while len(nodes) < total - late - 1:
        before = list(range(len(nodes)))
        small = bool(nodes) and rng.random() < 0.5
        inputs = before[-1:] if small else []
        inputs += rng.sample(before, min(len(before), rng.choice((0, 0, 0, 1))))
        size = rng.choice((1, 1, 1, 2)) if small else rng.randint(2, 9)
        nodes.append(_swept_node(rng, len(nodes), inputs, size))
    early = list(range(len(nodes)))
    nodes.append(_swept_node(rng, len(nodes), [], sum(n.bytes for n in nodes) * 2 // 3))
    for _ in range(late):
        usable = [*early, *range(len(early) + 1, len(nodes))]
        inputs = rng.sample(usable, min(len(usable), rng.randint(1, 4)))
        nodes.append(_swept_node(rng, len(nodes), inputs, rng.randint(1, 4)))
    return CostGraph(f"swept {seed}", tuple(nodes), storage)


def _swept_node(rng: random.Random, i: int, inputs: list[int], size: int) -> CostNode:
    """Cheap to compute, dear to page."""
    costs = {key: float(rng.randint(1, 4)) for key in ("time_us", "energy_uj")}
    pages = ("page_in_us", "page_in_uj", "page_out_us", "page_out_uj")
    costs |= {key: float(rng.randint(2, 12)) for key in pages}
    once = rng.random() < 0.05
    return CostNode(f"n{i}", tuple(dict.fromkeys(inputs)), size, once=once, **costs)


def tight_problem(seed: int, most_nodes: int = 9, storage_share: float = 0.5) -> Problem:
    """A contrary graph with about the least RAM for which there is a plan, sometimes less."""
    graph = contrary(seed, most_nodes, storage_share)
    rng = random.Random(f"tight {seed}")
    least = smallest_ram_bytes(graph)
    sizes = [node.bytes for node in graph.nodes]
    if least is None:
        return Problem(graph, sum(sizes))
    return Problem(graph, max(0, least + rng.choice((-1, 0, 0, 0, 1, 2, 3, 5, rng.choice(sizes)))))


def contested_problem(seed: int, most_nodes: int = 6) -> tuple[Problem, float]:
    """A problem whose fastest plans cost more energy than its cheapest; the fastest's time."""
    for number in count(1000 * seed):
        problem = tight_problem(number, most_nodes, storage_share=0.9)
        quick, cheap = fastest(problem), cheapest(problem)
        if quick is None or quick.time_us is None or cheap is None:
            continue
        met = cheapest(replace(problem, deadline_us=quick.time_us))
        if met is not None and met.energy_uj > cheap.energy_uj * (1 + 1e-6):
            return problem, quick.time_us
    raise AssertionError


def timed_problems(seed: int, most_nodes: int = 6) -> list[Problem]:
    """A problem with deadlines: missed by every plan, just met, and up to the cheapest plan's
    time; any for a problem without plans.
    """
    contested = seed % 2 == 0
    problem = (
        contested_problem(seed, most_nodes)[0] if contested else random_problem(seed, most_nodes)
    )
    quick = fastest(problem)
    if quick is None or quick.time_us is None:
        return [replace(problem, deadline_us=1e6)]
    cheap = cheapest(replace(problem, deadline_us=1e9))
    assert cheap is not None
    assert cheap.time_us is not None
    least_us, loose_us = quick.time_us, max(quick.time_us, cheap.time_us)
    rng = random.Random(f"deadlines {seed}")
    limits = [least_us, rng.uniform(least_us, loose_us), rng.uniform(least_us, loose_us)]
    limits += [least_us * (1 - 1e-4), loose_us * (1 - 1e-4)]
    return [replace(problem, deadline_us=limit) for limit in sorted(set(limits))]


def _named(name: str, rows: list[tuple[str, tuple[str, ...], int, float]]) -> CostGraph:
    order = {row[0]: i for i, row in enumerate(rows)}
    return CostGraph(
        name,
        tuple(
            CostNode(own, tuple(order[i] for i in inputs), size, time_us=uj, energy_uj=uj)
            for own, inputs, size, uj in rows
        ),
        storage=False,
    )


def backward_again() -> tuple[Problem, float]:
    """A result between large ones must be computed twice, late in the step."""
    rows = [
        ("f0", (), 1, 4.0), ("g1", ("f0",), 4, 3.0), ("gb", ("f0",), 8, 2.0),
        ("gz", ("g1", "f0"), 1, 1.0),
    ]  # fmt: skip
    return Problem(_named("backward again", rows), 9), 13.0


def not_an_ancestor() -> tuple[Problem, float]:
    """It pays to compute j while x is in RAM, in a stage that needs neither."""
    rows = [
        ("x", (), 5, 20.0), ("j", ("x",), 1, 1.0), ("m", (), 5, 3.0),
        ("t", ("x",), 1, 3.0), ("q", ("t",), 8, 3.0), ("y", ("j",), 1, 3.0),
    ]  # fmt: skip
    return Problem(_named("not an ancestor", rows), 10), 34.0


def out_of_order() -> tuple[Problem, float]:
    """The last stage computes f3, g3 and then f0, since f0 first leaves no room for f3."""
    rows = [
        ("f0", (), 4, 1.0), ("f3", (), 4, 1.0), ("g3", ("f3",), 1, 1.0),
        ("b", (), 6, 1.0), ("t", ("f0", "g3"), 1, 1.0),
    ]  # fmt: skip
    return Problem(_named("out of order", rows), 6), 8.0


COUNTER_EXAMPLES = (backward_again, not_an_ancestor, out_of_order)
