"""The tables that `solve` prints of a plan: its costs, its traffic and its whole training."""

import math

from ..plan.effects import effects_of
from ..plan.intervals import Interval, intervals
from ..plan.plan import Plan
from ..plan.problem import CostGraph
from ..plan.whole_training import Battery, WholeTraining, duration_text
from ..profile.profile import Profile
from ..schedule.schedule import Schedule
from ..stream.traffic import Traffic
from .listing import counted

Row = tuple[str, str]
LONG_STEP_US = 60e6  # longer times are shown in minutes, hours or days, too
SEARCH_ENDS: dict[str, str] = {  # by Plan.stopped_by
    "proof": "proved that no plan is better",
    "gap": "stopped within the gap",
    "exhausted": "ended by itself before --time-limit",
    "time-limit": "stopped at --time-limit",
    "work-limit": "stopped at --work-limit",
    "interrupt": "interrupted",
}


def plan_rows(keep: Plan | None, plan: Plan, graph: CostGraph) -> list[Row]:
    assert plan.energy_uj is not None
    assert plan.total_energy_uj is not None
    assert plan.time_us is not None
    total_uj, keep_uj = plan.total_energy_uj, keep.total_energy_uj if keep else None
    time = f"{plan.time_us / 1e3:,.3f} ms{_times(plan.time_us, keep.time_us if keep else None)}"
    if plan.time_us >= LONG_STEP_US:
        time += f", {duration_text(plan.time_us)}"
    ops = [statement.op for statement in plan.statements]
    computes = [it for it in effects_of(graph, plan.statements) if it.op == "compute"]
    made = [i for effect in computes for i in (*effect.makes, *effect.stores)]
    return [
        ("status", plan.status + (f", gap {plan.gap:.2%}" if plan.gap else "")),
        *([("search", SEARCH_ENDS[plan.stopped_by])] if plan.stopped_by else []),
        ("minimised", plan.objective),
        ("energy of a step", f"{total_uj:,.1f} uJ{_times(total_uj, keep_uj)}"),
        ("- above the sleeping board", f"{plan.energy_uj:,.1f} uJ"),
        ("time of a step", time),
        ("RAM", f"{plan.peak_bytes:,} of {plan.ram_bytes:,} bytes"),
        ("keeping everything needs", f"{keep.peak_bytes:,} bytes" if keep else "no such plan"),
        ("recomputed", f"{len(made) - len(set(made)):,}"),
        *_staying_rows(plan),
        ("paged in, out", f"{ops.count('page_in'):,}, {ops.count('page_out'):,}"),
        ("solved in", f"{plan.solve_s:.2f} s"),
        *([("change to the method", plan.note)] if plan.note else []),
    ]


def inference_rows(forward: Schedule | None) -> list[Row]:
    """Return RAM, time and energy of an inference by a forward program."""
    if forward is None:
        return []
    plan, batch = forward.meta["plan"], forward.graph.batch
    what = "of an inference" + (f" of {batch} samples" if batch > 1 else "")
    return [
        (f"energy {what}", f"{plan['total_energy_uj']:,.1f} uJ"),
        (f"time {what}", f"{plan['time_us'] / 1e3:,.3f} ms"),
        (f"RAM {what}", f"{forward.header.arena_bytes:,} bytes"),
    ]


def _staying_rows(plan: Plan) -> list[Row]:
    if plan.commit_every is None or not plan.initial_offsets:
        return []
    every = "in each step" if plan.commit_every == 1 else f"once in {plan.commit_every:,} steps"
    return [
        ("in RAM when a step begins", counted(len(plan.initial_offsets), "tensor")),
        ("- written", every),
    ]


def intervals_of(plan: Plan, graph: CostGraph, profile: Profile | None) -> list[Interval]:
    """Return what commits cost; nothing for a plan without statements or storage."""
    return intervals(plan, graph, profile) if plan.statements and graph.storage else []


def interval_rows(found: list[Interval], steps_of_epoch: int | None) -> list[Row]:
    """Return what commits cost, if they are after so many steps each."""
    span, steps = ("an epoch", steps_of_epoch) if steps_of_epoch else ("1,000 steps", 1000)
    own, *others = [
        (f"{it.total_energy_uj:,.1f} uJ", f"{it.written_bytes * steps:,.0f} bytes") for it in found
    ]
    rows = [
        ("energy of a step, commits included", own[0]),
        (f"bytes written in {span}", own[1].removesuffix(" bytes")),
    ]
    for it, (energy, written) in zip(found[1:], others, strict=True):
        less = ", or less: more may stay" if it.more_may_stay else ""
        rows.append((f"- with --commit-every {it.commit_every}", f"{energy}, {written}{less}"))
    return rows


def traffic_rows(traffic: Traffic) -> list[Row]:
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
    return rows


def training_rows(needs: WholeTraining, battery: Battery | None, commits: bool) -> list[Row]:
    """Return what a whole training needs. `commits`: whether this has the costs of commits."""
    energy = f"{needs.energy_j:,.3f} J"
    if battery:
        charge_mah = battery.charge_mah(needs.energy_j)
        energy += f", {charge_mah:,.3g} mAh at {battery.voltage_v:g} V"
    what = "with commits" if commits else "without commits"
    rows = [
        (f"{what}, {counted(needs.steps, 'step')} take", energy),
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
