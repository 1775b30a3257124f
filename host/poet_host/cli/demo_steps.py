"""The steps of the demo: from a model to trained weights, which are then checked."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from .. import api
from ..data.fitted import fit
from ..errors import BadInput, PoetError
from ..files import write_whole
from ..graph.weights import Weights
from ..graph.work import work_of
from ..plan.pricing import commit_costs
from ..plan.verify import verify
from ..run.evaluate import held_out_accuracy
from ..run.run import weights_sha256
from ..run.session import Report
from ..run.train import StartingPoint, Training
from ..view.picture import draw
from .console import count_steps, progress, say

MODEL = "resnet-digits"
NATIVE = "native"
# Deadline for each port, as a multiple of the time of a step in which every tensor stays in RAM.
# On a chip, paging takes less time but more energy than recomputing.
# On a chip, a tight deadline therefore makes a plan use both paging and recomputing.
# On a computer, paging takes processor time too, so a tight deadline may be impossible.
# If no plan is found within the deadline, the demo continues without a deadline.
DEADLINES = {"sim:mkr1000": "1.1x", "sim:nrf52840_dk": "1.1x", NATIVE: "1.5x"}
PORTS = tuple(DEADLINES)
RAM_BYTES = 24 * 1024  # RAM that the firmware leaves free on an MKR1000, which has 32 KiB
GAP = 0.01
SOLVING_S = 45.0
SAMPLES = 512
KNOWN_DIGITS = 7  # the initial weights are trained on seven classes, the digits 0 to 6
PRETRAINING_EPOCHS = 3
SEED = 0


class Reporter:
    """Prints, for each step of the demo, its number, its progress and then its results."""

    def __init__(self) -> None:
        self.count = 0
        self.results: list[str] = []

    @contextmanager
    def step(self, title: str) -> Iterator[Report]:
        self.count += 1
        self.results.clear()
        with progress(f"{self.count:2}. {title}") as report:
            yield report
        for text in self.results:  # print the results after the progress bar has ended
            say(f"    {text}")

    def result(self, text: str) -> None:
        self.results.append(text)


@dataclass(frozen=True)
class Cost:
    """The cost of a training step, including the commit: the write that makes new weights valid.

    Energy is estimated: the time in each power state, times the power of that state.
    """

    time_us: float | None
    energy_uj: float | None  # without the base power that the board draws even when it sleeps
    total_energy_uj: float | None
    measured: bool  # True: time_us was measured in a run; False: it is predicted from the profile

    @staticmethod
    def of_run(run: api.Run) -> "Cost":
        return Cost(run.time_us, run.energy_uj, run.total_energy_uj, True)

    @staticmethod
    def of_plan(plan: api.Plan, costs: api.CostGraph, profile: api.Profile) -> "Cost":
        assert plan.time_us is not None
        assert plan.energy_uj is not None
        commit_us, commit_uj = commit_costs(profile, costs, plan.time_us)
        time_us = plan.time_us + commit_us
        energy_uj = plan.energy_uj + commit_uj
        return Cost(time_us, energy_uj, energy_uj + costs.base_power_uw * time_us / 1e6, False)


@dataclass(frozen=True)
class Demo:
    """The results of the demo."""

    graph: api.Graph
    costs: api.CostGraph
    plan: api.Plan
    schedule: api.Schedule
    run: api.Run  # within RAM_BYTES
    keep: api.Run  # the run that keeps everything in RAM, on a native board
    # Cost of a step that keeps everything in RAM on the board of `run`, even if it does not fit.
    keep_cost: Cost
    keep_all_bytes: int
    accuracy_before: float
    accuracy_after: float
    initial: Weights

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that --json prints."""
        run, keep, counts = self.run, self.keep_cost, self.run.counts()
        sha256, kept_sha256 = (weights_sha256(self.trained(made)) for made in (run, self.keep))
        return {
            "model": self.graph.name,
            "board": run.board,
            "batch": self.graph.batch,
            "samples": run.last_step * self.graph.batch,
            "training_macs_per_sample": macs_per_sample(self.graph),
            "ram_bytes": self.plan.ram_bytes,
            "peak_bytes": run.peak_bytes,
            "keep_all_bytes": self.keep_all_bytes,
            "steps": run.last_step,
            "loss_first": run.loss("first"),
            "loss_last": run.loss("last"),
            "accuracy_before": self.accuracy_before,
            "accuracy_after": self.accuracy_after,
            "energy_uj_per_step": run.energy_uj,
            "keep_all_energy_uj_per_step": keep.energy_uj,
            "total_energy_uj_per_step": run.total_energy_uj,
            "keep_all_total_energy_uj_per_step": keep.total_energy_uj,
            "time_us_per_step": run.time_us,
            "keep_all_time_us_per_step": keep.time_us,
            "keep_all_measured": keep.measured,
            "schedule_bytes": len(self.schedule.plan_part),
            "model_table_bytes": len(self.schedule.model_part),
            "status": self.plan.status,
            "gap": self.plan.gap,
            "solve_s": self.plan.solve_s,
            "activations_recomputed": counts["activation_recomputes"],
            "activations_paged_out": counts["activation_page_outs"],
            "activations_paged_in": counts["activation_page_ins"],
            "weights_sha256": sha256,
            "keep_all_weights_sha256": kept_sha256,
            "bit_identical": sha256 == kept_sha256,
        }

    def trained(self, run: api.Run) -> dict[str, Any]:
        """Return the weights that training updates, with their values after `run`."""
        return {node.name: run.weights[node.name] for node in self.graph.trainable}


