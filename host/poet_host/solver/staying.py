"""Let tensors stay in RAM from step to step where a plan leaves room for them."""

from collections.abc import Iterator, Sequence

from ..plan.events import Event, fits, least_value, tidy
from ..plan.problem import CostGraph, Problem
from .policy import SearchPolicy


def all_may_stay(graph: CostGraph, ram_bytes: int, policy: SearchPolicy) -> bool:
    """Return whether all tensors that may stay fit a share of RAM."""
    needed = sum(graph.nodes[i].bytes for i in graph.starting)
    return needed <= ram_bytes * policy.max_staying_share


def most_saved(problem: Problem) -> float:
    """Return the most value that plans save if tensors stay in RAM from step to step.

    Without it, each of them is paged in when a step begins, and its heir is paged out in each step.
    """
    graph, per_us = problem.counted, problem.value_per_us
    return sum(_saved(graph, i, per_us) for i in graph.starting)


def saves_much(problem: Problem, policy: SearchPolicy) -> bool:
    """Return whether what stays may save more than a share of the value of a step.

    The value of each computation and of the transfers that every step makes if nothing stays.
    """
    per_us, value = problem.value_per_us, 0.0
    for node in problem.counted.nodes:
        value += node.energy_uj + per_us * node.time_us
        value += node.stored * (node.page_in_uj + per_us * node.page_in_us)
        value += node.keep * (node.page_out_uj + per_us * node.page_out_us)
    return most_saved(problem) > policy.much_saved * value


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
    """Return the energy that a tensor saves if it stays, for each of its bytes."""
    return _saved(graph, i) / max(graph.nodes[i].bytes, 1)


def _saved(graph: CostGraph, i: int, per_us: float = 0.0) -> float:
    """Return the most value that a step saves if tensor i stays. `per_us`: the value of its time.

    A transfer makes a step longer by its time in one of the lanes at most.
    """
    node, k = graph.nodes[i], graph.heirs.get(i, i)
    saved = node.page_in_uj + per_us * max(node.page_in_us, node.page_in_cpu_us)
    if k != i:
        heir, every = graph.nodes[k], graph.commit_every
        longer_us = max(heir.page_out_us, heir.page_out_cpu_us) - heir.page_out_us / every
        saved += heir.page_out_uj * (1 - 1 / every) + per_us * longer_us
    return saved


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
