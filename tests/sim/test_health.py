"""Watchdog, brown-out, faults and stray stores: the board resets, says why, and goes on."""

from pathlib import Path
from typing import Any

import poet_host as poet
import pytest
from poet_host import isa
from poet_host.data.datasets import Dataset
from poet_host.data.fitted import example, fit
from poet_host.device import wire
from poet_host.device.device import connect
from poet_host.device.health import is_unwanted, reset_text
from poet_host.errors import BoardError, PoetWarning
from poet_host.firmware_build.bare_metal import build_firmware
from poet_host.graph.autodiff import Sgd, training_graph
from poet_host.graph.builder import Builder
from poet_host.run.train import Training, train
from poet_host.schedule.schedule import Schedule
from poet_host.sim.board import SimulatedBoard
from poet_host.sim.simulated_chip import CardFault, SimulatedChip
from support import whole_runs as runs
from support.chip_runs import ILLEGAL, PUSH_FOR_EVER, STRAY_STORES, ask, patched, until_idle
from support.command import Command
from support.sim_helper import needs_compiler
from support.toy_boards import load, prepare, running, truth, weights_of
from support.toy_job import STEPS, finished, weights_on, written

pytestmark = needs_compiler
both = pytest.mark.parametrize("name", ["mkr1000", "nrf52840_dk"])
S = 10**6
WRITES_OF_A_STEP = 14  # blocks
TRIES = 3  # of a job, at one step


def cause(health: Any) -> str:
    return isa.by_code("RESET")[health.reset].name


@pytest.mark.parametrize(
    ("name", "part", "why"),
    [
        ("mkr1000", "kernel", "watchdog"),
        ("mkr1000", "dma", "dma"),
        ("mkr1000", "bus", "dma"),
        ("nrf52840_dk", "kernel", "watchdog"),
        ("nrf52840_dk", "dma", "dma"),
    ],
)
def test_a_hang_in_a_step_ends_in_a_reset_that_says_why(
    name: str, part: str, why: str, storage: Path
) -> None:
    with running(name, storage) as (board, device):
        prepare(device)
        assert not is_unwanted(device.health())
        board.ask("hang", part)
        with pytest.raises(BoardError) as found:
            device.step(1)
        assert found.value.name == "no_schedule"
        health = device.health()
        assert cause(health) == why
        assert f"at {health.at:#010x}" in reset_text(health)
        load(device)
        device.step(1)
        assert weights_of(device) == truth()[1]


@both
def test_a_board_that_waits_for_a_host_is_not_reset(name: str, storage: Path) -> None:
    chip = SimulatedChip(name, build_firmware(name), storage)
    assert chip.run(10**9) == "idle"
    chip.lib.machine_wait_idle(chip.machine, True)
    assert chip.run(50 * chip.meter.tick_hz) == "slice"
    assert chip.meter.time_us > 50 * S


def test_commands_warn_of_a_reset_that_nobody_wanted(storage: Path, poet_host: Command) -> None:
    with SimulatedBoard("nrf52840_dk", build_firmware("nrf52840_dk"), storage) as board:
        with connect(board.port) as device:
            prepare(device)
            board.ask("hang", "kernel")
            with pytest.raises(BoardError):
                device.step(1)
        with pytest.warns(PoetWarning, match="watchdog"), poet.connect(board.port):
            pass
        ports = poet_host("boards", "--port", board.port, "--json").json["ports"]
        assert ["watchdog" in row["answer"] for row in ports if row["port"] == board.port] == [True]


