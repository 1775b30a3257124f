"""The chips' own flash against the data sheets: erase, write, time, wear and power cuts."""

from pathlib import Path
from typing import Any

import pytest
from poet_host.errors import BadInput
from poet_host.sim.chip_library import chips
from poet_host.sim.simulated_chip import CardFault, SimulatedChip
from support.sim_helper import Outcome, build, needs_compiler, nrf52840, peek, run, samd21, words

pytestmark = needs_compiler
AREA = 0x28000
# Core, machine, chip number of the program, most writes without an erase, erase unit in bytes, and
# microseconds of an erase and of the 64 bytes that the program writes.
CHIPS = {
    "samd21": ("m0plus", samd21, 21, 8, 256, 6000, 2500),
    "nrf52840": ("m4f", nrf52840, 52, 2, 4096, 85000, 16 * 41),
}
each_chip = pytest.mark.parametrize("chip", CHIPS)


def machine(chip: str, number: int, folder: Path) -> Any:
    core, make, code, allowed, *_ = CHIPS[chip]
    options = (f"-DCHIP={code}", f"-DCASE={number}", f"-DALLOWED={allowed}")
    return make(build(core, "flash.c", folder, *options))


def case(chip: str, number: int, folder: Path) -> Outcome:
    return run(machine(chip, number, folder))


@each_chip
def test_content_and_times(chip: str, tmp_path: Path) -> None:
    outcome = case(chip, 1, tmp_path)
    blank, write_us, erase_us, last, both, again = words(outcome.text)
    assert (blank, last, again) == (0xFFFFFFFF, 0x100F, 0xFFFFFFFF)
    assert both == 0x1000 & 0xFFFF0FFF
    *_, erase_spec_us, write_spec_us = CHIPS[chip]
    assert erase_spec_us <= erase_us <= erase_spec_us * 1.01
    assert write_spec_us <= write_us <= write_spec_us * 1.05


@each_chip
def test_the_meter_counts_operations_and_their_time(chip: str, tmp_path: Path) -> None:
    ffi, lib = chips()
    chip_machine = machine(chip, 2, tmp_path)
    run(chip_machine)
    meter = ffi.new("struct machine_meter *")
    lib.machine_meter(chip_machine, meter)
    *_, erase_us, write_us = CHIPS[chip]
    ticks_per_us = lib.machine_tick_hz(chip_machine) // 1_000_000
    assert meter.flash_erases == 1
    assert meter.flash_writes == (1 if chip == "samd21" else 16)
    assert meter.flash_busy_ticks == (erase_us + write_us) * ticks_per_us


@each_chip
def test_an_erase_unit_and_nothing_else_is_erased(chip: str, tmp_path: Path) -> None:
    _, lib = chips()
    size = CHIPS[chip][4]
    chip_machine = machine(chip, 2, tmp_path)
    end = lib.machine_flash_bytes(chip_machine)
    path = tmp_path / "flash"
    path.write_bytes(bytes(end))
    core, make, code, *_ = CHIPS[chip]
    elf = build(core, "flash.c", tmp_path, f"-DCHIP={code}", "-DCASE=2", "-DALLOWED=1")
    run(make(elf, flash=path))
    content = path.read_bytes()
    assert content[AREA - size : AREA] == bytes(size)
    assert content[AREA + 64 : AREA + size] == b"\xff" * (size - 64)
    assert content[AREA + size : AREA + 2 * size] == bytes(size)
    assert content[AREA + 4 : AREA + 8] == (0x2001).to_bytes(4, "little")


@each_chip
def test_the_flash_wears_as_the_data_sheet_says(chip: str, tmp_path: Path) -> None:
    assert words(case(chip, 3, tmp_path).text) == [0xFFFFFF01]
    case(chip, 4, tmp_path).fails("without an erase")


@each_chip
def test_code_in_ram_runs_while_the_flash_is_busy(chip: str, tmp_path: Path) -> None:
    assert words(case(chip, 5, tmp_path).text) == [1]


