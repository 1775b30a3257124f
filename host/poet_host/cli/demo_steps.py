"""The demo's steps: the whole path from a model to trained weights, and the proof beside it.

Nothing here prints; a `Teller` hears what happens. The same functions serve a user who does
the steps by hand.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from .. import api
from ..data.datasets import Dataset, load_data
from ..errors import BadInput, PoetError
from ..files import write_whole
from ..graph.graph import Graph
from ..graph.work import work_of
from ..plan.keepall import keep_everything
from ..plan.plan import Plan, plan_to_json
from ..plan.problem import CostGraph, Problem
from ..plan.verify import verify
from ..profile.profile import Profile, estimate_profile
from ..run.evaluate import held_out_accuracy
from ..run.run import Run, Weights, weights_sha256
from ..run.train import Training
from ..run.weights import save_weights
from ..schedule.schedule import Schedule
from ..view.picture import draw
from .console import Report, of_steps, to_json

MODEL = "resnet-digits"
NATIVE = "native"
# Deadlines, of keep-everything's time. On a chip pages take less time than computing again, and
# more energy: one that is tight makes use of both. On a computer pages take the processor's time
# too, and so tight a one may be out of reach. On a computer that is too busy for any plan in time,
# the demo goes on without one.
DEADLINES = {"sim:mkr1000": "1.1x", "sim:nrf52840_dk": "1.1x", NATIVE: "1.5x"}
PORTS = tuple(DEADLINES)
RAM_BYTES = 24 * 1024  # what a 32 KiB MKR1000 can spare
GAP = 0.01  # a plan proved to be this close to the best is good enough for a demo
SOLVING_S = 45.0
SAMPLES = 512
KNOWN_DIGITS = 7  # the starting weights have met 0 to 6
PRETRAINING_EPOCHS = 3
SEED = 0


class Teller(Protocol):
    """Hears of each step: a title, then progress, then what came of it."""

    @contextmanager
    def step(self, title: str) -> Iterator[Report]: ...

    def result(self, text: str) -> None: ...


@dataclass(frozen=True)
class Cost:
    """Of one step with its commit. Energies are estimated: times x board powers; `measured`
    says whether the times are those of a run, or follow from the board's profile."""

    time_us: float | None
    energy_uj: float | None
    total_energy_uj: float | None
    measured: bool

    @staticmethod
    def of_run(run: Run) -> "Cost":
        return Cost(run.time_us, run.energy_uj, run.total_energy_uj, True)

    @staticmethod
    def of_plan(plan: Plan, profile: Profile) -> "Cost":
        assert plan.time_us is not None
        assert plan.energy_uj is not None
        time_us = plan.time_us + profile.commit_us
        energy_uj = plan.energy_uj + profile.commit_uj
        return Cost(time_us, energy_uj, energy_uj + profile.power.base_uw * time_us / 1e6, False)


@dataclass(frozen=True)
class Demo:
    """What the demo found: `run` in little RAM; `keep` with all that it takes, on the native
    board; `keep_cost`, what that costs on the board of `run`, whether it fits there or not."""

    graph: Graph
    costs: CostGraph
    plan: Plan
    schedule: Schedule
    run: Run
    keep: Run
    keep_cost: Cost
    keep_all_bytes: int
    accuracy_before: float
    accuracy_after: float
    start: Weights

    def to_json(self) -> dict[str, Any]:
        """What --json prints."""
        run, keep, counts = self.run, self.keep_cost, self.run.counts()
        sha256, kept_sha256 = (weights_sha256(self.trained(one)) for one in (run, self.keep))
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

    def trained(self, run: Run) -> dict[str, Any]:
        """The tensors that training renews."""
        return {node.name: run.weights[node.name] for node in self.graph.trainable}


def macs_per_sample(graph: Graph) -> int:
    return sum(work_of(node, graph).macs for node in graph if not node.stored) // graph.batch


def split(digits: Dataset) -> tuple[Dataset, Dataset]:
    """For pre-training (digits 0 to 6) and for the board: no sample is in both, and the
    held-out ones are in neither."""
    order = np.random.default_rng(SEED).permutation(len(digits.x))
    mine, rest = order[:SAMPLES], order[SAMPLES:]
    rest = rest[digits.y[rest] < KNOWN_DIGITS]
    known = replace(digits, name="digits 0 to 6", x=digits.x[rest], y=digits.y[rest])
    return known, replace(digits, x=digits.x[mine], y=digits.y[mine])


