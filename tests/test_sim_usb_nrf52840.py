"""The nRF52840's USB device controller: its model's rules, and the firmware on it. 15 s."""

from __future__ import annotations

from pathlib import Path

import pytest
from poet_host.device.device import connect
from poet_host.sim.board import SimulatedBoard
from poet_host.sim.firmware import build_firmware
from poet_host.sim.library import chips
from poet_host.sim.native import create_storage
from sim_helper import Outcome, build, needs_compiler, run
from test_sim_firmware import prepare, truth, weights  # noqa: F401
from test_sim_nrf52840 import nrf52840
from test_sim_samd21 import words
from usb_board import STALLED, UsbBoard

pytestmark = needs_compiler


def case(number: int, folder: Path) -> Outcome:
    """Run one case of nrf52840_usbd.c with the cable in; after 3 ms the bus is suspended."""
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
    outcome = case(number, tmp_path)
    assert outcome.result == "fault"
    assert MISUSES[number] in outcome.message


# -- the firmware on it --

BOARD = "nrf52840_dk"
LINUX = [  # the requests of hub and cdc_acm when a serial port is plugged in
    (0, "8006000100004000", 18),  # GET_DESCRIPTOR device, as much as fits
    (0, "0005050000000000", 0),  # SET_ADDRESS
    (5, "8006000100001200", 18),
    (5, "8006000200000900", 9),  # GET_DESCRIPTOR configuration, and whole
    (5, "8006000200004300", 67),
    (5, "800600030000ff00", 4),  # strings: languages, product, manufacturer, serial number
    (5, "800602030904ff00", 24),
    (5, "800601030904ff00", 20),
    (5, "800603030904ff00", 34),
    (5, "0009010000000000", 0),  # SET_CONFIGURATION
    (5, "2120000000000700", 7),  # SET_LINE_CODING
    (5, "2122030000000000", 0),  # SET_CONTROL_LINE_STATE: a program opens the port
    (5, "2120000000000700", 7),
]


def is_well(board: UsbBoard) -> None:
    assert board.ask("status")["status"].running == 0  # quicker than hello, which seeks a card


def test_it_enumerates_and_says_who_it_is() -> None:
    board = UsbBoard(BOARD)
    found = board.requests()
    assert [(one.address, one.setup.hex(), one.result) for one in found] == LINUX
    product, maker, serial = (one.data[2:].decode("utf-16-le") for one in found[6:9])
    hello = board.ask("hello")["hello"]
    assert (product, maker, serial) == (BOARD, "poet-host", hello.unique_id)


def test_halted_endpoints_go_on_where_they_were() -> None:
    board = UsbBoard(BOARD)
    assert board.control("0203000081000000") == (0, b"")  # SET_FEATURE HALT
    assert board.control("8200000081000200") == (2, b"\1\0")  # GET_STATUS
    assert board.control("0201000081000000") == (0, b"")  # CLEAR_FEATURE
    for endpoint in ("82", "02"):
        assert board.control(f"02030000{endpoint}000000") == (0, b"")
        is_well(board)  # the host meets STALL, and clears it
        assert board.requests()[-1].setup.hex() == f"02010000{endpoint}000000"
        assert board.control(f"82000000{endpoint}000200") == (2, b"\0\0")


def test_requests_that_it_does_not_know_are_stalled() -> None:
    board = UsbBoard(BOARD)
    for setup in ("8006000600000a00", "c001000000004000", "210a000000000000", "0009020000000000"):
        assert board.control(setup) == (STALLED, b"")
    assert board.control("0105000000000200", b"\1\2") == (STALLED, b"")
    is_well(board)


def test_the_cable_may_go_and_come_at_any_time() -> None:
    """Within the enumeration, within a request, within the reply."""
    board = UsbBoard(BOARD)
    for delay_us in (0, 40, 300, 1_500, 101_000, 160_300, 160_900, 161_500, 172_000, 172_500):
        board.plug(False)
        board.run_us(1000)
        board.plug(True)
        board.run_us(delay_us)
    for delay_us in range(0, 700, 53):
        board.until(board.is_open)
        board.machine.give(board.frame("status"))
        board.run_us(delay_us)
        board.plug(False)
        board.run_us(20_000)
        board.machine.take()
        board.plug(True)
    board.until(board.is_open)
    is_well(board)


def test_a_reset_of_the_bus_ends_everything() -> None:
    board = UsbBoard(BOARD)
    for delay_us in range(0, 700, 53):
        board.machine.give(board.frame("status"))
        board.run_us(delay_us)
        board.lib.machine_usb_reset(board.chip)
        board.run_us(60_000)
        board.machine.take()
        board.until(board.is_open)
        is_well(board)


def test_it_sleeps_through_a_suspended_bus() -> None:
    board = UsbBoard(BOARD)
    board.machine.give(board.frame("status"))
    board.lib.machine_usb_suspend(board.chip, True)
    board.run_us(500_000)
    assert board.machine.take() == b""
    board.lib.machine_usb_suspend(board.chip, False)
    assert board.reply("status")["status"].running == 0


def test_the_uart_answers_while_the_cable_is_in() -> None:
    """Whichever of the two speaks first is the link."""
    board = UsbBoard(BOARD)
    frame = board.frame("status")
    board.lib.machine_serial_give(board.chip, frame, len(frame))
    board.until(lambda: board.lib.machine_serial_waiting(board.chip) > len(frame))


def test_it_trains_over_usb_to_the_same_bits(
    tmp_path: Path,
    truth: list[tuple[bytes, bytes]],  # noqa: F811
) -> None:
    storage = tmp_path / "card.img"
    create_storage(storage, 4 << 20)
    with SimulatedBoard(BOARD, build_firmware(BOARD), storage, usb=True) as board:
        with connect(board.port) as device:
            prepare(device)
            for step in range(1, 5):
                device.step(step, 0, 30)
                assert weights(device) == truth[step]
        with connect(board.port) as device:  # another program
            assert weights(device) == truth[4]
        assert board.ended is None
        assert board.meter.stack_free_bytes >= 256
