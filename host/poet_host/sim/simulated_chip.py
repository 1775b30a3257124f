"""A simulated chip with its card, built from what boards/<name>/chip.toml says."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import BadInput, PoetError
from ..firmware_build.recipe import simulated_boards as simulated_boards
from .chip_library import chips
from .chipfile import load_chip
from .elf import load_elf

RESULTS = ("slice", "idle", "breakpoint", "reset", "power cut", "fault")
FAULT_KINDS = (
    "slow_read",
    "slow_write",
    "read_error",
    "read_crc",
    "write_crc",
    "write_error",
    "torn_write",
    "removed",
    "swapped",
    "power_cut",
)


@dataclass(frozen=True)
class CardFault:
    """Something the card does from its `first` block on, for `times` blocks.

    Blocks are counted from 1 since the board was started, read and written ones each on their
    own; removal, swap and power cut count written ones. `argument`: microseconds of a slow
    block, bytes that a torn write keeps, 1 if a power cut takes the erase group along.
    """

    kind: str
    first: int
    times: int = 1
    argument: int = 0

    def __post_init__(self) -> None:
        if self.kind not in FAULT_KINDS:
            raise BadInput(
                f"a card has no fault {self.kind}: choose one of {', '.join(FAULT_KINDS)}"
            )

    @staticmethod
    def parse(text: str) -> CardFault:
        """KIND:FIRST[:TIMES[:ARGUMENT]], as the command line has it."""
        kind, *numbers = text.split(":")
        if not 1 <= len(numbers) <= 3 or not all(number.isdecimal() for number in numbers):
            raise BadInput(
                f"{text} is no fault of a card: "
                "write KIND:FIRST[:TIMES[:ARGUMENT]], as power_cut:12"
            )
        first, *more = map(int, numbers)
        if first == 0:
            raise BadInput(f"{text}: blocks are counted from 1")
        return CardFault(kind, first, *more)


@dataclass(frozen=True)
class Meter:
    """What a board has done since it was started; `ticks` are of `tick_hz`."""

    ticks: int
    cycles: int
    instructions: int
    asleep_ticks: int
    exceptions: int
    card_reading_ns: int
    card_writing_ns: int
    card_reads: int
    card_writes: int
    stack_free_bytes: int  # the least that was ever left
    tick_hz: int

    @property
    def time_us(self) -> float:
        """Simulated time."""
        return self.ticks * 1e6 / self.tick_hz


METER_FIELDS = (
    "ticks",
    "cycles",
    "instructions",
    "asleep_ticks",
    "exceptions",
    "card_reading_ns",
    "card_writing_ns",
    "card_reads",
    "card_writes",
    "stack_free_bytes",
)
METER = struct.Struct(f"<{len(METER_FIELDS) + 1}Q")  # and tick_hz, as a board's process shares it
POWER_CUT_CODE = 75  # of that process


def _pin(text: str) -> int:
    """32 * port + number of PA16 or P1.15."""
    return 32 * ("AB01".index(text[1]) % 2) + int(text[2:].removeprefix("."))


def _pads(values: dict[str, Any]) -> dict[str, Any]:
    pins = [_pin(pin) for pin in values["pins"]]
    return values | {
        "function": "ABCDEFGH".index(values["function"]),
        "pins": pins + [0] * (4 - len(pins)),
        "pin_count": len(pins),
    }


class SimulatedChip:
    """One chip. It runs in this process and thread; `board.SimulatedBoard` gives it its own.

    `card`: fields of sdcard_config (chip/api.h) that shall differ from chip.toml. `usb`: it is
    plugged into a host's USB, and `give` and `take` are that port's rather than the UART's.
    """

    def __init__(
        self,
        board: str,
        elf: Path,
        storage: Path | None,
        *,
        faults: Sequence[CardFault] = (),
        card: Mapping[str, int] | None = None,
        seed: int = 1,
        usb: bool = False,
    ) -> None:
        if board not in simulated_boards():
            raise BadInput(
                f"{board} cannot be simulated: choose one of {', '.join(simulated_boards())}"
            )
        facts = load_chip(board)
        self.ffi, self.lib = chips()
        settings = asdict(facts.card) | dict(card or {}) | {"seed": seed}
        self.card = self._card(storage, settings) if storage else self.ffi.NULL
        for fault in faults:
            kind = getattr(self.lib, f"CARD_{fault.kind.upper()}")
            if not self.lib.sdcard_add_fault(
                self.card, kind, fault.first, fault.times, fault.argument
            ):
                raise BadInput(f"a card can have 32 faults, not {len(faults)}: leave some out")
        self._chip, self._wiring, self._seed = facts.chip, facts.wiring, seed
        self._elf, self._usb, self._line = elf, usb, (False, 9600)
        self.reset()

    def _card(self, storage: Path, settings: dict[str, Any]) -> Any:
        config = self.ffi.new("struct sdcard_config *", settings)
        card = self.lib.sdcard_new(str(storage).encode(), config)
        if card == self.ffi.NULL:
            reason = self.ffi.string(self.lib.sdcard_error()).decode()
            raise BadInput(f"the simulated card cannot use its image: {reason}")
        return self.ffi.gc(card, self.lib.sdcard_free)

    def reset(self) -> None:
        """Start the program from its reset vector, on a chip as after power-on."""
        wiring = self._wiring
        if self._chip == "samd21":
            config = {
                "spi": _pads(wiring["spi"]),
                "uart": _pads(wiring["uart"]),
                "card_select_pin": _pin(wiring["card_select"]),
                "serial_number": [0x504F4554, self._seed & 0xFFFFFFFF, 0, 1],
            }
            chip = self.lib.samd21_new(self.ffi.new("struct samd21_config *", config), self.card)
        else:
            config = {f"{name}_pin": _pin(pin) for name, pin in wiring.items()}
            config |= {"device_id": [self._seed & 0xFFFFFFFF, 0x504F4554]}
            chip = self.lib.nrf52840_new(
                self.ffi.new("struct nrf52840_config *", config), self.card
            )
        self.machine = self.ffi.gc(chip, self.lib.machine_free)
        self.image = load_elf(self.machine, self._elf)
        self.lib.machine_reset(self.machine)
        if self._usb:
            self.lib.machine_usb_plug(self.machine, True)
            self.lib.machine_usb_open(self.machine, *self._line)

    def run(self, ticks: int) -> str:
        """Run for at most so many ticks; one of RESULTS says why it ended."""
        return RESULTS[self.lib.machine_run(self.machine, ticks)]

    @property
    def message(self) -> str:
        """What happened at a fault, with address and program counter."""
        text: bytes = self.ffi.string(self.lib.machine_message(self.machine))
        return text.decode()

    def give(self, data: bytes) -> int:
        """Send bytes to the serial port; returns how many of them fitted."""
        give = self.lib.machine_usb_give if self._usb else self.lib.machine_serial_give
        return int(give(self.machine, data, len(data)))

    def take(self) -> bytes:
        """What the serial port has sent."""
        waits, take = (
            (self.lib.machine_usb_waiting, self.lib.machine_usb_take)
            if self._usb
            else (self.lib.machine_serial_waiting, self.lib.machine_serial_take)
        )
        waiting = waits(self.machine)
        data = self.ffi.new("uint8_t[]", max(1, waiting))
        taken = take(self.machine, data, waiting)
        return bytes(data)[:taken]

    def usb_open(self, is_open: bool, baud: int) -> None:
        """What a program does with the USB port; it stays so when the board starts again."""
        self._line = (is_open, baud)
        self.lib.machine_usb_open(self.machine, *self._line)

    def check_usb(self) -> None:
        """Raises PoetError if a program that has come to rest is no serial port on USB."""
        state = self.lib.machine_usb_state(self.machine)
        if self._usb and state != self.lib.USB_READY:
            reason = self.ffi.string(self.lib.machine_usb_complaint(self.machine)).decode()
            raise PoetError(
                f"the program is no serial port on USB: {reason or 'it does not connect'}"
            )

    def set_card_present(self, present: bool) -> None:
        """Take the card out, or put it back in."""
        if self.card != self.ffi.NULL:
            self.lib.sdcard_set_present(self.card, present)

    @property
    def meter(self) -> Meter:
        raw = self.ffi.new("struct machine_meter *")
        self.lib.machine_meter(self.machine, raw)
        values = {name: int(getattr(raw, name)) for name in METER_FIELDS}
        return Meter(**values, tick_hz=int(self.lib.machine_tick_hz(self.machine)))


def fault_to_json(fault: CardFault) -> dict[str, Any]:
    return asdict(fault)
