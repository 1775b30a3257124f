"""The nRF52840's USB device controller: the model's rules, and the firmware on it. 15 s."""

from pathlib import Path

import pytest
from poet_host.sim.chip_library import chips
from support.sim_helper import Outcome, build, needs_compiler, nrf52840, run, words
from support.usb_board import UsbBoard

pytestmark = needs_compiler
TICKS_PER_US = 64


def case(number: int, folder: Path) -> Outcome:
    """Run one case of nrf52840_usbd.c with a cable; after 3 ms the bus is suspended."""
    _, lib = chips()
    machine = nrf52840(build("m4f", "nrf52840_usbd.c", folder, f"-DCASE={number}"))
    lib.machine_usb_plug(machine, True)
    lib.machine_usb_suspend(machine, True)
    return run(machine)


# -- the model --


def test_the_supply_comes_in_steps(tmp_path: Path) -> None:
    outcome = case(1, tmp_path)
    assert words(outcome.text) == [1, 0x11, 3, 1]
    assert 64_000 <= outcome.ticks < 66_000  # a millisecond until USBPWRRDY


def test_easydma_moves_a_packet(tmp_path: Path) -> None:
    assert words(case(2, tmp_path).text) == [64, 1 << 2]


MISUSES = {
    20: "anomaly 187",
    21: "anomaly 171",
    22: "written while locked",
    23: "waits for EVENTCAUSE.READY",
    24: "anomaly 199",
    25: "waits for the end of EasyDMA",
    26: "waits for the end of EasyDMA",
    27: "before USBPWRRDY",
    28: "before the crystal runs",
    29: "STARTEPOUT before a packet has come",
    30: "MAXCNT is more than a packet",
    31: "USBD reaches 0x00001000",
    32: "the model of USBD does not cover register offset 0x24",
    33: "anomaly 211",
}


@pytest.mark.parametrize("number", MISUSES)
def test_misuse_stops_with_a_reason(number: int, tmp_path: Path) -> None:
    case(number, tmp_path).fails(MISUSES[number])


def test_the_cable_may_be_unplugged_at_any_microsecond_of_a_request() -> None:
    """Events of the bus that were not handled are void when the controller is off."""
    board = UsbBoard("nrf52840_dk")
    for ticks in range(0, 70 * TICKS_PER_US, 24):
        board.chip.give(board.frame("status"))
        board.chip.run(ticks)
        board.plug(False)
        board.run_us(3_000)
        board.chip.take()
        board.plug(True)
        board.until(board.is_open, step_us=1_000)
    board.run_us(5_000)
    assert board.chip.take() == b""
    assert board.ask("status")["status"].running == 0
