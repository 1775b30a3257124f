"""Cuts for all tensors of a graph, into pieces of about 4 KiB."""

from math import prod

from poet_host.graph.cuts import Cut
from poet_host.graph.graph import Graph

PIECE_BYTES = 4096


def cuts_of(graph: Graph) -> dict[str, Cut]:
    """Cut each tensor of several elements into at least two pieces, in row-major order."""
    sizes = {node.name: prod(node.shape) for node in graph if node.updates is None}
    return {
        name: Cut(4, (1, 1, count), (1, 1, min(PIECE_BYTES // 4, -(-count // 2))))
        for name, count in sizes.items()
        if count > 1
    }
