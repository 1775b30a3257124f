"""Better plans for points that a short search left open: from more time, and from other points.

Only the methods that search for plans get better ones. A plan of `poet-paging` or `poet-remat` is
also a plan of `poet`, and a plan of `checkmate` is one of `poet-remat`. On a graph without stored
tensors, both are the same method. A plan for one budget and deadline is also valid for every larger
one.
"""

from dataclasses import replace
from math import inf

from poet_host.compare.sweep import Point, Result
from poet_host.plan.verify import TOLERANCE, verify

from .paper_points import GAP, Scope

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
            least[here] = min(least.get(here, inf), result.row["energy_uj"])
    return {
        i: replace(point, time_limit_s=PATIENCE**2 * scope.limit_s)
        for i, (point, result) in enumerate(found)
        if point.method == "poet" and result.row["status"] != "infeasible"
        and (result.row["energy_uj"] or inf) * (1 - GAP) > least.get(_place(point), inf)
    }  # fmt: skip


def _place(point: Point) -> tuple[object, ...]:
    return point.case.digest, point.ram_bytes, point.deadline_us


def _is_open(point: Point, result: Result) -> bool:
    row = result.row
    if not row["plan"]:
        return point.method == "poet" and row["status"] == "unknown"
    return row["gap"] is None or float(row["gap"]) > ENOUGH


def better(first: tuple[Point, Result], second: tuple[Point, Result]) -> tuple[Point, Result]:
    """The one with the plan of less energy; the second if neither has a plan."""
    mine, other = (result.row["energy_uj"] for _, result in (first, second))
    return first if mine is not None and (other is None or mine < other) else second


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
    energy_uj = own.row["energy_uj"] if own.row["plan"] else inf
    fitting = [pair for pair in plans if _serves(pair, point)]
    giver, result = min(fitting, key=lambda pair: pair[1].row["energy_uj"], default=(point, own))
    if giver is point or result.row["energy_uj"] >= energy_uj * (1 - TOLERANCE):
        return own
    plan = result.plan
    assert plan is not None
    bare = replace(
        plan, status="feasible", bound=None, gap=None, ram_bytes=point.ram_bytes,
        deadline_us=point.deadline_us,
    )  # fmt: skip
    totals = verify(point.problem, bare)
    row = own.row | {
        "status": "feasible", "energy_uj": totals.energy_uj, "time_us": totals.time_us,
        "peak_bytes": totals.peak_bytes, "plan": result.row["plan"],
        "gap": _gap(own, totals.energy_uj),
        "note": f"the plan of {giver.method} for {giver.ram_bytes:,} bytes{_limit(giver)}",
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


def _gap(own: Result, energy_uj: float) -> float | None:
    """The gap of a plan from the bound that was proved for `own`; None if it has no bound."""
    if own.row["gap"] is None:
        return None
    bound_uj = float(own.row["energy_uj"]) * (1 - float(own.row["gap"]))
    return max(0.0, 1 - bound_uj / energy_uj)


def _limit(point: Point) -> str:
    return "" if point.deadline_us is None else f" and {point.deadline_us:.6g} us"
