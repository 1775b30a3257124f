"""Let tensors stay in RAM from step to step where a plan leaves room for them."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from ..plan.events import Event, fits, least_value, tidy
from ..plan.problem import CostGraph, CostNode, Mode, Problem, without_staying
from .modes import Modes
from .policy import SearchPolicy

_UNUSABLE_BYTES = 1 << 40  # more workspace than any board has


def all_may_stay(graph: CostGraph, ram_bytes: int, policy: SearchPolicy) -> bool:
    """Return whether all tensors that may stay fit a share of RAM."""
    needed = sum(graph.nodes[i].bytes for i in graph.starting)
    return needed <= ram_bytes * policy.max_staying_share


def most_saved(problem: Problem) -> float:
    """Return the most value that plans save if tensors stay in RAM from step to step.

    Without it, each of them is paged in when a step begins, and its heir is paged out in each step.
    """
    graph, per_us = problem.counted, problem.value_per_us
    return sum(_saved(graph, i, 1, per_us) for i in graph.starting)


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
    for i in sorted(set(graph.starting) - began, key=lambda i: _saving(graph, i, 1), reverse=True):
        value = least_value(graph, value_per_us, best)
        for tried in _variants(graph, best, i):
            if least_value(graph, value_per_us, tried) < value and fits(graph, tried, ram_bytes):
                best = tried
                break
    return best


def _saving(graph: CostGraph, i: int, page_ins: int) -> float:
    """Return the energy that a tensor saves if it stays, for each of its bytes."""
    return _saved(graph, i, page_ins) / max(graph.nodes[i].bytes, 1)


def _saved(graph: CostGraph, i: int, page_ins: int, per_us: float = 0.0) -> float:
    """Return the most value that a step saves if tensor i stays. `per_us`: the value of its time.

    A transfer makes a step longer by its time in one of the lanes at most.
    """
    node, k = graph.nodes[i], graph.heirs.get(i, i)
    saved = page_ins * (node.page_in_uj + per_us * max(node.page_in_us, node.page_in_cpu_us))
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


def by_saving(graph: CostGraph, events: Sequence[Event]) -> list[int]:
    """Return the tensors that may stay, those first that save the plan most for a byte."""
    page_ins = Counter(i for op, i, _ in events if op == "page_in")
    return sorted(graph.heirs, key=lambda i: _saving(graph, i, page_ins[i]), reverse=True)


def among_residents(graph: CostGraph, residents: Collection[int]) -> CostGraph:
    """Return the graph as if these tensors, which may stay, were in RAM all the time.

    They and what takes their places have no bytes. Their transfers cost nothing but a share of a
    commit. Modes in which they are old, or lose their places, need too much RAM.
    """
    heirs, every = {graph.heirs[i] for i in residents}, graph.commit_every
    there = {*residents, *heirs}
    old = graph.may_be_old.intersection(residents)
    nodes = []
    for i, node in enumerate(without_staying(graph).nodes):
        if i in there:
            share = 1 / every if i in heirs and not node.stored else 0.0
            node = replace(
                node, bytes=0, page_in_us=0.0, page_in_uj=0.0, page_in_cpu_us=0.0,
                page_out_us=node.page_out_us * share, page_out_uj=node.page_out_uj * share,
                page_out_cpu_us=0.0,
            )  # fmt: skip
        modes = [
            mode
            if _leaves(node, i, mode, there) and old.isdisjoint(mode.streamed_inputs)
            else replace(mode, workspace_bytes=_UNUSABLE_BYTES)
            for mode in node.modes
        ]
        nodes.append(replace(node, modes=tuple(modes)))
    return replace(graph, nodes=tuple(nodes), commit_every=1)


def _leaves(node: CostNode, i: int, mode: Mode, there: Collection[int]) -> bool:
    """Return whether a mode of node i leaves the tensors `there` in their places."""
    if any(it.streamed and it.node in there for it in mode.also):
        return False
    if i in there:
        return not mode.streamed_output and mode.overwrites == node.overwrites
    return mode.overwrites not in there


def in_usable_modes(modes: Modes, events: Sequence[Event]) -> list[Event] | None:
    """Replace the modes that are unusable, by similar ones.

    Return None if a node has no mode, or is left out though it may not be.

    The result may be no plan: what the other modes need may be missing.
    """
    graph, changed = modes.given, list[Event]()
    for event in events:
        mode = graph.nodes[event.node].mode(event.mode)
        if event.op != "compute" or mode.workspace_bytes < _UNUSABLE_BYTES:
            changed.append(event)
            continue
        for j in (event.node, *(it.node for it in mode.also)):
            if not modes.plain[j]:
                return None
            changed.append(Event("compute", j, _most_like(graph.nodes[j], mode, modes.plain[j])))
    firsts = modes.firsts(changed)
    return changed if all(n.stored or j in firsts for j, n in enumerate(graph.nodes)) else None


def _most_like(node: CostNode, mode: Mode, numbers: Sequence[int]) -> int:
    def differences(number: int) -> int:
        other = node.mode(number)
        inputs = set(other.streamed_inputs) ^ set(mode.streamed_inputs)
        return len(inputs) + (other.streamed_output != mode.streamed_output)

    return min(numbers, key=differences)


def with_residents(
    graph: CostGraph, residents: Collection[int], events: Sequence[Event]
) -> list[Event]:
    """Return the plan of `graph` that a plan `among_residents` is."""
    there = {*residents, *(graph.heirs[i] for i in residents)}
    moved = [it for it in events if it.op == "compute" or it.node not in there]
    return tidy(graph, [*(Event("start", i) for i in residents), *moved])
