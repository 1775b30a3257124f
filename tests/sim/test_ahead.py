"""Chips receive the next batch while they compute, without losing a byte."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import poet_host as poet
import pytest
from poet_host.data.fitted import fit
from poet_host.device.device import connect
from poet_host.run.run import Run
from poet_host.run.train import Batch, Training, train
from poet_host.schedule.schedule import Schedule
from poet_host.sim.start_board import start_board
from support import whole_runs as runs
from support.sim_helper import needs_compiler

STEPS = 6
PATIENT_S = 30.0  # longer than a simulated step, so that lost requests are not repeated


@cache
def schedule() -> Schedule:
    """Nothing stays in RAM, so the board takes the next batch during a step."""
    graph = poet.load("resnet-digits", batch=4)
    problem = poet.problem(graph, "mkr1000", ram="24KiB")
    plan = poet.solve(problem, method="dtr")
    return poet.encode(graph, plan)


@pytest.fixture(scope="module")
def native() -> Run:
    with poet.connect("native") as connection:
        return poet.train(schedule(), connection, "digits", steps=STEPS)


@pytest.fixture(params=["mkr1000", "mkr1000:usb", "nrf52840_dk"])
def training(request: pytest.FixtureRequest) -> Iterator[Training]:
    name, _, usb = request.param.partition(":")
    with ExitStack() as stack:
        running = stack.enter_context(start_board(name, None, None, usb=bool(usb)))
        device = stack.enter_context(connect(running.port, timeout_s=PATIENT_S))
        yield Training(device, schedule(), fit(poet.load_data("digits"), schedule().graph))


@needs_compiler
@pytest.mark.slow
def test_the_next_batch_comes_while_a_step_runs(training: Training, native: Run) -> None:
    run = train(training, STEPS)
    # A card takes its time. On a busy computer, a batch may come after a short step.
    assert any(step.serving_us > 1000 for step in run.steps)
    assert run.steps[-1].serving_us == 0  # none follows
    assert [step.loss for step in run.steps] == [step.loss for step in native.steps]
    assert runs.same(run, native)
    assert training.device.link.resent == 0


@needs_compiler
@pytest.mark.slow
def test_no_byte_is_lost_from_a_host_that_sends_during_a_whole_step(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chip runs kernels, checks pages, and writes blocks to its card meanwhile.

    On a busy computer, what the host sends may come after a short step.
    """
    send: Callable[[int, Batch], None] = training._send

    def again_and_again(step: int, batch: Batch) -> None:
        for _ in range(10):
            send(step, batch)

    monkeypatch.setattr(training, "_send_ahead", again_and_again)
    assert any(training.step(more=True).serving_us > 1000 for _ in range(STEPS))
    assert training.device.link.resent == 0
