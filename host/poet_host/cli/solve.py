"""The command that plans: solve."""

import math
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
from ..plan.problem import CostGraph
from ..profile.profile import Profile
from ..solver.solve import DEFAULT_GAP
from .console import emit, progress, say, show_table, to_json
from .info import MOST_ROWS, is_loss_assumed, show_model
from .options import (
    FiniteRange,
    board_option,
    files_of,
    json_option,
    model_argument,
    model_options,
    output,
    profile_of,
    profile_option,
    writable,
)
from .signals import best_so_far

EXIT_INFEASIBLE, EXIT_GAP, EXIT_UNKNOWN = 5, 6, 7
_ENDS: dict[str, str] = {
    "proof": "ended with the proof that nothing is better",
    "gap": "stopped within the gap",
    "exhausted": "the search ended by itself, before --time-limit",
    "time-limit": "stopped by --time-limit",
    "interrupt": "interrupted",
}

deadline_option = click.option(
    "--deadline", metavar="LIMIT",
    help="Milliseconds of a step, 1.2x of keep-everything's time, or none (the default).",
)  # fmt: skip
time_limit_option = click.option(
    "--time-limit", type=FiniteRange(0.1), default=60.0, show_default=True, metavar="S",
    help="Seconds for solving.",
)  # fmt: skip


