"""Convert solutions of the slot model (slot_model.py) to plans."""

from ...plan.events import Event
from ..program import Values
from .slot_model import SlotModel


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
