"""The board's LED: what it shows while the board waits, and while it trains."""

import itertools
from pathlib import Path

import pytest
from poet_host.firmware_build.bare_metal import build_firmware
from poet_host.sim.simulated_chip import SimulatedChip
from support.chip_runs import ILLEGAL, ask, patched, until_idle
from support.memory_board import card
from support.sim_helper import needs_compiler
from support.toy_boards import trained
from support.toy_job import STEPS, written

pytestmark = [needs_compiler, pytest.mark.parametrize("name", ["mkr1000", "nrf52840_dk"])]
# The register whose bit switches the LED on, and the number of the bit: the pin's level on the
# MKR1000, its direction on the nRF52840.
LEDS = {"mkr1000": (0x41004410, 20), "nrf52840_dk": (0x50000514, 13)}
SAMPLE_S, PERIOD_S = 0.05, 7.5


def is_on(chip: SimulatedChip, name: str) -> bool:
    address, pin = LEDS[name]
    value = chip.ffi.new("uint32_t *")
    assert chip.lib.machine_read_register(chip.machine, address, 4, value)
    return bool(value[0] >> pin & 1)


def flashes(chip: SimulatedChip, name: str, sample_s: float = SAMPLE_S) -> int:
    """Return how often the LED is switched on within PERIOD_S."""
    chip.lib.machine_wait_idle(chip.machine, True)
    seen = []
    for _ in range(round(PERIOD_S / sample_s)):
        assert chip.run(int(sample_s * chip.meter.tick_hz)) in ("slice", "idle")
        seen.append(is_on(chip, name))
    chip.lib.machine_wait_idle(chip.machine, False)
    return sum(after and not before for before, after in itertools.pairwise(seen))


def with_card(name: str, folder: Path, *, has_job: bool) -> SimulatedChip:
    path = folder / "card.img"
    (written() if has_job else trained(card()).storage).write_to(path)
    return SimulatedChip(name, build_firmware(name), path)


def test_a_board_that_waits_flashes_once(name: str, tmp_path: Path) -> None:
    chip = with_card(name, tmp_path, has_job=False)
    until_idle(chip)
    assert flashes(chip, name) == 1


def test_a_board_without_a_usable_card_flashes_twice(name: str, image: Path) -> None:
    chip = SimulatedChip(name, build_firmware(name), image)
    until_idle(chip)
    assert flashes(chip, name) == 2


def test_a_board_after_a_fault_flashes_three_times(name: str, tmp_path: Path) -> None:
    chip = with_card(name, tmp_path, has_job=False)
    patched(chip, ILLEGAL)
    assert chip.run(10**9) == "reset"
    chip.reset()
    until_idle(chip)
    assert flashes(chip, name) == 3


def test_a_board_that_trains_flashes_in_each_step(name: str, tmp_path: Path) -> None:
    chip = with_card(name, tmp_path, has_job=True)
    assert flashes(chip, name, sample_s=0.0002) >= STEPS - 1
    assert ask(chip, "hello").committed_step == STEPS
