"""What `solve` prints of a plan, and its exit code."""

import math
from dataclasses import dataclass

from .. import api
from ..plan.plan import moved_bytes
from ..plan.problem import Objective
from ..plan.whole_training import Battery, WholeTraining, duration_text
from ..stream.least_traffic import least_moved_bytes
from .console import counted, say

LONG_STEP_US = 60e6  # longer times are shown in minutes, hours or days, too
EXIT_INFEASIBLE, EXIT_GAP, EXIT_UNKNOWN = 5, 6, 7
_SEARCH_ENDS: dict[str, str] = {  # by Plan.stopped_by
    "proof": "proved that no plan is better",
    "gap": "stopped within the gap",
    "exhausted": "ended by itself before --time-limit",
    "time-limit": "stopped at --time-limit",
    "work-limit": "stopped at --work-limit",
    "interrupt": "interrupted",
}


def state_text(
    objective: Objective,
    value: float | None,
    bound: float | None,
    gap: float | None,
    seconds: float,
) -> str:
    """Describe a search: what the best plan so far needs, proved minimum for all plans, and gap."""

    def text(value: float | None) -> str:
        return "?" if value is None else f"{value:,.1f}"

    gap_text = "" if gap is None else f", gap {gap:.2%}"
    unit = "us" if objective == "time" else "uJ"
    return f"{text(value)} {unit}, proved minimum {text(bound)}{gap_text}"


def facts_of(keep: api.Plan | None, plan: api.Plan) -> list[tuple[str, str]]:
    assert plan.energy_uj is not None
    assert plan.total_energy_uj is not None
    assert plan.time_us is not None
    total_uj, keep_uj = plan.total_energy_uj, keep.total_energy_uj if keep else None
    time = f"{plan.time_us / 1e3:,.3f} ms{_times(plan.time_us, keep.time_us if keep else None)}"
    if plan.time_us >= LONG_STEP_US:
        time += f", {duration_text(plan.time_us)}"
    ops = [statement.op for statement in plan.statements]
    nodes = {s.node for s in plan.statements if s.op == "compute"}
    return [
        ("status", plan.status + (f", gap {plan.gap:.2%}" if plan.gap else "")),
        *([("search", _SEARCH_ENDS[plan.stopped_by])] if plan.stopped_by else []),
        ("minimised", plan.objective),
        ("energy of a step", f"{total_uj:,.1f} uJ{_times(total_uj, keep_uj)}"),
        ("- above the sleeping board", f"{plan.energy_uj:,.1f} uJ"),
        ("time of a step", time),
        ("RAM", f"{plan.peak_bytes:,} of {plan.ram_bytes:,} bytes"),
        ("keeping everything needs", f"{keep.peak_bytes:,} bytes" if keep else "no such plan"),
        ("recomputed", f"{ops.count('compute') - len(nodes):,}"),
        ("paged in, out", f"{ops.count('page_in'):,}, {ops.count('page_out'):,}"),
        ("solved in", f"{plan.solve_s:.2f} s"),
        *([("change to the method", plan.note)] if plan.note else []),
    ]  # fmt: skip


@dataclass(frozen=True)
class Traffic:
    """What a step moves to and from storage, if operators stream."""

    streamed: int  # operators that run in a mode other than 0
    computed: int  # operators that run, recomputations included
    moved_in_bytes: int
    moved_out_bytes: int
    least_bytes: int | None  # that operators move alone; None for a cost graph


def traffic_of(
    graph: api.Graph | api.CostGraph, problem: api.Problem, plan: api.Plan
) -> Traffic | None:
    computes = [statement for statement in plan.statements if statement.op == "compute"]
    streamed = sum(statement.mode > 0 for statement in computes)
    if not streamed:
        return None
    least = least_moved_bytes(graph, plan.ram_bytes) if isinstance(graph, api.Graph) else None
    return Traffic(streamed, len(computes), *moved_bytes(problem.graph, plan), least)


def traffic_facts(traffic: Traffic, steps_of_epoch: int | None) -> list[tuple[str, str]]:
    moved_in, moved_out, least = (
        traffic.moved_in_bytes, traffic.moved_out_bytes, traffic.least_bytes
    )  # fmt: skip
    rows = [
        ("computed in other modes", f"{traffic.streamed:,} of {traffic.computed:,}"),
        ("bytes moved in, out", f"{moved_in:,}, {moved_out:,}"),
    ]
    if least:
        text = f"{least:,} bytes, {(moved_in + moved_out) / least:.2f}x"
        rows.append(("- each operator alone: at least", text))
    if steps_of_epoch:
        rows.append(("bytes written in an epoch", f"{moved_out * steps_of_epoch:,}"))
    return rows


def training_facts(needs: WholeTraining, battery: Battery | None) -> list[tuple[str, str]]:
    energy = f"{needs.energy_j:,.3f} J"
    if battery:
        charge_mah = battery.charge_mah(needs.energy_j)
        energy += f", {charge_mah:,.3g} mAh at {battery.voltage_v:g} V"
    rows = [
        (f"with commits, {counted(needs.steps, 'step')} take", energy),
        ("- time", duration_text(needs.time_us)),
    ]
    if battery:
        step_j = needs.step_energy_uj / 1e6
        lasting = battery.energy_j / step_j if step_j else math.inf
        time = duration_text(lasting * needs.step_time_us) if step_j else "for ever"
        rows.append(("a full battery lasts", f"{lasting:,.0f} steps, {time}"))
    return rows


def _times(mine: float, kept: float | None) -> str:
    return f" ({mine / kept:.2f}x)" if kept else ""


def because(plan: api.Plan) -> str:
    return f" ({plan.method}: {plan.note})" if plan.note else ""


def exit_code(plan: api.Plan, gap: float | None) -> int:
    """Return the exit code. Print the reason on stderr if the code is not 0."""
    longer = "" if plan.stopped_by == "exhausted" else "a longer --time-limit or "
    ended = f" The search {_SEARCH_ENDS[plan.stopped_by]}." if plan.stopped_by else ""
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
