"""The slot model: which computations of a sequence a plan makes, and which tensors stay in RAM.

Slot k of the sequence may compute node(k). Tensor i is *touched* at the slots that compute or use
it. Its touches have the numbers q = 0, 1, ... Between two touches, a tensor stays in RAM, or leaves
RAM right after the first one, since leaving later saves nothing. Variables, all binary:

    x_k     slot k computes its node (mandatory slots: 1)
    h_iq    tensor i stays in RAM from its touch q to its touch q + 1
    p_iq    tensor i is paged in right before its touch q, a use
    o_i     tensor i is written to storage at its first computation

    min  sum energy(node(k)) x_k + sum page_in_uj(i) p_iq + sum page_out_uj(i) o_i

A copy on storage is never deleted, so one page-out at the first computation is enough for all
later page-ins. a_iq = h_i(q-1) + p_iq is 1 if i is in RAM for its touch q.

A slot whose node has modes has a variable x_km for each mode m in place of x_k. Exactly one is 1
(optional slots: at most one). Tensor i is touched if at least one mode needs i in RAM. Only first
computations may stream their outputs, since later ones find them on storage.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...plan.events import Event
from ...plan.problem import CostGraph
from ..modes import Modes
from ..program import NO_LIMITS, TimeLimits, Values
from .model import Columns, Model


@dataclass(frozen=True)
class Slot:
    """One place in the order of computations."""

    node: int
    optional: bool  # True: the plan may compute the node here; False: it must


def slots_of(graph: CostGraph, recomputed: Sequence[Sequence[int]]) -> list[Slot]:
    """Return the slots of a step: those of recomputations come before each first one, and last.

    `recomputed`: for each stage (see stage_model.py), the nodes that may be recomputed.
    """
    operators = [i for i, node in enumerate(graph.nodes) if not node.stored]
    slots: list[Slot] = []
    for index, stage in enumerate(recomputed):
        slots += [Slot(i, optional=True) for i in stage]
        if index < len(operators):
            slots.append(Slot(operators[index], optional=False))
    return slots


@dataclass
class _Touch:
    """Touch q of a tensor i: a slot that reads or computes i."""

    slot: int
    uses: bool  # True: the slot reads tensor i; False: it computes tensor i
    # Columns of the modes that need i in RAM, or create it there; None: the slot always does.
    needing: list[int] | None
    # Columns of the modes that take over the memory of i; None: the slot always does.
    taking: list[int] | None = field(default_factory=list)
    absent: list[int] = field(default_factory=list)  # of the modes that need i to be out of RAM
    page_in: int = -1  # column of p_iq; -1 if there is no p_iq
    hold: int = -1  # column of h_iq; -1 if there is no h_iq


@dataclass
class SlotModel(Model):
    """The integer program, and the columns of its variables."""

    slots: Sequence[Slot] = ()
    # For each slot, x_k or x_km by mode; -1: the slot always computes its node, in its only mode.
    by_mode: list[Columns] = field(default_factory=list)
    touches: list[list[_Touch]] = field(default_factory=list)  # by tensor
    # Of tensors that are or may be in RAM at the start of the step: h from there to touch 0.
    held_at_start: Columns = field(default_factory=dict)
    paged_at_end: Columns = field(default_factory=dict)  # p after the last touch of what stays


def build(
    graph: CostGraph,
    slots: Sequence[Slot],
    ram_bytes: int,
    *,
    page: bool = True,
    limits: TimeLimits = NO_LIMITS,
    modes: Modes | None = None,
) -> SlotModel:
    """Build the slot model of a graph.

    `page` False: computed tensors are not paged. A deadline bounds the busy time of each lane. A
    plan may be late, since a lane may wait for the other one. `modes`: None means all of the graph.
    """
    modes = Modes(graph, page=page) if modes is None else modes
    model = SlotModel(modes.graph, modes, ram_bytes, page, slots=slots)
    _variables(model)
    for j in modes.groups_of:
        model.join(j)
    _left_out(model)
    _stay(model, limits.value_per_us)
    for i, touches in enumerate(model.touches):
        before = model.held_at_start.get(i, -1)
        for touch in touches:
            if touch.uses:
                _use(model, touch, before)
            else:
                _production(model, touch, before)
            if touch.page_in >= 0:
                model.on_storage(i, [(touch.page_in, 1.0)])
            before = touch.hold
    for slot, by_mode in zip(model.slots, model.by_mode, strict=True):
        model.streams(slot.node, by_mode)
    _ram_constraint(model)
    if limits != NO_LIMITS:
        _add_times(model, limits)
    return model


def _variables(model: SlotModel) -> None:
    """Add the variables x, h, p and o, with their energies."""
    graph, program, modes = model.graph, model.program, model.modes
    touches: list[list[_Touch]] = [[] for _ in graph.nodes]
    may_end_in_ram = set(graph.heirs.values())
    for k, slot in enumerate(model.slots):
        model.by_mode.append(_add_modes(model, slot))
        for i in modes.wanted[slot.node]:
            touches[i].append(_touch(model, k, i))
        touches[slot.node].append(_production_touch(model, k))
    model.touches = touches
    for i, node in enumerate(graph.nodes):
        ends_in_ram = node.keep and not graph.storage
        model.add_written(i, node.page_out_uj)
        pageable = modes.certainly_stored(i) or modes.streaming[i] or i in model.written
        pageable = pageable or i in graph.may_be_old
        if (node.stored and not graph.storage) or i in graph.starting:
            model.held_at_start[i] = program.binary()
        for q, touch in enumerate(touches[i]):
            last = q + 1 == len(touches[i])
            if not last or ends_in_ram or i in may_end_in_ram:
                touch.hold = program.binary()
            if last and ends_in_ram:
                program.fix(touch.hold, 1.0)
            if pageable and touch.uses and not _just_touched(model, touches[i], q):
                touch.page_in = program.binary(node.page_in_uj)
                _not_while_waiting(model, i, touch)
        if ends_in_ram and not touches[i]:
            program.fix(model.held_at_start[i], 1.0)


def _add_modes(model: SlotModel, slot: Slot) -> Columns:
    """Add x_k or x_km of a slot. Return their columns by mode."""
    node, program, modes = model.graph.nodes[slot.node], model.program, model.modes
    if not slot.optional:
        columns = model.add_first(slot.node, node.page_out_uj)
        return columns if node.modes else {0: -1}
    again = (m for m in modes.whole[slot.node] if m in modes.plain[slot.node])
    columns = {m: program.binary(node.mode(m).energy_uj) for m in again}
    if node.modes and columns:
        program.row([(x, 1.0) for x in columns.values()], 0.0, 1.0)
    return columns


def _touch(model: SlotModel, k: int, i: int) -> _Touch:
    """Return the touch of a slot that may need i in RAM."""
    by_mode, node = model.by_mode[k], model.graph.nodes[model.slots[k].node]
    if by_mode.get(0) == -1:
        return _Touch(k, True, None, None if node.overwrites == i else [])
    over = [(m, x) for m, x in by_mode.items() if node.mode(m).overwrites == i]
    return _Touch(
        k,
        True,
        [x for m, x in by_mode.items() if i in node.whole_inputs(m)],
        [x for m, x in over if not node.mode(m).streamed_output],
        [x for m, x in over if node.mode(m).streamed_output],
    )


def _production_touch(model: SlotModel, k: int) -> _Touch:
    """Return the touch of a slot that computes its node."""
    by_mode, node = model.by_mode[k], model.graph.nodes[model.slots[k].node]
    if by_mode.get(0) == -1:
        return _Touch(k, False, None)
    whole = [x for m, x in by_mode.items() if not node.mode(m).streamed_output]
    return _Touch(k, False, whole, absent=list(by_mode.values()))


def _just_touched(model: SlotModel, touches: Sequence[_Touch], q: int) -> bool:
    """Return whether the previous slot always leaves the tensor in RAM for touch q."""
    if q == 0:
        return False
    before = touches[q - 1]
    return (
        before.slot == touches[q].slot - 1 and before.needing is None and before.taking is not None
    )


def _present(before: int, touch: _Touch) -> list[tuple[int, float]]:
    """Return the terms of a_iq = h_i(q-1) + p_iq."""
    return [(column, 1.0) for column in (before, touch.page_in) if column >= 0]


def _not_while_waiting(model: SlotModel, i: int, touch: _Touch) -> None:
    """Forbid the page-in of a tensor that a closing mode of the slot's node computes."""
    by_mode = model.by_mode[touch.slot]
    for group in model.modes.groups_of.get(model.slots[touch.slot].node, ()):
        if i in (member for member, _ in group.waiting):
            closing = [(by_mode[k], 1.0) for k in group.closing if k in by_mode]
            model.program.row([(touch.page_in, 1.0), *closing], upper=1.0)


