"""The nRF52840's peripherals against the product specification."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from poet_host.sim.chip_library import chips
from poet_host.sim.elf import load_elf
from support.sim_helper import build, needs_compiler, run

from tests.sim.test_samd21 import words
from tests.sim.test_sdcard import Card, image, pattern  # noqa: F401

pytestmark = needs_compiler
TICKS_PER_US = 64


def nrf52840(elf: Path, card: Any = None) -> Any:
    """An nRF52840-DK's chip: UART on P0.06 and P0.08, the card on P1.12 to P1.15."""
    ffi, lib = chips()
    config = ffi.new("struct nrf52840_config *")
    config.spi_sck_pin, config.spi_mosi_pin, config.spi_miso_pin = 47, 45, 46
    config.card_select_pin, config.uart_tx_pin, config.uart_rx_pin = 44, 6, 8
    config.device_id = [0x01234567, 0x89ABCDEF]
    machine = ffi.gc(lib.nrf52840_new(config, card or ffi.NULL), lib.machine_free)
    load_elf(machine, elf)
    lib.machine_reset(machine)
    return machine


def case(number: int, folder: Path, card: Any = None) -> Any:
    return nrf52840(build("m4f", "nrf52840_cases.c", folder, f"-DCASE={number}"), card)


def test_timer_and_core_agree_on_time(tmp_path: Path) -> None:
    assert abs(words(run(case(1, tmp_path)).text)[0] - 10_000) <= 1  # microseconds


def test_uart_echoes_at_its_baud_rate(tmp_path: Path) -> None:
    ffi, lib = chips()
    machine = case(2, tmp_path)
    assert run(machine).result == "idle"
    before = run(machine).ticks
    sent = bytes(range(1, 101)) + b"\0"
    assert lib.machine_serial_give(machine, sent, len(sent)) == len(sent)
    outcome = run(machine)
    data = ffi.new("uint8_t[]", 200)
    taken = lib.machine_serial_take(machine, data, 200)
    assert outcome.message == ""
    assert bytes(data)[:taken] == bytes(b + 1 for b in sent)
    assert 2020 <= (outcome.ticks - before) / TICKS_PER_US <= 2030  # in, then out


def test_a_block_arrives_by_easydma(tmp_path: Path, image: Path) -> None:  # noqa: F811
    card = Card(image)
    outcome = run(case(3, tmp_path, card.card))
    expected = 0
    for byte in pattern(3):
        expected = (expected * 31 + byte) % 2**32
    assert (outcome.result, outcome.message) == ("exit", "")
    assert words(outcome.text) == [0xC0FF8000, 0, expected, 514]
    assert outcome.asleep_ticks > 514 * 32 * 0.95  # eight bits at 16 MHz
    assert card.complaint == ""


def test_compare_with_clear_is_periodic(tmp_path: Path) -> None:
    outcome = run(case(4, tmp_path))
    assert abs(words(outcome.text)[0] - 2000) <= 2
    assert outcome.asleep_ticks > 1900 * TICKS_PER_US


def test_the_crystal_takes_its_time(tmp_path: Path) -> None:
    outcome = run(case(5, tmp_path))
    assert words(outcome.text) == [0x10000, 0x10001, 0x01234567]
    assert outcome.ticks > 360 * TICKS_PER_US


def test_compare_events_come_without_interrupts_too(tmp_path: Path) -> None:
    assert words(run(case(6, tmp_path)).text) == [0, 1, 0]


def test_no_compare_is_lost_while_the_timer_is_read(tmp_path: Path) -> None:
    assert words(run(case(7, tmp_path)).text) == [200]


MISUSES = {
    20: "anomaly 198",
    21: "anomaly 198",
    22: "SPIM3 reaches 0x",
    23: "SPIM2: FREQUENCY must be one that the instance has",
    24: "SPIM3: PSEL is not the pins wired on the board",
    25: "SPIM3: START while it is disabled",
    26: "the chip has RNG there, but the simulator has no model of it",
    27: "UARTE0: a transfer starts while ENABLE is not 8",
    28: "the model of NVMC does not cover register offset 0x504",
    29: "the model of SPIM3 does not cover register offset 0x500 in that width",
}


@pytest.mark.parametrize("number", MISUSES)
def test_misuse_stops_with_a_reason(number: int, tmp_path: Path) -> None:
    outcome = run(case(number, tmp_path))
    assert outcome.result == "fault"
    assert MISUSES[number] in outcome.message


def test_a_block_of_its_own_for_the_sent_bytes_is_fine(tmp_path: Path) -> None:
    assert words(run(case(30, tmp_path)).text) == [0x6601]


def test_the_instruction_cache_pays(tmp_path: Path) -> None:
    elf = build("m4f", "stress.c", tmp_path)
    cached = run(nrf52840(elf)).cycles  # not enabled by this program
    bare_core = chips()[1].bare_new(True, 65536, 16384)
    load_elf(bare_core, elf)
    chips()[1].machine_reset(bare_core)
    assert cached > 1.3 * run(bare_core).cycles
