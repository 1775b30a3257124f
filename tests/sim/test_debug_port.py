"""A debugger writes the nRF52840 twice, with a power cycle in between."""

import pytest
from poet_host.firmware_build.bare_metal import build_firmware
from poet_host.sim.simulated_chip import DEBUG_PORT_OPEN, SimulatedChip
from support.chip_runs import ERASED, Debugger
from support.sim_helper import needs_compiler

pytestmark = needs_compiler
REVISION_2, REVISION_3 = 4, 5
PROTECTED = 0xFFFFFF00


@pytest.mark.parametrize("variant", [REVISION_2, REVISION_3])
def test_the_firmware_keeps_the_debug_port_open(variant: int) -> None:
    debugger = Debugger(build_firmware("nrf52840_dk"), variant)
    for _ in range(2):
        debugger.power_cycle()
        assert debugger.can_write()


def test_the_firmware_opens_the_port_with_one_reset() -> None:
    elf = build_firmware("nrf52840_dk")
    chip = SimulatedChip("nrf52840_dk", elf, None, config={"protection": ERASED})
    assert chip.run(10**9) == "reset"
    assert chip.lib.nrf52840_protection(chip.machine) == DEBUG_PORT_OPEN
    chip.reset()
    assert chip.run(10**9) == "idle"


@pytest.mark.parametrize(("variant", "protection"), [(REVISION_2, ERASED), (REVISION_3, PROTECTED)])
def test_the_firmware_leaves_other_settings_alone(variant: int, protection: int) -> None:
    elf = build_firmware("nrf52840_dk")
    chip = SimulatedChip(
        "nrf52840_dk", elf, None, config={"variant": variant, "protection": protection}
    )
    assert chip.run(10**9) == "idle"
    assert chip.lib.nrf52840_protection(chip.machine) == protection
