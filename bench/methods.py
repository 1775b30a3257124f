"""The table of methods: what each of them is, and what it did in a sweep."""

from collections.abc import Sequence

from poet_host.baselines.registry import SCHEDULERS
from poet_host.compare.sweep import INAPPLICABLE, Point, Result
from poet_host.plan.plan import Statement

Found = Sequence[tuple[Point, Result]]

PROPERTIES = (
    "method", "graphs", "recomputes", "pages", "weighs", "planned", "infeasible", "no answer",
    "n/a", "extended", "recomputed", "paged in",
)  # fmt: skip


def properties(found: Found) -> list[tuple[str, ...]]:
    """A row for each method, in the columns of PROPERTIES.

    Counts of points: planned, proved infeasible, without answer, not applicable, and planned beyond
    the published method. Means per plan: results recomputed, and paged in.
    """
    rows: list[tuple[str, ...]] = []
    for name, row in SCHEDULERS.items():
        mine = [(p, r) for p, r in found if p.method == name]
        if not mine:
            continue
        plans = [(p, r.plan) for p, r in mine if r.plan is not None and r.plan.statements]
        again = sum(_again(p, plan.statements) for p, plan in plans)
        paged = sum(_paged(p, plan.statements) for p, plan in plans)
        status = [r.row["status"] for _, r in mine]
        rows.append(
            (
                name, row.applies_to.split(";")[0], _yes(row.recomputes), _yes(row.pages),
                row.minimises, f"{len(plans)} of {len(mine)}", str(status.count("infeasible")),
                str(status.count("unknown")), str(status.count(INAPPLICABLE)),
                str(sum(bool(plan.note) for _, plan in plans)),
                _mean(again, len(plans)), _mean(paged, len(plans)),
            )
        )  # fmt: skip
    return rows


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"


def _mean(total: int, count: int) -> str:
    return f"{total / count:.1f}" if count else "-"


def _again(point: Point, statements: Sequence[Statement]) -> int:
    computed = sum(not node.stored for node in point.case.costs.nodes)
    return sum(s.op == "compute" for s in statements) - computed


def _paged(point: Point, statements: Sequence[Statement]) -> int:
    stored = {node.name for node in point.case.costs.nodes if node.stored}
    return sum(s.op == "page_in" and s.node not in stored for s in statements)
