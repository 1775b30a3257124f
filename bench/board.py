"""`make bench`: what a RAM budget costs on a board, compared with keep-everything in the same run.

For each model one native board has enough memory to keep everything, and for each budget another
board has just that budget. The boards take turns, step by step, so that other processes slow all of
them alike. Prints a table and writes RESULTS-board.md.
"""

import argparse
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean, median

import poet_host as poet
from poet_host.data.datasets import load_data
from poet_host.data.fitted import fit
from poet_host.files import write_whole
from poet_host.plan.plan import Plan
from poet_host.profile.profile import board_power
from poet_host.run.energy import mean_energy_uj
from poet_host.run.run import Run, weights_sha256
from poet_host.run.train import Training

from .report import about, filled, number, percent, table

RESULTS = Path(__file__).with_name("RESULTS-board.md")
SOLVE_WORK = 10_000
GAP = 0.01
COMMIT_EVERY = (1, 10)  # N: weights that stay in RAM are written every N steps
ROOM_BYTES = 1 << 26  # arena for profiling: holds any operator with its tensors


@dataclass(frozen=True)
class Case:
    """What is measured of one model."""

    model: str
    data: str
    percents: tuple[int, ...]  # budgets, per cent of keep-everything's peak
    steps: int  # to train, a multiple of every N


CASES = (
    Case("resnet-digits", "digits", (75, 50), 200),
    Case("resnet8-cifar", "synthetic:3x32x32:10", (75, 50), 60),
    Case("resnet18-cifar", "synthetic:3x32x32:10", (80, 65), 40),
)


@dataclass(frozen=True)
class Measured:
    """One board's run of a plan."""

    case: Case
    percent: int  # 100 is keep-everything
    every: int  # N
    plan: Plan
    run: Run
    model_part_bytes: int


def measure(case: Case, steps: int) -> list[Measured]:
    """Profile, solve for each budget, and train on all boards in turns."""
    graph = poet.load(case.model)
    assert isinstance(graph, poet.Graph)
    with poet.connect("native", arena_bytes=ROOM_BYTES) as board:
        profile = board.profile(graph)
    plans = {(100, 1): poet.keep_everything(poet.costs_of(graph, profile))}
    for budget, every in product((100, *case.percents), COMMIT_EVERY):
        if (budget, every) in plans:
            continue
        wanted = poet.problem(graph, profile, ram=f"{budget}%", commit_every=every)
        plan = poet.solve(wanted, work_limit=SOLVE_WORK, gap=GAP)
        if plan.statements:
            plans[budget, every] = plan
        else:
            print(f"{case.model}, {budget} %, N = {every}: {plan.status}", flush=True)
    data = load_data(case.data)
    with ExitStack() as stack:
        turns = []
        for plan in plans.values():
            schedule = poet.encode(graph, profile, plan)
            arena_bytes = plan.ram_bytes // 4 * 4
            board = stack.enter_context(poet.connect("native", arena_bytes=arena_bytes))
            turns.append(Training(board.device, schedule, fit(data, schedule.graph)))
        for _ in range(steps):
            for training in turns:
                training.step()
        runs = [training.finish() for training in turns]
    if len({weights_sha256(run.weights) for run in runs}) != 1:
        raise poet.PoetError(f"{case.model}: the boards' trained weights differ")
    return [
        Measured(case, budget, every, plan, run, len(training.schedule.model_part))
        for ((budget, every), plan), run, training in zip(plans.items(), runs, turns, strict=True)
    ]


def report(measured: Sequence[Sequence[Measured]], seconds: float) -> str:
    head = ["model", "RAM", "N", "budget bytes", "high-water mark", "of keep-everything's",
            "energy uJ", "ratio", "as planned", "time ms", "ratio", "as planned", "computed again",
            "paged out", "paged in", "plan bytes", "model bytes"]  # fmt: skip
    rows = [_row(board, group[0]) for group in measured for board in group]
    return filled(
        "board", about=about("highspy", "numpy"), seconds=seconds, table=table(head, rows)
    )


def _row(mine: Measured, keep: Measured) -> list[str]:
    run, counts = mine.run, mine.run.counts()
    (time_us, step_uj), (keep_us, keep_uj) = _medians(run), _medians(keep.run)
    return [
        mine.case.model,
        f"{mine.percent} %",
        str(mine.every),
        f"{mine.plan.ram_bytes:,}",
        f"{run.peak_bytes:,}",
        percent(run.peak_bytes / keep.run.peak_bytes, 1) + " %",
        number(step_uj, 0),
        _ratio(step_uj, keep_uj),
        _ratio(mine.plan.energy_uj, keep.plan.energy_uj),
        number(time_us / 1e3),
        _ratio(time_us, keep_us),
        _ratio(mine.plan.time_us, keep.plan.time_us),
        str(counts["activation_recomputes"]),
        str(counts["activation_page_outs"]),
        str(counts["activation_page_ins"]),
        str(run.schedule_bytes),
        f"{mine.model_part_bytes:,}",
    ]


def _medians(run: Run) -> tuple[float, float]:
    """Return time (us) and energy (uJ) of a step: medians of the means of N steps."""
    power = board_power(poet.load_board(run.board))
    starts = range(0, len(run.steps), run.commit_every)
    periods = [run.steps[start : start + run.commit_every] for start in starts]
    times_us = (fmean(step.time_us for step in steps) for steps in periods)
    return median(times_us), median(mean_energy_uj(steps, (), power)[0] for steps in periods)


def _ratio(mine: float | None, other: float | None) -> str:
    return number(mine / other if mine is not None and other else None)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.board", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few steps of each; no file")
    parser.add_argument("--only", metavar="NAME", help="only models whose name contains NAME")
    options = parser.parse_args()
    chosen = [case for case in CASES if options.only is None or options.only in case.model]
    if not chosen:
        parser.error(f"no model has a name with {options.only!r} in it")
    began = time.monotonic()
    measured = []
    for case in chosen:
        measured.append(measure(case, min(case.steps, 10) if options.quick else case.steps))
        print(f"{case.model}: {time.monotonic() - began:.0f} s", flush=True)
    text = report(measured, time.monotonic() - began)
    print(text)
    if not (options.quick or options.only):
        write_whole(RESULTS, text)


if __name__ == "__main__":
    main()
