"""Feasibility: limits that no plan meets, and the smallest limits for which a plan is known."""

from dataclasses import replace
from math import gcd

from ..packing.blocks import aligned
from ..plan.events import Candidate, events_of
from ..plan.infeasible import bytes_of, largest_operator_bytes, paged_bytes
from ..plan.problem import CostGraph, Problem, without_energy, without_staying
from .portfolio import Results, run_searches
from .search import Task


def least_ram_bytes(graph: CostGraph, unit: int) -> int:
    """Return a lower bound of the RAM of all plans.

    It is the RAM of the largest operator. Without storage, it is also at least the RAM of all
    tensors at the start of the step, and the RAM of all tensors that must outlive the step.
    """
    least = largest_operator_bytes(graph, unit)
    if not graph.storage:
        for flag in ("stored", "keep"):
            tensors = [i for i, node in enumerate(graph.nodes) if getattr(node, flag)]
            least = max(least, bytes_of(graph, tensors, unit))
    return least


def aligned_budget(graph: CostGraph, ram_bytes: int, unit: int) -> int:
    """Return the RAM limit for a sum of sizes that are rounded up to multiples of `unit`.

    It may be above `ram_bytes`, since the last tensor in RAM needs no padding.
    """
    sizes = [node.bytes for node in graph.nodes] + _workspaces(graph)
    padding = max((aligned(size, unit) - size for size in sizes), default=0)
    return (ram_bytes + padding) // unit * unit


def _workspaces(graph: CostGraph) -> list[int]:
    return [mode.workspace_bytes for node in graph.nodes for mode in node.all_modes]


def smallest_ram_bytes(task: Task) -> int | None:
    """Return the smallest RAM budget for which a plan is known; None if no plan is known.

    Without a plan from the search, it is the RAM of the keep-everything plan.
    """
    graph, unit = task.padded, task.unit
    least = least_ram_bytes(task.exact.graph, unit)
    paged = paged_bytes(task.exact.graph, unit) if graph.storage and task.page else None
    if paged == least:
        return least
    sizes = [node.bytes for node in graph.nodes]
    workspaces = _workspaces(graph)
    step = gcd(*sizes, *workspaces) or 1
    low, high = aligned(least, step), sum(sizes) + max(workspaces, default=0)
    keep = task.exact.graph.keep_everything
    if keep and not task.allows(events_of(task.exact.graph, keep.statements)):
        keep = None  # it pages in a result that another node overwrote
    plans = [paged, keep.peak_bytes if keep else None]
    known = min((size for size in plans if size is not None), default=None)
    try:
        while low <= high and task.left_s > 0:
            middle = low + (high - low) // step // 2 * step
            if _has_plan(task, middle):
                known, high = middle, middle - step
            else:
                low = middle + step
        less = range(unit - 1, 0, -1) if known is not None else ()
        return next((known - by for by in less if known and _has_plan(task, known - by)), known)
    except KeyboardInterrupt:
        return known


def _has_plan(task: Task, ram_bytes: int) -> bool:
    """Return whether a plan of any energy is found within `ram_bytes`.

    Raises KeyboardInterrupt if Ctrl-C ended the search.
    """
    graph = task.exact.graph
    results = Results(
        replace(
            task.within(task.policy.budget_time_share),
            exact=Problem(graph, ram_bytes),
            padded=without_energy(task.padded),
            value_per_us=0.0,
            padded_ram_bytes=aligned_budget(graph, ram_bytes, task.unit),
        )
    )
    run_searches(results)
    if results.is_interrupted:
        raise KeyboardInterrupt
    if results.best is None and graph.starting:  # what stays may lead the search astray
        exact = replace(task.exact, graph=without_staying(graph))
        return _has_plan(replace(task, exact=exact, padded=without_staying(task.padded)), ram_bytes)
    return results.best is not None


def fastest_plan(task: Task) -> Candidate | None:
    """Find a fast plan, regardless of its energy. Its time is a deadline that can be met."""
    results = Results(task.time_weighted())
    run_searches(results)
    return results.best