def _left_out(model: SlotModel) -> None:
    """Forbid all other computations of a node that is left out, and its page-out."""
    for i in model.modes.apart.left_out:
        if i in model.written:
            model.not_if_left_out(i, [model.written[i]])
        for slot, by_mode in zip(model.slots, model.by_mode, strict=True):
            if slot.node == i and slot.optional:
                model.not_if_left_out(i, by_mode.values())


def _stay(model: SlotModel, value_per_us: float) -> None:
    """Add what holds for tensors that may be in RAM when the step begins; see stage_model.py."""
    graph, program = model.graph, model.program
    model.starts.update((i, model.held_at_start[i]) for i in graph.starting)
    model.add_commits(value_per_us)
    for k in model.commits:
        model.keep(k)
    for i, s in model.starts.items():
        heir = graph.heirs.get(i)
        if heir is None or not model.touches[heir]:
            continue
        model.paged_at_end[heir] = end = program.binary(graph.nodes[heir].page_in_uj)
        program.row([(s, 1.0), (end, -1.0), (model.touches[heir][-1].hold, -1.0)], upper=0.0)
        model.on_storage(heir, [(end, 1.0)])


def _use(model: SlotModel, touch: _Touch, before: int) -> None:
    """Add the constraints of a touch that uses the tensor.

    Slot that always needs the tensor: a_iq = 1. Other slots, where x is the sum of the modes that
    need it: x <= a_iq <= 1, p_iq <= x, h_iq <= a_iq.
    If slot k takes over the memory of the tensor: h_iq <= 1 - x_k. If it streams the tensor and
    overwrites it: a_iq <= 1 - x_k.
    """
    program = model.program
    present = _present(before, touch)
    if touch.needing is None:
        program.row(present, 1.0, 1.0)
        if touch.taking is None and touch.hold >= 0:
            program.fix(touch.hold, 0.0)
        return
    needing = [(x, -1.0) for x in touch.needing]
    program.row([*present, *needing], lower=0.0)
    if len(present) == 2:
        program.row(present, upper=1.0)
    if touch.page_in >= 0:
        program.row([(touch.page_in, 1.0), *needing], upper=0.0)
    if touch.absent and present:
        program.row([*present, *((x, 1.0) for x in touch.absent)], upper=1.0)
    if touch.hold >= 0:
        program.row([(touch.hold, 1.0), *((c, -1.0) for c, _ in present)], upper=0.0)
        if touch.taking:
            program.row([(touch.hold, 1.0), *((x, 1.0) for x in touch.taking)], upper=1.0)


