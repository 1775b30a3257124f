"""The command `solve`."""

import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from .. import api
from ..errors import BadInput
from ..graph.summary import Summary
from ..plan.limits import check_arena
from ..plan.whole_training import battery_of, duration_us, step_deadline_us, whole_training
from ..solver.solve import DEFAULT_GAP
from ..stream.traffic import traffic_of
from ..view.plan_table import (
    SEARCH_ENDS,
    inference_rows,
    interval_rows,
    intervals_of,
    plan_rows,
    traffic_rows,
    training_rows,
)
from .console import emit, progress, say, show_table
from .declared import FiniteRange, option, takes
from .info import MAX_ROWS, is_loss_assumed, show_model
from .options import (
    BOARD,
    EPOCHS,
    MODEL,
    PROFILE,
    DataSizeOptions,
    ModelOptions,
    SearchOptions,
    model_files,
    profile_of,
)
from .signals import keyboard_interrupts
from .written import check_writable, output_file

EXIT_INFEASIBLE, EXIT_GAP, EXIT_UNKNOWN = 5, 6, 7


@dataclass(frozen=True, kw_only=True)
class SolveOptions:
    """The options of the command.

    --board BOARD  Estimate energy and time from the description of this board. `poet-host boards`
        lists all boards. [default: the board of --profile]
    --ram LIMIT  RAM budget: bytes, a size such as 24KiB, or a share such as 50%. 100% is the RAM
        that a training step needs if every tensor stays in RAM. [default: the arena of the board]
    --beyond-arena  Allow a --ram that exceeds the arena (RAM for tensors) of the board. The
        schedule is for studies only: the board cannot run it.
    --no-storage  Plan for a board without a card: tensors are recomputed, never paged, and the
        parameters and the state of the optimiser stay in RAM. A profile that was measured with
        --no-storage implies this option.
    --streaming/--no-streaming  Let operators stream their operands through small buffers, part by
        part. Then models train whose operators exceed the RAM. [default: if an operator hardly fits
        the RAM]
    --slice TIME  Longest time for which a computation may occupy the processor without a pause,
        such as 10ms. Operators that take longer run cell by cell where that is possible; `poet-host
        show` names the longest slice. [default: none]
    --deadline LIMIT  Deadline of a training step: milliseconds, a multiple such as 1.2x, or none.
        1x is the time that the step takes if every tensor stays in RAM. [default: none]
    --deadline-us US  Deadline of a training step, in microseconds. [default: the limit of
        --deadline]
    --finish-in TIME  Deadline of the whole training on --data for --epochs: 45s, 90min, 8h or 2d.
        [default: the limit of --deadline]
    --battery SIZE  Say how long this battery lasts: 2000mAh (at 3.7 V), 2000mAh@3V or 7.4Wh.
        [default: none]
    --gap G  Stop when it is proved that any other plan saves at most this share of what the best
        plan found so far needs (0.01 = 1 %). With 0, it must be proved that no plan is better. The
        exit code is 6 if the search ends without this proof.
    --commit-every N  Write weights that stay in RAM from step to step to the card once in N steps.
        A power cut loses the last N - 1 steps at most, and the running one. [default: 1, or that of
        a cost graph]
    --unplaced  Limit only the total number of bytes in RAM, and assign no memory offsets to
        tensors. The plan cannot become a schedule.
    --output, -o FILE  Write the schedule to this .poet file.
    --no-forward  Leave out the forward program, with which a board computes the outputs of the
        model in the same RAM (`evaluate`).
    --plan FILE  Write the plan to this JSON file.
    """

    model: str = MODEL
    board: str | None = BOARD
    profile_name: str | None = PROFILE
    ram: str | None = None
    beyond_arena: bool = False
    no_storage: bool = False
    streaming: bool | None = None
    slice_limit: str | None = option("--slice")
    deadline: str | None = None
    deadline_us: float | None = option(type=float)
    finish_in: str | None = None
    data: DataSizeOptions
    epochs: int | None = EPOCHS
    battery: str | None = None
    method: str = option(
        type=click.Choice(api.ALL_METHODS), default="poet", show_default=True, metavar="METHOD",
        help=f"Planning method: {', '.join(api.ALL_METHODS)}. `poet-host compare --help` "
        "describes them.",
    )  # fmt: skip
    search: SearchOptions
    gap: float | None = option(
        type=FiniteRange(0, 1), show_default=f"{DEFAULT_GAP}, and any plan exits with 0"
    )
    commit_every: int | None = option(type=click.IntRange(1))
    unplaced: bool = False
    output: Path | None = output_file(suffix=".poet")
    no_forward: bool = False
    plan_path: Path | None = output_file("--plan", suffix=".json", is_strict=False)
    options: ModelOptions
    as_json: bool

    def check(self) -> None:
        deadlines = {
            "--deadline": self.deadline, "--deadline-us": self.deadline_us,
            "--finish-in": self.finish_in,
        }  # fmt: skip
        if len(given := [name for name, limit in deadlines.items() if limit is not None]) > 1:
            raise BadInput(f"{given[0]} and {given[1]} exclude each other: omit one")
        self.search.limit_s()
        for text, read in ((self.battery, battery_of), (self.finish_in, duration_us)):
            if text is not None:
                read(text)
        for_data = {
            "--epochs": self.epochs, "--finish-in": self.finish_in,
            "--test-split": self.data.test_split, "--header": self.data.header,
        }  # fmt: skip
        for name, value in for_data.items():
            if self.data.data is None and value is not None:
                raise BadInput(f"{name} is about the whole training: add --data")
        us = self.deadline_us
        if us is not None and not (math.isfinite(us) and us > 0):
            raise BadInput(f"--deadline-us {us}: the deadline must be a positive number")
        if self.output and self.commit_every:
            api.check_interval(self.commit_every)
        sources = (*model_files(self.model), self.profile_name, self.data.data)
        check_writable(self.output, self.plan_path, read=sources)
        if self.unplaced and self.output:
            raise BadInput(
                "a schedule needs the memory offsets of its tensors, but --unplaced assigns none: "
                "omit --unplaced or --output"
            )


