"""Commands that plan: solve and compare."""

import math
from pathlib import Path
from typing import Any

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
from .options import FiniteRange, json_option, model_options, output, writable

EXIT_INFEASIBLE, EXIT_GAP, EXIT_UNKNOWN = 5, 6, 7

board_option = click.option("--board", metavar="BOARD", help="Solve for this board's figures.")
profile_option = click.option(
    "--profile", "profile_path", type=click.Path(path_type=Path), metavar="FILE",
    help="Solve for what `profile` measured.",
)  # fmt: skip
paper_option = click.option(
    "--paper", is_flag=True, help="With --board: the figures of the POET paper for it."
)
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
@paper_option
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
    profile_path: Path | None,
    paper: bool,
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
    writable(output, plan_path, read=(model if Path(model).suffix else None, profile_path))
    if unplaced and output:
        raise BadInput("a schedule needs offsets: leave out --unplaced, or write a --plan")
    graph = api.load(model, **options)
    profile = _profile(graph, board, profile_path, paper)
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
    graph: Graph | CostGraph, board: str | None, path: Path | None, paper: bool
) -> Profile | None:
    if isinstance(graph, CostGraph):
        if board or path or paper:
            raise BadInput(f"{graph.name} has its costs: leave out --board, --profile, --paper")
        return None
    if (board is None) == (path is None):
        raise BadInput("costs come from --board NAME (estimated) or --profile FILE (measured)")
    if board is not None:
        return estimate_profile(load_board(board), "paper" if paper else "estimate")
    if paper:
        raise BadInput("--paper goes with --board: a profile that was measured has its figures")
    return Profile.load(path or "")


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
    ]  # fmt: skip


def _times(mine: float, kept: float | None) -> str:
    return f" ({mine / kept:.2f}x)" if kept else ""


def _exit_code(plan: Plan, gap: float) -> int:
    """0, or the code of what is missing, with a sentence about it on stderr."""
    if plan.status == "infeasible":
        say(f"poet-host: {api.why_infeasible(plan)}")
        return EXIT_INFEASIBLE
    if plan.status == "unknown":
        say(
            f"poet-host: no plan was found in {plan.solve_s:.1f} s, nor proved not to exist: "
            "give more --time-limit, or more --ram"
        )
        return EXIT_UNKNOWN
    if plan.gap is not None and plan.gap > gap:
        say(
            f"poet-host: the plan is valid, but its gap is {plan.gap:.2%}, not within {gap:.2%}: "
            "give more --time-limit, or accept it with --gap"
        )
        return EXIT_GAP
    return 0


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


@click.command()
@click.argument("model")
@board_option
@profile_option
@paper_option
@click.option(
    "--budgets", default="100%,75%,50%,40%,30%", show_default=True, metavar="LIST",
    help="RAM budgets, separated by commas.",
)  # fmt: skip
@click.option(
    "--methods", default=",".join(api.ALL_METHODS), show_default=True, metavar="LIST",
    help="Methods, separated by commas.",
)  # fmt: skip
@deadline_option
@time_limit_option
@gap_option
@click.option(
    "--output", "-o", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="Write every plan, and compare.json, into this folder.",
)  # fmt: skip
@model_options
@json_option
def compare(
    model: str,
    board: str | None,
    profile_path: Path | None,
    paper: bool,
    budgets: str,
    methods: str,
    deadline: str | None,
    time_limit: float,
    gap: float,
    output: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Solve MODEL by several methods under several budgets, and compare."""
    unknown = [name for name in _listed(methods) if name not in api.ALL_METHODS]
    if unknown:
        raise BadInput(f"there is no method {unknown[0]}: choose of {', '.join(api.ALL_METHODS)}")
    graph = api.load(model, **options)
    profile = _profile(graph, board, profile_path, paper)
    if output:
        output.mkdir(parents=True, exist_ok=True)
    jobs = [(budget, method) for budget in _listed(budgets) for method in _listed(methods)]
    rows = []
    with progress(f"comparing {len(jobs)} plans of {graph.name}") as report:
        for done, (budget, method) in enumerate(jobs):
            report(done, len(jobs), f"{method} in {budget}")
            plan = api.solve(
                graph, profile, ram=budget, deadline=deadline, method=method,
                time_limit_s=time_limit, gap=gap,
            )  # fmt: skip
            whole = plan_to_json(plan)
            if output:
                name = f"{method}-{budget.replace('%', 'pc')}.plan.json"
                write_whole(output / name, to_json(whole))
            row = {key: value for key, value in whole.items() if key != "statements"}
            rows.append({"budget": budget, **row, "method": method})
    result = {"model": graph.name, "plans": rows}
    if output:
        write_whole(output / "compare.json", to_json(result))
        say(f"wrote {len(jobs)} plans and compare.json into {output}")
    if as_json:
        emit(result)
        return
    columns = ("budget", ">bytes", "method", "status", ">energy, uJ", ">time, ms", ">peak, bytes")
    show_table(columns, [_row(row) for row in rows], title=graph.name)


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    def shown(key: str, scale: float = 1.0, digits: int = 1) -> str:
        return "" if row[key] is None else f"{row[key] / scale:,.{digits}f}"

    return (
        row["budget"], f"{row['ram_bytes']:,}", row["method"], row["status"],
        shown("energy_uj"), shown("time_us", 1e3, 3), shown("peak_bytes", digits=0),
    )  # fmt: skip
