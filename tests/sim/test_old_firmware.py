"""The rules of the simulated chips on which the firmware of commit 13d07bf does not run.

Each test takes precautions out of today's firmware, and shows the rule that it then breaks.
"""

from pathlib import Path

import pytest
from poet_host.device import wire
from poet_host.device.device import connect
from poet_host.errors import BoardError, LinkBroken
from poet_host.sim.board import SimulatedBoard
from poet_host.sim.simulated_chip import SimulatedChip
from support.chip_runs import ILLEGAL, PUSH_FOR_EVER, STRAY_STORES, Debugger, patched, until_idle
from support.reverted import without
from support.sim_helper import needs_compiler
from support.toy_boards import prepare, run_step

pytestmark = [needs_compiler, pytest.mark.slow]
both = pytest.mark.parametrize("name", ["mkr1000", "nrf52840_dk"])
S = 10**6
REVISION_2, REVISION_3 = 4, 5
# Rules whose violation stops the simulated chip: the message, the board, and the changes.
STOPS: dict[str, tuple[str, dict[str, tuple[tuple[str, str], ...]]]] = {
    "SERCOM1: MISO has no pull-up": (
        "mkr1000",
        {"samd21/spi.c": (("MISO_PIN, FUNCTION_C, PINCFG_PULLEN", "MISO_PIN, FUNCTION_C, 0"),)},
    ),
    "SERCOM1: above 8 MHz": (
        "mkr1000",
        {"samd21/spi.c": (("SCK_PIN, FUNCTION_C, PINCFG_DRVSTR", "SCK_PIN, FUNCTION_C, 0"),)},
    ),
    "the select of another device": (
        "mkr1000",
        {"samd21/spi.c": ((" | OTHER_SELECTS", ""),)},
    ),
    "SERCOM1: disabled while the card is selected": (
        "mkr1000",
        {"common/card_mount.c": (("    deselect(hurry);\n", "    hurry();\n"),)},
    ),
    "SPIM3: PIN_CNF": (
        "nrf52840_dk",
        {"nrf52840/spi.c": (("  P1_PIN_CNF(MISO_PIN) = PIN_CNF_PULL_UP;\n", ""),)},
    ),
    "UARTE0: the crystal must run": (
        "nrf52840_dk",
        {"nrf52840/chip.c": (("  while (!CLOCK_EVENTS_HFCLKSTARTED) {\n  }\n", ""),)},
    ),
    "DMAC is started without a barrier": (
        "mkr1000",
        {"samd21/spi.c": (("  chip_finish_stores();\n", ""),)},
    ),
    "SPIM3 is started without a barrier": (
        "nrf52840_dk",
        {"nrf52840/spi.c": (("  chip_finish_stores();\n", ""),)},
    ),
}
UNGUARDED = {
    "mkr1000": {
        "samd21/chip.c": (
            ("  start_watchdog();\n", "  if (false) {\n  start_watchdog();\n"),
            ("  protect_boot_loader();\n", "  protect_boot_loader();\n  }\n"),
            ("NVMCTRL_RWS_1 | NVMCTRL_MANW", "NVMCTRL_RWS_1"),
        )
    },
    "nrf52840_dk": {
        "nrf52840/chip.c": (
            ("  open_debug_port();\n", "  (void)open_debug_port;\n"),
            ("  start_watchdog();\n  watch_supply();\n", "  (void)start_watchdog;\n"),
        )
    },
}