def test_a_page_is_erased_when_its_parts_take_the_time_of_an_erase(tmp_path: Path) -> None:
    *parts_us, word = words(case("nrf52840", 6, tmp_path).text)
    specified = [8000] * 5 + [10_000] * 5  # 80 ms do not suffice, 90 ms do
    assert word == 0x1000
    assert len(parts_us) == len(specified)
    for found, part_us in zip(parts_us, specified, strict=True):
        assert part_us <= found <= part_us * 1.01


@each_chip
def test_a_power_cut_leaves_an_operation_half_done(chip: str, tmp_path: Path) -> None:
    _, lib = chips()
    size = CHIPS[chip][4]
    for operation in (1, 2):
        chip_machine = machine(chip, 2, tmp_path)
        lib.machine_flash_cut(chip_machine, operation)
        outcome = run(chip_machine)
        assert outcome.result == "power cut"
        unit = peek(chip_machine, AREA, size)
        if operation == 1:
            assert unit[: size // 2] == b"\xff" * (size // 2)
        else:
            assert unit[:2] == b"\x00\x20"
            assert unit[size // 2 :] == b"\xff" * (size // 2)
    chip_machine = machine(chip, 2, tmp_path)
    lib.machine_flash_cut(chip_machine, 100)
    assert run(chip_machine).result == "exit"


@each_chip
def test_a_file_of_another_size_is_refused(chip: str, tmp_path: Path) -> None:
    _, lib = chips()
    path = tmp_path / "flash"
    path.write_bytes(bytes(1000))
    with path.open("r+b") as file:
        assert not lib.machine_flash_file(machine(chip, 1, tmp_path), file.fileno())


MISUSES = {
    ("samd21", 20): "damages the program",
    ("samd21", 21): "write to flash at 0x00028000",
    ("samd21", 22): "the page buffer holds other data",
    ("samd21", 24): "the page buffer holds other data",
    ("nrf52840", 20): "damages the program",
    ("nrf52840", 21): "write to flash at 0x00028000",
    ("nrf52840", 22): "write to flash at 0x00028000",
    ("nrf52840", 23): "while CONFIG does not enable erase",
    ("nrf52840", 24): "not the address of a page",
    ("nrf52840", 25): "without an erase",
    ("nrf52840", 26): "another page is erased only in part",
}


@pytest.mark.parametrize(("chip", "number"), MISUSES)
def test_misuse_stops_with_a_reason(chip: str, number: int, tmp_path: Path) -> None:
    case(chip, number, tmp_path).fails(MISUSES[chip, number])


def test_a_wrong_key_is_a_programming_error(tmp_path: Path) -> None:
    assert words(case("samd21", 23, tmp_path).text) == [4, 3]


def test_a_simulated_chip_keeps_its_flash(tmp_path: Path) -> None:
    """Through a reset, and in the file that it is given."""
    elf = build("m4f", "flash.c", tmp_path, "-DCHIP=52", "-DCASE=2", "-DALLOWED=1")
    written = (0x2001).to_bytes(4, "little")
    path = tmp_path / "flash"
    for flash in (None, path):
        chip = SimulatedChip("nrf52840_dk", elf, None, flash=flash)
        assert chip.run(50_000_000) == "breakpoint"
        assert peek(chip.machine, AREA + 4, 4) == written
        chip.reset()
        assert peek(chip.machine, AREA + 4, 4) == written
    assert path.read_bytes()[AREA + 4 : AREA + 8] == written


def test_the_first_of_two_power_cuts_ends_the_run(tmp_path: Path) -> None:
    elf = build("m4f", "flash.c", tmp_path, "-DCHIP=52", "-DCASE=2", "-DALLOWED=1")
    faults = [CardFault("flash_power_cut", at) for at in (1_000, 1)]
    cut = SimulatedChip("nrf52840_dk", elf, None, faults=faults)
    assert cut.run(50_000_000) == "power cut"


def test_wrong_flash_files_are_refused(tmp_path: Path) -> None:
    elf = build("m4f", "flash.c", tmp_path, "-DCHIP=52", "-DCASE=2", "-DALLOWED=1")
    short = tmp_path / "short"
    short.write_bytes(bytes(10))
    for wrong in (short, tmp_path):
        with pytest.raises(BadInput, match=str(wrong)):
            SimulatedChip("nrf52840_dk", elf, None, flash=wrong)
