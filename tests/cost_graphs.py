"""Random cost graphs and problems for planners, and graphs that defeated some planner."""

import random

from poet_host.plan.problem import CostGraph, CostNode, Problem


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

    def add(name: str, inputs: list[int], size: int, **flags: object) -> int:
        costs: dict[str, object] = {
            "energy_uj": float(rng.randint(1, 9)),
            "time_us": float(rng.randint(1, 9)),
            "workspace_bytes": rng.choice((0, 0, 2)),
            **_transfers(rng),
        }
        made = CostNode(name, tuple(dict.fromkeys(inputs)), size, **(costs | flags))  # type: ignore[arg-type]
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


def _named(
    name: str, rows: list[tuple[str, tuple[str, ...], int, float]], storage: bool = False
) -> CostGraph:
    order = {row[0]: i for i, row in enumerate(rows)}
    return CostGraph(
        name,
        tuple(
            CostNode(own, tuple(order[i] for i in inputs), size, time_us=uj, energy_uj=uj)
            for own, inputs, size, uj in rows
        ),
        storage,
    )


def backward_again() -> tuple[Problem, float]:
    """A result between large ones must be computed twice, late in the step."""
    rows = [
        ("f0", (), 1, 4.0),
        ("g1", ("f0",), 4, 3.0),
        ("gb", ("f0",), 8, 2.0),
        ("gz", ("g1", "f0"), 1, 1.0),
    ]
    return Problem(_named("backward again", rows), 9), 13.0


def not_an_ancestor() -> tuple[Problem, float]:
    """It pays to compute j while x is there, in a stage that needs neither."""
    rows = [
        ("x", (), 5, 20.0),
        ("j", ("x",), 1, 1.0),
        ("m", (), 5, 3.0),
        ("t", ("x",), 1, 3.0),
        ("q", ("t",), 8, 3.0),
        ("y", ("j",), 1, 3.0),
    ]
    return Problem(_named("not an ancestor", rows), 10), 34.0


def out_of_order() -> tuple[Problem, float]:
    """The last stage computes f3, g3 and then f0, since f0 first leaves no room for f3."""
    rows = [
        ("f0", (), 4, 1.0),
        ("f3", (), 4, 1.0),
        ("g3", ("f3",), 1, 1.0),
        ("b", (), 6, 1.0),
        ("t", ("f0", "g3"), 1, 1.0),
    ]
    return Problem(_named("out of order", rows), 6), 8.0


COUNTER_EXAMPLES = (backward_again, not_an_ancestor, out_of_order)
