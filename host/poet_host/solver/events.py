"""Events: the operations of a plan in order, with indices of nodes instead of names."""

from collections.abc import Sequence
from typing import NamedTuple

from ..plan.pairs import with_pairs_together
from ..plan.plan import Op, Statement
from ..plan.problem import CostGraph
from ..plan.timeline import busy_us


class Event(NamedTuple):
    """An operation on a node, without offsets."""

    op: Op
    node: int  # index in the graph
    mode: int = 0  # of a compute: the mode in which the node is computed


def tidy(graph: CostGraph, events: Sequence[Event]) -> list[Event]:
    """Drop useless events, and free each tensor right after its last use."""
    events = [event for event in events if event[0] != "free"]
    while (useful := _without_waste(graph, events)) != events:
        events = useful
    return with_frees(graph, events)


def statements(graph: CostGraph, events: Sequence[Event]) -> tuple[Statement, ...]:
    """Return the events as statements without offsets."""
    return tuple(Statement(op, graph.nodes[i].name, mode=mode) for op, i, mode in events)


def events_of(graph: CostGraph, statements: Sequence[Statement]) -> list[Event]:
    """Return the statements as events."""
    return [Event(it.op, graph.index[it.node], it.mode) for it in statements]


def energy_uj(graph: CostGraph, events: Sequence[Event]) -> float:
    """Return the energy of the events, without base power."""
    total = 0.0
    for op, i, mode in events:
        node = graph.nodes[i]
        if op == "compute":
            total += node.mode(mode).energy_uj
        elif op == "page_in":
            total += node.page_in_uj
        elif op == "page_out":
            total += node.page_out_uj
    return total


def least_value(graph: CostGraph, value_per_us: float, events: Sequence[Event]) -> float:
    """Return the value of a plan with these events whose lanes never wait for each other.

    See Problem for the value. No order of the events has a lower one.
    """
    value = energy_uj(graph, events)
    return value + value_per_us * max(busy_us(graph, events)) if value_per_us else value


def normal_order(graph: CostGraph, events: Sequence[Event]) -> list[Event]:
    """Move each page-in right before the next use of its tensor. Page out each tensor once, right
    after its first computation.

    No other order needs less RAM, and the models use only this order. `tidy` does not change it.
    """
    written = {i for op, i, _ in events if op == "page_out" and not graph.nodes[i].stored}
    done: set[int] = set()
    coming: list[int] = []
    moved: list[Event] = []
    for op, i, mode in events:
        if op == "page_in":
            coming.append(i)
        if op == "free" and i in coming:
            coming.remove(i)
        if op != "compute":
            continue
        needed = graph.nodes[i].whole_inputs(mode)
        moved += [Event("page_in", j) for j in coming if j in needed]
        coming = [j for j in coming if j not in needed]
        moved.append(Event("compute", i, mode))
        if i in written - done and not graph.nodes[i].mode(mode).streamed_output:
            moved.append(Event("page_out", i))
        done.add(i)
    return tidy(graph, moved)


def _last_uses(graph: CostGraph, events: Sequence[Event]) -> dict[int, int]:
    """Return for each event that creates a tensor the last event that needs the tensor in RAM.

    Keys and values are indices of events. Without storage, stored tensors start in RAM: the key of
    stored tensor i is -1 - i.
    """
    created: dict[int, int] = {}
    last: dict[int, int] = {}
    if not graph.storage:
        created = {i: -1 - i for i, node in enumerate(graph.nodes) if node.stored}
        last = dict.fromkeys(created.values(), -1)
    for e, (op, i, mode) in enumerate(events):
        if op == "compute":
            for j in graph.nodes[i].whole_inputs(mode):
                last[created[j]] = e
            if graph.nodes[i].mode(mode).streamed_output:
                continue
        if op in ("compute", "page_in"):
            created[i] = e
        last[created[i]] = e
    if not graph.storage:
        for i, node in enumerate(graph.nodes):
            if node.keep:
                last[created[i]] = len(events)
    return last


def _without_waste(graph: CostGraph, events: list[Event]) -> list[Event]:
    """Drop unused page-ins and recomputations, and page-outs of tensors that are never paged in."""
    last = _last_uses(graph, events)
    read = {i for op, i, _ in events if op == "page_in"}
    for op, i, mode in events:
        if op == "compute":
            read.update(graph.nodes[i].mode(mode).streamed_inputs)
    computed: set[int] = set()
    useful: list[Event] = []
    for e, event in enumerate(events):
        op, i, _ = event
        again = op == "page_in" or (op == "compute" and i in computed)
        if op == "compute":
            computed.add(i)
        if again and last.get(e) == e:
            continue
        if op == "page_out" and i not in read and not graph.nodes[i].keep:
            continue
        useful.append(event)
    return useful


def with_frees(graph: CostGraph, events: Sequence[Event]) -> list[Event]:
    """Free every tensor right after the last event that needs it."""
    last = _last_uses(graph, events)
    frees: dict[int, list[int]] = {}
    for created, e in last.items():
        frees.setdefault(e, []).append(events[created][1] if created >= 0 else -1 - created)
    result: list[Event] = [Event("free", i) for i in frees.get(-1, [])]
    for e, event in enumerate(events):
        result.append(event)
        gone = graph.nodes[event.node].taken(event.mode) if event.op == "compute" else None
        result += [Event("free", j) for j in frees.get(e, []) if j != gone]
    return with_pairs_together(result, lambda it: graph.nodes[it.node].mode(it.mode))


def fits(graph: CostGraph, events: Sequence[Event], ram_bytes: int) -> bool:
    """Return whether every event finds its tensors in RAM and at most `ram_bytes` are used."""
    nodes = graph.nodes
    ram = set() if graph.storage else {i for i, node in enumerate(nodes) if node.stored}
    live = sum(nodes[i].bytes for i in ram)
    if live > ram_bytes:
        return False
    for op, i, mode in events:
        node = nodes[i]
        if op == "free":
            ram.discard(i)
            live -= node.bytes
            continue
        if op == "page_out":
            continue
        if i in ram or (op == "compute" and not ram.issuperset(node.whole_inputs(mode))):
            return False
        if op == "compute":
            way = node.mode(mode)
            if live + node.own_bytes(mode) > ram_bytes or (
                way.streamed_output and way.overwrites in ram
            ):
                return False
            if way.streamed_output:
                continue
            if way.overwrites is not None:
                ram.discard(way.overwrites)
                live -= node.bytes
        ram.add(i)
        live += node.bytes
        if live > ram_bytes:
            return False
    return graph.storage or all(i in ram for i, node in enumerate(nodes) if node.keep)
