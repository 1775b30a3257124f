"""The slot model: which slots of a sequence run, and which tensors stay in RAM or are paged.

A slot k runs node(k). Tensor i is *touched* at the slots that compute it or use it; the touches
of i are numbered q = 0, 1, ... Between two touches, a tensor stays in RAM all the time or leaves
RAM right after the first touch, since leaving later saves nothing. Variables, all binary:

    x_k     slot k runs (mandatory slots: 1)
    h_iq    tensor i stays in RAM from its touch q to its touch q + 1
    p_iq    tensor i is paged in right before its touch q, a use
    o_i     tensor i is written to storage at its first computation

    min  sum energy(node(k)) x_k + sum page_in_uj(i) p_iq + sum page_out_uj(i) o_i

A copy on storage is never deleted, so one page-out at the first computation is enough for all
later page-ins. a_iq = h_i(q-1) + p_iq is 1 if i is in RAM for its touch q.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..plan.problem import CostGraph
from .events import Event
from .program import NO_LIMITS, LaneTimes, Program, TimeLimits, Values


@dataclass(frozen=True)
class Slot:
    """One step in the order of computations."""

    node: int  # the operator of the slot
    optional: bool  # True: the operator may run; False: it must run


def slots_of(graph: CostGraph, recomputed: Sequence[Sequence[int]], passes: int = 1) -> list[Slot]:
    """Make the slots. Slots for recomputations come before each first computation and at the end.

    `recomputed`: for each stage (see stage_model.py), the nodes that may be recomputed.
    `passes`: the number of slots that each of these nodes gets in the stage.
    """
    operators = [i for i, node in enumerate(graph.nodes) if not node.stored]
    slots: list[Slot] = []
    for index, stage in enumerate(recomputed):
        slots += [Slot(i, optional=True) for i in stage] * passes
        if index < len(operators):
            slots.append(Slot(operators[index], optional=False))
    return slots


@dataclass
class _Touch:
    """Touch q of a tensor i: a slot that reads or computes i."""

    slot: int
    uses: bool  # True: the slot reads tensor i; False: it computes tensor i
    overwritten: bool  # the slot overwrites i
    page_in: int = -1  # column of p_iq; -1 if there is no p_iq
    hold: int = -1  # column of h_iq; -1 if there is no h_iq


@dataclass
class SlotModel:
    """The integer program, and the columns of its variables."""

    graph: CostGraph
    slots: Sequence[Slot]
    ram_bytes: int
    page: bool
    program: Program = field(default_factory=Program)
    run: list[int] = field(default_factory=list)  # column of x_k, by slot; -1: the slot must run
    written: dict[int, int] = field(default_factory=dict)  # column of o, by tensor
    touches: list[list[_Touch]] = field(default_factory=list)  # by tensor
    # Without storage: the column of h from the start of the step to touch 0, by stored tensor.
    held_at_start: dict[int, int] = field(default_factory=dict)


def build(
    graph: CostGraph,
    slots: Sequence[Slot],
    ram_bytes: int,
    *,
    page: bool = True,
    limits: TimeLimits = NO_LIMITS,
) -> SlotModel:
    """Build the slot model of a graph.

    `page` False: computed tensors are not paged. A deadline bounds the busy time of each lane. A
    plan may still be late, since a lane may wait for the other lane.
    """
    model = SlotModel(graph, slots, ram_bytes, page)
    _variables(model)
    for i, touches in enumerate(model.touches):
        before = model.held_at_start.get(i, -1)
        for touch in touches:
            if touch.uses:
                _use(model, touch, before)
            else:
                _production(model, touch, before)
            _on_storage(model, i, touch)
            before = touch.hold
    _ram_constraint(model)
    if limits != NO_LIMITS:
        _add_times(model, limits)
    return model


def _variables(model: SlotModel) -> None:
    """Add the variables x, h, p and o, with their energies."""
    graph, program = model.graph, model.program
    touches: list[list[_Touch]] = [[] for _ in graph.nodes]
    for k, slot in enumerate(model.slots):
        node = graph.nodes[slot.node]
        if slot.optional:
            model.run.append(program.binary(node.energy_uj))
        else:
            model.run.append(-1)
            program.offset += node.energy_uj
        for i in dict.fromkeys(node.inputs):
            touches[i].append(_Touch(k, uses=True, overwritten=i == node.overwrites))
        touches[slot.node].append(_Touch(k, uses=False, overwritten=False))
    model.touches = touches
    for i, node in enumerate(graph.nodes):
        ends_in_ram = node.keep and not graph.storage
        if graph.storage and not node.stored:
            if node.keep:
                program.offset += node.page_out_uj
            elif model.page:
                model.written[i] = program.binary(node.page_out_uj)
        pageable = graph.storage and (node.stored or node.keep or i in model.written)
        if node.stored and not graph.storage:
            model.held_at_start[i] = program.binary()
        for q, touch in enumerate(touches[i]):
            last = q + 1 == len(touches[i])
            if not last or ends_in_ram:
                touch.hold = program.binary()
            if last and ends_in_ram:
                program.fix(touch.hold, 1.0)
            if pageable and touch.uses and not _just_touched(model, touches[i], q):
                touch.page_in = program.binary(node.page_in_uj)
        if ends_in_ram and not touches[i]:
            program.fix(model.held_at_start[i], 1.0)


def _just_touched(model: SlotModel, touches: Sequence[_Touch], q: int) -> bool:
    """Return whether the previous slot always leaves the tensor in RAM for touch q."""
    if q == 0:
        return False
    before = touches[q - 1]
    return (
        before.slot == touches[q].slot - 1
        and not model.slots[before.slot].optional
        and not before.overwritten
    )


def _present(before: int, touch: _Touch) -> list[tuple[int, float]]:
    """Return the terms of a_iq = h_i(q-1) + p_iq."""
    return [(column, 1.0) for column in (before, touch.page_in) if column >= 0]


def _use(model: SlotModel, touch: _Touch, before: int) -> None:
    """Add the constraints of a touch that uses the tensor.

    Mandatory slot: a_iq = 1. Optional slot: x_k <= a_iq <= 1, p_iq <= x_k, h_iq <= a_iq.
    If slot k overwrites the tensor: h_iq <= 1 - x_k.
    """
    program, x = model.program, model.run[touch.slot]
    present = _present(before, touch)
    if x < 0:
        program.row(present, 1.0, 1.0)
        if touch.overwritten and touch.hold >= 0:
            program.fix(touch.hold, 0.0)
        return
    program.row([*present, (x, -1.0)], lower=0.0)
    if len(present) == 2:
        program.row(present, upper=1.0)
    if touch.page_in >= 0:
        program.row([(touch.page_in, 1.0), (x, -1.0)], upper=0.0)
    if touch.hold >= 0:
        program.row([(touch.hold, 1.0), *((c, -1.0) for c, _ in present)], upper=0.0)
        if touch.overwritten:
            program.row([(touch.hold, 1.0), (x, 1.0)], upper=1.0)


def _production(model: SlotModel, touch: _Touch, before: int) -> None:
    """Add h_i(q-1) + x_k <= 1 and h_iq <= h_i(q-1) + x_k for an optional slot that computes i."""
    x = model.run[touch.slot]
    if x < 0:
        return
    held = [(before, 1.0)] if before >= 0 else []
    if held:
        model.program.row([*held, (x, 1.0)], upper=1.0)
    if touch.hold >= 0:
        model.program.row([(touch.hold, 1.0), (x, -1.0), *((c, -1.0) for c, _ in held)], upper=0.0)


def _on_storage(model: SlotModel, i: int, touch: _Touch) -> None:
    """Add the constraint p_iq <= o_i: only a tensor that was paged out can be paged in."""
    if touch.page_in >= 0 and i in model.written:
        model.program.row([(touch.page_in, 1.0), (model.written[i], -1.0)], upper=0.0)


def _ram_constraint(model: SlotModel) -> None:
    """Add the RAM constraint of every slot k:

    sum m_i a_iq (i used) + (m_out + workspace) x_k + m_out h_out + sum m_i h_i (i in RAM, but not
    touched) <= RAM. An output that overwrites an input has no bytes of its own. At a slot that does
    not run, RAM holds the same tensors as at the last slot that ran.
    """
    graph = model.graph
    sizes = [node.bytes for node in graph.nodes]
    held = np.full(len(graph.nodes), -1, dtype=np.int64)
    for i, column in model.held_at_start.items():
        held[i] = column
    weight = np.array(sizes, dtype=np.int64)
    position = [0] * len(graph.nodes)
    for k, slot in enumerate(model.slots):
        node, out, x = graph.nodes[slot.node], slot.node, model.run[k]
        used = list(dict.fromkeys(node.inputs))
        columns: list[int] = []
        bytes_: list[int] = []
        fixed = node.own_bytes() if x < 0 else 0
        if x >= 0:
            columns.append(x)
            bytes_.append(node.own_bytes())
        after = held.copy()
        for i in used:
            touch = model.touches[i][position[i]]
            if x < 0:
                fixed += sizes[i]
            else:
                for column, _ in _present(int(held[i]), touch):
                    columns.append(column)
                    bytes_.append(sizes[i])
            after[i] = touch.hold
            position[i] += 1
            held[i] = -1
        after[out] = model.touches[out][position[out]].hold
        position[out] += 1
        alive = np.flatnonzero(held >= 0)
        columns.extend(held[alive].tolist())
        bytes_.extend(weight[alive].tolist())
        model.program.knapsack(columns, bytes_, model.ram_bytes - fixed)
        held = after


def _add_times(model: SlotModel, limits: TimeLimits) -> None:
    """Add the times of both lanes, which the deadline and the time of the step bound."""
    lanes = LaneTimes()
    nodes = model.graph.nodes
    for slot, x in zip(model.slots, model.run, strict=True):
        lanes.compute(nodes[slot.node], x if x >= 0 else None)
    for i, node in enumerate(nodes):
        for touch in model.touches[i]:
            if touch.page_in >= 0:
                lanes.page_in(node, touch.page_in)
        if i in model.written:
            lanes.page_out(node, model.written[i])
        elif node.keep and not node.stored and model.graph.storage:
            lanes.page_out(node)
    lanes.add_to(model.program, limits)


def events(model: SlotModel, values: Values) -> list[Event]:
    """Return the events of a solution, in order. Page out tensors after their first computation."""
    graph = model.graph
    position = [0] * len(graph.nodes)
    found: list[Event] = []
    for slot, x in zip(model.slots, model.run, strict=True):
        runs = x < 0 or values[x] > 0.5
        node = graph.nodes[slot.node]
        for i in dict.fromkeys(node.inputs):
            touch = model.touches[i][position[i]]
            position[i] += 1
            if runs and touch.page_in >= 0 and values[touch.page_in] > 0.5:
                found.append(Event("page_in", i))
        position[slot.node] += 1
        if not runs:
            continue
        found.append(Event("compute", slot.node))
        kept = node.keep and graph.storage
        o = model.written.get(slot.node, -1)
        if not slot.optional and (kept or (o >= 0 and values[o] > 0.5)):
            found.append(Event("page_out", slot.node))
    return found
