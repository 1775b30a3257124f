"""Bytes per second over USB and UART, in simulated time. 10 s."""

import random

import pytest
from poet_host.device.device import ARENA
from support.sim_helper import needs_compiler
from support.usb_board import UsbBoard

pytestmark = needs_compiler
TIMES = 8
WORST_KB_S = 400  # docs/explanation/usb.md
PAYLOAD = {"mkr1000": 512, "nrf52840_dk": 1536}  # bytes of data that fit a request


def kilobytes_per_second(name: str, *, usb: bool) -> tuple[float, float]:
    """Rates of payload to the board's arena and from it, with one request at a time."""
    board = UsbBoard(name, usb=usb)
    data = random.Random(1).randbytes(PAYLOAD[name])
    board.ask("write", object=ARENA, tensor=0, offset=0, bytes=data)
    begun_us = board.time_us
    for _ in range(TIMES):
        board.ask("write", object=ARENA, tensor=0, offset=0, bytes=data)
    written_us = board.time_us
    given = sum(len(board.ask("rows", offset=0)["bytes"]) for _ in range(TIMES))
    return (
        TIMES * len(data) / (written_us - begun_us) * 1e3,
        given / (board.time_us - written_us) * 1e3,
    )


@pytest.mark.parametrize("name", PAYLOAD)
def test_usb_is_faster_than_the_uart(name: str) -> None:
    usb, uart = kilobytes_per_second(name, usb=True), kilobytes_per_second(name, usb=False)
    print(name, "to the board, from it, kB/s:", "usb", usb, "uart", uart)
    assert all(50 < rate < 100 for rate in uart)  # 1 Mbaud is 100 kB/s
    assert all(rate >= WORST_KB_S for rate in usb)
