"""Simulated boards do what plans predict: time, energy, and the overlap of the lanes.

Everything here is counted in simulated cycles, and the same every time.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from poet_host import api
from poet_host.data.datasets import Dataset
from poet_host.data.fitted import example, fit
from poet_host.device.board import load_board
from poet_host.device.device import connect
from poet_host.firmware_build.bare_metal import build_firmware
from poet_host.graph.graph import Graph
from poet_host.plan.plan import Plan
from poet_host.plan.pricing import cost_graph
from poet_host.plan.problem import Problem, without_staying
from poet_host.plan.timeline import lanes
from poet_host.profile.profile import Profile, signature
from poet_host.run.calibrate import Observed, calibrated, observe, validation
from poet_host.run.run import Step
from poet_host.run.train import Training
from poet_host.sim.board import SimulatedBoard
from poet_host.sim.native import create_storage
from poet_host.stream.used_modes import with_used_modes
from support import whole_runs as runs
from support.sim_helper import needs_compiler

from bench.prices import measured as prices

pytestmark = [needs_compiler, pytest.mark.slow]
BOARDS = ("mkr1000", "nrf52840_dk")


def records_us(step: Step) -> float:
    """Of the schedule, read from storage when they are not cached."""
    return step.reading_us + step.writing_us - step.transfer_us - step.commit_us


# A seed decides at which blocks the simulated card pauses. By this seed, the last energy below is
# predicted 6.9 % off on the MKR1000: a rare pause counts much in few steps.
@contextmanager
def running(name: str, storage: Path, seed: int = 2) -> Iterator[api.Connection]:
    create_storage(storage, 64 << 20)
    with (
        SimulatedBoard(name, build_firmware(name), storage, seed=seed) as board,
        connect(board.port) as device,
    ):
        device.format()
        yield api.Connection(device, ExitStack())


def run(connection: api.Connection, graph: Graph, profile: Profile, plan: Plan) -> Observed:
    schedule = api.encode(graph, profile, plan)
    data = fit(Dataset("example", *example(graph)), schedule.graph)
    return observe(Training(connection.device, schedule, data))


@pytest.fixture(scope="module", params=BOARDS)
def profiled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[api.Connection, Profile]]:
    card = tmp_path_factory.mktemp("card") / "card.img"
    with running(request.param, card) as connection:
        profile = connection.profile(runs.digits())
        yield connection, connection.profile(runs.mixed(), profile)


def test_estimates_agree_with_what_is_measured(
    profiled: tuple[api.Connection, Profile],
) -> None:
    connection, measured = profiled
    estimate = api.estimate_profile(connection.board)
    nodes = [node for node in runs.digits() if not node.stored]
    times_us = [
        [item.cost(node, runs.digits())[0] for node in nodes] for item in (estimate, measured)
    ]
    estimated_us, measured_us = (sum(times) for times in times_us)
    assert estimated_us == pytest.approx(measured_us, rel=0.05)
    off = sorted(abs(one / other - 1) for one, other in zip(*times_us, strict=True))
    assert off[len(off) // 2] < 0.15
    for size_bytes in (504, 2040, 8184):
        one, other = estimate.transfer(size_bytes), measured.transfer(size_bytes)
        assert one.page_in_us == pytest.approx(other.page_in_us, rel=0.06)
        assert one.page_out_us == pytest.approx(other.page_out_us, rel=0.06)
    assert estimate.commit_us == pytest.approx(measured.commit_us, rel=0.06)


@pytest.mark.parametrize("name", BOARDS)
def test_each_kernel_takes_about_the_time_that_is_estimated(name: str) -> None:
    """At most 1.25 times the estimate, and at least half of it, but for the set-up of short calls.

    RESULTS-prices.md says why some kernels of the nRF52840 differ.
    """
    other_loops = ("conv2d", "linear_grad_weight") if name == "nrf52840_dk" else ()
    short_us = 0.1 * load_board(name).statements.compute_us
    off = [
        f"{it.call}: {it.ratio:.2f}"
        for it in prices(name, api.estimate_profile(name))
        if not it.kind.startswith(other_loops)
        and not it.simulated_us / 1.25 - short_us < it.estimated_us < 2 * it.simulated_us + short_us
    ]
    assert not off


def test_time_and_energy_are_predicted(
    profiled: tuple[api.Connection, Profile], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the short steps of `mixed`, half of the time passes between kernels.

    A step of `digits` takes 3.0 % longer than predicted on the MKR1000, and 3.3 % more energy: the
    card pauses more often than while its transfers are measured.

    What stays is written and read back block by block, while the card pauses more often: on the
    nRF52840, the predicted step is 10.8 to 12.4 % too short in five runs of one plan, and the
    energy is right within 2 %. If nothing stays, it is 6.1 to 7.6 % too short.

    The schedule's records are read from the card at other places in each plan: on the MKR1000 for
    8 ms of a step by the plan that calibrates, for 15 ms by the plan that is predicted. The card
    pauses at other blocks, too: on the nRF52840, plans that differ in a few statements calibrate a
    commit of `digits` with 8.1 to 15.4 ms. It takes 10.6 ms in the plan that is predicted. A commit
    counts as writing, so 15.4 ms make the energy of all other plans 9 to 12 % too high.
    """
    connection, alone = profiled
    # `validate` limits its searches by time; here by work, so that each run has the same plans.
    monkeypatch.setattr(
        "poet_host.api.connection.solve",
        lambda problem, time_limit_s, gap: api.solve(problem, work_limit=60_000, gap=gap),
    )
    for graph in (runs.mixed(), runs.digits()):
        profile, found = connection.validate(graph, alone)
        assert abs(found.time_error) < 0.08, found
        assert abs(found.energy_error) < 0.1, found
    # And a model that the board has never seen before.
    graph = runs.unknown()
    shapes = {signature(node) for node in graph if not node.stored}
    assert len(shapes - set(profile.operators)) > len(shapes) / 2
    stays = api.problem(graph, profile, ram=16_000)
    leaves = replace(stays, graph=without_staying(stays.graph))
    # Most of its kernels are predicted, and all of its statements and transfers.
    for problem, time, energy in ((leaves, 0.08, 0.11), (stays, 0.13, 0.13)):
        plan = api.solve(problem, work_limit=60_000, gap=0.3)
        assert problem is stays or not plan.initial_offsets
        observed = run(connection, graph, profile, plan)
        found = validation(graph, profile, problem.graph, plan, observed)
        assert abs(found.time_error) < time, found
        assert abs(found.energy_error) < energy, found