@click.command()
@takes
def solve(given: SolveOptions) -> int:
    """Find the training schedule that needs the least energy or time.

    MODEL is a built-in model, an .onnx file, or a cost graph (.json). Ctrl-C ends the search and
    writes the best plan so far.
    """
    given.check()
    graph = api.load(given.model, **vars(given.options))
    profile = _profile(graph, given.board, given.profile_name)
    if given.output and isinstance(graph, api.CostGraph):
        if graph.has_modes or graph.starting:
            what = "modes" if graph.has_modes else "tensors that stay in RAM"
            raise BadInput(
                f"{graph.name} has {what}, which the schedule of a cost graph cannot contain: "
                "write the plan with --plan, and omit --output"
            )
        api.check_interval(graph.commit_every)
    steps = _steps(graph, given)
    deadline_us = _deadline_us(graph, profile, steps, given)
    began = time.monotonic()
    problem = _problem(graph, profile, deadline_us, given)
    # Other methods count their work, so the time of pricing may not change their limit.
    priced_s = time.monotonic() - began if api.uses_modes(given.method) else 0.0
    summary = api.summary(graph) if isinstance(graph, api.Graph) else None
    if summary and not given.as_json:
        assumed = is_loss_assumed(given.model, given.options)
        show_model(summary, is_assumed=assumed, max_rows=MAX_ROWS)
    objective = given.search.objective
    with keyboard_interrupts() as interrupted_by:
        with progress(f"solving {graph.name}") as report:
            plan = api.solve(
                problem, method=given.method, gap=given.gap, placed=not given.unplaced,
                work_limit=given.search.work_limit,
                time_limit_s=api.search_limit_s(given.search.limit_s(), priced_s),
                progress=lambda *state: report(0, 0, _state_text(objective, *state)),
            )  # fmt: skip
        forward = _write(graph, plan, given)
    _show(graph, profile, problem, plan, summary, steps, given, forward)
    if number := interrupted_by():
        found = "this is the best plan so far" if plan.statements else "no plan was found so far"
        say(f"poet-host: interrupted: {found}")
        return 128 + number
    if plan.status == "infeasible":
        say(f"poet-host: {api.why_no_plan(graph, plan)}{_because(plan)}")
    return _exit_code(plan, given.gap)


def _deadline_us(
    graph: api.Graph | api.CostGraph,
    profile: api.Profile | None,
    steps: int | None,
    given: SolveOptions,
) -> float | None:
    """Return the deadline of a step; None if there is none, or a text that api.problem reads."""
    deadline_us = given.deadline_us
    if given.finish_in is not None and steps and profile:
        stays = api.uses_modes(given.method)  # the other methods leave nothing in RAM
        costs = api.costs_of(
            graph, profile, storage=not given.no_storage,
            commit_every=given.commit_every if stays else None,
        )  # fmt: skip
        finish_us = duration_us(given.finish_in)
        deadline_us = step_deadline_us(finish_us, steps, costs, profile, stays)
        say(f"deadline of a step: {deadline_us / 1e3:,.3f} ms, and its commit, {steps:,} times")
    return deadline_us


def _problem(
    graph: api.Graph | api.CostGraph,
    profile: api.Profile | None,
    deadline_us: float | None,
    given: SolveOptions,
) -> api.Problem:
    has_modes = api.uses_modes(given.method)
    if given.streaming and not has_modes:
        raise BadInput(f"the operators of a plan by {given.method} cannot stream: omit --streaming")
    if given.slice_limit and not has_modes:
        raise BadInput(f"the operators of a plan by {given.method} have no slices: omit --slice")
    problem = api.problem(
        graph, profile, ram=given.ram, deadline=given.deadline, objective=given.search.objective,
        storage=not given.no_storage, streaming=given.streaming if has_modes else False,
        commit_every=given.commit_every, slice=given.slice_limit,
    )  # fmt: skip
    problem = replace(problem, deadline_us=deadline_us or problem.deadline_us)
    if profile and given.ram is None:
        say(f"RAM budget: the arena of {profile.board}, {problem.ram_bytes:,} bytes")
    if profile and given.output and not given.beyond_arena:
        check_arena(problem.ram_bytes, profile)
    return problem


