"""Train a small network in 24 KiB of RAM, and compare it with training in unlimited memory.

`poet-host demo` runs this program with progress bars. `python examples/demo.py native` runs it
alone. The function `run` has the whole way, from a model to trained weights.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import poet_host as poet

MODEL = "resnet-digits"
NATIVE = "native"  # a board that is a process on this computer
RAM_BYTES = 24 * 1024  # RAM that the firmware leaves free on an MKR1000, which has 32 KiB
GAP = 0.01
SOLVING_S = 45.0
SAMPLES = 512
KNOWN_DIGITS = 7  # the initial weights are trained on seven classes, the digits 0 to 6
PRETRAINING_EPOCHS = 3
SEED = 0

Weights = Mapping[str, Any]
Report = Callable[[int, int, str], None]  # receives: steps that are done, all steps, a text


@dataclass(frozen=True)
class Result:
    """What the demo has made and measured."""

    graph: poet.Graph
    plan: poet.Plan
    schedule: poet.Schedule
    run: poet.Run  # within RAM_BYTES
    keep: poet.Run  # with every tensor in RAM, on a native board
    keep_schedule: poet.Schedule  # of the same step, for the board of `run`
    accuracy_before: float  # of the held-out digits, 0 to 1
    accuracy_after: float


class Steps:
    """Prints, for each step of the demo, its number, its progress and then its results."""

    def __init__(
        self,
        progress: Callable[[str], AbstractContextManager[Report]],
        say: Callable[[str], None],
    ) -> None:
        self._progress, self._say = progress, say
        self._count, self._results = 0, list[str]()

    @contextmanager
    def step(self, title: str) -> Iterator[Report]:
        self._count += 1
        self._results.clear()
        with self._progress(f"{self._count:2}. {title}") as report:
            yield report
        for text in self._results:  # print the results after the progress bar has ended
            self._say(f"    {text}")

    def result(self, text: str) -> None:
        self._results.append(text)


def run(out: Path, port: str, steps: Steps) -> Result:
    """Train on the board at `port`, and write profile, plan, schedule and weights to `out`.

    Raises PoetError if the trained weights differ from those of training in unlimited memory.
    """
    graph = poet.load(MODEL)
    assert isinstance(graph, poet.Graph)
    known, ten = split(poet.load_data("digits"))
    with start(port, steps) as board:
        with steps.step("pre-training on the digits 0 to 6, on the native board") as report:
            initial = pretrain(graph, known, report)
            before = accuracy(graph, initial, ten)
            steps.result(f"{before:.1%} of the held-out digits (0 to 9) are correct")

        with steps.step(f"profiling every operator and the storage on {port}") as report:
            profile = board.profile(graph, progress=report)
            steps.result(f"{len(profile.operators)} operators measured")
        with steps.step("running two schedules, to compare with the prediction") as report:
            profile, outcome = validate(board, graph, profile, report)
            profile.save(out / "profile.json")
            steps.result(f"{outcome}; wrote profile.json")

        plan, schedule = make_schedule(graph, profile, port, out, steps)

        keep = poet.keep_everything(poet.costs_of(graph, profile))
        keep_schedule = poet.encode(graph, profile, keep)
        with steps.step("starting a native board with unlimited memory, for comparison"):
            unlimited = poet.connect(NATIVE, arena_bytes=keep.peak_bytes)
            steps.result(f"it answers at {unlimited.device.link.port}")
        with unlimited:
            trainings = [
                poet.begin_training(encoded, where, ten, seed=SEED, weights=initial)
                for encoded, where in ((schedule, board), (keep_schedule, unlimited))
            ]
            tuned, kept = train_both(trainings, SAMPLES // graph.batch, steps)
    poet.save_weights(out / "trained.safetensors", graph, tuned.weights)
    tuned.save(out / "run.json")

    after = accuracy(graph, tuned.weights, ten)
    check(graph, initial, tuned, kept)
    return Result(graph, plan, schedule, tuned, kept, keep_schedule, before, after)


def train_both(trainings: list[Any], count: int, steps: Steps) -> list[poet.Run]:
    """Train each step on both boards in turn, so that other processes slow down both alike."""
    with steps.step(f"training {count} steps on both boards in turn") as report:
        for done in range(count):
            losses = [training.step().loss for training in trainings]
            report(done + 1, count, f"loss {losses[0]:.3f} and {losses[1]:.3f}")
        runs: list[poet.Run] = [training.finish() for training in trainings]
        first, last = runs[0].loss("first"), runs[0].loss("last")
        steps.result(f"mean loss {first:.3f} at the start, {last:.3f} at the end")
    return runs


def split(digits: poet.Dataset) -> tuple[poet.Dataset, poet.Dataset]:
    """Return samples for pre-training (digits 0 to 6), and samples for the board.

    No sample is in both data sets. The held-out samples of `digits` are in neither of them.
    """
    order = np.random.default_rng(SEED).permutation(len(digits.x))
    chosen, rest = order[:SAMPLES], order[SAMPLES:]
    rest = rest[digits.y[rest] < KNOWN_DIGITS]
    known = replace(digits, name="digits 0 to 6", x=digits.x[rest], y=digits.y[rest])
    return known, replace(digits, x=digits.x[chosen], y=digits.y[chosen])


def accuracy(graph: poet.Graph, weights: Weights, data: poet.Dataset) -> float:
    assert data.x_test is not None
    assert data.y_test is not None
    return poet.accuracy(graph, weights, data.x_test, data.y_test)


def start(port: str, steps: Steps) -> poet.Connection:
    """Start a board. If a simulated chip cannot run here, the error suggests the native board."""
    with steps.step(f"starting the board {port}"):
        try:
            board = poet.connect(port, arena_bytes=RAM_BYTES if port == NATIVE else None)
        except poet.PoetError as error:
            if port == NATIVE or isinstance(error, poet.BadInput):
                raise
            raise poet.PoetError(
                f"{error}. Run the demo on the native board instead: `poet-host demo --port "
                f"{NATIVE}`"
            ) from error
        info = board.device.info
        steps.result(
            f"{info.board} answers at {board.device.link.port}, with an arena of "
            f"{info.arena_bytes:,} bytes"
        )
    return board


def pretrain(graph: poet.Graph, data: poet.Dataset, report: Report) -> Weights:
    """Return weights that were trained in unlimited memory."""
    keep = poet.keep_everything(poet.costs_of(graph, NATIVE))
    with poet.connect(NATIVE, arena_bytes=keep.peak_bytes) as unlimited:
        made = poet.train(
            poet.encode(graph, NATIVE, keep), unlimited, data, epochs=PRETRAINING_EPOCHS, seed=SEED,
            on_step=lambda step, total: report(step.step, total, f"loss {step.loss:.3f}"),
        )  # fmt: skip
    return made.weights


def validate(
    board: poet.Connection, graph: poet.Graph, measured: poet.Profile, report: Report
) -> tuple[poet.Profile, str]:
    """Return the calibrated profile, and a text that compares its prediction with a run.

    If validation is impossible, return the profile `measured`, and the reason.
    """
    try:
        profile, found = board.validate(
            graph, measured, lambda done, total: report(done, total, "steps")
        )
    except poet.BadInput as error:
        return measured, f"not validated: {error}"
    predicted_ms, measured_ms = found.predicted_us / 1e3, found.time_us / 1e3
    return profile, f"a step takes {measured_ms:,.2f} ms; the prediction was {predicted_ms:,.2f} ms"


def make_schedule(
    graph: poet.Graph, profile: poet.Profile, port: str, out: Path, steps: Steps
) -> tuple[poet.Plan, poet.Schedule]:
    """Solve for the minimum energy within RAM_BYTES, verify the plan, and encode and draw it."""

    def searching(energy: Any, bound: Any, gap: float | None, seconds: float) -> None:
        within = gap is not None and gap <= 0.5
        report(0, 0, f"within {gap:.1%} of the minimum" if within else "searching")

    # A deadline is a multiple of the time of a step in which every tensor stays in RAM. On a chip,
    # paging takes less time but more energy than recomputing, so a tight deadline makes a plan use
    # both. On a computer, paging takes processor time too, so a tight deadline may be impossible.
    # If no plan is found within the deadline, the demo continues without a deadline.
    with steps.step("solving for the minimum energy with HiGHS") as report:
        for deadline in ("1.5x" if port == NATIVE else "1.1x", None):
            problem = poet.problem(graph, profile, ram=RAM_BYTES, deadline=deadline)
            plan = poet.solve(problem, gap=GAP, time_limit_s=SOLVING_S, progress=searching)
            if plan.statements:
                break
        schedule = poet.encode(graph, plan, about={"model": MODEL})  # raises if there is no plan
        plan.save(out / "plan.json")
        proof = f"within {plan.gap:.1%} of the minimum" if plan.gap else "proved to be the minimum"
        steps.result(f"{proof}, in {plan.solve_s:.1f} s; wrote plan.json")
    with steps.step("verifying the plan independently of the solver"):
        totals = poet.verify(problem, plan)
        steps.result(f"peak {totals.peak_bytes:,} bytes, {totals.energy_uj:,.0f} uJ a step")
    with steps.step("encoding the plan, and decoding it for comparison"):
        schedule.save(out / f"{MODEL}.poet")
        steps.result(f"the plan has {len(schedule.plan_part)} bytes; wrote {MODEL}.poet")
    if find_spec("matplotlib") is not None:
        with steps.step("drawing the plan"):
            poet.draw(schedule, out / "schedule.png")
            steps.result("wrote schedule.png")
    return plan, schedule


def check(graph: poet.Graph, initial: Weights, tuned: poet.Run, kept: poet.Run) -> None:
    """Raise PoetError unless the runs trained every tensor, to the same bits."""
    for name in (node.name for node in graph.trainable):
        values = tuned.weights[name].tobytes()
        if values != kept.weights[name].tobytes():
            raise poet.PoetError(
                f"the trained tensor {name} differs from the result of training in unlimited memory"
            )
        if values == initial[name].tobytes():
            raise poet.PoetError(f"training did not change the tensor {name}")


@contextmanager
def plain_progress(title: str) -> Iterator[Report]:
    print(title)
    yield lambda done, total, text: None


def main() -> None:
    out, port = Path("poet-demo"), (*sys.argv[1:], "sim:mkr1000")[0]
    out.mkdir(exist_ok=True)
    made = run(out, port, Steps(plain_progress, print))
    print(f"{made.keep.peak_bytes:,} bytes of RAM: {made.keep}")
    print(f"{made.run.peak_bytes:,} bytes of RAM, the same bits: {made.run}")
    print(f"accuracy on held-out digits: {made.accuracy_before:.1%}, now {made.accuracy_after:.1%}")


if __name__ == "__main__":
    main()
