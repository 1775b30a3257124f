"""A simulated chip with its card, as boards/<name>/chip.toml describes them."""

import os
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from random import Random
from tempfile import TemporaryFile
from typing import IO, Any

from .. import isa
from ..errors import BadInput, PoetError
from ..firmware_build.recipe import simulated_boards
from .chip_library import chips, load_elf
from .chipfile import load_card, load_chip
from .scene import Scene, in_c

RESET_CAUSES = ("power_on", "pin", "software", "watchdog", "lock_up", "brown_out")
_RAM_START = 0x20000000
_RAM_BYTES = {"samd21": 32 << 10, "nrf52840": 256 << 10}
# RAM at each end that the boot loader may use. Its data lie at the start, its stack at the end.
_BOOT_LOADER_BYTES = 2048
DEBUG_PORT_OPEN = 0xFFFFFF5A  # value of UICR.APPROTECT; 0xFFFFFFFF: erased
_SLEEP_FOR_EVER = bytes.fromhex("30bf fde7")  # wfi, and a branch back to it
_NUMBER = re.compile("[0-9]{1,9}")  # of a fault
RESULTS = ("slice", "idle", "breakpoint", "reset", "power cut", "fault")
FAULT_KINDS = (
    "slow_read",
    "slow_write",
    "read_error",
    "read_crc",
    "write_crc",
    "write_error",
    "late_error",
    "torn_write",
    "dropped_write",
    "misdirected_write",
    "flipped_write",
    "removed",
    "swapped",
    "power_cut",
    "flash_power_cut",
)


@dataclass(frozen=True)
class CardFault:
    """A fault of a simulated card, or of the chip's own flash.

    The blocks that are read, and the blocks that are written, are counted separately, from 1 at
    the start of the board. For a removal, a swap or a power cut, the written blocks are counted.
    For a `flash_power_cut`, the erases and writes of the flash are counted together.
    """

    kind: str  # one of FAULT_KINDS
    first: int  # number of the first block that has the fault
    times: int = 1  # number of such blocks
    # `argument` of slow_read and slow_write: the delay in microseconds.
    # `argument` of torn_write: the number of bytes that are kept.
    # `argument` of misdirected_write: how many blocks too far the block is written.
    # `argument` of flipped_write: the number of the bit, 0 to 4095.
    # `argument` of late_error: blocks until the card reports the error; 0: only in reply to CMD13.
    # `argument` of power_cut: 1 if the erase group is destroyed too.
    argument: int = 0

    def __post_init__(self) -> None:
        if self.kind not in FAULT_KINDS:
            raise BadInput(
                f"{self.kind} is not a kind of card fault: choose one of {', '.join(FAULT_KINDS)}"
            )

    @staticmethod
    def parse(text: str) -> "CardFault":
        """Parse KIND:FIRST[:TIMES[:ARGUMENT]] of the command line."""
        kind, *numbers = text.split(":")
        if not 1 <= len(numbers) <= 3 or not all(map(_NUMBER.fullmatch, numbers)):
            raise BadInput(
                f"{text} does not describe a card fault: write KIND:FIRST[:TIMES[:ARGUMENT]] with "
                "numbers of at most 9 digits, for example power_cut:12"
            )
        first, *more = map(int, numbers)
        if first == 0:
            raise BadInput(f"{text}: FIRST must be at least 1, because blocks are counted from 1")
        return CardFault(kind, first, *more)


@dataclass(frozen=True)
class Meter:
    """Times and numbers of events since a board's start. A tick takes 1 / `tick_hz` seconds."""

    ticks: int
    cycles: int
    instructions: int
    asleep_ticks: int
    exceptions: int
    card_reading_ns: int
    card_writing_ns: int
    card_reads: int
    card_writes: int
    flash_erases: int  # of the chip's own flash
    flash_writes: int
    flash_busy_ticks: int  # time in which an erase or a write stalled the chip
    stack_free_bytes: int  # the minimum since the latest reset
    sensor_nj: int  # energy of the sensor
    tick_hz: int

    @property
    def time_us(self) -> float:
        """Simulated time in microseconds."""
        return self.ticks * 1e6 / self.tick_hz


