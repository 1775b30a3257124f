"""Completion: make all statements of a plan from the decisions of a method.

A published method, or keep-everything, decides what is computed and which computed tensors are
paged, as a list of events. This module adds the rest. A tensor is freed right after the last event
that needs it. A tensor that must be on storage at the end is paged out right after its first
computation. A stored tensor (data, parameter) is paged in before its first use and stays to its
last use, as long as RAM allows. If RAM is short, stored tensors leave RAM between two uses: first
those whose page-in costs the least energy for the memory that they free.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .effects import Contents
from .events import Event, heirs_of, statements, with_frees, with_page_outs
from .plan import Statement
from .problem import CostGraph


@dataclass(frozen=True)
class Completion:
    """The statements that are made from the events of a method, and the RAM that they need."""

    statements: tuple[Statement, ...] | None  # None: too little RAM, or a needed tensor is gone
    # The least RAM that the events need: stored tensors are in RAM only while they are used.
    # `least_bytes` is 0 if a tensor that is needed later is overwritten, and there is no storage.
    least_bytes: int
    exits: int  # how often a stored tensor leaves RAM although it is used again


_LOST = Completion(None, 0, 0)
Stay = tuple[int, int, int]  # a stored tensor, and two consecutive events that use it


def complete(graph: CostGraph, events: Sequence[Event], ram_bytes: float) -> Completion:
    """Make all statements from the events, within `ram_bytes`."""
    whole = _with_kept(graph, events)
    if whole is None:
        return _LOST
    done = _with_page_ins(graph, whole)
    used = _used_bytes(graph, done)
    if used is None:
        return _LOST
    least = max(used, default=0)
    if least > ram_bytes:
        return Completion(None, least, 0)
    if not graph.storage:
        return Completion(statements(graph, done), least, 0)
    given = [
        size
        for (op, i, _), size in zip(done, used, strict=True)
        if op != "free" and not (op == "page_in" and graph.nodes[i].stored)
    ]
    held, exits = _hold(graph, _gaps(graph, whole), given, ram_bytes)
    return Completion(statements(graph, _with_page_ins(graph, whole, held)), least, exits)


def _with_kept(graph: CostGraph, events: Sequence[Event]) -> list[Event] | None:
    """Add the transfers that the graph itself requires, as the keep-everything plan does.

    A result that must be on storage at the end is paged out right after its first computation. So
    is a result that is needed after another node overwrote it; it is paged in again for this use.
    Without storage, return None if a node overwrites a result that is needed later, or that must
    outlive the step.
    """
    nodes = graph.nodes
    there: set[int] = set()
    away: set[int] = set()
    out: list[Event] = []
    for event in events:
        effect = graph.effects[event]
        missing = [j for j in effect.needs if not nodes[j].stored and j not in there]
        away.update(missing)
        out += [*(Event("page_in", j) for j in missing), event]
        there.update(missing, effect.makes)
        there.difference_update(effect.drops)
    kept = {i for i, node in enumerate(nodes) if node.keep and not node.stored}
    if not graph.storage:
        return None if away or kept - there else out
    given = {i for op, i, _ in events if op == "page_out"}
    return with_page_outs(graph, out, (kept | away) - (given - away))


def _stored_needs(graph: CostGraph, event: Event) -> list[int]:
    return [i for i in dict.fromkeys(graph.effects[event].needs) if graph.nodes[i].stored]


def _with_page_ins(
    graph: CostGraph, events: Sequence[Event], held: Set[Stay] = frozenset()
) -> list[Event]:
    """Page in stored tensors before each use, unless they stay in RAM since the one before.

    Free each tensor after its last use. Without storage, stored tensors begin in RAM.
    """
    last: dict[int, int] = {}
    out: list[Event] = []
    for e, event in enumerate(events):
        for i in _stored_needs(graph, event) if graph.storage else ():
            if i not in last or (i, last[i], e) not in held:
                out.append(Event("page_in", i))
            last[i] = e
        out.append(event)
    return with_frees(graph, out)


def _used_bytes(graph: CostGraph, events: Sequence[Event]) -> list[int] | None:
    """Return the bytes in RAM during each event; None if a needed tensor is not there."""
    contents, used = Contents(graph), list[int]()
    for event in events:
        effect = graph.effects[event]
        if not contents.allow(effect):
            return None
        used.append(contents.bytes + effect.own_bytes)
        contents.change(effect)
    return used if contents.ram.issuperset(heirs_of(graph, events)) else None


def _gaps(graph: CostGraph, events: Sequence[Event]) -> list[Stay]:
    """Return the gaps between uses of stored tensors that a node does not overwrite then."""
    uses: dict[int, list[int]] = {}
    for e, event in enumerate(events):
        for i in _stored_needs(graph, event):
            uses.setdefault(i, []).append(e)
    return [
        (i, first, second)
        for i, at in uses.items()
        for first, second in pairwise(at)
        if i not in graph.effects[events[first]].drops
    ]


def _hold(
    graph: CostGraph, gaps: Sequence[Stay], used_bytes: Sequence[int], ram_bytes: float
) -> tuple[set[Stay], int]:
    """Return the gaps in which stored tensors stay in RAM, and the number of the others.

    `used_bytes`: the bytes in RAM during each event if they stay in none.
    """

    def order(gap: Stay) -> tuple[float, int, int]:
        i, first, second = gap
        node = graph.nodes[i]
        return -node.page_in_uj / max(node.bytes * (second - first), 1), first, i

    used, held = np.array(used_bytes), set[Stay]()
    for gap in sorted(gaps, key=order):
        i, first, second = gap
        between = used[first + 1 : second]
        if between.max(initial=0) + graph.nodes[i].bytes <= ram_bytes:
            between += graph.nodes[i].bytes
            held.add(gap)
    return held, len(gaps) - len(held)