def test_streamed_operators_take_the_time_that_is_predicted(
    profiled: tuple[api.Connection, Profile],
) -> None:
    """All nests of a step together. The measured time contains waits for earlier transfers, which
    are in the plan, but not in the nests.

    The prediction is 4 % too long on the MKR1000, and 4 % too short on the nRF52840.
    """
    graph = runs.digits()
    connection, profile = profiled
    plan = api.solve(graph, profile, ram=3_400, work_limit=120_000, gap=0.5)
    schedule = api.encode(graph, plan)
    training = Training(
        connection.device, schedule, fit(Dataset("example", *example(graph)), schedule.graph)
    )
    for _ in range(training.trace.windows + 1):
        training.step()
    assert plan.problem is not None
    problem, used = with_used_modes(plan.problem, plan)
    assert problem.streaming is not None
    predicted_us = measured_us = 0.0
    computes = [it for it in used.statements if it.op == "compute"]
    traced = [it for it in training.trace.traced(connection.device) if it.op == "compute"]
    for statement, found in zip(computes, traced, strict=True):
        if (statement.node, statement.mode) in problem.streaming.nests:
            node = problem.graph.nodes[problem.graph.index[statement.node]]
            predicted_us += node.mode(statement.mode).wall_us
            measured_us += found.time_us
    assert sum(statement.mode > 0 for statement in computes) > 20
    assert predicted_us == pytest.approx(measured_us, rel=0.08)


@pytest.fixture(scope="module")
def paging(profiled: tuple[api.Connection, Profile]) -> Plan:
    """A plan for the board that pages."""
    _, profile = profiled
    return api.solve(
        runs.digits(), profile, ram=22_000, method="poet-paging", work_limit=60_000, gap=0.5
    )


@pytest.mark.parametrize("seed", [1, 2])
def test_transfers_overlap_as_the_plan_has_it(
    profiled: tuple[api.Connection, Profile], paging: Plan, tmp_path: Path, seed: int
) -> None:
    graph, plan = runs.digits(), paging
    connection, profile = profiled
    with running(connection.board.name, tmp_path / "card.img", seed) as other:
        observed = run(other, graph, profile, plan)
    costs = cost_graph(graph, calibrated(profile, graph, observed))
    planned = lanes(Problem(costs, plan.ram_bytes), plan.statements)
    assert sum(statement.op.startswith("page") for statement in plan.statements) > 50
    hidden_us = planned.processor_us + planned.transfers_us - planned.time_us
    assert hidden_us > 0.8 * min(planned.processor_us, planned.transfers_us)
    # The processor's lane is busy while it reads records, and the commit is in neither lane.
    traced_us = fmean(
        step.transfer_us - (step.asleep_us - step.commit_us - records_us(step))
        for step in observed.steps
    )
    assert traced_us > 0.9 * hidden_us
