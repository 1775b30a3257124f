"""The command `solve`."""

import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from .. import api
from ..data.fitted import fit
from ..errors import BadInput
from ..files import write_whole
from ..graph.graph import Graph
from ..graph.summary import summary_of
from ..plan.limits import check_arena
from ..plan.plan import Plan, moved_bytes, plan_to_json
from ..plan.problem import CostGraph, Objective, Problem
from ..plan.whole_training import (
    Battery,
    WholeTraining,
    battery_of,
    duration_text,
    duration_us,
    step_deadline_us,
    whole_training,
)
from ..profile.profile import Profile
from ..solver.solve import DEFAULT_GAP
from ..stream.least_traffic import least_moved_bytes
from .console import counted, emit, progress, say, show_table, to_json
from .info import MAX_ROWS, is_loss_assumed, show_model
from .options import (
    FiniteRange,
    board_option,
    check_writable,
    data_size_options,
    epochs_option,
    json_option,
    model_argument,
    model_files,
    model_options,
    output,
    profile_of,
    profile_option,
)
from .search_options import (
    objective_option,
    search_limit,
    time_limit_option,
    work_limit_option,
)
from .signals import keyboard_interrupts

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


@click.command()
@model_argument
@board_option("the board of --profile")
@profile_option
@click.option(
    "--ram", metavar="LIMIT", show_default="the arena of the board",
    help="RAM budget: bytes, a size such as 24KiB, or a share such as 50%. 100% is the RAM that a "
    "training step needs if every tensor stays in RAM.",
)  # fmt: skip
@click.option(
    "--beyond-arena", is_flag=True,
    help="Allow a --ram that exceeds the arena (RAM for tensors) of the board. The schedule is for "
    "studies only: the board cannot run it.",
)  # fmt: skip
@click.option(
    "--no-storage", is_flag=True,
    help="Plan for a board without a card: tensors are recomputed, never paged, and the parameters "
    "and the state of the optimiser stay in RAM. A profile that was measured with --no-storage "
    "implies this option.",
)  # fmt: skip
@click.option(
    "--streaming/--no-streaming", default=None, show_default="if an operator hardly fits the RAM",
    help="Let operators stream their operands through small buffers, part by part. Then models "
    "train whose operators exceed the RAM.",
)  # fmt: skip
@click.option(
    "--deadline", metavar="LIMIT", show_default="none",
    help="Deadline of a training step: milliseconds, a multiple such as 1.2x, or none. 1x is the "
    "time that the step takes if every tensor stays in RAM.",
)  # fmt: skip
@click.option(
    "--deadline-us", type=float, metavar="US", show_default="the limit of --deadline",
    help="Deadline of a training step, in microseconds.",
)  # fmt: skip
@click.option(
    "--finish-in", metavar="TIME", show_default="the limit of --deadline",
    help="Deadline of the whole training on --data for --epochs: 45s, 90min, 8h or 2d.",
)  # fmt: skip
@data_size_options
@epochs_option
@click.option(
    "--battery", metavar="SIZE", show_default="none",
    help="Say how long this battery lasts: 2000mAh (at 3.7 V), 2000mAh@3V or 7.4Wh.",
)  # fmt: skip
@click.option(
    "--method", type=click.Choice(api.ALL_METHODS), default="poet", show_default=True,
    metavar="METHOD",
    help=f"Planning method: {', '.join(api.ALL_METHODS)}. `poet-host compare --help` describes "
    "them.",
)  # fmt: skip
@objective_option
@time_limit_option
@work_limit_option
@click.option(
    "--gap", type=FiniteRange(0, 1), metavar="G",
    show_default=f"{DEFAULT_GAP}, and any plan exits with 0",
    help="Stop when it is proved that any other plan saves at most this share of what the best "
    "plan found so far needs (0.01 = 1 %). With 0, it must be proved that no plan is better. The "
    "exit code is 6 if the search ends without this proof.",
)  # fmt: skip
@click.option(
    "--unplaced",
    is_flag=True,
    help="Limit only the total number of bytes in RAM, and assign no memory offsets to tensors. "
    "The plan cannot become a schedule.",
)
@output("--output", "-o", suffix=".poet", help="Write the schedule to this .poet file.")
@output(
    "--plan", "plan_path", suffix=".json", is_strict=False,
    help="Write the plan to this JSON file.",
)  # fmt: skip
@model_options
@json_option
def solve(
    model: str,
    board: str | None,
    profile_name: str | None,
    ram: str | None,
    beyond_arena: bool,
    no_storage: bool,
    streaming: bool | None,
    deadline: str | None,
    deadline_us: float | None,
    finish_in: str | None,
    data: str | None,
    test_split: float | None,
    header: bool | None,
    epochs: int | None,
    battery: str | None,
    method: str,
    objective: Objective,
    time_limit: float | None,
    work_limit: float | None,
    gap: float | None,
    unplaced: bool,
    output: Path | None,
    plan_path: Path | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Find the training schedule that needs the least energy or time.

    MODEL is a built-in model, an .onnx file, or a cost graph (.json). Ctrl-C ends the search and
    writes the best plan so far.
    """
    deadlines = {"--deadline": deadline, "--deadline-us": deadline_us, "--finish-in": finish_in}
    if len(given := [name for name, limit in deadlines.items() if limit is not None]) > 1:
        raise BadInput(f"{given[0]} and {given[1]} exclude each other: omit one")
    limit_s, _ = search_limit(time_limit, work_limit)
    cells = battery_of(battery) if battery is not None else None
    finish_us = None if finish_in is None else duration_us(finish_in)
    for_data = {"--epochs": epochs, "--finish-in": finish_in, "--test-split": test_split,
                "--header": header}  # fmt: skip
    for name, value in for_data.items():
        if data is None and value is not None:
            raise BadInput(f"{name} is about the whole training: add --data")
    if deadline_us is not None and not (math.isfinite(deadline_us) and deadline_us > 0):
        raise BadInput(f"--deadline-us {deadline_us}: the deadline must be a positive number")
    check_writable(output, plan_path, read=(*model_files(model), profile_name))
    if unplaced and output:
        raise BadInput(
            "a schedule needs the memory offsets of its tensors, but --unplaced assigns none: omit "
            "--unplaced or --output"
        )
    graph = api.load(model, **options)
    profile = _profile(graph, board, profile_name)
    steps = None
    if output and isinstance(graph, CostGraph) and graph.has_modes:
        raise BadInput(
            f"{graph.name} has modes, which the schedule of a cost graph cannot contain: write the "
            "plan with --plan, and omit --output"
        )
    if data is not None:
        steps = _steps(graph, data, epochs or 1, test_split=test_split or 0.0, header=header)
    if finish_us is not None and steps and profile:
        costs = api.costs_of(graph, profile, storage=not no_storage)
        deadline_us = step_deadline_us(finish_us, steps, costs, profile)
        say(f"deadline of a step: {deadline_us / 1e3:,.3f} ms, and its commit, {steps:,} times")
    if streaming and not api.uses_modes(method):
        raise BadInput(f"the operators of a plan by {method} cannot stream: omit --streaming")
    began = time.monotonic()
    problem = api.problem(
        graph, profile, ram=ram, deadline=deadline, objective=objective,
        storage=not no_storage, streaming=streaming if api.uses_modes(method) else False,
    )  # fmt: skip
    problem = replace(problem, deadline_us=deadline_us or problem.deadline_us)
    if profile and ram is None:
        say(f"RAM budget: the arena of {profile.board}, {problem.ram_bytes:,} bytes")
    if profile and output and not beyond_arena:
        check_arena(problem.ram_bytes, profile)
    priced_s = time.monotonic() - began
    summary = summary_of(graph) if isinstance(graph, Graph) else None
    if summary and not as_json:
        show_model(summary, is_assumed=is_loss_assumed(model, options), max_rows=MAX_ROWS)
    with keyboard_interrupts() as interrupted_by, progress(f"solving {graph.name}") as report:
        plan = api.solve(
            problem, method=method, gap=gap, placed=not unplaced, work_limit=work_limit,
            time_limit_s=api.search_limit_s(limit_s, priced_s),
            progress=lambda *state: report(0, 0, _state(objective, *state)),
        )  # fmt: skip
    if plan_path:
        write_whole(plan_path, to_json(plan_to_json(plan)))
        say(f"wrote {plan_path}")
    if output and plan.statements:
        meta = {"model": model, "options": {k: v for k, v in options.items() if v is not None}}
        schedule = api.encode(graph, plan, about=meta)
        schedule.save(output)
        say(f"wrote {output}: a plan of {len(schedule.plan_part):,} bytes")
    needs = None
    traffic = _traffic(graph, plan.problem or problem, plan)
    if plan.statements and (steps or cells):
        needs = whole_training(plan, steps or 1, (plan.problem or problem).graph, profile)
    if as_json:
        about = {"model": asdict(summary)} if summary else {}
        about |= {"training": needs.to_json(cells)} if needs else {}
        about |= {"traffic": asdict(traffic)} if traffic else {}
        emit({**plan_to_json(plan, statements=False), **about})
    elif plan.statements:
        facts = _facts(problem.keep_everything, plan)
        if traffic:
            facts += _traffic_facts(traffic, steps and steps // (epochs or 1))
        show_table(("", ">"), facts + (_training_facts(needs, cells) if needs else []))
    if number := interrupted_by():
        found = "this is the best plan so far" if plan.statements else "no plan was found so far"
        say(f"poet-host: interrupted: {found}")
        return 128 + number
    if plan.status == "infeasible":
        say(f"poet-host: {api.why_no_plan(graph, plan)}{_because(plan)}")
    return _exit_code(plan, gap)


def _profile(
    graph: Graph | CostGraph, board: str | None, profile_name: str | None
) -> Profile | None:
    if isinstance(graph, CostGraph):
        if board or profile_name:
            raise BadInput(
                f"{graph.name} is a cost graph with its own costs: omit --board and --profile"
            )
        return None
    return profile_of(board, profile_name)


def _state(
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


def _facts(keep: Plan | None, plan: Plan) -> list[tuple[str, str]]:
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
class _Traffic:
    """What a step moves to and from storage, if operators stream."""

    streamed: int  # operators that run in a mode other than 0
    computed: int  # operators that run, recomputations included
    moved_in_bytes: int
    moved_out_bytes: int
    least_bytes: int | None  # that operators move alone; None for a cost graph


def _traffic(graph: Graph | CostGraph, problem: Problem, plan: Plan) -> _Traffic | None:
    computes = [statement for statement in plan.statements if statement.op == "compute"]
    streamed = sum(statement.mode > 0 for statement in computes)
    if not streamed:
        return None
    least = least_moved_bytes(graph, plan.ram_bytes) if isinstance(graph, Graph) else None
    return _Traffic(streamed, len(computes), *moved_bytes(problem.graph, plan), least)


def _traffic_facts(traffic: _Traffic, steps_of_epoch: int | None) -> list[tuple[str, str]]:
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


def _steps(graph: Graph | CostGraph, data: str, epochs: int, **reading: Any) -> int:
    if isinstance(graph, CostGraph):
        raise BadInput(f"{graph.name} is a cost graph, which no data fits: omit --data")
    return api.last_step(fit(api.load_data(data, graph=graph, **reading), graph), epochs, None)


def _training_facts(needs: WholeTraining, battery: Battery | None) -> list[tuple[str, str]]:
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


def _because(plan: Plan) -> str:
    return f" ({plan.method}: {plan.note})" if plan.note else ""


def _exit_code(plan: Plan, gap: float | None) -> int:
    """Return the exit code. Print the reason on stderr if the code is not 0."""
    longer = "" if plan.stopped_by == "exhausted" else "a longer --time-limit or "
    ended = f" The search {_SEARCH_ENDS[plan.stopped_by]}." if plan.stopped_by else ""
    if plan.status == "infeasible":
        return EXIT_INFEASIBLE
    if plan.status == "unknown":
        say(
            f"poet-host: found no plan in {plan.solve_s:.1f} s, and no proof that none exists"
            f"{_because(plan)}.{ended} Try {longer}a larger --ram"
        )
        return EXIT_UNKNOWN
    if gap is not None and plan.gap is not None and plan.gap > gap:
        say(
            f"poet-host: the plan is valid, but its gap of {plan.gap:.2%} exceeds --gap {gap:.2%}."
            f"{ended} Try {longer}a larger --gap"
        )
        return EXIT_GAP
    return 0
