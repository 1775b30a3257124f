"""Greedy plans, made without search."""

from collections.abc import Iterator
from itertools import chain

from ..plan.placed_plan import PlacedPlan
from ..plan.problem import CostGraph, Problem
from ..plan.verify import Totals
from .candidate import candidate_of
from .events import Event, fits, tidy, with_frees

RAM_SHARES = (1.0, 0.9, 0.7, 0.5)  # shares of the RAM budget, tried until a placement fits
PLACEMENT_LIMIT_S = 2.0


def greedy_totals(problem: Problem) -> Totals | None:
    """Return the costs of the first greedy plan that fits the budget; None if no such plan fits.

    This is a quick estimate for a graph with storage; `solve` finds better plans. Transfers overlap
    computations where such an order is found quickly.
    """
    graph = problem.graph
    last = everything_paged(graph)
    plans = greedy_plans(graph, problem.ram_bytes)
    for events in chain(plans, [last] if fits(graph, last, problem.ram_bytes) else []):
        found = candidate_of(
            problem, events, placed=True, time_limit_s=PLACEMENT_LIMIT_S, effort="little"
        )
        if isinstance(found, PlacedPlan):
            return found.totals
    return None


def greedy_plans(graph: CostGraph, ram_bytes: int) -> Iterator[list[Event]]:
    """Yield plans that compute every node once. Each plan pages to stay within a share of RAM."""
    for share in RAM_SHARES:
        events = latest_paged(graph, int(ram_bytes * share))
        if events is not None:
            yield events


def latest_paged(graph: CostGraph, ram_bytes: int) -> list[Event] | None:
    """Compute every node once. When RAM is short, page out the tensor that is needed latest.

    This is the rule of Belady (1966), doi 10.1147/sj.52.0078. The rule ignores costs. Return
    None if an operator does not fit RAM.
    """
    nodes = graph.nodes
    uses: list[list[int]] = [[] for _ in nodes]  # for each node, the nodes that use it, last first
    for j in reversed(range(len(nodes))):
        for i in set(nodes[j].inputs):
            uses[i].append(j)
    events: list[Event] = []
    ram: set[int] = set()
    live = 0
    written = {i for i, node in enumerate(nodes) if node.stored or node.keep}
    for j, node in enumerate(nodes):
        if node.stored:
            continue
        inputs = set(node.inputs)
        coming = inputs - ram
        need = live + node.own_bytes() + sum(nodes[i].bytes for i in coming)
        for i in sorted(ram - inputs, key=lambda i: uses[i][-1], reverse=True):
            if need <= ram_bytes:
                break
            ram.discard(i)
            written.add(i)
            live, need = live - nodes[i].bytes, need - nodes[i].bytes
        if need > ram_bytes:
            return None
        events += [Event("page_in", i) for i in sorted(coming)]
        events.append(Event("compute", j))
        for i in inputs:
            uses[i].pop()
        if node.overwrites is not None and uses[node.overwrites]:
            written.add(node.overwrites)
        ram = {i for i in ram | inputs | {j} if uses[i] and i != node.overwrites}
        live = sum(nodes[i].bytes for i in ram)
    paged: list[Event] = []
    for event in events:
        paged.append(event)
        if event[0] == "compute" and event[1] in written:
            paged.append(Event("page_out", event[1]))
    return tidy(graph, paged)


def everything_paged(graph: CostGraph) -> list[Event]:
    """Make the plan that needs least RAM: no tensor stays in RAM between two operators."""
    later = {i for node in graph.nodes for i in node.inputs}
    events: list[Event] = []
    for i, node in enumerate(graph.nodes):
        if node.stored:
            continue
        events += [Event("page_in", j) for j in dict.fromkeys(node.inputs)]
        events.append(Event("compute", i))
        if node.keep or i in later:
            events.append(Event("page_out", i))
    return with_frees(graph, events)
