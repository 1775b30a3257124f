"""Completion: make all statements of a plan from the decisions of a method.

A method decides what is computed and which computed tensors are paged, as a list of events. This
module adds the rest, which is the same for all methods. A tensor is freed right after the last
event that needs it. A tensor that must be on storage at the end is paged out right after its first
computation. A stored tensor (data, parameter) is paged in before its first use and stays to its
last use, as long as RAM allows. If RAM is short, stored tensors leave RAM between two uses: first
those whose page-in costs the least energy for the memory that they free. A published method may
assume that parameters always fit RAM. So if they leave RAM, the plan's note says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..plan.plan import Statement
from ..plan.problem import CostGraph
from ..solver.events import Event

EXTENSION = "parameters and data leave RAM between uses, which is not part of the method"


@dataclass(frozen=True)
class Completion:
    """The statements that are made from the events of a method, and the RAM that they need."""

    statements: tuple[Statement, ...] | None  # None: too little RAM, or a needed tensor is gone
    # The least RAM that the events need: stored tensors are in RAM only while they are used.
    # `least_bytes` is 0 if a tensor that is needed later is overwritten, and there is no storage.
    least_bytes: int
    exits: int  # how often a stored tensor leaves RAM although it is used again


_LOST = Completion(None, 0, 0)


@dataclass
class _Stay:
    """A tensor in RAM from event `begin`, which creates it, to event `end`, which needs it last."""

    node: int
    begin: int
    end: int
    # Whether it overwrites an input. Then both share memory, and only the input counts at `begin`.
    inherits: bool = False


def complete(graph: CostGraph, events: Sequence[Event], ram_bytes: int) -> Completion:
    """Make all statements from the events, within `ram_bytes`."""
    whole = _with_kept(graph, events)
    if whole is None:
        return _LOST
    events = whole
    stays, uses = _stays(graph, events)
    used = np.zeros(len(events) + 1, dtype=np.int64)
    for stay in stays:
        used[stay.begin + stay.inherits : stay.end + 1] += graph.nodes[stay.node].bytes
    for e, event in enumerate(events):
        used[e] += graph.effects[event].workspace_bytes
    for i, events_of in uses.items():
        used[events_of] += graph.nodes[i].bytes
    gaps = _gaps(graph, events, uses)
    if not graph.storage:
        resident = _residents(graph, uses, len(events))
        if resident is None or any(gap.overwritten for gap in gaps):
            return _LOST
        for stay in resident:
            used[stay.begin + 1 : stay.end + 1] += graph.nodes[stay.node].bytes
            used[uses.get(stay.node, [])] -= graph.nodes[stay.node].bytes
        least = max(int(used.max(initial=0)), sum(n.bytes for n in graph.nodes if n.stored))
        fits = least <= ram_bytes
        done = _statements(graph, events, [*stays, *resident], {}) if fits else None
        return Completion(done, least, 0)
    least = int(used.max(initial=0))
    if least > ram_bytes:
        return Completion(None, least, 0)
    held, exits = _hold(graph, gaps, used, ram_bytes)
    stored = _stored_stays(uses, held)
    return Completion(_statements(graph, events, [*stays, *stored], uses), least, exits)


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
    written: set[int] = {i for op, i, _ in events if op == "page_out"} - away
    whole: list[Event] = []
    for event in out:
        whole.append(event)
        if event.op == "compute" and event.node in kept | away and event.node not in written:
            whole.append(Event("page_out", event.node))
            written.add(event.node)
    return whole


def _stays(graph: CostGraph, events: Sequence[Event]) -> tuple[list[_Stay], dict[int, list[int]]]:
    """Return when computed tensors are in RAM, and which events use each stored tensor."""
    stays: list[_Stay] = []
    now: dict[int, _Stay] = {}
    uses: dict[int, list[int]] = {}
    for e, event in enumerate(events):
        effect = graph.effects[event]
        for i in effect.needs:
            if graph.nodes[i].stored:
                uses.setdefault(i, []).append(e)
            else:
                now[i].end = e
        for i, over, _ in effect.places:
            now[i] = _Stay(i, e, e, inherits=over is not None)
            stays.append(now[i])
    if not graph.storage:
        for i, stay in now.items():
            if graph.nodes[i].keep:
                stay.end = len(events)
    return stays, uses


@dataclass(frozen=True)
class _Gap:
    """The events between two consecutive uses of a stored tensor."""

    node: int
    begin: int
    end: int
    overwritten: bool  # whether the first of the two uses overwrites the tensor


def _gaps(graph: CostGraph, events: Sequence[Event], uses: dict[int, list[int]]) -> list[_Gap]:
    gaps = []
    for i, at in uses.items():
        for a, b in pairwise(at):
            gaps.append(_Gap(i, a, b, i in graph.effects[events[a]].drops))
    return gaps


def _hold(
    graph: CostGraph, gaps: Sequence[_Gap], used: "np.ndarray[tuple[int], np.dtype[np.int64]]",
    ram_bytes: int,
) -> tuple[set[tuple[int, int]], int]:  # fmt: skip
    """Return the gaps, as (node, begin), in which stored tensors stay in RAM.

    The second value is the number of gaps in which stored tensors leave RAM.
    """

    def worth(gap: _Gap) -> float:
        node = graph.nodes[gap.node]
        return node.page_in_uj / max(node.bytes * (gap.end - gap.begin), 1)

    held: set[tuple[int, int]] = set()
    exits = 0
    for gap in sorted(gaps, key=lambda gap: (-worth(gap), gap.begin, gap.node)):
        if gap.overwritten:
            continue
        size = graph.nodes[gap.node].bytes
        between = used[gap.begin + 1 : gap.end]
        if between.max(initial=0) + size <= ram_bytes:
            between += size
            held.add((gap.node, gap.begin))
        else:
            exits += 1
    return held, exits


def _stored_stays(uses: dict[int, list[int]], held: set[tuple[int, int]]) -> list[_Stay]:
    stays = []
    for i, at in uses.items():
        begin = at[0]
        for k, e in enumerate(at):
            if k + 1 == len(at) or (i, e) not in held:
                stays.append(_Stay(i, begin, e))
                begin = at[k + 1] if k + 1 < len(at) else begin
    return stays


def _residents(graph: CostGraph, uses: dict[int, list[int]], end: int) -> list[_Stay] | None:
    """Return when data and parameters are in RAM, for a board without storage.

    They are in RAM from the start of the step to their last use, or to its end if they must outlive
    the step. Return None if one that must outlive the step is overwritten.
    """
    stays = []
    overwritten = {node.overwrites for node in graph.nodes}
    for i, node in enumerate(graph.nodes):
        if node.stored:
            if node.keep and i in overwritten:
                return None
            last = end if node.keep else max(uses.get(i, [-1]))
            stays.append(_Stay(i, -1, last))
    return stays


def _statements(
    graph: CostGraph,
    events: Sequence[Event],
    stays: Sequence[_Stay],
    paged: dict[int, list[int]],
) -> tuple[Statement, ...]:
    """Turn each event into a statement, with page-ins before it and frees after it."""
    nodes = graph.nodes
    before: dict[int, list[int]] = {}
    after: dict[int, list[int]] = {}
    for stay in stays:
        if stay.node in paged:
            before.setdefault(stay.begin, []).append(stay.node)
        after.setdefault(stay.end, []).append(stay.node)
    out = [Statement("free", nodes[i].name) for i in after.get(-1, [])]
    for e, event in enumerate(events):
        out += [Statement("page_in", nodes[i].name) for i in before.get(e, [])]
        out.append(Statement(event.op, nodes[event.node].name))
        gone = graph.effects[event].drops
        out += [Statement("free", nodes[i].name) for i in after.get(e, []) if i not in gone]
    return tuple(out)
