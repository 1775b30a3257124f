"""Events: the operations of a plan in order, with indices of nodes instead of names.

A candidate is a plan made from events. Searches compare candidates.
"""

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass

from .effects import Contents, Event as Event, events_of as events_of
from .placed_plan import Effort, Excess, PlacedPlan, realise
from .plan import Statement
from .problem import CostGraph, Problem
from .timeline import busy_us


@dataclass(frozen=True)
class Candidate(PlacedPlan):
    """A verified plan that meets the RAM budget and the deadline."""

    events: tuple[Event, ...]  # the events from which the statements were made


def candidate_of(
    problem: Problem,
    events: Sequence[Event],
    *,
    placed: bool,
    time_limit_s: float,
    effort: Effort = "full",
) -> Candidate | Excess:
    """Make a verified plan from legal events; see `realise`."""
    plan = realise(
        problem,
        statements(problem.graph, events),
        placed=placed,
        time_limit_s=time_limit_s,
        effort=effort,
    )
    if isinstance(plan, Excess):
        return plan
    return Candidate(plan.statements, plan.initial_offsets, plan.totals, tuple(events))


def tidy(graph: CostGraph, events: Sequence[Event]) -> list[Event]:
    """Drop useless events, and free each tensor right after its last use."""
    events = [event for event in events if event[0] != "free"]
    while (useful := _without_waste(graph, events)) != events:
        events = useful
    if starts := starting(events):
        stored = {i for event in events for i in graph.effects[event].stores}
        modes = [int(graph.heirs.get(i) in stored) for _, i, _ in starts]
        events[: len(starts)] = [
            Event(op, i, k) for (op, i, _), k in zip(starts, modes, strict=True)
        ]
    return with_frees(graph, events)


def statements(graph: CostGraph, events: Sequence[Event]) -> tuple[Statement, ...]:
    """Return the events as statements without offsets."""
    return tuple(Statement(op, graph.nodes[i].name, mode=mode) for op, i, mode in events)


def energy_uj(graph: CostGraph, events: Sequence[Event]) -> float:
    """Return the energy of the events, without base power."""
    total = 0.0
    for event in events:
        total += graph.effects[event].energy_uj
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
    coming: list[int] = []
    moved = list(starting(events))
    for event in events:
        effect = graph.effects[event]
        if event.op == "page_in":
            coming.append(event.node)
        if event.op == "free" and event.node in coming:
            coming.remove(event.node)
        if event.op != "compute":
            continue
        moved += [Event("page_in", j) for j in coming if j in effect.needs]
        coming = [j for j in coming if j not in effect.needs]
        moved.append(event)
    moved = with_page_outs(graph, moved, written)
    heirs = heirs_of(graph, events)
    return tidy(graph, [*moved, *(Event("page_in", j) for j in coming if j in heirs)])


def with_page_outs(graph: CostGraph, events: Sequence[Event], tensors: Set[int]) -> list[Event]:
    """Page out each of the tensors right after its first computation, unless it is streamed."""
    left, paged = set(tensors), list[Event]()
    for event in events:
        paged.append(event)
        if event.op == "compute":
            effect = graph.effects[event]
            paged += [Event("page_out", i) for i in effect.makes if i in left]
            left.difference_update(effect.makes, effect.stores)
    return paged


def heirs_of(graph: CostGraph, events: Sequence[Event]) -> set[int]:
    """Return the tensors that must be in RAM when the step ends: new values of those that stay."""
    if not graph.storage:
        return {i for i, node in enumerate(graph.nodes) if node.keep}
    return {graph.heirs[i] for _, i, _ in starting(events) if i in graph.heirs}


def starting(events: Sequence[Event]) -> Sequence[Event]:
    """Return the events `start`, which come first."""
    count = next((e for e, event in enumerate(events) if event.op != "start"), len(events))
    return events[:count]


def _last_uses(graph: CostGraph, events: Sequence[Event]) -> dict[tuple[int, int], int]:
    """Return for each tensor that an event creates the last event that needs it in RAM.

    Keys are (index of the event that creates the tensor, tensor). Without storage, the index is -1
    for stored tensors. What a relaxed model needs, but no event creates, has no key.
    """
    # By tensor, the event that created it last:
    created = dict.fromkeys(sorted(Contents(graph).ram), -1)
    last = {(-1, i): -1 for i in created}
    for e, event in enumerate(events):
        effect = graph.effects[event]
        for i in effect.makes:
            created[i] = e
        for i in (*effect.needs, *effect.makes, *effect.drops):
            if i in created:
                last[created[i], i] = e
    for i in heirs_of(graph, events):
        if i in created:
            last[created[i], i] = len(events)
    starts = starting(events)
    for e, event in enumerate(starts):  # the step begins when all are in RAM
        last[e, event.node] = max(last[e, event.node], len(starts) - 1)
    return last


def _without_waste(graph: CostGraph, events: list[Event]) -> list[Event]:
    """Drop unused page-ins and computations, and page-outs of tensors that are never paged in.

    The first computation of a node is dropped only if a plan may leave the node out.
    """
    nodes, last = graph.nodes, _last_uses(graph, events)
    read: set[int] = set()
    times = Counter[int]()  # of the computations of each node
    for event in events:
        read.update(graph.effects[event].reads)
        times.update(_computed(graph, event))
    computed: set[int] = set()
    useful: list[Event] = []
    heirs, starts = heirs_of(graph, events), len(starting(events))
    for e, event in enumerate(events):
        effect, made = graph.effects[event], _computed(graph, event)
        if event.op == "page_out":
            kept = nodes[event.node].keep and event.node not in heirs
            idle = event.node not in read and not kept
        elif event.op == "start":
            renews = graph.heirs.get(event.node, event.node) != event.node
            idle = last[e, event.node] < starts and not renews
        else:
            idle = not effect.stores and all(last[e, i] == e for i in effect.makes)
        if idle and all(
            i in computed or (graph.may_leave_out and times[i] == 1 and not nodes[i].keep)
            for i in made
        ):
            continue
        computed.update(made)
        useful.append(event)
    return useful


def _computed(graph: CostGraph, event: Event) -> tuple[int, ...]:
    """Return the nodes that an event computes."""
    effect = graph.effects[event]
    return (*effect.makes, *effect.stores) if event.op == "compute" else ()


def with_frees(graph: CostGraph, events: Sequence[Event]) -> list[Event]:
    """Free every tensor right after the last event that needs it."""
    frees: dict[int, list[int]] = {}
    for (_, i), e in _last_uses(graph, events).items():
        frees.setdefault(e, []).append(i)
    result: list[Event] = [Event("free", i) for i in frees.get(-1, [])]
    for e, event in enumerate(events):
        result.append(event)
        gone = graph.effects[event].drops
        result += [Event("free", i) for i in frees.get(e, []) if i not in gone]
    return result


def fits(graph: CostGraph, events: Sequence[Event], ram_bytes: int) -> bool:
    """Return whether every event finds its tensors, and at most `ram_bytes` of RAM are used."""
    contents = Contents(graph)
    if contents.bytes > ram_bytes:
        return False
    for event in events:
        effect = graph.effects[event]
        if contents.bytes + effect.own_bytes > ram_bytes or not contents.allow(effect):
            return False
        contents.change(effect)
    return contents.ram.issuperset(heirs_of(graph, events))
