"""What every plan must spend: energy, and time in the two lanes.

A node may have several modes. Each bound takes the cheapest of them, separately for each cost.
"""

from ..plan.problem import TOLERANCE, CostGraph, Output


def unavoidable_uj(graph: CostGraph) -> float:
    """Return the energy that every plan must spend.

    Every plan must compute each unavoidable node, page in each stored tensor that such a node needs
    in RAM, and page out each kept tensor that is not streamed.
    """
    total = 0.0
    for i in sorted(graph.unavoidable):
        total += min(
            (graph.nodes[j].mode(number).energy_uj if j == i else 0.0)
            + (graph.nodes[i].page_out_uj if _pages_out(graph, made) else 0.0)
            for j, number, made in graph.runs[i]
        )
    total += sum(graph.nodes[i].page_in_uj for i in _read(graph))
    return total * (1 - TOLERANCE / 4)  # another order of the sum may round to less


def least_processor_us(graph: CostGraph) -> float:
    """Return the time for which the processor's lane is busy in every plan."""
    total = sum(_least_us(graph, i) for i in sorted(graph.unavoidable))
    total += sum(graph.nodes[i].page_in_cpu_us for i in _read(graph))
    total += sum(graph.nodes[i].page_out_cpu_us for i in _written(graph))
    return total * (1 - TOLERANCE / 4)


def least_time_us(graph: CostGraph) -> float:
    """Return a lower bound of the time of all plans.

    The bound counts each unavoidable node once, in order. Before a node, all stored tensors needed
    so far are paged in, one by one. A kept tensor is paged out after its computation.
    """
    arrived_us = processor_us = end_us = least_us = 0.0
    needed: set[int] = set()
    written = _written(graph)
    kept_us = sum(graph.nodes[i].page_out_us for i in written)
    for i in sorted(graph.unavoidable):
        new = _needed(graph, i) - needed
        needed |= new
        arrived_us += sum(graph.nodes[j].page_in_us for j in new)
        processor_us += sum(graph.nodes[j].page_in_cpu_us for j in new)
        time_us = _least_us(graph, i)
        processor_us += time_us
        end_us = max(processor_us, max(end_us, arrived_us) + time_us)
        least_us = max(least_us, end_us + kept_us)
        kept_us -= graph.nodes[i].page_out_us if i in written else 0.0
    return least_us


def transfers_alone_us(graph: CostGraph) -> float:
    """Return the time in which no plan computes, because it waits for transfers.

    These are the page-ins before the first computation, and the page-out after the last one. During
    this page-out, a tensor may be computed again only to be in RAM when the step ends.
    """
    operators = [i for i, node in enumerate(graph.nodes) if not node.stored]
    if not operators:
        return 0.0
    first, last = operators[0], operators[-1]
    begin_us = 0.0
    if first in graph.unavoidable:
        begin_us = sum(graph.nodes[j].page_in_us for j in _needed(graph, first))
    heirs = (graph.nodes[k] for k in graph.heirs.values())
    ends_idle = last in _written(graph) and all(node.stored or node.once for node in heirs)
    return begin_us + (graph.nodes[last].page_out_us if ends_idle else 0.0)


def _least_us(graph: CostGraph, i: int) -> float:
    """Return the least time for which node i occupies the processor's lane.

    It is 0 if a mode of an earlier node computes node i too: that node counts the time.
    """
    return min(
        graph.nodes[j].mode(number).wall_us if j == i else 0.0 for j, number, _ in graph.runs[i]
    )


def _needed(graph: CostGraph, i: int) -> set[int]:
    """Return the stored tensors that must be paged in for node i, whatever its mode."""
    return needed_whole(graph, i) - {*graph.starting} if graph.storage else set()


def needed_whole(graph: CostGraph, i: int) -> set[int]:
    """Return the stored tensors that must be in RAM for node i, whatever its mode."""
    whole = (set(graph.nodes[j].whole_inputs(number)) for j, number, _ in graph.runs[i])
    return {j for j in set.intersection(*whole) if graph.nodes[j].stored}


def _read(graph: CostGraph) -> set[int]:
    return set().union(*(_needed(graph, i) for i in sorted(graph.unavoidable)))


def _pages_out(graph: CostGraph, made: Output) -> bool:
    """Return whether a page-out must follow, if the node is computed only as this output."""
    return made.node in graph.always_written and not made.streamed


def _written(graph: CostGraph) -> set[int]:
    return {
        i
        for i in sorted(graph.unavoidable)
        if all(_pages_out(graph, made) for _, _, made in graph.runs[i])
    }
