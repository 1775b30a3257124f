"""Large cost graphs with modes: those of bench/instances, with ways to stream their operands."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path

from poet_host.plan.costgraph import load_cost_graph
from poet_host.plan.problem import CostGraph, CostNode, Mode

INSTANCES = Path(__file__).parents[2] / "bench/instances"
BUFFERS_BYTES = (1024, 4096, 16384)  # of each streamed operand
STATE_BYTES = 256
MIN_STREAMED_BYTES = 1024  # smaller tensors are always whole
MAX_MODES = 20


def streamed_instance(name: str) -> CostGraph:
    """An instance whose operators may stream any of their large operands."""
    graph = load_cost_graph(INSTANCES / f"{name}.graph.json")
    nodes = tuple(
        node if node.stored else replace(node, modes=_modes(graph, node)) for node in graph.nodes
    )
    return replace(graph, name=f"{graph.name} streamed", nodes=nodes)


def _modes(graph: CostGraph, node: CostNode) -> tuple[Mode, ...]:
    """Modes with small buffers first; a small buffer means that inputs are read more than once."""
    large = [i for i in node.inputs if graph.nodes[i].bytes > MIN_STREAMED_BYTES]
    outputs = (False, True) if node.bytes > MIN_STREAMED_BYTES else (False,)
    operands = [
        (some, output)
        for count in range(len(large), -1, -1)
        for some in combinations(large, count)
        for output in outputs
        if (some or output) and (node.overwrites is None or (node.overwrites in some) == output)
    ]
    modes = [_mode(graph, node, *it, buffer) for buffer in BUFFERS_BYTES for it in operands]
    return tuple(modes[:MAX_MODES])


def _mode(
    graph: CostGraph, node: CostNode, some: tuple[int, ...], output: bool, buffer: int
) -> Mode:
    read = [graph.nodes[i] for i in some]
    total = sum(it.bytes for it in read)
    reads = 1 + max(0.0, min(3.0, (total / (8 * buffer)) ** 0.5 - 1)) * (len(some) > 1)
    work = 1 + 0.02 * (total / buffer) ** 0.5
    transfer_us = reads * sum(it.page_in_us for it in read) + output * node.page_out_us
    transfer_uj = reads * sum(it.page_in_uj for it in read) + output * node.page_out_uj
    return Mode(
        some,
        output,
        node.workspace_bytes + (len(some) + output) * buffer + STATE_BYTES,
        work * node.time_us,
        transfer_us,
        max(work * node.time_us, transfer_us),
        work * node.energy_uj + transfer_uj,
        int(reads * total),
        output * node.bytes,
        node.overwrites,
    )
