"""Run a simulated chip in this process until it is idle, ask it, and patch its program."""

from pathlib import Path
from typing import Any

from poet_host.device import wire
from poet_host.sim.simulated_chip import SimulatedChip

# Store 64 bytes at 0x8000, in the middle of the program, and then sleep.
STRAY_STORES = bytes.fromhex("0120 c003 1021 02c0 0139 fcd1 30bf fde7")
ILLEGAL = bytes.fromhex("00de")
PUSH_FOR_EVER = bytes.fromhex("ffb5 fde7")
ERASED = 0xFFFFFFFF  # UICR.APPROTECT of a chip that a debugger has erased


def until_idle(chip: SimulatedChip) -> int:
    """Run until the chip is idle, and return how often it was reset."""
    resets = 0
    for _ in range(100):
        result = chip.run(chip.meter.tick_hz)
        if result == "idle":
            return resets
        if result == "reset":
            resets += 1
            chip.reset()
    raise AssertionError(f"still busy after 100 s: {result} {chip.message}")


def ask(chip: SimulatedChip, message: str) -> Any:
    """Return the record that answers a request to a chip in this process."""
    until_idle(chip)
    chip.take()
    chip.give(wire.frame(1, wire.messages()[message].code, b""))
    until_idle(chip)
    payload = wire.unframe(chip.take().strip(b"\0"))[2]
    return wire.unpack(wire.messages()[message].reply, wire.unpack_status(payload)[2])[message]


def patched(chip: SimulatedChip, code: bytes) -> int:
    """Replace the begin of poet_serve, and return its address."""
    address = int(chip.image.symbols["poet_serve"]) & ~1
    assert chip.lib.machine_load(chip.machine, address, code, len(code))
    chip.take_faults()
    return address


class Debugger:
    """A debugger, wired to an nRF52840 whose content it has erased before it wrote the program."""

    def __init__(self, elf: Path, variant: int) -> None:
        self.chip = SimulatedChip(
            "nrf52840_dk", elf, None, config={"variant": variant, "protection": ERASED}
        )

    def power_cycle(self) -> None:
        """Switch the power off and on, and wait until the firmware is idle."""
        self.chip.reset("power_on")
        until_idle(self.chip)

    def can_write(self) -> bool:
        return bool(self.chip.lib.nrf52840_debug_open(self.chip.machine))