def walk(out: Path, teller: Teller, port: str = PORTS[0]) -> Demo:
    """Run every step on the board of one of PORTS and write what each makes into `out`.

    Raises PoetError where the promise of the demo is not kept.
    """
    graph = api.load_graph(MODEL)
    known, ten = split(load_data("digits"))
    with _started(port, teller) as connection:
        with teller.step("pre-training on the digits 0 to 6, on the native board") as report:
            start = _pretrained(graph, known, report)
            before = _accuracy(graph, start, ten)
            teller.result(f"{before:.1%} of held-out digits (0 to 9) are right")
        with teller.step(f"profiling every operator and the storage on {port}") as report:
            alone = connection.profile(graph, progress=report)
            teller.result(f"{len(alone.operators)} operators measured")
        with teller.step("running two schedules, to compare with what is predicted") as report:
            profile, outcome = _validated(connection, graph, alone, report)
            profile.save(out / "profile.json")
            teller.result(f"{outcome}; wrote profile.json")
        costs = api.costs_of(graph, profile)
        keep = keep_everything(costs)
        plan = _solved(graph, profile, costs, DEADLINES[port], out, teller)
        schedule = _encoded(graph, plan, out, teller)
        _drawn(costs, plan, out, teller)
        with teller.step("starting a native board with unlimited memory, to compare"):
            unlimited = api.connect(NATIVE, arena_bytes=keep.peak_bytes)
            teller.result(f"it answers on {unlimited.device.link.port}")
        with unlimited:
            both = [
                _training(board, one, ten, start)
                for board, one in (
                    (connection, schedule),
                    (unlimited, api.encode(graph, profile, keep)),
                )
            ]
            run, kept = _side_by_side(both, SAMPLES // graph.batch, teller)
    save_weights(out / "trained.safetensors", graph, run.weights)
    write_whole(out / "run.json", to_json(run.to_json()))
    cost = Cost.of_run(kept) if port == NATIVE else Cost.of_plan(keep, profile)
    demo = Demo(
        graph, costs, plan, schedule, run, kept, cost, keep.peak_bytes or 0, before,
        _accuracy(graph, run.weights, ten), start,
    )  # fmt: skip
    check(demo)
    return demo


def _started(port: str, teller: Teller) -> api.Connection:
    """A board; where a simulated one cannot be had, the error names the way without it."""
    with teller.step(f"starting the board {port}"):
        try:
            connection = api.connect(port, arena_bytes=RAM_BYTES if port == NATIVE else None)
        except PoetError as error:
            if port == NATIVE or isinstance(error, BadInput):
                raise
            raise PoetError(
                f"{error}; the demo runs without either as `poet-host demo --port {NATIVE}`"
            ) from error
        info = connection.device.info
        teller.result(
            f"{info.board} answers on {connection.device.link.port}, "
            f"{info.arena_bytes:,} bytes of arena"
        )
    return connection


def check(demo: Demo) -> None:
    """Raise PoetError unless the runs agree to the bit, every trainable tensor has changed, and
    the trace shows as many activations recomputed, paged out and paged in as the plan has."""
    run, keep = demo.trained(demo.run), demo.trained(demo.keep)
    differing = [name for name in run if run[name].tobytes() != keep[name].tobytes()]
    if differing:
        raise PoetError(f"the weights differ from those of unlimited memory: {differing[0]}")
    unchanged = [name for name in run if run[name].tobytes() == demo.start[name].tobytes()]
    if unchanged:
        raise PoetError(f"training has not changed {unchanged[0]}")
    planned, traced = _activations(demo.graph, demo.plan), demo.run.counts()
    if not any(planned.values()):
        raise PoetError(f"the plan keeps every activation in {demo.plan.ram_bytes} bytes")
    for name, times in planned.items():
        if traced[name] != times:
            raise PoetError(
                f"the board's trace shows {traced[name]} {name.replace('_', ' ')} in a step, "
                f"the plan has {times}"
            )
    if demo.run.peak_bytes > demo.plan.ram_bytes:
        raise PoetError(f"the board used {demo.run.peak_bytes} bytes of {demo.plan.ram_bytes}")


def _activations(graph: Graph, plan: Plan) -> dict[str, int]:
    """What a plan does to activations, by the names of Run.counts."""
    found = dict.fromkeys(
        (f"activation_{name}s" for name in ("recompute", "page_out", "page_in")), 0
    )
    computed: set[str] = set()
    for one in plan.statements:
        op = "recompute" if one.node in computed and one.op == "compute" else one.op
        if one.op == "compute":
            computed.add(one.node)
        if graph[one.node].phase == "forward" and f"activation_{op}s" in found:
            found[f"activation_{op}s"] += 1
    return found


def _validated(
    connection: api.Connection, graph: Graph, alone: Profile, report: Report
) -> tuple[Profile, str]:
    try:
        profile, found = connection.validate(graph, alone, of_steps(report))
    except BadInput as error:
        return alone, f"not validated: {error}"
    predicted_ms, took_ms = found.predicted_us / 1e3, found.time_us / 1e3
    return profile, f"a step was predicted {predicted_ms:,.2f} ms and took {took_ms:,.2f}"


def _pretrained(graph: Graph, data: Dataset, report: Report) -> Weights:
    profile = estimate_profile(api.load_board(NATIVE))
    keep = keep_everything(api.costs_of(graph, profile))
    with api.connect(NATIVE, arena_bytes=keep.peak_bytes) as unlimited:
        run = api.train(
            api.encode(graph, profile, keep), unlimited, data, epochs=PRETRAINING_EPOCHS, seed=SEED,
            on_step=lambda step, total: report(step.step, total, f"loss {step.loss:.3f}"),
        )  # fmt: skip
    return run.weights


def _training(
    connection: api.Connection, schedule: Schedule, data: Dataset, start: Weights
) -> Training:
    """Uploads the schedule and the starting weights."""
    board = connection.board
    return Training(connection.device, board, schedule, data, seed=SEED, weights=start)


def _side_by_side(both: list[Training], steps: int, teller: Teller) -> list[Run]:
    """Both boards take turns, so that whatever else this computer does slows both alike."""
    with teller.step(f"training {steps} steps on both, by turns") as report:
        for done in range(steps):
            losses = [training.step().loss for training in both]
            report(done + 1, steps, f"loss {losses[0]:.3f} and {losses[1]:.3f}")
        runs = [training.finish() for training in both]
        first, last = runs[0].loss("first"), runs[0].loss("last")
        teller.result(f"mean loss {first:.3f} at the start, {last:.3f} at the end")
    return runs


def _solved(
    graph: Graph, profile: Profile, costs: CostGraph, deadline: str, out: Path, teller: Teller
) -> Plan:
    with teller.step("solving with HiGHS for the least energy") as report:
        for limit in (deadline, None):
            plan = api.solve(
                graph, profile, ram=RAM_BYTES, deadline=limit, gap=GAP, time_limit_s=SOLVING_S,
                progress=lambda energy, bound, gap, seconds: report(
                    0, 0,
                    "searching" if gap is None or gap > 0.5 else f"within {gap:.1%} of the best",
                ),
            )  # fmt: skip
            if plan.statements:
                break
        if not plan.statements:
            raise PoetError(api.why_no_plan(graph, plan))
        write_whole(out / "plan.json", to_json(plan_to_json(plan)))
        proof = f"within {plan.gap:.1%} of the best" if plan.gap else "proved to be the best"
        teller.result(f"{proof}, in {plan.solve_s:.1f} s; wrote plan.json")
    with teller.step("verifying the plan, independently of the solver"):
        totals = verify(Problem(costs, RAM_BYTES, plan.deadline_us), plan)
        teller.result(f"height {totals.peak_bytes:,} bytes, {totals.energy_uj:,.0f} uJ a step")
    return plan


def _encoded(graph: Graph, plan: Plan, out: Path, teller: Teller) -> Schedule:
    with teller.step("encoding it, and decoding it again to compare"):
        schedule = api.encode(graph, plan, about={"model": MODEL})
        name = f"{MODEL}.poet"
        schedule.save(out / name)
        teller.result(f"{len(schedule.plan_part)} bytes of plan; wrote {name}")
    return schedule


def _drawn(costs: CostGraph, plan: Plan, out: Path, teller: Teller) -> None:
    if find_spec("matplotlib") is None:
        return
    with teller.step("drawing it"):
        title = f"{MODEL} in {plan.ram_bytes:,} bytes of RAM"
        picture = draw(costs, plan, title=title)
        write_whole(out / "schedule.png", picture)
        teller.result("wrote schedule.png")


def _accuracy(graph: Graph, weights: Weights, data: Dataset) -> float:
    found = held_out_accuracy(graph, weights, data)
    assert found is not None
    return found
