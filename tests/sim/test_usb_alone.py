"""Events on USB before a board trains alone, and while it does. 20 s."""

from pathlib import Path

import pytest
from support.memory_board import card
from support.sim_helper import needs_compiler
from support.toy_boards import trained
from support.toy_job import job, put
from support.usb_board import UsbBoard

pytestmark = needs_compiler
both = pytest.mark.parametrize("name", ["mkr1000", "nrf52840_dk"])
STEPS = 1000  # more than it trains here; their order is read quickly
STARTS_US = {"mkr1000": 2_010_000, "nrf52840_dk": 0}  # the crystal of the MKR1000 takes 2 s
ATTENDS_US = 3_000_000  # then it waits for a host in four equal parts
RESET_US = 50_000  # duration of a reset by the host


def alone(name: str, folder: Path) -> UsbBoard:
    """A board with its port open, but no request from the host until it trains."""
    image = trained(card())
    put(image, job(0, STEPS))
    path = folder / "card.img"
    image.storage.write_to(path)
    board = UsbBoard(name, path)
    assert board.time_us < STARTS_US[name] + ATTENDS_US
    while board.time_us < STARTS_US[name] + ATTENDS_US + 200_000:
        board.run_us(10_000)
    return board


def step_of(board: UsbBoard) -> int:
    """Return the running step; there must be one."""
    status = board.ask("status")["status"]
    assert status.running == 1
    return int(status.step)


def run_until(board: UsbBoard, time_us: float) -> None:
    meter = board.chip.meter
    board.chip.run(round(time_us * meter.tick_hz / 1e6) - meter.ticks)


@both
def test_a_wait_ends_in_time_if_an_interrupt_comes_as_it_begins(name: str) -> None:
    """The only wake-up for the wait must not come before its end."""
    board = UsbBoard(name)
    start_us = STARTS_US[name]
    run_until(board, start_us + 0.9 * ATTENDS_US / 4)
    count = board.chip.meter.exceptions
    while board.chip.meter.exceptions == count:
        board.chip.run(64)
    second_us = board.time_us  # the second of the four parts begins now, within microseconds
    for delay in range(100):
        board.chip.reset()
        run_until(board, second_us - RESET_US + delay / 4)
        board.lib.machine_usb_reset(board.machine)
        run_until(board, start_us + 0.6 * ATTENDS_US)  # the host's requests are over
        count = board.chip.meter.exceptions
        run_until(board, start_us + 0.95 * ATTENDS_US)
        assert board.chip.meter.exceptions > count, f"{delay / 4} us"


@both
def test_no_event_on_the_bus_stops_the_training(name: str, tmp_path: Path) -> None:
    board = alone(name, tmp_path)
    steps = [step_of(board)]
    for stays_open in (True, False):
        board.chip.usb_open(stays_open, 115_200)
        board.lib.machine_usb_reset(board.machine)
        board.run_us(100_000)
        board.plug(False)
        board.run_us(20_000)
        board.plug(True)
        board.run_us(300_000)
        board.chip.usb_open(True, 115_200)
        board.until(board.is_open)
        steps.append(step_of(board))
        board.lib.machine_usb_suspend(board.machine, True)
        board.run_us(50_000)
        board.lib.machine_usb_suspend(board.machine, False)
        board.run_us(25_000)
        steps.append(step_of(board))
    assert steps == sorted(set(steps))
    board.ask("reset")
    board.until(lambda: board.ask("status")["status"].running == 0)
    assert board.ask("hello")["hello"].committed_step >= steps[-1] - 1
    assert board.run_us(1_000_000) in ("idle", "slice")
    assert board.ask("status")["status"].running == 0
    assert board.chip.meter.stack_free_bytes >= 256
