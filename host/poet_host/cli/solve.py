"""The command `solve`."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from .. import api
from ..errors import BadInput
from ..files import write_whole
from ..graph.graph import Graph
from ..graph.summary import summary_of
from ..plan.limits import check_arena
from ..plan.plan import Plan, plan_to_json
from ..plan.problem import DEFAULT_OBJECTIVE, OBJECTIVES, CostGraph, Objective
from ..profile.profile import Profile
from ..solver.solve import DEFAULT_GAP
from .console import emit, progress, say, show_table, to_json
from .info import MAX_ROWS, is_loss_assumed, show_model
from .options import (
    FiniteRange,
    board_option,
    check_writable,
    json_option,
    model_argument,
    model_files,
    model_options,
    output,
    profile_of,
    profile_option,
)
from .signals import keyboard_interrupts

EXIT_INFEASIBLE, EXIT_GAP, EXIT_UNKNOWN = 5, 6, 7
_SEARCH_ENDS: dict[str, str] = {  # by Plan.stopped_by
    "proof": "proved that no plan is better",
    "gap": "stopped within the gap",
    "exhausted": "ended by itself before --time-limit",
    "time-limit": "stopped at --time-limit",
    "interrupt": "interrupted",
}

time_limit_option = click.option(
    "--time-limit", type=FiniteRange(0.1), default=60.0, show_default=True, metavar="S",
    help="Time limit of the search for a plan, in seconds.",
)  # fmt: skip
objective_option = click.option(
    "--objective", type=click.Choice(OBJECTIVES), default=DEFAULT_OBJECTIVE, show_default=True,
    metavar="WHAT",
    help="What the plan minimises: energy (all that the battery loses in a step), added-energy "
    "(the same without the power of the sleeping board) or time.",
)  # fmt: skip


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
    "--deadline", metavar="LIMIT", show_default="none",
    help="Deadline of a training step: milliseconds, a multiple such as 1.2x, or none. 1x is the "
    "time that the step takes if every tensor stays in RAM.",
)  # fmt: skip
@click.option(
    "--deadline-us", type=float, metavar="US", show_default="the limit of --deadline",
    help="Deadline of a training step, in microseconds.",
)  # fmt: skip
@click.option(
    "--method", type=click.Choice(api.ALL_METHODS), default="poet", show_default=True,
    metavar="METHOD",
    help=f"Planning method: {', '.join(api.ALL_METHODS)}. `poet-host compare --help` describes "
    "them.",
)  # fmt: skip
@objective_option
@time_limit_option
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
    deadline: str | None,
    deadline_us: float | None,
    method: str,
    objective: Objective,
    time_limit: float,
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
    if deadline is not None and deadline_us is not None:
        raise BadInput("--deadline and --deadline-us exclude each other: omit one")
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
    limit = deadline if deadline_us is None else f"{deadline_us!r}us"
    problem = api.problem(graph, profile, ram=ram, deadline=limit, objective=objective)
    if profile and ram is None:
        say(f"RAM budget: the arena of {profile.board}, {problem.ram_bytes:,} bytes")
    if profile and output and not beyond_arena:
        check_arena(problem.ram_bytes, profile)
    summary = summary_of(graph) if isinstance(graph, Graph) else None
    if summary and not as_json:
        show_model(summary, is_assumed=is_loss_assumed(model, options), max_rows=MAX_ROWS)
    with keyboard_interrupts() as interrupted_by, progress(f"solving {graph.name}") as report:
        plan = api.solve(
            problem,
            method=method,
            time_limit_s=time_limit,
            gap=gap,
            placed=not unplaced,
            progress=lambda *state: report(0, 0, _state(objective, *state)),
        )
    if plan_path:
        write_whole(plan_path, to_json(plan_to_json(plan)))
        say(f"wrote {plan_path}")
    if output and plan.statements:
        meta = {"model": model, "options": {k: v for k, v in options.items() if v is not None}}
        schedule = api.encode(graph, plan, about=meta)
        schedule.save(output)
        say(f"wrote {output}: a plan of {len(schedule.plan_part):,} bytes")
    if as_json:
        about = {"model": asdict(summary)} if summary else {}
        emit({**plan_to_json(plan, statements=False), **about})
    elif plan.statements:
        show_table(("", ">"), _facts(problem.keep_everything, plan))
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