@both
def test_it_neither_resets_a_hung_chip_nor_protects_it(
    name: str, storage: Path, tmp_path: Path
) -> None:
    image = without(tmp_path, name, UNGUARDED[name])
    chip = SimulatedChip(name, image, storage)
    assert chip.run(10**9) == "idle"
    chip.hang("dma")
    chip.give(wire.frame(1, wire.messages()["hello"].code, b""))
    until_idle(chip)
    assert chip.take() == b""  # neither an answer nor a reset
    with SimulatedBoard(name, image, storage) as board, connect(board.port) as device:
        board.ask("set_supply", 2600)
        with pytest.raises(LinkBroken):
            device.format()
        assert "supply below 2.7 V" in (board.wait(5) or "")
    if name == "mkr1000":
        chip = SimulatedChip(name, image, storage)
        patched(chip, STRAY_STORES)
        assert chip.run(10**9) == "fault"
        assert "damages the program" in chip.message
        chip = SimulatedChip(name, image, storage)
        patched(chip, PUSH_FOR_EVER)
        assert chip.run(40 * 48 * S) == "slice"  # locked up until somebody comes
        assert not chip.lib.machine_flash_locked(chip.machine, 0)
    else:
        debugger = Debugger(image, REVISION_2)
        debugger.power_cycle()
        assert debugger.can_write()
        debugger = Debugger(image, REVISION_3)
        debugger.power_cycle()
        assert not debugger.can_write()  # it cannot write the image again


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("32768 Hz */\n  dfll_wait();\n", "32768 Hz */\n", "the watchdog bites"),
        ("  if (has_crystal) {\n", "  if (has_crystal || true) {\n", "needs a running reference"),
    ],
)
def test_it_never_starts_without_its_clock(
    old: str, new: str, message: str, storage: Path, tmp_path: Path
) -> None:
    image = without(tmp_path, "mkr1000", {"samd21/chip.c": ((old, new),)})
    chip = SimulatedChip("mkr1000", image, storage, config={"no_crystal": "has_crystal" in old})
    assert chip.run(10**9) in ("reset", "fault")
    assert message in chip.message


def test_it_loses_a_card_whose_wires_are_noisy(storage: Path, tmp_path: Path) -> None:
    change = ("  if (use_slower_clock()) {\n", "  if (false && use_slower_clock()) {\n")
    image = without(tmp_path, "mkr1000", {"common/card.c": (change,)})
    noise: dict[str, int | str] = {"clean_khz": 8000, "noise_one_in": 1000}
    with SimulatedBoard("mkr1000", image, storage, card=noise) as board:
        with connect(board.port) as device, pytest.raises(BoardError) as found:
            prepare(device)
        assert found.value.name in ("storage_failed", "no_storage")


def test_it_resets_the_chip_without_a_barrier(storage: Path, tmp_path: Path) -> None:
    changes = {"samd21/chip.c": (("  chip_finish_stores();\n", ""),)}
    chip = SimulatedChip("mkr1000", without(tmp_path, "mkr1000", changes), storage)
    patched(chip, ILLEGAL)
    assert chip.run(10**9) == "fault"
    assert "a reset is started without a barrier" in chip.message


def test_an_interrupt_may_feed_the_watchdog_during_a_feed(storage: Path, tmp_path: Path) -> None:
    feed = "    WDT_CLEAR = WDT_KEY;\n"
    changes = (
        ("  const uint32_t before = chip_lock();\n", "  const uint32_t before = 0;\n"),
        (feed, "    for (volatile int i = 0; i < 2000; i++) {\n    }\n" + feed),
    )
    image = without(tmp_path, "mkr1000", {"samd21/chip.c": changes})
    with SimulatedBoard("mkr1000", image, storage) as board, connect(board.port) as device:
        prepare(device)
        with pytest.raises(LinkBroken):
            [run_step(device, step) for step in range(1, 300)]
        assert "a write while STATUS.SYNCBUSY is set stalls the bus" in (board.wait(5) or "")


@pytest.mark.parametrize("message", STOPS)
def test_the_chip_stops_where_silicon_would_not_work(
    message: str, storage: Path, tmp_path: Path
) -> None:
    name, changes = STOPS[message]
    chip = SimulatedChip(name, without(tmp_path, name, changes), storage)
    assert chip.run(10**9) == "fault"
    assert message in chip.message
