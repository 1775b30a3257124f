"""The board answers, without losing bytes, and its clocks are right."""

import numpy as np
from poet_host import isa
from poet_host.device.device import Device
from poet_host.firmware_build.bare_metal import build_firmware
from poet_host.firmware_build.ledger import memory_ledger

from tests.hardware.rig import Rig, look

WIRES = "the port's name, its baud rate, RX and TX (crossed?), and a common ground"
CLOCK = "the crystal and how the firmware starts it (DFLL on the SAMD21, HFXO on the nRF52840)"
SAMPLE_US = 400_000


def test_the_board_says_who_it_is(rig: Rig) -> None:
    with look(WIRES), rig.connect() as device:
        info = device.info
    with look("which board is on this port, and which firmware was written to it"):
        assert info.board == rig.board
        assert info.tick_hz == 1_000_000
        assert info.unique_id
        assert info.arena_bytes == memory_ledger(rig.board, build_firmware(rig.board)).arena_bytes


def test_no_byte_is_lost(device: Device) -> None:
    """Send long frames both ways; the link counts the requests that it must repeat."""
    data = np.random.default_rng(1).bytes(min(8192, device.info.arena_bytes))
    with look(f"{WIRES}; then the UART's DMA: bytes get lost while the processor is busy"):
        device.link.resent = 0
        first = device.rows()
        device.probe_write(0, data)
        device.probe_write(0, bytes(len(data)))  # zeros are what COBS has to code
        assert device.rows() == first
        assert device.link.resent == 0, f"{device.link.resent} requests had to be sent again"


def test_its_clock_keeps_time(rig: Rig, device: Device) -> None:
    """A wrong timer makes every profile, deadline and time-out wrong."""
    elements = device.info.arena_bytes // 8
    attrs = {"n": 1, "c": elements, "h": 1, "w": 1}
    op = isa.pack_op(isa.by_name("KERNEL")["relu"].code, 0, [0], 1, None, attrs)

    def measured(repeat: int) -> float:
        return device.us(device.probe_op(op, [0, 4 * elements, 0], repeat=repeat))

    repeat = 1 + int(SAMPLE_US / measured(1))
    began_us = rig.clock_us()
    board_us = measured(repeat)
    elapsed_us = rig.clock_us() - began_us
    with look(CLOCK):
        assert abs(board_us - elapsed_us) < 0.05 * elapsed_us, (
            f"the board counts {board_us:,.0f} us in {elapsed_us:,.0f} us"
        )
