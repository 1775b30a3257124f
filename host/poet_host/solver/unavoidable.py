"""What every plan must spend: energy, and time in the two lanes."""

from ..plan.problem import TOLERANCE, CostGraph


def unavoidable_uj(graph: CostGraph) -> float:
    """Return the energy that every plan must spend.

    Every plan must compute each node, page in each stored tensor that has a use, and page out
    each kept tensor.
    """
    total = sum(node.energy_uj for node in graph.nodes if not node.stored)
    if graph.storage:
        total += sum(graph.nodes[i].page_in_uj for i in _read(graph))
        total += sum(node.page_out_uj for node in graph.nodes if node.keep and not node.stored)
    return total * (1 - TOLERANCE / 4)  # another order of the sum may round to less


def least_processor_us(graph: CostGraph) -> float:
    """Return the time for which the processor is busy in every plan."""
    total = sum(node.time_us for node in graph.nodes if not node.stored)
    if graph.storage:
        total += sum(graph.nodes[i].page_in_cpu_us for i in _read(graph))
        total += sum(node.page_out_cpu_us for node in graph.nodes if node.keep and not node.stored)
    return total * (1 - TOLERANCE / 4)


def _read(graph: CostGraph) -> set[int]:
    return {i for node in graph.nodes for i in node.inputs if graph.nodes[i].stored}


def least_time_us(graph: CostGraph) -> float:
    """Return a lower bound of the time of all plans.

    The bound counts each node once, in order. Before a node, all stored tensors needed so far are
    paged in, one by one. A kept tensor is paged out after its computation.
    """
    arrived_us = processor_us = end_us = least_us = 0.0
    needed: set[int] = set()
    kept_us = sum(n.page_out_us for n in graph.nodes if n.keep and not n.stored)
    for node in graph.nodes:
        if node.stored:
            continue
        if graph.storage:
            new = {i for i in node.inputs if graph.nodes[i].stored} - needed
            needed |= new
            arrived_us += sum(graph.nodes[i].page_in_us for i in new)
            processor_us += sum(graph.nodes[i].page_in_cpu_us for i in new)
        processor_us += node.time_us
        end_us = max(processor_us, max(end_us, arrived_us) + node.time_us)
        least_us = max(least_us, end_us + (kept_us if graph.storage else 0.0))
        kept_us -= node.page_out_us if node.keep else 0.0
    return least_us


def transfers_alone_us(graph: CostGraph) -> float:
    """Return the time in which no plan computes, because it waits for transfers.

    These are the page-ins before the first computation, and the page-out after the last one.
    """
    operators = [node for node in graph.nodes if not node.stored]
    if not operators or not graph.storage:
        return 0.0
    first, last = operators[0], operators[-1]
    begin_us = sum(graph.nodes[i].page_in_us for i in set(first.inputs) if graph.nodes[i].stored)
    return begin_us + (last.page_out_us if last.keep else 0.0)