def _production(model: SlotModel, touch: _Touch, before: int) -> None:
    """Add h_i(q-1) + x_k <= 1 and h_iq <= h_i(q-1) + x_k, unless slot k always computes i.

    Only the modes that create i in RAM count in the second constraint.
    """
    if touch.needing is None:
        return
    held = [(before, 1.0)] if before >= 0 else []
    if held:
        model.program.row([*held, *((x, 1.0) for x in touch.absent)], upper=1.0)
    if touch.hold >= 0:
        made = [(x, -1.0) for x in touch.needing]
        model.program.row([(touch.hold, 1.0), *made, *((c, -1.0) for c, _ in held)], upper=0.0)


def _ram_constraint(model: SlotModel) -> None:
    """Add the RAM constraint of every slot k:

    sum m_i a_iq (i used) + sum own_m x_km + m_out h_out + sum m_i h_i (i in RAM, but not touched)
    <= RAM. own_m: bytes of the output and the workspace. An output that is streamed, or that
    overwrites an input, has no bytes of its own. At a slot that computes nothing, RAM holds the
    tensors of the last slot that computed its node.
    """
    graph = model.graph
    sizes = np.array([node.bytes for node in graph.nodes], dtype=np.int64)
    held = np.full(len(graph.nodes), -1, dtype=np.int64)
    for i, column in model.held_at_start.items():
        held[i] = column
    position = [0] * len(graph.nodes)
    for slot, by_mode in zip(model.slots, model.by_mode, strict=True):
        out = slot.node
        columns = [x for x in by_mode.values() if x >= 0]
        bytes_ = [graph.own_bytes(out, m) for m, x in by_mode.items() if x >= 0]
        fixed = sum(graph.own_bytes(out, m) for m, x in by_mode.items() if x < 0)
        after = held.copy()
        for i in model.modes.wanted[out]:
            touch = model.touches[i][position[i]]
            if touch.needing is None:
                fixed += int(sizes[i])
            else:
                present = _present(int(held[i]), touch)
                columns += [column for column, _ in present]
                bytes_ += [int(sizes[i])] * len(present)
            after[i] = touch.hold
            position[i] += 1
            held[i] = -1
        after[out] = model.touches[out][position[out]].hold
        position[out] += 1
        alive = np.flatnonzero(held >= 0)
        columns += held[alive].tolist()
        bytes_ += sizes[alive].tolist()
        model.program.knapsack(columns, bytes_, model.ram_bytes - fixed)
        held = after


