"""The SAM D21's peripherals against the data sheet, driven by small programs."""

import binascii
import zlib
from pathlib import Path
from typing import Any

import pytest
from support.sd_card import Card, pattern_hash
from support.sim_helper import build, echo, needs_compiler, run, samd21, words

pytestmark = needs_compiler
CYCLES_PER_US = 48


def case(number: int, folder: Path, card: Any = None) -> Any:
    return samd21(build("m0plus", "samd21_cases.c", folder, f"-DCASE={number}"), card)


def test_timer_and_core_agree_on_time(tmp_path: Path) -> None:
    outcome = run(case(1, tmp_path))
    assert abs(words(outcome.text)[0] - 10_000) <= 2  # microseconds


def test_uart_echoes_at_its_baud_rate(tmp_path: Path) -> None:
    outcome, ticks = echo(case(2, tmp_path))
    assert outcome.code == 0
    assert 1010 <= ticks / CYCLES_PER_US <= 1030  # 101 bytes of ten bits at 1 Mbaud, the last echo
    assert outcome.asleep_ticks > ticks / 2


def test_a_block_arrives_by_dma_with_its_crc(tmp_path: Path, image: Path) -> None:
    card = Card(image)
    outcome = run(case(3, tmp_path, card.card))
    assert (outcome.result, outcome.message) == ("exit", "")
    assert words(outcome.text) == [0xC0FF8000, 0, 2, 0, pattern_hash(3)]
    assert outcome.asleep_ticks > 512 * 8 * 4 * 0.8  # the core slept through the transfer
    assert card.complaint == ""


def test_the_crc_unit_computes_what_the_processor_writes(tmp_path: Path) -> None:
    text = b"bits of a tensor"
    crc32 = zlib.crc32(text)
    assert words(run(case(33, tmp_path)).text) == [crc32, crc32]
    crc16 = binascii.crc_hqx(text, 0xFFFF)
    assert words(run(case(34, tmp_path)).text) == [crc16, crc32]


def test_a_one_shot_timer_wakes_the_core_and_stops(tmp_path: Path) -> None:
    outcome = run(case(4, tmp_path))
    elapsed, status = words(outcome.text)
    assert 1000 <= elapsed <= 1003
    assert status & 0x08
    assert outcome.asleep_ticks > 950 * CYCLES_PER_US


def test_linked_descriptors_run_one_after_another(tmp_path: Path) -> None:
    assert words(run(case(5, tmp_path)).text) == [0x01020304]


def test_no_compare_is_lost_while_the_timer_is_read(tmp_path: Path) -> None:
    assert words(run(case(8, tmp_path)).text) == [200]


MISUSES = {
    20: "without a flash wait state",
    21: "SERCOM5 has no bus clock: set bit 7 of PM.APBCMASK first",
    22: "SERCOM5: its generic clock (GCLK_SERCOMx_CORE) is off",
    23: "SERCOM5: DATA written while INTFLAG.DRE is clear",
    24: "SERCOM5: BAUD is enable-protected",
    25: "SERCOM1: faster than 12 MHz",
    26: "the chip has ADC there, but the simulator has no model of it",
    27: "errata 1.7.2",
    28: "DMAC reaches 0x10000000..0x10000001, which is not in RAM",
    29: "SERCOM5: PORT does not give it the pins",
    30: "ONDEMAND must be cleared",
    40: "DFLLVAL.COARSE 0 and DFLLMUL.MUL 1465",
    35: "CRCDATAIN written while the CRC unit does not read it",
    36: "CRCDATAIN written while the CRC unit works on earlier data",
    37: "CRCCHKSUM is enable-protected",
    38: "CRCSTATUS read with the I/O interface",
    62: "BOD33 changes while it is enabled",
    60: "CRCCTRL is enable-protected",
    61: "CRCCHKSUM read while CRCBUSY is set",
}


@pytest.mark.parametrize("number", MISUSES)
def test_misuse_stops_with_a_reason(number: int, tmp_path: Path) -> None:
    run(case(number, tmp_path)).fails(MISUSES[number])


def test_count_needs_a_read_request(tmp_path: Path) -> None:
    assert words(run(case(31, tmp_path)).text) == [0]


def test_a_write_of_the_dfll_before_it_is_ready_is_lost(tmp_path: Path) -> None:
    assert words(run(case(39, tmp_path)).text) == [1, 3]


def test_serial_number_is_where_the_data_sheet_says(tmp_path: Path) -> None:
    assert words(run(case(32, tmp_path)).text) == [0x11111111, 0x44444444]


def test_flash_wait_state_costs_time_that_ram_does_not(tmp_path: Path) -> None:
    elf = build("m0plus", "samd21_cases.c", tmp_path, "-DCASE=1")
    outcome = run(samd21(elf))
    assert outcome.cycles / outcome.instructions > 1.3  # zero wait states: about 1.3 to 1.5
