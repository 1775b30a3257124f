"""Let tensors stay in RAM from step to step where a plan leaves room for them."""

from collections.abc import Iterator, Sequence

from ..plan.problem import CostGraph
from .events import Event, fits, least_value, tidy


def with_staying(
    graph: CostGraph, value_per_us: float, events: Sequence[Event], ram_bytes: int
) -> list[Event]:
    """Let more tensors begin the step in RAM, the most useful for their size first.

    Each of them saves transfers, or a part of a page-out. What does not fit RAM is left out.
    """
    best = list(events)
    began = {i for op, i, _ in best if op == "start"}
    for i in sorted(set(graph.starting) - began, key=lambda i: _saving(graph, i), reverse=True):
        value = least_value(graph, value_per_us, best)
        for tried in _variants(graph, best, i):
            if least_value(graph, value_per_us, tried) < value and fits(graph, tried, ram_bytes):
                best = tried
                break
    return best


def _saving(graph: CostGraph, i: int) -> float:
    """Return the energy that a tensor saves at most if it stays, for each of its bytes."""
    node, heir = graph.nodes[i], graph.nodes[graph.heirs.get(i, i)]
    share = 1 - 1 / graph.commit_every
    saved_uj = node.page_in_uj + (heir.page_out_uj * share if heir is not node else 0.0)
    return saved_uj / max(node.bytes, 1)


def _variants(graph: CostGraph, events: Sequence[Event], i: int) -> Iterator[list[Event]]:
    """Yield the plan with tensor i in RAM from the start: always, or until it leaves RAM first."""
    heir = graph.heirs.get(i, i)
    kept = [event for event in events if event != ("page_out", heir, 0)]
    without = [event for event in kept if event[:2] != ("page_in", i)]
    yield tidy(graph, [Event("start", i), *without])
    if i in graph.may_be_old or len(without) + 1 >= len(kept):
        return
    first = next(e for e, event in enumerate(kept) if event[:2] == ("page_in", i))
    later = [*kept[:first], *kept[first + 1 :]]
    back = [Event("page_in", i)] if heir == i and i in graph.heirs else []
    yield tidy(graph, [Event("start", i), *later, *back])