@click.command()
@model_argument
@board_option
@profile_option
@click.option(
    "--ram", metavar="LIMIT",
    help="Bytes, or 24KiB, or 50% of what keeping everything needs; default: the board's arena.",
)  # fmt: skip
@click.option(
    "--beyond-arena", is_flag=True,
    help="Write the schedule of a --ram that is above the board's arena, for a study.",
)  # fmt: skip
@deadline_option
@click.option("--deadline-us", type=float, metavar="US", help="The deadline in microseconds.")
@click.option(
    "--method", type=click.Choice(api.ALL_METHODS), default="poet", show_default=True,
    help="Who plans: this planner, or a published one (`compare --help` describes them).",
)  # fmt: skip
@time_limit_option
@click.option(
    "--gap", type=FiniteRange(0, 1), metavar="G",
    help="Stop when the energy is within this share of the proved least; exit with 6 if it is not. "
    f"0: a proof. Default: stop at {DEFAULT_GAP}, and exit with 0 with any plan.",
)  # fmt: skip
@click.option("--unplaced", is_flag=True, help="Bound the sum of bytes only; no offsets.")
@output("--output", "-o", suffix=".poet", help="Write the schedule, a .poet file.")
@output("--plan", "plan_path", suffix=".json", is_strict=False, help="Write the plan as JSON.")
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
    time_limit: float,
    gap: float | None,
    unplaced: bool,
    output: Path | None,
    plan_path: Path | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Find the schedule of least energy for MODEL: built-in, an .onnx file, or a cost graph.

    Ctrl-C ends the search; the best plan so far is written.
    """
    if deadline is not None and deadline_us is not None:
        raise BadInput("give --deadline or --deadline-us, not both")
    if deadline_us is not None and not (math.isfinite(deadline_us) and deadline_us > 0):
        raise BadInput(f"--deadline-us {deadline_us}: a deadline is a positive number")
    writable(output, plan_path, read=(*files_of(model), profile_name))
    if unplaced and output:
        raise BadInput("a schedule needs offsets: leave out --unplaced, or write a --plan")
    graph = api.load(model, **options)
    profile = _profile(graph, board, profile_name)
    limit = deadline if deadline_us is None else f"{deadline_us!r}us"
    problem = api.problem(graph, profile, ram=ram, deadline=limit)
    if profile and ram is None:
        say(f"RAM: the arena of {profile.board}, {problem.ram_bytes:,} bytes")
    if profile and output and not beyond_arena:
        check_arena(problem.ram_bytes, profile)
    summary = summary_of(graph) if isinstance(graph, Graph) else None
    if summary and not as_json:
        assumed = is_loss_assumed(model, options)
        show_model(summary, assumed_loss=assumed, most_rows=MOST_ROWS)
    with best_so_far() as asked, progress(f"solving {graph.name}") as report:
        plan = api.solve(
            problem,
            method=method,
            time_limit_s=time_limit,
            gap=gap,
            placed=not unplaced,
            progress=lambda *state: report(0, 0, _state(*state)),
        )
    if plan_path:
        write_whole(plan_path, to_json(plan_to_json(plan)))
        say(f"wrote {plan_path}")
    if output and plan.statements:
        meta = {"model": model, "options": {k: v for k, v in options.items() if v is not None}}
        schedule = api.encode(graph, plan, about=meta)
        schedule.save(output)
        say(f"wrote {output}: {len(schedule.plan_part)} bytes of plan")
    if as_json:
        about = {"model": summary.to_json()} if summary else {}
        emit({**plan_to_json(plan, statements=False), **about})
    elif plan.statements:
        show_table(("", ">"), _facts(problem.keep_everything, plan))
    if number := asked():
        found = "this is the best plan" if plan.statements else "no plan was found"
        say(f"poet-host: interrupted: {found} so far")
        return 128 + number
    if plan.status == "infeasible":
        say(f"poet-host: {api.why_no_plan(graph, plan)}{_because(plan)}")
    return _exit_code(plan, gap)


def _profile(
    graph: Graph | CostGraph, board: str | None, profile_name: str | None
) -> Profile | None:
    if isinstance(graph, CostGraph):
        if board or profile_name:
            raise BadInput(f"{graph.name} has its costs: leave out --board and --profile")
        return None
    return profile_of(board, profile_name)


def _state(energy: float | None, bound: float | None, gap: float | None, seconds: float) -> str:
    def shown(value: float | None) -> str:
        return "?" if value is None else f"{value:,.1f}"

    gap_text = "" if gap is None else f", gap {gap:.2%}"
    return f"{shown(energy)} uJ, at least {shown(bound)}{gap_text}"


def _facts(keep: Plan | None, plan: Plan) -> list[tuple[str, str]]:
    assert plan.energy_uj is not None
    assert plan.time_us is not None
    energy = f"{plan.energy_uj:,.1f} uJ{_times(plan.energy_uj, keep.energy_uj if keep else None)}"
    time = f"{plan.time_us / 1e3:,.3f} ms{_times(plan.time_us, keep.time_us if keep else None)}"
    ops = [statement.op for statement in plan.statements]
    nodes = {s.node for s in plan.statements if s.op == "compute"}
    return [
        ("status", plan.status + (f", gap {plan.gap:.2%}" if plan.gap else "")),
        *([("search", _ENDS[plan.stopped_by])] if plan.stopped_by else []),
        ("energy of a step", energy),
        ("time of a step", time),
        ("RAM", f"{plan.peak_bytes:,} of {plan.ram_bytes:,} bytes"),
        ("keep-everything needs", f"{keep.peak_bytes:,} bytes" if keep else "no such plan"),
        ("computed again", str(ops.count("compute") - len(nodes))),
        ("paged in, out", f"{ops.count('page_in')}, {ops.count('page_out')}"),
        ("solved in", f"{plan.solve_s:.2f} s"),
        *([("beyond the method", plan.note)] if plan.note else []),
    ]  # fmt: skip


def _times(mine: float, kept: float | None) -> str:
    return f" ({mine / kept:.2f}x)" if kept else ""


def _because(plan: Plan) -> str:
    return f" ({plan.method}: {plan.note})" if plan.note else ""


def _exit_code(plan: Plan, gap: float | None) -> int:
    """0, or the code of what is missing, with a sentence about it on stderr."""
    more = "" if plan.stopped_by == "exhausted" else "give more --time-limit, or "
    ended = f"{_ENDS[plan.stopped_by]}: " if plan.stopped_by else ""
    if plan.status == "infeasible":
        return EXIT_INFEASIBLE
    if plan.status == "unknown":
        say(
            f"poet-host: no plan was found in {plan.solve_s:.1f} s, nor proved not to exist"
            f"{_because(plan)}; {ended}{more}give more --ram"
        )
        return EXIT_UNKNOWN
    if gap is not None and plan.gap is not None and plan.gap > gap:
        say(
            f"poet-host: the plan is valid, but its gap is {plan.gap:.2%}, not within {gap:.2%}; "
            f"{ended}{more}accept it with a larger --gap"
        )
        return EXIT_GAP
    return 0