def _add_times(model: SlotModel, limits: TimeLimits) -> None:
    """Add the times of both lanes, which the deadline and the time of the step bound."""
    lanes, nodes = model.lanes, model.graph.nodes
    for slot, by_mode in zip(model.slots, model.by_mode, strict=True):
        node = nodes[slot.node]
        kept = slot.node in model.graph.always_written and not slot.optional
        for m, x in by_mode.items():
            lanes.compute(*model.modes.lanes_us(slot.node, m), x if x >= 0 else None)
            if kept and not node.mode(m).streamed_output:
                lanes.page_out(node, x if x >= 0 else None)
    for i, node in enumerate(nodes):
        for touch in model.touches[i]:
            if touch.page_in >= 0:
                lanes.page_in(node, touch.page_in)
        if i in model.written:
            lanes.page_out(node, model.written[i])
    for k, column in model.paged_at_end.items():
        lanes.page_in(nodes[k], column)
    lanes.add_to(model.program, limits)


def events(model: SlotModel, values: Values) -> list[Event]:
    """Return the events of a solution, in order. Page out tensors after their first computation."""
    graph = model.graph
    position = [0] * len(graph.nodes)
    ordered: list[Event] = []
    page_outs: list[Event] = []  # some wait for the closing mode that computes their tensor
    ordered += (Event("start", i) for i, s in model.starts.items() if values[s] > 0.5)
    for slot, by_mode in zip(model.slots, model.by_mode, strict=True):
        mode = next((m for m, x in by_mode.items() if x < 0 or values[x] > 0.5), None)
        node = graph.nodes[slot.node]
        for i in model.modes.wanted[slot.node]:
            touch = model.touches[i][position[i]]
            position[i] += 1
            if mode is not None and touch.page_in >= 0 and values[touch.page_in] > 0.5:
                ordered.append(Event("page_in", i))
        position[slot.node] += 1
        if mode is None:
            continue
        kept = slot.node in graph.always_written
        o = model.written.get(slot.node, -1)
        is_whole = not node.mode(mode).streamed_output
        if is_whole and not slot.optional and (kept or (o >= 0 and values[o] > 0.5)):
            page_outs.append(Event("page_out", slot.node))
        event = model.modes.event_of(slot.node, mode)
        if event is not None:
            ordered.append(event)
            if not slot.optional:
                ordered += page_outs
                page_outs.clear()
    ended = (k for k, column in model.paged_at_end.items() if values[column] > 0.5)
    return [*ordered, *(Event("page_in", k) for k in ended)]