METER_FIELDS = [field.name for field in fields(Meter)]
METER = struct.Struct(f"<{len(METER_FIELDS)}Q")  # layout of a Meter in shared memory


def _pin(text: str) -> int:
    """Return the number of a pin such as PA16 or P1.15: 32 * port + number in the port."""
    return 32 * ("AB01".index(text[1]) % 2) + int(text[2:].removeprefix("."))


def _config_of(wiring: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a chip's configuration (chip/api.h) for the wiring in its chip.toml."""
    config: dict[str, Any] = {"no_crystal": True} if wiring.get("crystal") is False else {}
    for name, value in wiring.items():
        if isinstance(value, str):
            config[f"{name}_pin"] = _pin(value)
        elif isinstance(value, dict):
            pins, function = [_pin(pin) for pin in value["pins"]], ord(value["function"]) - ord("A")
            config[name] = value | {"function": function, "pins": pins, "pin_count": len(pins)}
    return config


def open_file(path: Path, *, create: bool) -> IO[bytes]:
    """Open a card image, or a flash file, which is created if it does not exist."""
    try:
        flags = os.O_RDWR | (os.O_CREAT if create else 0)
        return os.fdopen(os.open(path, flags, 0o666), "r+b")
    except OSError as error:
        what = "flash file" if create else "card image"
        raise BadInput(
            f"the {what} {path} cannot be opened ({error.strerror}): name another file"
        ) from error


class SimulatedChip:
    """One chip, in this process and thread. board.SimulatedBoard runs it in a separate process.

    `card`: fields of sdcard_config (chip/api.h) that replace those of the card in chip.toml; a key
    `name` selects another card of cards.toml. `usb`: the chip is plugged into a host's USB, so
    `give` and `take` use the USB port instead of the UART. `flash`: file that keeps the content of
    the chip's flash, created if it does not exist; None: the flash is blank at the start. `config`:
    fields of samd21_config or nrf52840_config (chip/api.h) to set. `scene`: what happens around the
    board; its time goes on after a reset. From `variant` 5 on (revision
    3), the debug port of an nRF52840 is closed after a reset, unless UICR and the program open it.
    `machine`: the struct machine of chip/api.h.
    """

    def __init__(
        self,
        board: str,
        elf: Path,
        storage: Path | None,
        *,
        faults: Sequence[CardFault] = (),
        card: Mapping[str, int | str] | None = None,
        seed: int = 1,
        usb: bool = False,
        flash: Path | None = None,
        config: Mapping[str, int] | None = None,
        scene: Scene | None = None,
    ) -> None:
        if board not in simulated_boards():
            raise BadInput(
                f"the board {board} cannot be simulated: choose one of "
                f"{', '.join(simulated_boards())}"
            )
        facts = load_chip(board)
        self.ffi, self.lib = chips()
        replaced = dict(card or {})
        kind = load_card(str(replaced.pop("name", facts.card or "")))
        settings = asdict(kind) | replaced | {"seed": seed}
        self.card = self._card(storage, settings) if storage else self.ffi.NULL
        cuts = [fault.first for fault in faults if fault.kind == "flash_power_cut"]
        self._flash_cut = min(cuts, default=0)
        self._flash_name = flash or "a temporary file"
        # a temporary file keeps the content through resets
        self._flash = open_file(flash, create=True) if flash else TemporaryFile()  # noqa: SIM115
        for fault in faults:
            if fault.kind == "flash_power_cut":
                continue
            if self.card == self.ffi.NULL:
                raise BadInput(
                    f"the board {board} has no card that could have the fault {fault.kind}: name a "
                    "card, or use flash_power_cut"
                )
            code = getattr(self.lib, f"CARD_{fault.kind.upper()}")
            if not self.lib.sdcard_add_fault(
                self.card, code, fault.first, fault.times, fault.argument
            ):
                raise BadInput(f"a card can have 32 faults at most, not {len(faults)}: remove some")
        self._chip, self._wiring, self._seed = facts.chip, facts.wiring, seed
        self._elf, self._usb, self._line = elf, usb, (False, 9600)
        self._takes_faults = False
        self._config = dict(config or {})
        self._scene, self._free = in_c(scene or Scene(), board), scene is not None
        self._start()

    def led_changes(self) -> list[tuple[float, bool]]:
        """Return (seconds since power-on, is the LED on) of each change since the last call."""
        taken: list[tuple[float, bool]] = []
        changes = self.ffi.new("struct led_change[64]")
        while self._scene and (count := self.lib.scene_take_led(self._scene, changes, 64)):
            taken += [(changes[i].at_ns / 1e9, bool(changes[i].on)) for i in range(count)]
        return taken

    def _card(self, storage: Path, settings: dict[str, Any]) -> Any:
        config = self.ffi.new("struct sdcard_config *", settings)
        card = self.lib.sdcard_new(str(storage).encode(), config)
        if card == self.ffi.NULL:
            reason = self.ffi.string(self.lib.sdcard_error()).decode()
            raise BadInput(f"the simulated card cannot use its image file: {reason}")
        return self.ffi.gc(card, self.lib.sdcard_free)

    def _keep_flash(self) -> None:
        """Let the machine keep its flash in the file. The file begins blank if it is empty."""
        size_bytes = self.lib.machine_flash_bytes(self.machine)
        if not self._flash.seek(0, os.SEEK_END):
            self._flash.write(b"\xff" * size_bytes)
            self._flash.flush()
        if not self.lib.machine_flash_file(self.machine, self._flash.fileno()):
            raise BadInput(
                f"{self._flash_name} cannot hold the flash of this chip: name a file of "
                f"{size_bytes:,} bytes, or one that does not exist"
            )
        self.lib.machine_flash_cut(self.machine, self._flash_cut)

    def reset(self, cause: str | None = None) -> None:
        """Reset the chip, and start the program. The card keeps its power and its state.

        `cause`: one of RESET_CAUSES; None: the cause for which the run has ended. RAM keeps its
        content, except where a boot loader has used it, or after power-on.
        """
        machine, supply_mv = self.machine, self._supply_mv
        code = self.lib.machine_reset_cause(machine)
        ram = self._ram()
        if self._chip == "nrf52840":
            self._config["protection"] = self.lib.nrf52840_protection(machine)
        self._start(RESET_CAUSES.index(cause) if cause else code)
        if (cause or RESET_CAUSES[code]) != "power_on":
            self._load_ram(ram)
        self.set_supply(supply_mv)

    def _ram(self) -> bytes:
        data = self.ffi.new("uint8_t[]", _RAM_BYTES[self._chip])
        self.lib.machine_peek(self.machine, _RAM_START, data, len(data))
        return bytes(data)

    def _load_ram(self, ram: bytes) -> None:
        """Set the content of RAM, with changes by the boot loader of a SAMD21."""
        if self._chip == "samd21":
            noise = Random(self._seed).randbytes(_BOOT_LOADER_BYTES)
            ram = noise + ram[len(noise) : -len(noise)] + noise
        self.lib.machine_load(self.machine, _RAM_START, ram, len(ram))

    def hang(self, part: str) -> None:
        """Let a part of the chip (`dma`, `usb`, `uart`) or each `kernel` hang until a reset.

        Kernels that have run since the last reset do not hang. `bus`: writes of a SAMD21's DMA to
        RAM end with a bus error.
        """
        if part != "kernel":
            self.lib.machine_hang(self.machine, getattr(self.lib, f"HANG_{part.upper()}"))
            return
        for row in isa.rows("KERNEL"):
            address = self.image.symbols.get(f"poet_{row.name}", 0) & ~1
            if address:
                self.lib.machine_load(self.machine, address, _SLEEP_FOR_EVER, 4)

    def set_supply(self, mv: int) -> None:
        """Set the voltage of the board, which is 3,300 mV at first."""
        self._supply_mv = mv
        self.lib.machine_set_supply(self.machine, mv)

    def take_faults(self) -> None:
        """Let the core handle faults as the chip does, instead of stopping the run."""
        self._takes_faults = True
        self.lib.machine_take_faults(self.machine, True)

    def _start(self, cause: int = 0) -> None:
        number = self._seed & 0xFFFFFFFF
        facts: dict[str, Any] = {"serial_number": [0x504F4554, number, 0, 1]}
        if self._chip == "nrf52840":
            facts = {"device_id": [number, 0x504F4554], "variant": 5, "protection": DEBUG_PORT_OPEN}
        config = self.ffi.new(
            f"struct {self._chip}_config *",
            _config_of(self._wiring) | facts | {"cause": cause} | self._config,
        )
        chip = getattr(self.lib, f"{self._chip}_new")(config, self.card)
        if self._scene:
            self.lib.machine_set_scene(chip, self._scene)  # the chip before it still exists
        self.machine = self.ffi.gc(chip, self.lib.machine_free)
        self._supply_mv = 3300
        self._load_ram(Random(self._seed).randbytes(_RAM_BYTES[self._chip]))
        self.lib.machine_take_faults(self.machine, self._takes_faults)
        self.lib.machine_wait_idle(self.machine, self._free)
        self._keep_flash()
        self.image = load_elf(self.machine, self._elf)
        self.lib.machine_reset(self.machine)
        if self._usb:
            self.lib.machine_usb_plug(self.machine, True)
            self.lib.machine_usb_open(self.machine, *self._line)

    def run(self, ticks: int) -> str:
        """Run for at most `ticks`. Return the reason for the end of the run, one of RESULTS."""
        return RESULTS[self.lib.machine_run(self.machine, ticks)]

    @property
    def message(self) -> str:
        """The reason for the fault that ended the run, with address and program counter."""
        text: bytes = self.ffi.string(self.lib.machine_message(self.machine))
        return text.decode()

    def give(self, data: bytes) -> int:
        """Send bytes to the serial port. Return the number of bytes that the port accepted."""
        return int(self._port("give")(self.machine, data, len(data)))

    def take(self) -> bytes:
        """Return the bytes that the serial port has sent."""
        waiting = self._port("waiting")(self.machine)
        data = self.ffi.new("uint8_t[]", max(1, waiting))
        taken = self._port("take")(self.machine, data, waiting)
        return bytes(data)[:taken]

    def _port(self, what: str) -> Any:
        return getattr(self.lib, f"machine_{'usb' if self._usb else 'serial'}_{what}")

    def usb_open(self, is_open: bool, baud: int) -> None:
        """Open or close the USB port as a host's program does. A reset does not change this."""
        self._line = (is_open, baud)
        self.lib.machine_usb_open(self.machine, *self._line)

    def check_usb(self) -> None:
        """Raise PoetError if the chip is plugged into USB, but not as a serial port."""
        state = self.lib.machine_usb_state(self.machine)
        if self._usb and state != self.lib.USB_READY:
            reason = self.ffi.string(self.lib.machine_usb_complaint(self.machine)).decode()
            raise PoetError(
                "the firmware does not work as a serial port on USB: "
                f"{reason or 'it does not connect to the host'}"
            )

    def set_card_present(self, present: bool) -> None:
        """Insert the card if `present` is True, else remove it."""
        if self.card != self.ffi.NULL:
            self.lib.sdcard_set_present(self.card, present)

    @property
    def meter(self) -> Meter:
        raw = self.ffi.new("struct machine_meter *")
        self.lib.machine_meter(self.machine, raw)
        counts = {name: int(getattr(raw, name)) for name in METER_FIELDS[:-1]}
        return Meter(**counts, tick_hz=int(self.lib.machine_tick_hz(self.machine)))
