"""How `solve` reports a search, and its exit code."""

from .. import api
from ..view.plan_table import SEARCH_ENDS
from .console import say

EXIT_INFEASIBLE, EXIT_GAP, EXIT_UNKNOWN = 5, 6, 7


def state_text(
    objective: str, value: float | None, bound: float | None, gap: float | None, seconds: float
) -> str:
    """Describe a search: what the best plan so far needs, proved minimum for all plans, and gap."""

    def text(value: float | None) -> str:
        return "?" if value is None else f"{value:,.1f}"

    gap_text = "" if gap is None else f", gap {gap:.2%}"
    unit = "us" if objective == "time" else "uJ"
    return f"{text(value)} {unit}, proved minimum {text(bound)}{gap_text}"


def because(plan: api.Plan) -> str:
    return f" ({plan.method}: {plan.note})" if plan.note else ""


def exit_code(plan: api.Plan, gap: float | None) -> int:
    """Return the exit code. Print the reason on stderr if the code is not 0."""
    longer = "" if plan.stopped_by == "exhausted" else "a longer --time-limit or "
    ended = f" The search {SEARCH_ENDS[plan.stopped_by]}." if plan.stopped_by else ""
    if plan.status == "infeasible":
        return EXIT_INFEASIBLE
    if plan.status == "unknown":
        say(
            f"poet-host: found no plan in {plan.solve_s:.1f} s, and no proof that none exists"
            f"{because(plan)}.{ended} Try {longer}a larger --ram"
        )
        return EXIT_UNKNOWN
    if gap is not None and plan.gap is not None and plan.gap > gap:
        say(
            f"poet-host: the plan is valid, but its gap of {plan.gap:.2%} exceeds --gap {gap:.2%}."
            f"{ended} Try {longer}a larger --gap"
        )
        return EXIT_GAP
    return 0