@pytest.mark.parametrize("name", [pytest.param("mkr1000", marks=pytest.mark.slow), "nrf52840_dk"])
def test_a_hang_of_the_uart(name: str, storage: Path) -> None:
    chip = SimulatedChip(name, build_firmware(name), storage)
    assert until_idle(chip) == 0
    chip.hang("uart")
    resets = 0
    for sequence in (1, 2):  # the nRF52840 waits for its first reply when it sends the second one
        chip.give(wire.frame(sequence, wire.messages()["hello"].code, b""))
        resets += until_idle(chip)
    assert resets == 1
    assert cause(ask(chip, "health")) == "watchdog"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A card with a job."""
    written().write_to(tmp_path / "card.img")
    return tmp_path / "card.img"


@both
def test_a_hang_of_usb_does_not_end_a_job(name: str, path: Path) -> None:
    chip = SimulatedChip(name, build_firmware(name), path)
    while chip.meter.card_writes <= WRITES_OF_A_STEP:
        assert chip.run(chip.meter.tick_hz // 500) == "slice"
    assert 0 < weights_on(path)[0] < STEPS
    chip = SimulatedChip(name, build_firmware(name), path, usb=True)  # the power fails
    chip.usb_open(True, 115200)
    chip.hang("usb")
    assert chip.run(10**9) == "reset"
    assert chip.meter.time_us < 3 * S
    chip.reset()
    assert until_idle(chip) == 0
    chip.check_usb()
    assert cause(ask(chip, "health")) == "usb"
    assert weights_on(path) == (STEPS, finished())


@pytest.mark.parametrize(
    "fault",
    [
        CardFault("write_error", 6, times=4),  # more often than the driver tries
        CardFault("slow_write", 6, argument=6 * S),  # it hangs for longer than the driver waits
    ],
)
@both
def test_a_card_that_fails_does_not_end_a_job(name: str, fault: CardFault, path: Path) -> None:
    chip = SimulatedChip(name, build_firmware(name), path, faults=[fault])
    assert until_idle(chip) == 1
    assert cause(ask(chip, "health")) == "card"
    assert weights_on(path) == (STEPS, finished())


def gave_up(chip: SimulatedChip, why: str) -> bool:
    """Return True if the board says that it gave up its job, after a reset by this cause."""
    health = ask(chip, "health")
    codes = {name: row.code for name, row in isa.by_name("RESET").items()}
    assert isa.by_name("RESET")[why].columns[0] in reset_text(health)
    return bool(health.reset == codes[why] + codes["gave_up"])


def hanging(chip: SimulatedChip) -> str:
    """Let the kernels hang, run until the chip is idle or reset, and return which."""
    chip.hang("kernel")
    return chip.run(30 * chip.meter.tick_hz)


@pytest.mark.parametrize("again", ["pin", "power_on", "host"])
@both
def test_a_job_that_fails_for_good_ends_at_its_third_reset(
    name: str, again: str, path: Path
) -> None:
    chip = SimulatedChip(name, build_firmware(name), path)
    for _ in range(TRIES):
        assert hanging(chip) == "reset"
        chip.reset()
    assert hanging(chip) == "idle"
    assert weights_on(path)[0] == 0
    if again == "host":
        assert gave_up(chip, "watchdog")
    chip.reset("watchdog" if again == "host" else again)
    assert until_idle(chip) == 0
    assert weights_on(path) == (STEPS, finished())
    assert "three times" not in reset_text(ask(chip, "health"))


@both
def test_a_card_that_fails_for_good_is_written_to_no_more(name: str, path: Path) -> None:
    fault = CardFault("write_error", 6, times=10**6)
    chip = SimulatedChip(name, build_firmware(name), path, faults=[fault])
    assert until_idle(chip) == TRIES
    writes = chip.meter.card_writes
    chip.reset("watchdog")  # before a host connects
    assert until_idle(chip) == 0
    assert chip.meter.card_writes == writes
    assert gave_up(chip, "lock_up")
    assert "three times" in reset_text(ask(chip, "health"))
    assert is_unwanted(ask(chip, "health"))


@pytest.mark.parametrize("second", [30, 40], ids=["its batch", "its statements"])
@both
def test_a_committed_step_lets_a_job_fail_again(name: str, second: int, path: Path) -> None:
    """Two tries of step 1 fail, then two of step 2."""
    faults = [CardFault("write_error", at, times=8) for at in (6, second)]
    chip = SimulatedChip(name, build_firmware(name), path, faults=faults)
    assert until_idle(chip) == 4
    assert cause(ask(chip, "health")) == "card"
    assert weights_on(path) == (STEPS, finished())


def test_a_low_supply_resets_the_samd21(storage: Path) -> None:
    chip = SimulatedChip("mkr1000", build_firmware("mkr1000"), storage)
    assert until_idle(chip) == 0
    chip.set_supply(2600)
    assert chip.run(10**6) == "reset"
    chip.reset()
    assert chip.run(10**7) == "slice"  # it waits
    chip.set_supply(3300)
    assert until_idle(chip) == 0
    assert cause(ask(chip, "health")) == "brown_out"


def test_the_nrf52840_writes_no_block_while_the_supply_is_low(storage: Path) -> None:
    with running("nrf52840_dk", storage) as (board, device):
        prepare(device)
        board.ask("set_supply", 2600)
        with pytest.raises(BoardError) as found:
            device.step(1)
        assert found.value.name == "storage_failed"
        board.ask("set_supply", 3000)
        load(device)
        device.step(1)
        assert weights_of(device) == truth()[1]


def test_a_full_stack_of_the_samd21_ends_in_a_reset(storage: Path) -> None:
    chip = SimulatedChip("mkr1000", build_firmware("mkr1000"), storage)
    patched(chip, PUSH_FOR_EVER)
    assert chip.run(10**9) == "reset"
    chip.reset()
    assert cause(ask(chip, "health")) == "lock_up"


@both
def test_a_fault_is_known_after_the_reset(name: str, storage: Path) -> None:
    chip = SimulatedChip(name, build_firmware(name), storage)
    address = patched(chip, ILLEGAL)
    assert chip.run(10**9) == "reset"
    chip.reset()
    health = ask(chip, "health")
    assert (cause(health), health.exception, health.at) == ("fault", 3, address)
    chip.reset("pin")
    health = ask(chip, "health")
    assert (cause(health), health.exception, health.at) == ("button", 0, 0)


def test_stray_stores_do_not_change_the_flash(storage: Path) -> None:
    chip = SimulatedChip("mkr1000", build_firmware("mkr1000"), storage)
    patched(chip, STRAY_STORES)
    assert chip.run(10**9) == "reset"
    assert "the watchdog bites" in chip.message


def test_the_region_of_the_boot_loader_is_locked(storage: Path) -> None:
    chip = SimulatedChip("mkr1000", build_firmware("mkr1000"), storage)
    assert chip.run(10**9) == "idle"
    assert chip.lib.machine_flash_locked(chip.machine, 0)
    assert not chip.lib.machine_flash_locked(chip.machine, 0x4000)


def test_the_nrf52840_uses_its_converter(storage: Path) -> None:
    chip = SimulatedChip("nrf52840_dk", build_firmware("nrf52840_dk"), storage)
    assert chip.run(10**9) == "idle"
    value = chip.ffi.new("uint32_t *")
    assert chip.lib.machine_read_register(chip.machine, 0x40000578, 4, value)  # POWER.DCDCEN
    assert value[0] == 1


def line() -> Schedule:
    """One layer, to train with a host."""
    b = Builder("line", data=(2, 8))
    loss = b.softmax_xent(b.linear(b.data, 3, name="fc"), name="loss")
    return runs.schedule(training_graph(b.model(loss), Sgd(0.1), "all"))


@pytest.mark.parametrize(
    ("port", "part"),
    [
        ("sim:mkr1000", "kernel"),
        ("sim:mkr1000", "dma"),
        ("sim:nrf52840_dk", "kernel"),
        ("sim:nrf52840_dk", "dma"),
        ("sim:nrf52840_dk:usb", "usb"),
    ],
)
def test_training_continues_after_a_reset(port: str, part: str) -> None:
    schedule = line()
    data = Dataset("example", *example(schedule.graph))
    with poet.connect(port) as connection:
        training = Training(connection.device, schedule, fit(data, schedule.graph))
        assert isinstance(connection.running, SimulatedBoard)
        connection.running.ask("hang", part)
        with pytest.warns(PoetWarning, match="reset"):
            run = train(training, 3)
    assert [step.step for step in run.steps] == [1, 2, 3]
    assert runs.same(run, runs.train(schedule, data, steps=3))