def _write(
    graph: api.Graph | api.CostGraph, plan: api.Plan, given: SolveOptions
) -> api.Schedule | None:
    if given.plan_path:
        plan.save(given.plan_path)
        say(f"wrote {given.plan_path}")
    if given.output and plan.status in ("optimal", "feasible"):
        meta = {"model": given.model, "options": given.options.given()}
        try:
            schedule = api.encode(graph, plan, about=meta, forward=not given.no_forward)
        except KeyboardInterrupt:  # while an inference is planned: the step is
            say("poet-host: the schedule has no forward program, which evaluate and predict need")
            schedule = api.encode(graph, plan, about=meta, forward=False)
        schedule.save(given.output)
        say(f"wrote {given.output}: a plan of {len(schedule.plan_part):,} bytes")
        return schedule.forward
    return None


def _show(
    graph: api.Graph | api.CostGraph,
    profile: api.Profile | None,
    problem: api.Problem,
    plan: api.Plan,
    summary: Summary | None,
    steps: int | None,
    given: SolveOptions,
    forward: api.Schedule | None,
) -> None:
    """Print the plan, what it moves, and what the whole training needs."""
    solved = plan.problem or problem
    cells = battery_of(given.battery) if given.battery is not None else None
    traffic, needs = traffic_of(graph, solved, plan), None
    often = intervals_of(plan, solved.graph, profile)
    if plan.statements and (steps or cells):
        needs = whole_training(plan, steps or 1, solved.graph, profile)
    if given.as_json:
        about: dict[str, Any] = {"model": asdict(summary)} if summary else {}
        about |= {"training": needs.to_json(cells)} if needs else {}
        about |= {"traffic": asdict(traffic)} if traffic else {}
        about |= {"intervals": [asdict(it) for it in often]} if often else {}
        about |= {"inference": forward.meta["plan"]} if forward else {}
        emit({**plan.to_json(statements=False), **about})
    elif plan.statements:
        facts = plan_rows(problem.keep_everything, plan, solved.graph) + inference_rows(forward)
        if traffic:
            facts += traffic_rows(traffic)
        if often:
            facts += interval_rows(often, steps and steps // (given.epochs or 1))
        if needs:
            knows_commits = profile is not None and solved.graph.storage
            facts += training_rows(needs, cells, knows_commits)
        show_table(("", ">"), facts)


def _profile(
    graph: api.Graph | api.CostGraph, board: str | None, profile_name: str | None
) -> api.Profile | None:
    if isinstance(graph, api.CostGraph):
        if board or profile_name:
            raise BadInput(
                f"{graph.name} is a cost graph with its own costs: omit --board and --profile"
            )
        return None
    return profile_of(board, profile_name)


def _steps(graph: api.Graph | api.CostGraph, given: SolveOptions) -> int | None:
    if given.data.data is None:
        return None
    if isinstance(graph, api.CostGraph):
        raise BadInput(f"{graph.name} is a cost graph, which no data fits: omit --data")
    return api.last_step(given.data.fitted(graph), given.epochs or 1, None)


def _state_text(
    objective: str, value: float | None, bound: float | None, gap: float | None, seconds: float
) -> str:
    """Describe a search: what the best plan so far needs, proved minimum for all plans, and gap."""

    def text(value: float | None) -> str:
        return "?" if value is None else f"{value:,.1f}"

    gap_text = "" if gap is None else f", gap {gap:.2%}"
    unit = "us" if objective == "time" else "uJ"
    return f"{text(value)} {unit}, proved minimum {text(bound)}{gap_text}"


def _because(plan: api.Plan) -> str:
    return f" ({plan.method}: {plan.note})" if plan.note else ""


def _exit_code(plan: api.Plan, gap: float | None) -> int:
    """Return the exit code. Print the reason on stderr if the code is not 0."""
    longer = "" if plan.stopped_by == "exhausted" else "a longer --time-limit or "
    ended = f" The search {SEARCH_ENDS[plan.stopped_by]}." if plan.stopped_by else ""
    if plan.status == "infeasible":
        return EXIT_INFEASIBLE
    if plan.status == "unknown":
        say(
            f"poet-host: found no plan in {plan.solve_s:.1f} s, and no proof that none exists"
            f"{_because(plan)}.{ended} Try {longer}a larger --ram"
        )
        return EXIT_UNKNOWN
    # No plan needs less than 0, so a gap that the search has not proved is at most 1.
    if gap is not None and plan.gap is None and gap < 1:
        say(
            f"poet-host: the plan is valid, but {plan.method} proved no gap of it.{ended} Omit "
            "--gap, or let --method poet search"
        )
        return EXIT_GAP
    if gap is not None and plan.gap is not None and not plan.is_within(gap):
        say(
            f"poet-host: the plan is valid, but its gap of {plan.gap:.2%} exceeds --gap {gap:.2%}."
            f"{ended} Try {longer}a larger --gap"
        )
        return EXIT_GAP
    return 0
