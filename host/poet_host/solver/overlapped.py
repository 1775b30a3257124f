"""Graphs for plans whose transfers run while the processor computes.

If all transfers do, a step takes as long as its processor is busy. A program that minimises this
time needs no variable for the time of the step, so it is solved faster. But a transfer that runs
during an operator needs RAM at that time. `with_transfer_room` reserves this RAM for the transfers
that every plan contains.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import inf

from ..packing.blocks import aligned
from ..plan.problem import CostGraph


def with_processor_time(graph: CostGraph, value_per_us: float) -> CostGraph:
    """Return the graph with the processor's time, multiplied by `value_per_us`, in its energies.

    A commit instead of a page-out takes `page_out_us`. What a commit may write gets the smaller one
    of both times, so that a bound for this graph holds for all plans.
    """

    def page_out_us(k: int) -> float:
        node = graph.nodes[k]
        us = node.page_out_cpu_us
        return min(us, node.page_out_us) if k in graph.may_commit else us

    nodes = tuple(
        replace(
            node,
            energy_uj=node.energy_uj + value_per_us * node.time_us,
            page_in_uj=node.page_in_uj + value_per_us * node.page_in_cpu_us,
            page_out_uj=node.page_out_uj + value_per_us * page_out_us(k),
            modes=tuple(
                replace(mode, energy_uj=mode.energy_uj + value_per_us * mode.wall_us)
                for mode in node.modes
            ),
        )
        for k, node in enumerate(graph.nodes)
    )
    return replace(graph, nodes=nodes)


def with_transfer_room(graph: CostGraph, ram_bytes: int, unit: int) -> CostGraph:
    """Return the graph with larger workspaces: they reserve RAM for transfers.

    A kept tensor stays in RAM until it is paged out, during the operators after the one that
    computes it. A stored tensor is paged in during the operators before its first use. An operator
    gets no more than RAM has free while it runs. Workspaces are multiples of `unit`.
    """
    operators = [i for i, node in enumerate(graph.nodes) if not node.stored]
    room = [0] * len(graph.nodes)
    if graph.storage:
        for i, size_bytes in (*_outgoing(graph, operators), *_incoming(graph, operators)):
            room[i] += size_bytes
    nodes = list(graph.nodes)
    for i in operators:
        node = nodes[i]
        own_bytes = node.bytes if node.overwrites is None else 0
        used = (
            own_bytes + node.workspace_bytes + sum(graph.nodes[j].bytes for j in set(node.inputs))
        )
        free = max(0, min(aligned(room[i], unit), (ram_bytes - used) // unit * unit))
        nodes[i] = replace(node, workspace_bytes=node.workspace_bytes + free)
    return replace(graph, nodes=tuple(nodes))


def _outgoing(graph: CostGraph, operators: list[int]) -> Iterator[tuple[int, int]]:
    """Yield (operator, bytes of a kept tensor that is paged out while the operator runs)."""
    begin_us, written_us = _begins(graph, operators), 0.0
    for position, i in enumerate(operators):
        node = graph.nodes[i]
        if not node.keep:
            continue
        written_us = max(written_us, begin_us[position + 1]) + node.page_out_us
        for later in range(position + 1, len(operators)):
            if begin_us[later] >= written_us:
                break
            if i not in graph.nodes[operators[later]].inputs:
                yield operators[later], node.bytes


def _incoming(graph: CostGraph, operators: list[int]) -> Iterator[tuple[int, int]]:
    """Yield (operator, bytes of a stored tensor that is paged in while the operator runs)."""
    begin_us = _begins(graph, operators)
    needed: set[int] = set()
    first: list[list[int]] = []
    for i in operators:
        new = {j for j in graph.nodes[i].inputs if graph.nodes[j].stored} - needed
        needed |= new
        first.append(sorted(new))
    started_us = inf
    for position in reversed(range(len(operators))):
        for j in first[position]:
            node = graph.nodes[j]
            started_us = min(started_us, begin_us[position]) - node.page_in_us
            for earlier in reversed(range(position)):
                if begin_us[earlier + 1] <= started_us:
                    break
                yield operators[earlier], node.bytes


def _begins(graph: CostGraph, operators: list[int]) -> list[float]:
    """Return when each operator begins if none waits, and when the last one ends."""
    begin_us = [0.0]
    for i in operators:
        begin_us.append(begin_us[-1] + graph.nodes[i].time_us)
    return begin_us
