"""The nRF52840's peripherals against the product specification."""

from pathlib import Path
from typing import Any

import pytest
from support.sd_card import Card, pattern_hash
from support.sim_helper import bare, build, echo, needs_compiler, nrf52840, run, words

pytestmark = needs_compiler
TICKS_PER_US = 64


def case(number: int, folder: Path, card: Any = None) -> Any:
    return nrf52840(build("m4f", "nrf52840_cases.c", folder, f"-DCASE={number}"), card)


def test_timer_and_core_agree_on_time(tmp_path: Path) -> None:
    assert abs(words(run(case(1, tmp_path)).text)[0] - 10_000) <= 1  # microseconds


def test_uart_echoes_at_its_baud_rate(tmp_path: Path) -> None:
    outcome, ticks = echo(case(2, tmp_path))
    assert outcome.message == ""
    assert 2020 <= ticks / TICKS_PER_US <= 2030  # in, then out


def test_a_block_arrives_by_easydma(tmp_path: Path, image: Path) -> None:
    card = Card(image)
    outcome = run(case(3, tmp_path, card.card))
    assert (outcome.result, outcome.message) == ("exit", "")
    assert words(outcome.text) == [0xC0FF8000, 0, pattern_hash(3), 514]
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
    28: "the model of NVMC does not cover register offset 0x50c",
    29: "the model of SPIM3 does not cover register offset 0x500 in that width",
    31: "anomaly 242",
}


@pytest.mark.parametrize("number", MISUSES)
def test_misuse_stops_with_a_reason(number: int, tmp_path: Path) -> None:
    run(case(number, tmp_path)).fails(MISUSES[number])


def test_a_block_of_its_own_for_the_sent_bytes_is_fine(tmp_path: Path) -> None:
    assert words(run(case(30, tmp_path)).text) == [0x6601]


def test_the_instruction_cache_pays(tmp_path: Path) -> None:
    elf = build("m4f", "stress.c", tmp_path)
    cached = run(nrf52840(elf)).cycles  # not enabled by this program
    assert cached > 1.3 * run(bare("m4f", elf)).cycles
