"""Random cost graphs and problems with modes."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

from poet_host.plan.problem import Also, CostGraph, CostNode, Mode, Objective, Problem
from support.cost_graphs import contrary, general, swept, training
from support.oracle import cheapest, fastest, smallest_ram_bytes

MAKERS = (general, training, contrary, swept)


def with_modes(graph: CostGraph, seed: int) -> CostGraph:
    """The graph with one or two modes for most of its computed nodes.

    Modes stream any operands, overwrite what the node does, another input or nothing, and are
    cheaper or dearer than mode 0. Some stream nothing. Costs may be 0.
    """
    rng = random.Random(f"modes {seed}")
    nodes = tuple(
        node
        if node.stored or rng.random() > 0.7
        else replace(node, modes=tuple(_mode(rng, graph, node) for _ in range(rng.randint(1, 2))))
        for node in graph.nodes
    )
    return replace(graph, name=f"{graph.name} with modes", nodes=nodes)


def _mode(rng: random.Random, graph: CostGraph, node: CostNode) -> Mode:
    streamed = [i for i in node.inputs if rng.random() < 0.5]
    output = rng.random() < 0.4
    same = [i for i in node.inputs if graph.nodes[i].bytes == node.bytes]
    choices = [None, node.overwrites, *(same[:1] if rng.random() < 0.3 else [])]
    overwrites = rng.choice([i for i in choices if i is None or (i in streamed) == output])
    factor = rng.choice((0.3, 0.9, 1.0, 1.5, 3.0))
    time_us = factor * node.time_us
    transfer_us = rng.choice((0.0, 0.5 * time_us, rng.uniform(0, 5)))
    return Mode(
        tuple(streamed),
        output,
        rng.choice((0, 1, 1, 2, 4)),
        time_us,
        transfer_us,
        max(time_us, transfer_us) + rng.choice((0.0, 0.5)),
        node.energy_uj * rng.choice((0.3, 1.0, 1.2, 2.0)) + rng.choice((0.0, 0.0, 1.0)),
        rng.randint(0, 99),
        rng.randint(0, 99),
        overwrites,
    )


def mode_graph(seed: int, most_nodes: int = 7) -> CostGraph:
    """A graph of any of the kinds of `cost_graphs`; three in four have storage."""
    graph = MAKERS[seed % len(MAKERS)](seed, most_nodes)
    storage = random.Random(f"storage {seed}").random() < 0.75
    return with_modes(replace(graph, storage=storage), seed)


def fused(graph: CostGraph, seed: int, most: int = 2) -> CostGraph:
    """The graph with modes of version 2, and with nodes that a plan may leave out.

    Modes compute up to three nodes, which may overwrite each other, and read other nodes than the
    node does. About a third of the kept nodes are not kept any more.
    """
    rng = random.Random(f"fused {seed}")
    nodes = [
        replace(node, keep=node.keep and rng.random() < 0.7, once=node.once and rng.random() < 0.7)
        if graph.storage and not node.stored
        else node
        for node in graph.nodes
    ]
    computed = [i for i, node in enumerate(nodes) if not node.stored]
    for at, i in enumerate(computed):
        if rng.random() < 0.7:
            together = computed[at : at + rng.choice((1, 2, 2, 3))]
            more = [_fused_mode(rng, nodes, together) for _ in range(rng.randint(1, most))]
            found = (mode for mode in more if mode is not None)
            nodes[i] = replace(nodes[i], modes=(*nodes[i].modes, *found))
    return replace(
        graph, name=f"{graph.name} fused", nodes=tuple(nodes), may_leave_out=rng.random() < 0.8
    )


def _fused_mode(rng: random.Random, nodes: list[CostNode], together: list[int]) -> Mode | None:
    """A mode of the first node that computes all of `together`; None if they cannot be."""
    first = together[0]
    read = list(dict.fromkeys(i for j in together for i in nodes[j].inputs if i not in together))
    if rng.random() < 0.5:  # read something else instead of one input
        kept = {nodes[j].overwrites for j in together}
        loose = [i for i in read if i not in kept]
        others = [i for i in range(first) if i not in read]
        if loose:
            read.remove(rng.choice(loose))
        if others and rng.random() < 0.7:
            read.append(rng.choice(others))
    streams = {i: rng.random() < 0.4 for i in read}
    made: list[Also] = []
    gone: set[int] = set()
    for j in together:
        over = nodes[j].overwrites
        if over is not None and (over not in streams or over in gone):
            return None
        streams[j] = rng.random() < 0.4 if over is None else streams[over]
        gone |= set() if over is None else {over}
        made.append(Also(j, streams[j]))
    time_us = rng.choice((0.3, 0.9, 1.5)) * sum(nodes[j].time_us for j in together)
    energy_uj = rng.choice((0.3, 0.8, 1.5)) * sum(nodes[j].energy_uj for j in together)
    return Mode(
        tuple(i for i in read if streams[i]),
        made[0].streamed,
        rng.choice((0, 1, 2)),
        time_us,
        0.0,
        time_us + rng.choice((0.0, 0.5)),
        energy_uj,
        overwrites=nodes[first].overwrites,
        inputs=tuple(read),
        also=tuple(made[1:]),
    )


def mode_problem(
    seed: int, most_nodes: int = 7, objective: Objective | None = None, *, is_fused: bool = False
) -> Problem:
    """About the least RAM for which there is a plan, or up to a third of all; any objective.

    One in eight has too little RAM, and half have base power, which the default objective counts.
    """
    rng = random.Random(f"problem {seed}")
    graph = mode_graph(seed, most_nodes)
    graph = fused(graph, seed) if is_fused else graph
    if rng.random() < 0.5:
        graph = replace(graph, base_power_uw=rng.choice((1e5, 1e6, 3e6)))
    least, whole = smallest_ram_bytes(graph), sum(node.bytes for node in graph.nodes)
    if least is None:
        return Problem(graph, whole)
    most = max(least, whole // 3)
    budget = rng.choice((least, least, rng.randint(least, most), rng.randint(least, most)))
    goal: Objective = objective or rng.choice(("energy", "added-energy", "added-energy", "time"))
    return Problem(graph, max(0, least - 1) if rng.random() < 0.125 else budget, objective=goal)


def timed_mode_problems(seed: int, most_nodes: int = 6, *, is_fused: bool = False) -> list[Problem]:
    """A problem with deadlines: missed by every plan, just met, and between the fastest plan and
    the cheapest.
    """
    problem = mode_problem(seed, most_nodes, "added-energy", is_fused=is_fused)
    quick = fastest(problem)
    if quick is None or quick.time_us is None:
        return []
    cheap = cheapest(replace(problem, deadline_us=1e9))
    assert cheap is not None
    assert cheap.time_us is not None
    least_us, loose_us = quick.time_us, max(quick.time_us, cheap.time_us)
    between_us = random.Random(f"deadline {seed}").uniform(least_us, loose_us)
    limits = {least_us * (1 - 1e-4), least_us, between_us} - {0.0}
    return [replace(problem, deadline_us=limit) for limit in sorted(limits)]


def in_place(graph: CostGraph, seed: int) -> CostGraph:
    """The graph with a mode for most inputs that a node may overwrite, at the costs of mode 0."""
    rng = random.Random(f"in place {seed}")
    nodes = list(graph.nodes)
    for i, node in enumerate(nodes):
        if node.overwrites is None and not node.stored:
            same = (j for j in dict.fromkeys(node.inputs) if nodes[j].bytes == node.bytes)
            modes = (replace(node.mode(0), overwrites=j) for j in same if rng.random() < 0.8)
            nodes[i] = replace(node, modes=tuple(modes))
    return replace(graph, name=f"{graph.name} in place", nodes=tuple(nodes))


def normed(seed: int) -> CostGraph:
    """Two layers and their gradients. The norm of each layer may overwrite what the gradient reads
    again, so that a plan computes the layer again, perhaps in place.
    """
    rng = random.Random(f"normed {seed}")
    nodes: list[CostNode] = []

    def add(name: str, *inputs: int, size_bytes: int = 4) -> int:
        energy_uj, page_uj = rng.uniform(0.2, 2.0), rng.uniform(2.0, 9.0)
        nodes.append(
            CostNode(
                name, inputs, size_bytes, energy_uj, energy_uj, page_uj, page_uj, page_uj,
                rng.uniform(1.0, 2.0) * page_uj, stored=not inputs,
            )
        )  # fmt: skip
        return len(nodes) - 1

    below, layers = add("x", size_bytes=2), []
    for k in range(2):
        conv = add(f"conv{k}", below)
        layers.append((below, conv))
        below = add(f"norm{k}", conv)
    gradient = add("loss", below, size_bytes=1)
    for k, (read, conv) in reversed(list(enumerate(layers))):
        gradient = add(f"norm{k}:grad", conv, gradient)
        add(f"weight{k}:grad", read, gradient, size_bytes=1)
    return CostGraph(f"normed {seed}", tuple(nodes), rng.random() < 0.7)


def kinds_of(graph: CostGraph) -> dict[str, Any]:
    """How often each choice of a mode occurs in the graph."""
    modes = [(node, mode) for node in graph.nodes for mode in node.modes]
    return {
        "modes": len(modes),
        "streamed inputs": sum(bool(mode.streamed_inputs) for _, mode in modes),
        "streamed outputs": sum(mode.streamed_output for _, mode in modes),
        "streams nothing": sum(not mode.streams for _, mode in modes),
        "streams out a kept tensor": sum(m.streamed_output and n.keep for n, m in modes),
        "overwrites as the node": sum(m.overwrites == n.overwrites is not None for n, m in modes),
        "overwrites another": sum(
            m.overwrites is not None and m.overwrites != n.overwrites for n, m in modes
        ),
        "leaves what the node overwrites": sum(
            m.overwrites is None and n.overwrites is not None for n, m in modes
        ),
        "overwrites on storage": sum(
            m.overwrites is not None and m.streamed_output for _, m in modes
        ),
        "once": sum(node.once for node, _ in modes),
        "0 bytes": sum(not node.bytes for node, _ in modes),
    }


def staying(graph: CostGraph, seed: int) -> CostGraph:
    """The graph with storage, and with stored tensors that may stay or are given, and an N."""
    rng = random.Random(f"staying {seed}")
    renewed = Counter(node.overwrites for node in graph.nodes)
    nodes = list(graph.nodes)
    for i, node in enumerate(nodes):
        if node.stored and renewed[i] < 2:
            kind = rng.choice(("stays", "stays", "stays", "given", ""))
            nodes[i] = replace(node, stays=kind == "stays", given=kind == "given")
    commit_every = rng.choice((1, 3, 100))
    return replace(graph, nodes=tuple(nodes), storage=True, commit_every=commit_every)
