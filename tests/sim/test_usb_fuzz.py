"""A host with random events: the board breaks no rule of the chip, and serves on. 25 s."""

import random
from collections.abc import Callable

import pytest
from poet_host.device.wire import WireError
from support.sim_helper import needs_compiler
from support.usb_board import BAUD, PENDING, UsbBoard

pytestmark = needs_compiler
ACTIONS, BETWEEN_CHECKS = 100, 20
PAUSES_US = (10, 60, 300, 2_000, 130_000, 300_000)
SET_ADDRESS = 5
REQUESTS = {
    "two packets": "8006000200004300",  # the descriptor of the configuration
    "one packet": "8006000100001200",  # the descriptor of the device
    "written": "2120000000000700",  # SET_LINE_CODING
    "without data": "0009010000000000",  # SET_CONFIGURATION
    "also without data": "010b000000000000",  # SET_INTERFACE
    "refused": "c001000000004000",
}
DATA = bytes(7)  # of the line coding


def any_request(rng: random.Random) -> bytes:
    """Eight bytes of a SETUP packet, mostly with a meaning."""
    usual = (
        (0x80, 0x81, 0x82, 0, 1, 2, 0x21, 0xA1, 0xC0),
        (0, 1, 3, 6, 8, 9, 10, 11, 0x20, 0x21, 0x22),
        (0, 1, 2),
        (0, 1, 2, 3),
        (0, 1, 0x81, 0x82, 2, 9, 4),
        (0, 4),
        (0, 1, 2, 7, 8, 64),
        (0, 0, 0, 1),
    )
    setup = [rng.choice((*values, rng.randrange(256))) for values in usual]
    if setup[1] == SET_ADDRESS:  # the host would need the new address
        setup[1] = 0
    return bytes(setup)


def ask_anything(board: UsbBoard, rng: random.Random) -> None:
    board.lib.machine_usb_ask(board.machine, any_request(rng), rng.randbytes(512), 512)


def interrupt_itself(board: UsbBoard, rng: random.Random) -> None:
    """A SETUP may come at any time, even during an earlier request."""
    ask_anything(board, rng)
    for _ in range(rng.randrange(1, 4)):
        board.chip.run(rng.randrange(100 * 48))
        board.lib.machine_usb_interject(board.machine, any_request(rng), rng.randbytes(512), 512)


def send_anything(board: UsbBoard, rng: random.Random) -> None:
    garbage = rng.randbytes(rng.randrange(200))
    board.chip.give(rng.choice((board.frame("status"), board.frame("rows", offset=0), garbage)))


def reset(board: UsbBoard, rng: random.Random) -> None:
    board.lib.machine_usb_reset(board.machine)


def replug(board: UsbBoard, rng: random.Random) -> None:
    board.plug(False)
    board.run_us(rng.randrange(3_000))
    board.plug(True)


def open_or_close(board: UsbBoard, rng: random.Random) -> None:
    board.chip.usb_open(rng.random() < 0.5, rng.choice((9_600, BAUD)))


def suspend(board: UsbBoard, rng: random.Random) -> None:
    if board.is_ready():
        board.lib.machine_usb_suspend(board.machine, True)
        board.run_us(rng.choice((100, 5_000)))
        board.lib.machine_usb_suspend(board.machine, False)
        board.run_us(25_000)


KINDS: tuple[Callable[[UsbBoard, random.Random], None], ...] = (
    *(3 * (ask_anything,)), *(3 * (interrupt_itself,)), *(2 * (send_anything,)),
    reset, replug, open_or_close, suspend,
)  # fmt: skip


def serves_on(board: UsbBoard) -> None:
    """Check that it does after an enumeration: the host may have closed endpoints."""
    board.chip.usb_open(True, BAUD)
    reset(board, random.Random())
    board.run_us(60_000)
    board.until(board.is_open)
    board.run_us(5_000)
    board.chip.take()
    try:
        board.ask("status")
    except WireError:  # the end of an earlier reply
        board.ask("status")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["mkr1000", "nrf52840_dk"])
def test_a_random_host_breaks_nothing(name: str, seed: int) -> None:
    board, rng = UsbBoard(name), random.Random(seed)
    for number in range(1, ACTIONS + 1):
        rng.choice(KINDS)(board, rng)
        board.run_us(rng.choice(PAUSES_US))
        board.chip.take()
        if number % BETWEEN_CHECKS == 0:
            serves_on(board)
    assert board.chip.meter.stack_free_bytes >= 256


def begin(board: UsbBoard, setup: str) -> None:
    """Send a request in a new frame, so that each time the same happens at the same tick."""
    frame = board.chip.meter.tick_hz // 1000
    board.run_us(500)
    board.chip.run(frame - board.chip.meter.ticks % frame)
    board.lib.machine_usb_ask(board.machine, bytes.fromhex(setup), DATA, len(DATA))


def working_ticks(board: UsbBoard, setup: str) -> list[int]:
    """Return when the core runs a block of code for this request, in ticks after its begin."""
    begin(board, setup)
    begun, found = board.chip.meter, list[int]()
    before = begun
    answer = board.ffi.new("uint8_t[512]")
    while board.lib.machine_usb_answer(board.machine, answer) == PENDING:
        board.chip.run(1)
        after = board.chip.meter
        if after.cycles > before.cycles:
            found.append(before.ticks - begun.ticks)
        before = after
    return found


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("name", ["mkr1000", "nrf52840_dk"])
def test_the_answer_belongs_to_the_latest_request(name: str, request_name: str) -> None:
    """A host replaces one request by another, at any moment of the first."""
    board, given_up = UsbBoard(name), REQUESTS[request_name]
    ticks = working_ticks(board, given_up)
    assert len(ticks) > 50
    for asked in REQUESTS.values():
        wanted = board.control(asked, DATA)
        for moment in ticks:
            begin(board, given_up)
            board.chip.run(moment)
            answer = board.control(asked, DATA, interject=True)
            assert answer == wanted, f"{asked} after {moment} ticks"
