"""The SAM D21's USB device controller: the model's rules (data sheet, section 32)."""

from pathlib import Path

import pytest
from poet_host.sim.chip_library import chips
from support.sim_helper import Outcome, build, needs_compiler, run, samd21, words

pytestmark = needs_compiler
GET_DESCRIPTOR = [0x01000680, 0x00400000]  # the device's, 64 bytes: the first request of a host
CRC = 0x94DD  # of those eight bytes, sent after them


def case(number: int, folder: Path) -> Outcome:
    """Run one case of samd21_usb.c with a cable."""
    _, lib = chips()
    machine = samd21(build("m0plus", "samd21_usb.c", folder, f"-DCASE={number}"))
    lib.machine_usb_plug(machine, True)
    return run(machine)


def test_a_setup_packet_is_written_to_its_bank_only(tmp_path: Path) -> None:
    outcome = case(1, tmp_path)
    assert (outcome.result, outcome.message) == ("exit", "")
    *packet, after, size, status, crc, later = words(outcome.text)
    assert packet == GET_DESCRIPTOR
    assert (after, size, status) == (0, 8, 0x43)  # the bank has room for 8 bytes
    assert (crc, later) == (CRC, 0x43)


def test_a_reset_of_the_bus_keeps_the_control_endpoint(tmp_path: Path) -> None:
    assert words(case(2, tmp_path).text) == [0, 0x11, 0]


def test_an_idle_bus_is_a_suspended_one(tmp_path: Path) -> None:
    suspended, flags, on = words(case(3, tmp_path).text)
    assert (suspended, flags, on) == (4, 1 | 8 | 0x10, 2)  # SUSPEND, EORST, WAKEUP


def test_a_packet_goes_once(tmp_path: Path) -> None:
    assert words(case(4, tmp_path).text) == [0x41]


MISUSES = {
    20: "USB: its generic clock (GCLK_USB) must run at 48 MHz",
    21: "USB: PORT does not give it PA24 and PA25",
    22: "USB: PADCAL is not what the calibration area says",
    23: "USB: DESCADD must be the aligned address of a table in RAM",
    24: "the model of USB does not cover register offset 0x120",
    25: "USB: a packet is given to an endpoint that has not sent another yet",
    26: "USB reaches 0x20007ffc..0x20008004, which is not in RAM",
    27: "USB: only transfers of one packet are modelled",
    28: "USB: an endpoint's data must be aligned to 4 bytes",
    29: "USB: host mode is not modelled",
    30: "USB has no bus clock: set bit 5 of PM.APBBMASK first",
    31: "USB: its generic clock (GCLK_USB) must run at 48 MHz",
    32: "the model of USB does not cover register offset 0x8",
    33: "the USB's table of endpoints reaches 0x30000000",
}


@pytest.mark.parametrize("number", MISUSES)
def test_misuse_stops_with_a_reason(number: int, tmp_path: Path) -> None:
    case(number, tmp_path).fails(MISUSES[number])
