"""Simulated chips without a card: weights in RAM, commits to the chip's own flash."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import poet_host as poet
import pytest
from poet_host import api
from poet_host.device.board import load_board
from poet_host.device.device import NOTHING_COMMITTED, TENSOR, Device, connect
from poet_host.errors import BoardError, PoetError
from poet_host.firmware_build.bare_metal import build_firmware
from poet_host.graph.autodiff import Sgd, training_graph
from poet_host.graph.builder import Builder
from poet_host.graph.graph import Graph
from poet_host.plan.pricing import commit_costs
from poet_host.profile.profile import board_power
from poet_host.run import calibrate
from poet_host.run.energy import mean_energy_uj
from poet_host.run.run import Run
from poet_host.schedule.schedule import Schedule
from poet_host.sim.board import SimulatedBoard
from poet_host.sim.running import POWER_CUT
from poet_host.sim.simulated_chip import CardFault
from poet_host.sizes import size_bytes
from support import toy, whole_runs as runs
from support.command import Command
from support.plans import plan_of
from support.sim_helper import needs_compiler
from support.toy_boards import truth, weights_of

pytestmark = needs_compiler
STEPS, EVERY = 4, 2
CUTS = {"mkr1000": 2, "nrf52840_dk": 6}  # parts of a run, between which the power is cut


@cache
def dense() -> Graph:
    """A 64-32-10 network for the digits, with momentum."""
    b = Builder("dense", data=(4, 1, 8, 8))
    x = b.relu(b.linear(b.flatten(b.data), 32, name="fc1"), name="relu")
    model = b.model(b.softmax_xent(b.linear(x, 10, name="fc2"), name="loss"))
    return training_graph(model, Sgd(0.05, momentum=0.9), "all")


BOARDS = {
    "mkr1000": (dense, "24KiB"), "nano_33_iot": (dense, "24KiB"),
    "nrf52840_dk": (runs.digits, "220KiB"),
}  # fmt: skip
each_board = pytest.mark.parametrize("board", CUTS)


@cache
def schedule(board: str) -> Schedule:
    graph, ram = BOARDS[board]
    problem = api.problem(graph(), board, ram=ram, storage=False)
    return api.encode(graph(), api.solve(problem, work_limit=20_000))


def trained(port: str, board: str, **how: Any) -> Run:
    with poet.connect(port, card=False, arena_bytes=how.pop("arena_bytes", None)) as connection:
        return poet.train(schedule(board), connection, "digits", steps=STEPS, **how)


@pytest.mark.parametrize("board", BOARDS)
def test_the_bits_are_those_of_native_and_of_a_card(board: str) -> None:
    run = trained(f"sim:{board}", board, commit_every=1)
    assert run.peak_bytes <= size_bytes(BOARDS[board][1], "")
    assert runs.same(run, trained("native", board, arena_bytes="220KiB"))
    assert runs.same(run, runs.train(runs.schedule(BOARDS[board][0]()), steps=STEPS))
    assert [commit.step for commit in run.commits] == [1, 2, 3, 4]
    assert run.erases_per_1000_steps == 1000 * sum(it.erases for it in run.commits) / STEPS > 0
    assert run.commits[-1].erases == run.commits[-2].erases  # from the fourth commit on, each slot
    assert all(step.writing_us == 0 for step in run.steps)


@pytest.mark.parametrize(
    ("board", "ram", "batch"), [("nrf52840_dk", "48KiB", 4), ("mkr1000", "24KiB", 2)]
)
def test_estimates_predict_a_step(board: str, ram: str, batch: int) -> None:
    graph = poet.load("resnet-digits", batch=batch)
    plan = api.solve(api.problem(graph, board, ram=ram, storage=False), gap=0.5, work_limit=20_000)
    with poet.connect(f"sim:{board}", card=False) as connection:
        run = poet.train(poet.encode(graph, plan), connection, "digits", steps=3)
        _, total_uj = mean_energy_uj(run.steps, (), board_power(load_board(board), card=False))
    assert run.predicted_energy_uj == plan.energy_uj
    assert run.measured_time_us == pytest.approx(plan.time_us, rel=0.075)
    assert run.measured_energy_uj == pytest.approx(plan.energy_uj, rel=0.075)
    # A plan's energy excludes commits to flash. The run's includes the one after the last step.
    assert total_uj == pytest.approx(plan.total_energy_uj, rel=0.075)
    assert run.total_energy_uj > total_uj


def give(device: Device, numbers: tuple[int, ...]) -> None:
    for number in numbers:
        device.write(TENSOR, number, toy.values(1)[number])


def begin(device: Device) -> None:
    part = toy.schedule("in RAM")
    device.load(part.model_part, part.plan_part)
    if device.hello().committed_step == 0xFFFFFFFF:
        give(device, (toy.W, toy.V))
        device.begin(0)


def go_on(device: Device) -> None:
    for step in range(device.hello().committed_step + 1, STEPS + 1):
        give(device, (toy.X, toy.T))
        device.step(step)
        if step % EVERY == 0:
            device.save()


def begin_and_go_on(device: Device) -> None:
    begin(device)
    go_on(device)


@each_board
def test_a_power_cut_leaves_a_commit(board: str, tmp_path: Path) -> None:
    """At the first, the last and some other operations of a run.

    tests/firmware/test_flash_store.py tries all of them, with a flash in C.
    """
    elf, blank = build_firmware(board), tmp_path / "flash"
    with SimulatedBoard(board, elf, None, flash=blank) as simulated:
        with connect(simulated.port) as device:
            begin(device)
            start, content = operations(simulated), blank.read_bytes()
            go_on(device)
            assert weights_of(device) == truth()[STEPS]
        last = operations(simulated)
    assert simulated.meter.flash_busy_ticks > 0
    count, seen = last - start, set()
    parts = CUTS[board]
    between = [count * part // parts for part in range(1, parts)]
    for at in sorted({1, 2, *between, count - 1, count}):
        flash = tmp_path / f"flash-{at}"
        flash.write_bytes(content)
        cut = CardFault("flash_power_cut", at)
        with SimulatedBoard(board, elf, None, flash=flash, faults=[cut]) as simulated:
            with connect(simulated.port, patience_s=5) as device, pytest.raises(PoetError):
                begin_and_go_on(device)
            assert simulated.wait(20) == POWER_CUT
        with (
            SimulatedBoard(board, elf, None, flash=flash) as simulated,
            connect(simulated.port) as device,
        ):
            step = device.hello().committed_step
            seen.add(step)
            begin(device)
            assert weights_of(device) == truth()[step]
            go_on(device)
            assert weights_of(device) == truth()[STEPS]
    assert seen == {0, 2, 4}


def operations(board: SimulatedBoard) -> int:
    return board.meter.flash_erases + board.meter.flash_writes


def test_training_resumes_from_the_flash(tmp_path: Path) -> None:
    board, flash = "nrf52840_dk", tmp_path / "flash"
    part = schedule(board)
    for steps, resume in ((2, False), (STEPS, True)):
        with poet.connect(f"sim:{board}", storage=flash, card=False) as connection:
            run = poet.train(part, connection, "digits", steps=steps, resume=resume)
    assert run.steps[0].step == 3
    assert runs.same(run, runs.train(runs.schedule(runs.digits()), steps=STEPS))


def test_commands_train_in_a_flash_and_read_it(poet_host: Command, tmp_path: Path) -> None:
    board, part, run = "nrf52840_dk", tmp_path / "digits.poet", tmp_path / "run.json"
    schedule(board).save(part)
    on_board = (part, "-p", f"sim:{board}", "--storage", tmp_path / "flash.bin")
    weights, again = tmp_path / "w.safetensors", tmp_path / "again.safetensors"
    printed = poet_host(
        "train", *on_board, "--data", "digits", "--steps", STEPS, "--commit-every", EVERY,
        "--save-weights", weights, "--run", run,
    )  # fmt: skip
    assert printed.code == 0
    commits = json.loads(run.read_text())["commits"]
    assert [commit["step"] for commit in commits] == [2, 4]
    erases = 1000 * sum(commit["erases"] for commit in commits) / STEPS
    assert erases > 0
    assert f"{EVERY}, {erases:,.0f} erases per 1,000 steps" in printed.out
    assert poet_host("card", "read", *on_board, "--save-weights", again).code == 0
    assert again.read_bytes() == weights.read_bytes()


def test_a_profile_without_a_card_predicts_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    board = "nrf52840_dk"
    monkeypatch.setattr(calibrate, "MAX_STEPS", 4)
    with poet.connect(f"sim:{board}", card=False) as connection:
        measured = connection.profile(dense(), storage=False)
        profile, found = connection.validate(dense(), measured)
        assert connection.device.hello().committed_step == NOTHING_COMMITTED
    assert not profile.storage
    assert profile.page_in == api.estimate_profile(board).page_in
    assert abs(found.time_error) < 0.075
    assert abs(found.energy_error) < 0.075
    uncalibrated = replace(profile, check_us_per_byte=0.0)
    costs = api.costs_of(dense(), profile)
    assert not costs.storage
    took = plan_of((), time_us=found.time_us)
    assert commit_costs(uncalibrated, costs, took) == (0.0, 0.0)
    check_us, check_uj = commit_costs(profile, costs, took)
    assert check_us > 0 < check_uj


def test_a_schedule_with_storage_needs_a_card() -> None:
    with poet.connect("sim:nrf52840_dk", card=False) as connection:
        with pytest.raises(BoardError) as found:
            poet.train(runs.small(), connection, "digits", steps=1)
        assert found.value.name == "no_storage"
