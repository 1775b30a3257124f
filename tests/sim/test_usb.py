"""The firmware of both boards over USB: enumeration, cable, reset, suspend, bits. 60 s."""

import time
from pathlib import Path

import pytest
import serial
from poet_host import api
from poet_host.data.datasets import Dataset
from poet_host.data.fitted import example
from poet_host.device.device import connect
from poet_host.firmware_build.bare_metal import build_firmware
from poet_host.sim.board import SimulatedBoard
from support import whole_runs as runs
from support.sim_helper import needs_compiler
from support.toy_boards import prepare, run_step, truth, weights_of
from support.usb_board import UsbBoard
from support.usb_layer import LINUX, STALLED

pytestmark = needs_compiler
both = pytest.mark.parametrize("name", ["mkr1000", "nrf52840_dk"])


def is_well(board: UsbBoard) -> None:
    assert board.ask("status")["status"].running == 0  # faster than hello, which looks for a card


@both
def test_it_enumerates_and_says_who_it_is(name: str) -> None:
    board = UsbBoard(name)
    found = board.requests()
    assert found[9].result == 2 + 2 * len(name)  # the product's name
    assert [
        (item.address, item.setup, LINUX[9][2] if i == 9 else item.result)
        for i, item in enumerate(found)
    ] == LINUX
    product, maker, serial = (item.data[2:].decode("utf-16-le") for item in found[9:12])
    hello = board.ask("hello")["hello"]
    assert (product, maker, serial) == (name, "poet-host", hello.unique_id)


@both
def test_halted_endpoints_continue_where_they_were(name: str) -> None:
    board = UsbBoard(name)
    assert board.control("0203000081000000") == (0, b"")  # SET_FEATURE HALT
    assert board.control("8200000081000200") == (2, b"\1\0")  # GET_STATUS
    assert board.control("0201000081000000") == (0, b"")  # CLEAR_FEATURE
    for endpoint in ("82", "02"):
        is_well(board)  # an odd number of packets each way, so that the data toggles are set
        assert board.control(f"02030000{endpoint}000000") == (0, b"")
        is_well(board)  # the host clears the STALL
        assert board.requests()[-1].setup == f"02010000{endpoint}000000"
        assert board.control(f"82000000{endpoint}000200") == (2, b"\0\0")


@both
def test_unknown_requests_are_stalled(name: str) -> None:
    board = UsbBoard(name)
    for setup in ("8006000600000a00", "c001000000004000", "210a000000000000", "0009020000000000"):
        assert board.control(setup) == (STALLED, b"")
    assert board.control("0105000000000200", b"\1\2") == (STALLED, b"")
    is_well(board)


@both
def test_the_cable_may_be_unplugged_at_any_time(name: str) -> None:
    """During the enumeration, a request and the reply."""
    board = UsbBoard(name)
    for delay_us in (0, 40, 300, 1_500, 101_000, 160_300, 160_900, 161_500, 172_000, 172_500):
        board.plug(False)
        board.run_us(1000)
        board.plug(True)
        board.run_us(delay_us)
    for delay_us in range(0, 700, 53):
        board.until(board.is_open)
        board.chip.give(board.frame("status"))
        board.run_us(delay_us)
        board.plug(False)
        board.run_us(20_000)
        board.chip.take()
        board.plug(True)
    board.until(board.is_open)
    is_well(board)


@both
def test_a_reset_of_the_bus_ends_everything(name: str) -> None:
    """During a request, before the reply and after it: a packet from before is never sent."""
    board = UsbBoard(name)
    for delay_us in sorted({*range(0, 300, 10), *range(0, 700, 53)}):
        board.chip.give(board.frame("status"))
        board.run_us(delay_us)
        board.lib.machine_usb_reset(board.machine)
        board.run_us(60_000)
        board.chip.take()
        board.until(board.is_open)
        board.run_us(5_000)
        assert board.chip.take() == b""
        is_well(board)


@both
def test_it_sleeps_while_the_bus_is_suspended(name: str) -> None:
    board = UsbBoard(name)
    board.chip.give(board.frame("status"))
    board.lib.machine_usb_suspend(board.machine, True)
    before = board.chip.meter
    board.run_us(500_000)
    after = board.chip.meter
    assert after.asleep_ticks - before.asleep_ticks > 0.99 * (after.ticks - before.ticks) > 0
    assert board.chip.take() == b""
    board.lib.machine_usb_suspend(board.machine, False)
    assert board.reply("status")["status"].running == 0


