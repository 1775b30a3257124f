"""Better plans for points that a short search left open: from more time, and from other points.

Only the methods that search for plans get better ones. A plan of `poet-paging` or `poet-remat` is
also a plan of `poet`, and a plan of `checkmate` is one of `poet-remat`. On a graph without stored
tensors, both are the same method. A plan for one budget and deadline is also valid for every larger
one.
"""

from dataclasses import replace
from math import inf

from poet_host.compare.sweep import Point, Result
from poet_host.plan.plan import objective_value
from poet_host.plan.verify import TOLERANCE, verify

from .points import GAP, Scope

ENOUGH = 0.01  # a point whose gap is larger gets more time
PATIENCE = 3  # times as much
SERVES = {
    "poet": ("poet", "poet-paging", "poet-remat", "checkmate"),
    "poet-paging": ("poet-paging",),
    "poet-remat": ("poet-remat", "checkmate"),
    "checkmate": ("checkmate",),
}

Found = list[tuple[Point, Result]]


def once_more(found: Found, scope: Scope) -> dict[int, Point]:
    """Points that get more time, by position: a large gap, or poet without an answer."""
    return {
        i: replace(point, time_limit_s=PATIENCE * scope.limit_s)
        for i, (point, result) in enumerate(found)
        if point.method in SERVES and _is_open(point, result)
    }


def beaten(found: Found, scope: Scope) -> dict[int, Point]:
    """Points that get even more time, by position: another method has a better plan than poet."""
    least: dict[tuple[object, ...], float] = {}
    for point, result in found:
        if result.row["plan"]:
            here = _place(point)
            least[here] = min(least.get(here, inf), result.value(point.objective))
    return {
        i: replace(point, time_limit_s=PATIENCE**2 * scope.limit_s)
        for i, (point, result) in enumerate(found)
        if point.method == "poet" and result.row["status"] != "infeasible"
        and result.value(point.objective) * (1 - GAP) > least.get(_place(point), inf)
    }  # fmt: skip


def _place(point: Point) -> tuple[object, ...]:
    return point.case.digest, point.ram_bytes, point.deadline_us, point.objective


def _is_open(point: Point, result: Result) -> bool:
    row = result.row
    if not row["plan"]:
        return point.method == "poet" and row["status"] == "unknown"
    return row["gap"] is None or float(row["gap"]) > ENOUGH


def better(first: tuple[Point, Result], second: tuple[Point, Result]) -> tuple[Point, Result]:
    """The one with the better plan; the second if neither has a plan."""
    mine, other = (result.value(point.objective) for point, result in (first, second))
    return first if mine < other else second


def shared(found: Found) -> Found:
    """Give every point the best plan of all points that is valid for it, verified for it.

    Such a row's note says where the plan comes from; its gap is from its own bound.
    """
    plans: dict[str, list[tuple[Point, Result]]] = {}
    for point, result in found:
        if point.method in SERVES and result.plan is not None and result.row["plan"]:
            plans.setdefault(point.case.digest, []).append((point, result))
    return [
        (point, _best(point, result, plans.get(point.case.digest, []))) for point, result in found
    ]


def _best(point: Point, own: Result, plans: Found) -> Result:
    if point.method not in SERVES or own.row["status"] == "infeasible":
        return own
    fitting = [pair for pair in plans if _serves(pair, point)]
    giver, result = min(
        fitting, key=lambda pair: pair[1].value(point.objective), default=(point, own)
    )  # fmt: skip
    if giver is point or result.value(point.objective) >= own.value(point.objective) * (
        1 - TOLERANCE
    ):
        return own
    plan = result.plan
    assert plan is not None
    bare = replace(
        plan, status="feasible", bound=None, gap=None, ram_bytes=point.ram_bytes,
        deadline_us=point.deadline_us, objective=point.objective,
    )  # fmt: skip
    totals = verify(point.problem, bare)
    row = own.row | {
        "status": "feasible", "energy_uj": totals.energy_uj, "time_us": totals.time_us,
        "total_energy_uj": totals.total_energy_uj,
        "peak_bytes": totals.peak_bytes, "plan": result.row["plan"],
        "gap": _gap(point, own, objective_value(point.objective, totals)),
        "began_from": result.row["began_from"], "note": _origin(point, giver),
    }  # fmt: skip
    return Result(row, bare)


def _serves(pair: tuple[Point, Result], point: Point) -> bool:
    """Is the plan of `pair` valid for `point`?"""
    giver, result = pair
    in_time = point.deadline_us is None or result.row["time_us"] <= point.deadline_us
    fits = result.row["peak_bytes"] <= point.ram_bytes
    method = point.method
    if method == "checkmate" and not any(node.stored for node in point.case.costs.nodes):
        method = "poet-remat"
    return giver.method in SERVES[method] and fits and in_time


def _gap(point: Point, own: Result, found: float) -> float | None:
    """The gap of a plan from the bound that was proved for `own`; None if it has no bound."""
    if own.row["gap"] is None:
        return None
    bound = own.value(point.objective) * (1 - float(own.row["gap"]))
    return max(0.0, 1 - bound / found)


def _origin(point: Point, giver: Point) -> str:
    text = f"the plan of {giver.method} for {giver.ram_bytes:,} bytes"
    if giver.deadline_us is not None:
        text += f" and {giver.deadline_us:.6g} us"
    return text + (f", objective {giver.objective}" if giver.objective != point.objective else "")