def macs_per_sample(graph: api.Graph) -> int:
    return sum(work_of(node, graph).macs for node in graph if not node.stored) // graph.batch


def split(digits: api.Dataset) -> tuple[api.Dataset, api.Dataset]:
    """Return samples for pre-training (digits 0 to 6), and samples for the board.

    No sample is in both data sets. The held-out samples of `digits` are in neither of them.
    """
    order = np.random.default_rng(SEED).permutation(len(digits.x))
    chosen, rest = order[:SAMPLES], order[SAMPLES:]
    rest = rest[digits.y[rest] < KNOWN_DIGITS]
    known = replace(digits, name="digits 0 to 6", x=digits.x[rest], y=digits.y[rest])
    return known, replace(digits, x=digits.x[chosen], y=digits.y[chosen])


def run_demo(out: Path, port: str) -> Demo:
    """Run all steps with a board at `port`, and write their results to the folder `out`.

    `port` is one of PORTS. Raises PoetError if the trained weights differ from those of training in
    unlimited memory, or if another check of the results fails.
    """
    graph, reporter = api.load_graph(MODEL), Reporter()
    known, ten = split(api.load_data("digits"))
    with _start(port, reporter) as connection:
        with reporter.step("pre-training on the digits 0 to 6, on the native board") as report:
            initial = _pretrain(graph, known, report)
            before = _accuracy(graph, initial, ten)
            reporter.result(f"{before:.1%} of the held-out digits (0 to 9) are correct")
        with reporter.step(f"profiling every operator and the storage on {port}") as report:
            measured = connection.profile(graph, progress=report)
            reporter.result(f"{len(measured.operators)} operators measured")
        with reporter.step("running two schedules, to compare with the prediction") as report:
            profile, outcome = _validate(connection, graph, measured, report)
            profile.save(out / "profile.json")
            reporter.result(f"{outcome}; wrote profile.json")
        costs = api.costs_of(graph, profile)
        keep = api.keep_everything(costs)
        plan = _solve(graph, profile, costs, DEADLINES[port], out, reporter)
        schedule = _encode(graph, plan, out, reporter)
        _draw(costs, plan, out, reporter)
        with reporter.step("starting a native board with unlimited memory, for comparison"):
            unlimited = api.connect(NATIVE, arena_bytes=keep.peak_bytes)
            reporter.result(f"it answers at {unlimited.device.link.port}")
        with unlimited:
            data, start = fit(ten, graph), StartingPoint(SEED, initial)
            trainings = [
                Training(on.device, encoded, data, start)
                for on, encoded in (
                    (connection, schedule),
                    (unlimited, api.encode(graph, profile, keep)),
                )
            ]
            run, kept = _train_both(trainings, SAMPLES // graph.batch, reporter)
    api.save_weights(out / "trained.safetensors", graph, run.weights)
    run.save(out / "run.json")
    cost = Cost.of_run(kept) if port == NATIVE else Cost.of_plan(keep, costs, profile)
    demo = Demo(
        graph, costs, plan, schedule, run, kept, cost, keep.peak_bytes or 0, before,
        _accuracy(graph, run.weights, ten), initial,
    )  # fmt: skip
    check(demo)
    return demo


def _start(port: str, reporter: Reporter) -> api.Connection:
    """Start a board. If a simulated chip cannot run here, the error suggests the native board."""
    with reporter.step(f"starting the board {port}"):
        try:
            connection = api.connect(port, arena_bytes=RAM_BYTES if port == NATIVE else None)
        except PoetError as error:
            if port == NATIVE or isinstance(error, BadInput):
                raise
            raise PoetError(
                f"{error}. Run the demo on the native board instead: `poet-host demo --port "
                f"{NATIVE}`"
            ) from error
        info = connection.device.info
        reporter.result(
            f"{info.board} answers at {connection.device.link.port}, with an arena of "
            f"{info.arena_bytes:,} bytes"
        )
    return connection


def check(demo: Demo) -> None:
    """Raise PoetError if the results of the demo are wrong.

    The weights of both runs must be equal bit for bit, and training must change every trained
    tensor. The trace must contain as many recomputations and transfers of activations as the plan.
    The board must stay within the RAM budget.
    """
    run, keep = demo.trained(demo.run), demo.trained(demo.keep)
    differing = [name for name in run if run[name].tobytes() != keep[name].tobytes()]
    if differing:
        raise PoetError(
            f"the trained tensor {differing[0]} differs from the result of training in unlimited "
            "memory"
        )
    unchanged = [name for name in run if run[name].tobytes() == demo.initial[name].tobytes()]
    if unchanged:
        raise PoetError(f"training did not change the tensor {unchanged[0]}")
    planned, traced = _activations(demo.graph, demo.plan), demo.run.counts()
    if not any(planned.values()):
        raise PoetError(
            f"the plan keeps all activations in {demo.plan.ram_bytes:,} bytes of RAM, so it does "
            "not test paging or recomputing"
        )
    for name, times in planned.items():
        if traced[name] != times:
            raise PoetError(
                f"the trace of a step has {traced[name]} {name.replace('_', ' ')}, but the plan "
                f"has {times}"
            )
    if demo.run.peak_bytes > demo.plan.ram_bytes:
        raise PoetError(
            f"the board used {demo.run.peak_bytes:,} bytes of RAM, more than the budget of "
            f"{demo.plan.ram_bytes:,} bytes"
        )


def _activations(graph: api.Graph, plan: api.Plan) -> dict[str, int]:
    """Return how often a plan recomputes and pages activations.

    The keys of the result are those of Run.counts.
    """
    found = dict.fromkeys(
        (f"activation_{name}s" for name in ("recompute", "page_out", "page_in")), 0
    )
    computed: set[str] = set()
    for statement in plan.statements:
        op = (
            "recompute"
            if statement.node in computed and statement.op == "compute"
            else statement.op
        )
        if statement.op == "compute":
            computed.add(statement.node)
        if graph[statement.node].phase == "forward" and f"activation_{op}s" in found:
            found[f"activation_{op}s"] += 1
    return found


def _validate(
    connection: api.Connection, graph: api.Graph, measured: api.Profile, report: Report
) -> tuple[api.Profile, str]:
    """Return the calibrated profile, and a text that compares its prediction with a run.

    If validation is impossible, return the profile `measured`, and the reason.
    """
    try:
        profile, found = connection.validate(graph, measured, count_steps(report))
    except BadInput as error:
        return measured, f"not validated: {error}"
    predicted_ms, measured_ms = found.predicted_us / 1e3, found.time_us / 1e3
    return profile, f"a step takes {measured_ms:,.2f} ms; the prediction was {predicted_ms:,.2f} ms"


def _pretrain(graph: api.Graph, data: api.Dataset, report: Report) -> Weights:
    profile = api.estimate_profile(NATIVE)
    keep = api.keep_everything(api.costs_of(graph, profile))
    with api.connect(NATIVE, arena_bytes=keep.peak_bytes) as unlimited:
        run = api.train(
            api.encode(graph, profile, keep), unlimited, data, epochs=PRETRAINING_EPOCHS, seed=SEED,
            on_step=lambda step, total: report(step.step, total, f"loss {step.loss:.3f}"),
        )  # fmt: skip
    return run.weights


def _train_both(trainings: list[Training], steps: int, reporter: Reporter) -> list[api.Run]:
    """Train each step on both boards in turn, so that other processes slow down both alike."""
    with reporter.step(f"training {steps} steps on both boards in turn") as report:
        for done in range(steps):
            losses = [training.step().loss for training in trainings]
            report(done + 1, steps, f"loss {losses[0]:.3f} and {losses[1]:.3f}")
        runs = [training.finish() for training in trainings]
        first, last = runs[0].loss("first"), runs[0].loss("last")
        reporter.result(f"mean loss {first:.3f} at the start, {last:.3f} at the end")
    return runs


def _solve(
    graph: api.Graph,
    profile: api.Profile,
    costs: api.CostGraph,
    deadline: str,
    out: Path,
    reporter: Reporter,
) -> api.Plan:
    with reporter.step("solving for the minimum energy with HiGHS") as report:
        for limit in (deadline, None):
            plan = api.solve(
                graph, profile, ram=RAM_BYTES, deadline=limit, gap=GAP, time_limit_s=SOLVING_S,
                progress=lambda energy, bound, gap, seconds: report(
                    0, 0,
                    "searching" if gap is None or gap > 0.5 else f"within {gap:.1%} of the minimum",
                ),
            )  # fmt: skip
            if plan.statements:
                break
        if not plan.statements:
            raise PoetError(api.why_no_plan(graph, plan))
        plan.save(out / "plan.json")
        proof = f"within {plan.gap:.1%} of the minimum" if plan.gap else "proved to be the minimum"
        reporter.result(f"{proof}, in {plan.solve_s:.1f} s; wrote plan.json")
    with reporter.step("verifying the plan independently of the solver"):
        totals = verify(api.Problem(costs, RAM_BYTES, plan.deadline_us), plan)
        reporter.result(f"peak {totals.peak_bytes:,} bytes, {totals.energy_uj:,.0f} uJ a step")
    return plan


def _encode(graph: api.Graph, plan: api.Plan, out: Path, reporter: Reporter) -> api.Schedule:
    with reporter.step("encoding the plan, and decoding it for comparison"):
        schedule = api.encode(graph, plan, about={"model": MODEL})
        name = f"{MODEL}.poet"
        schedule.save(out / name)
        reporter.result(f"the plan has {len(schedule.plan_part)} bytes; wrote {name}")
    return schedule


def _draw(costs: api.CostGraph, plan: api.Plan, out: Path, reporter: Reporter) -> None:
    if find_spec("matplotlib") is None:
        return
    with reporter.step("drawing the plan"):
        title = f"{MODEL} in {plan.ram_bytes:,} bytes of RAM"
        picture = draw(costs, plan, title=title)
        write_whole(out / "schedule.png", picture)
        reporter.result("wrote schedule.png")


def _accuracy(graph: api.Graph, weights: Weights, data: api.Dataset) -> float:
    found = held_out_accuracy(graph, weights, data)
    assert found is not None
    return found