@both
@pytest.mark.parametrize("baud", [115_200, 1200])
def test_closing_at_1200_baud_starts_the_boot_loader(name: str, baud: int) -> None:
    """The nRF52840 DK has no boot loader, so it continues."""
    board = UsbBoard(name)
    board.chip.usb_open(True, baud)
    board.run_us(20_000)
    is_well(board)
    board.chip.usb_open(False, baud)
    result = board.chip.run(board.chip.meter.tick_hz // 10)
    word = board.peek(0x20007FFC, 4)
    if (name, baud) == ("mkr1000", 1200):
        assert (result, word.hex()) == ("reset", "35817307")
        board.chip.reset()
    else:
        assert (result, word.hex() == "35817307") == ("idle", False)
    board.chip.usb_open(True, 115_200)
    board.until(board.is_open)
    is_well(board)


@both
def test_the_uart_answers_while_the_cable_is_in(name: str) -> None:
    """The first port to receive a request is the link."""
    board = UsbBoard(name)
    frame = board.frame("status")
    board.lib.machine_serial_give(board.machine, frame, len(frame))
    board.until(lambda: board.lib.machine_serial_waiting(board.machine) > len(frame))


@both
def test_the_uart_is_the_link_without_a_cable(name: str) -> None:
    """A program that opens the USB port takes the link back."""
    board = UsbBoard(name)
    is_well(board)
    board.plug(False)
    board.run_us(20_000)
    for _ in range(2):
        frame = board.frame("status")
        board.lib.machine_serial_give(board.machine, frame, len(frame))
        board.until(lambda: board.lib.machine_serial_waiting(board.machine) > 8)
        board.lib.machine_serial_take(board.machine, board.ffi.new("uint8_t[256]"), 256)
    board.plug(True)
    board.until(board.is_open)
    is_well(board)


@both
def test_a_fault_is_sent_over_usb(name: str) -> None:
    """The core handles no interrupts then."""
    board = UsbBoard(name)
    is_well(board)
    board.lib.machine_take_faults(board.machine, True)
    undefined = (0xDE00).to_bytes(2, "little")
    address = board.chip.image.symbols["handle_rows"] & ~1
    assert board.lib.machine_load(board.machine, address, undefined, 2)
    board.chip.give(board.frame("rows", offset=0))
    assert board.chip.run(board.chip.meter.tick_hz) == "reset"
    assert board.chip.take().startswith(f"poet: fault 03 at {address:08x}, from ".encode())
    board.chip.reset()
    board.until(board.is_open)


@both
def test_it_trains_over_usb_to_the_same_bits(name: str, storage: Path) -> None:
    with SimulatedBoard(name, build_firmware(name), storage, usb=True) as board:
        with connect(board.port) as device:
            prepare(device)
            for step in range(1, 5):
                run_step(device, step, 0, 30)
                assert weights_of(device) == truth()[step]
        with connect(board.port) as device:  # another program
            assert weights_of(device) == truth()[4]
        assert board.ended is None
        assert board.meter.stack_free_bytes > 0


def test_the_board_sees_a_program_open_and_close_the_port() -> None:
    """Closing it at 1200 baud restarts the board: the simulation has no boot loader.

    The meter counts on: its times and energies are those since the board was started.
    """
    with SimulatedBoard("mkr1000", build_firmware("mkr1000"), None, usb=True) as board:

        def started_again(before: int) -> bool:
            return board.meter.ticks - before > board.meter.tick_hz

        for baud in (9600, 1200):
            with connect(board.port) as device:
                unique_id = device.info.unique_id
            before, end = board.meter.ticks, time.monotonic() + 60
            serial.Serial(board.port, baud).close()
            # A restarted board waits for a host before it goes to sleep.
            while baud == 1200 and not started_again(before) and time.monotonic() < end:
                time.sleep(0.05)
            assert started_again(before) == (baud == 1200)
        with connect(board.port) as device:
            assert device.info.unique_id == unique_id
        assert board.ended is None


@pytest.mark.slow
def test_the_whole_path_runs_over_usb() -> None:
    """Profile, solve, train and read the weights, which are those of unlimited memory."""
    graph = runs.unknown()
    data = Dataset("example", *example(graph))
    whole = runs.train(runs.schedule(graph), data, steps=2)
    for name in ("mkr1000", "nrf52840_dk"):
        with api.connect(f"sim:{name}:usb") as board:
            profile = board.profile(graph)
            plan = api.solve(graph, profile, ram=16_000, work_limit=10_000, gap=1.0)
            run = api.train(api.encode(graph, profile, plan), board, data, steps=2)
        assert (run.board, runs.same(run, whole)) == (name, True)
        assert [step.loss for step in run.steps] == [step.loss for step in whole.steps]
