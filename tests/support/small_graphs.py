"""Graphs of up to 6 nodes with sizes that are not multiples of 4."""

import random
from dataclasses import replace

from poet_host.plan.problem import CostGraph
from support.cost_graphs import contrary, random_cost_graph


def small_graph(seed: int, storage: bool) -> CostGraph:
    rng = random.Random(f"small {seed}")
    most = rng.choice((4, 5, 6))
    graph = contrary(seed, most) if seed % 3 == 0 else random_cost_graph(seed, most)
    sizes: list[int] = []
    for node in graph.nodes:
        size = rng.choice((1, 2, 3, 5, 6, 7, 9, 10, 13, 4, 8))
        sizes.append(size if node.overwrites is None else sizes[node.overwrites])
    nodes = tuple(
        replace(node, bytes=size, workspace_bytes=min(node.workspace_bytes, 5))
        for node, size in zip(graph.nodes, sizes, strict=True)
    )
    return replace(graph, nodes=nodes, storage=storage)
