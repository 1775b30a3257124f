"""Events: the operations of a plan in order, with indices of nodes instead of names."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

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
        for made in graph.outputs(i, mode):
            if made.node in written - done and not made.streamed:
                moved.append(Event("page_out", made.node))
            done.add(made.node)
    return tidy(graph, moved)


def _last_uses(graph: CostGraph, events: Sequence[Event]) -> dict[tuple[int, int], int]:
    """Return for each tensor that an event creates the last event that needs it in RAM.

    The keys are pairs of an event's index and a tensor. Without storage, stored tensors start in
    RAM: the index is then -1. A solution of a relaxed model may need what no event creates.
    """
    created: dict[int, int] = {}  # by tensor, the event that created it last
    last: dict[tuple[int, int], int] = {}
    if not graph.storage:
        created = {i: -1 for i, node in enumerate(graph.nodes) if node.stored}
        last = {(-1, i): -1 for i in created}
    for e, (op, i, mode) in enumerate(events):
        touched = [i]
        if op == "compute":
            touched = [*graph.nodes[i].whole_inputs(mode)]
            for made in graph.outputs(i, mode):
                if made.overwrites is not None and made.overwrites in created:
                    touched += [] if made.streamed else [made.overwrites]
                if not made.streamed:
                    created[made.node] = e
                    touched.append(made.node)
        elif op == "page_in":
            created[i] = e
        for j in touched:
            if j in created:
                last[created[j], j] = e
    if not graph.storage:
        for i, node in enumerate(graph.nodes):
            if node.keep:
                last[created[i], i] = len(events)
    return last


def _without_waste(graph: CostGraph, events: list[Event]) -> list[Event]:
    """Drop unused page-ins and computations, and page-outs of tensors that are never paged in.

    The first computation of a node is dropped only if a plan may leave the node out.
    """
    nodes, last = graph.nodes, _last_uses(graph, events)
    read = {i for op, i, _ in events if op == "page_in"}
    times = Counter[int]()  # of the computations of each node
    for op, i, mode in events:
        if op == "compute":
            read.update(nodes[i].mode(mode).streamed_inputs)
            times.update(made.node for made in graph.outputs(i, mode))
    computed: set[int] = set()
    useful: list[Event] = []
    for e, event in enumerate(events):
        op, i, mode = event
        if op == "page_in" and last[e, i] == e:
            continue
        if op == "compute":
            made = graph.outputs(i, mode)
            idle = all(not it.streamed and last[e, it.node] == e for it in made)
            if idle and all(
                it.node in computed
                or (graph.may_leave_out and times[it.node] == 1 and not nodes[it.node].keep)
                for it in made
            ):
                continue
            computed.update(it.node for it in made)
        if op == "page_out" and i not in read and not nodes[i].keep:
            continue
        useful.append(event)
    return useful


def with_frees(graph: CostGraph, events: Sequence[Event]) -> list[Event]:
    """Free every tensor right after the last event that needs it."""
    frees: dict[int, list[int]] = {}
    for (_, i), e in _last_uses(graph, events).items():
        frees.setdefault(e, []).append(i)
    result: list[Event] = [Event("free", i) for i in frees.get(-1, [])]
    for e, event in enumerate(events):
        result.append(event)
        made = graph.outputs(event.node, event.mode) if event.op == "compute" else ()
        gone = {it.taken for it in made}
        result += [Event("free", j) for j in frees.get(e, []) if j not in gone]
    return result


def fits(graph: CostGraph, events: Sequence[Event], ram_bytes: int) -> bool:
    """Return whether every event finds its tensors, and at most `ram_bytes` of RAM are used."""
    nodes = graph.nodes
    storage = {i for i, node in enumerate(nodes) if node.stored and graph.storage}
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
            storage.add(i)
            continue
        if op == "page_in" and (i in ram or i not in storage):
            return False
        if op == "compute" and not (
            ram.issuperset(node.whole_inputs(mode))
            and storage.issuperset(node.mode(mode).streamed_inputs)
        ):
            return False
        if op == "page_in":
            ram.add(i)
            live += node.bytes
        else:
            made = graph.outputs(i, mode)
            if live + graph.own_bytes(i, mode) > ram_bytes:
                return False
            for it in made:
                if it.node in ram or (it.streamed and it.overwrites in ram):
                    return False
                if it.streamed:
                    storage.add(it.node)
                    continue
                ram.add(it.node)
                live += nodes[it.node].bytes
                if it.overwrites is not None:
                    ram.discard(it.overwrites)
                    live -= nodes[it.node].bytes
        if live > ram_bytes:
            return False
    return graph.storage or all(i in ram for i, node in enumerate(nodes) if node.keep)
