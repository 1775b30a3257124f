"""The command that plans: solve."""

import math
from pathlib import Path
from typing import Any, Literal

import click

from .. import api
from ..device.board import load_board
from ..errors import BadInput
from ..files import write_whole
from ..graph.graph import Graph
from ..plan.plan import Plan, plan_to_json
from ..plan.problem import CostGraph
from ..profile.profile import Profile, estimate_profile
from .console import emit, progress, say, show_table, to_json
from .options import FiniteRange, files_of, json_option, model_options, output, writable

EXIT_INFEASIBLE, EXIT_GAP, EXIT_UNKNOWN = 5, 6, 7

board_option = click.option("--board", metavar="BOARD", help="Solve for this board's figures.")
profile_option = click.option(
    "--profile", "profile_name", metavar="FILE",
    help="Solve for what `profile` measured; or, with --board, for its `estimate` (the default) or "
    "the figures of the POET `paper`.",
)  # fmt: skip
deadline_option = click.option(
    "--deadline", metavar="LIMIT",
    help="Milliseconds of a step, 1.2x of keep-everything's time, or none (the default).",
)  # fmt: skip
time_limit_option = click.option(
    "--time-limit", type=FiniteRange(0.1), default=60.0, show_default=True, metavar="S",
    help="Seconds for solving.",
)  # fmt: skip
gap_option = click.option(
    "--gap", type=FiniteRange(0, 1), default=0.0, show_default=True, metavar="G",
    help="Stop when energy is proved to be within this relative gap.",
)  # fmt: skip


@click.command()
@click.argument("model")
@board_option
@profile_option
@click.option(
    "--ram", required=True, metavar="LIMIT",
    help="Bytes, or 24KiB, or 50% of what keeping everything needs.",
)  # fmt: skip
@deadline_option
@click.option("--deadline-us", type=float, metavar="US", help="The deadline in microseconds.")
@click.option("--method", type=click.Choice(api.ALL_METHODS), default="poet", show_default=True)
@time_limit_option
@gap_option
@click.option("--unplaced", is_flag=True, help="Bound the sum of bytes only; no offsets.")
@output("--output", "-o", help="Write the schedule, a .poet file.")
@output("--plan", "plan_path", help="Write the plan as JSON.")
@model_options
@json_option
def solve(
    model: str,
    board: str | None,
    profile_name: str | None,
    ram: str,
    deadline: str | None,
    deadline_us: float | None,
    method: str,
    time_limit: float,
    gap: float,
    unplaced: bool,
    output: Path | None,
    plan_path: Path | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Find the schedule of least energy for MODEL: built-in, an .onnx file, or a cost graph."""
    if deadline is not None and deadline_us is not None:
        raise BadInput("give --deadline or --deadline-us, not both")
    if deadline_us is not None and not (math.isfinite(deadline_us) and deadline_us > 0):
        raise BadInput(f"--deadline-us {deadline_us}: a deadline is a positive number")
    writable(output, plan_path, read=(*files_of(model), profile_name))
    if unplaced and output:
        raise BadInput("a schedule needs offsets: leave out --unplaced, or write a --plan")
    graph = api.load(model, **options)
    profile = _profile(graph, board, profile_name)
    with progress(f"solving {graph.name}") as report:
        plan = api.solve(
            graph,
            profile,
            ram=ram,
            deadline=deadline if deadline_us is None else f"{deadline_us!r}us",
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
        schedule = api.encode(graph, profile, plan, meta)
        schedule.save(output)
        say(f"wrote {output}: {len(schedule.plan_part)} bytes of plan")
    if as_json:
        emit(plan_to_json(plan, statements=False))
    elif plan.statements:
        show_table(("", ">"), _facts(graph, profile, plan))
    return _exit_code(plan, gap)


def _profile(
    graph: Graph | CostGraph, board: str | None, profile_name: str | None
) -> Profile | None:
    if isinstance(graph, CostGraph):
        if board or profile_name:
            raise BadInput(f"{graph.name} has its costs: leave out --board and --profile")
        return None
    return profile_of(board, profile_name)


def profile_of(board: str | None, profile_name: str | None) -> Profile:
    """The costs that --board and --profile choose."""
    kind: Literal["estimate", "paper"] = "paper" if profile_name == "paper" else "estimate"
    from_board = profile_name in (None, "estimate", "paper")
    if from_board and board is None:
        raise BadInput(
            "costs come from --board NAME (estimated) or --profile FILE (measured); with --board, "
            "--profile paper takes the POET paper's figures"
        )
    if from_board:
        return estimate_profile(load_board(board or ""), kind)
    if board is not None:
        raise BadInput(
            f"--profile {profile_name} was measured on one board: leave out --board, or choose "
            "--profile estimate or --profile paper"
        )
    return Profile.load(profile_name or "")


def _state(energy: float | None, bound: float | None, gap: float | None, seconds: float) -> str:
    def shown(value: float | None) -> str:
        return "?" if value is None else f"{value:,.1f}"

    gap_text = "" if gap is None else f", gap {gap:.2%}"
    return f"{shown(energy)} uJ, at least {shown(bound)}{gap_text}"


def _facts(graph: Graph | CostGraph, profile: Profile | None, plan: Plan) -> list[tuple[str, str]]:
    keep = api.keeping(api.costs_of(graph, profile))
    assert plan.energy_uj is not None
    assert plan.time_us is not None
    energy = f"{plan.energy_uj:,.1f} uJ{_times(plan.energy_uj, keep.energy_uj if keep else None)}"
    time = f"{plan.time_us / 1e3:,.3f} ms{_times(plan.time_us, keep.time_us if keep else None)}"
    ops = [statement.op for statement in plan.statements]
    nodes = {s.node for s in plan.statements if s.op == "compute"}
    return [
        ("status", plan.status + (f", gap {plan.gap:.2%}" if plan.gap else "")),
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


def _exit_code(plan: Plan, gap: float) -> int:
    """0, or the code of what is missing, with a sentence about it on stderr."""
    if plan.status == "infeasible":
        say(f"poet-host: {api.why_infeasible(plan)}{_because(plan)}")
        return EXIT_INFEASIBLE
    if plan.status == "unknown":
        say(
            f"poet-host: no plan was found in {plan.solve_s:.1f} s, nor proved not to exist"
            f"{_because(plan)}: give more --time-limit, or more --ram"
        )
        return EXIT_UNKNOWN
    if plan.gap is not None and plan.gap > gap:
        say(
            f"poet-host: the plan is valid, but its gap is {plan.gap:.2%}, not within {gap:.2%}: "
            "give more --time-limit, or accept it with --gap"
        )
        return EXIT_GAP
    return 0
