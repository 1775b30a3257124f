"""A simulated board: a process that runs the firmware image, with a serial port."""

import contextlib
import json
import mmap
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

from ..closing import Closing
from ..device.board import load_board
from ..errors import PoetError
from ..temporary import temporary_file
from .chip_library import build_chip_library
from .scene import Scene
from .simulated_chip import METER, POWER_CUT_CODE, CardFault, Meter, Settings

POWER_CUT = "power cut"


@dataclass(frozen=True)
class Energy:
    """Energy in microjoules since the board was started.

    Each value is the time in a power state, times the power in board.toml.
    """

    processor_active_uj: float
    processor_asleep_uj: float
    storage_uj: float  # energy of the card: reading, writing and idle
    sensor_uj: float
    other_uj: float

    @property
    def total_uj(self) -> float:
        return float(sum(astuple(self)))


class SimulatedBoard(Closing):
    """A simulated board: a chip in the process `process`, with the serial port `port` (a pty).

    `storage`: image of the card (None: no card). `faults`: faults of the card, the same in every
    run. `seed` varies the card's times. `card`: fields of sdcard_config (chip/api.h) that replace
    those of the card in chip.toml; a key `name` selects another card of cards.toml. `alone`: the
    board does not wait for a host, and executes the training job on its card if there is one.
    `usb`: the port is connected to the chip's USB, not to its UART. `flash`: file that keeps the
    content of the chip's flash (None: temporary). `scene`: what happens around a board without a
    host. The process ends with its parent process.
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
        alone: bool = False,
        flash: Path | None = None,
        scene: Scene | None = None,
    ) -> None:
        self.board = load_board(board)
        self._card = storage is not None
        self._led, self._led_read = tempfile.TemporaryFile(), 0  # noqa: SIM115
        build_chip_library()  # built here, so that this process raises the errors of the build
        with (
            temporary_file(Path(tempfile.gettempdir()), "poet-meter-") as path,
            path.open("w+b") as file,
        ):
            file.truncate(METER.size)
            self._shared = mmap.mmap(file.fileno(), METER.size)
            settings = Settings(
                board,
                str(elf),
                str(storage) if storage else None,
                tuple(faults),
                dict(card or {}),
                seed,
                usb,
                alone,
                file.fileno(),
                str(flash) if flash else None,
                scene,
                self._led.fileno(),
            )
            self.process = subprocess.Popen(
                [sys.executable, "-m", "poet_host.sim.process", json.dumps(asdict(settings))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # so that Ctrl-C interrupts only the host program
                pass_fds=(file.fileno(), self._led.fileno()),
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )
        assert self.process.stdout is not None
        self.port = self.process.stdout.readline().strip()
        if not self.port:
            reason = self.ended or "no message"
            self.close()
            raise PoetError(f"the simulated {board} did not start: {reason}")

    @property
    def meter(self) -> Meter:
        """Times and numbers of events since the board's start.

        The board's process updates them after each slice of simulated time. The last values remain
        after that process has ended.
        """
        return Meter(*METER.unpack(self._shared[:]))

    def led_changes(self) -> str:
        """Return a line for each change of the LED since the last call: TIME s LED on, or off."""
        data = os.pread(self._led.fileno(), 1 << 30, self._led_read)
        self._led_read += len(data)
        return data.decode()

    @property
    def cycles(self) -> int:
        """Cycles of the processor core since the start. Sleep does not count."""
        return self.meter.cycles

    @property
    def energy(self) -> Energy:
        meter, power = self.meter, self.board.power
        seconds = meter.ticks / meter.tick_hz
        asleep = meter.asleep_ticks / meter.tick_hz
        return Energy(
            power.processor_active_uw * (seconds - asleep),
            power.processor_sleep_uw * asleep,
            power.storage_read_uw * meter.card_reading_ns / 1e9
            + power.storage_write_uw * meter.card_writing_ns / 1e9
            + power.storage_idle_uw * seconds * self._card,
            meter.sensor_nj / 1e3,
            power.other_uw * seconds,
        )

    @property
    def ended(self) -> str | None:
        """None while the board runs; then POWER_CUT, or the program's error."""
        code = self.process.poll()
        if code is None and not self.port:
            code = self.process.wait()
        if code is None:
            return None
        if code == POWER_CUT_CODE:
            return POWER_CUT
        if self.process.stderr is not None and not self.process.stderr.closed:
            self._reason = self.process.stderr.read().strip() or f"exit code {code}"
            self.process.stderr.close()
        return self._reason

    def wait(self, timeout_s: float) -> str | None:
        """Wait up to `timeout_s` for the board to exit, then return `ended`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)
        return self.ended

    _reason = ""

    def set_card_present(self, present: bool) -> None:
        """Insert the card if `present` is True, else remove it."""
        self._ask("card", present)

    def hang(self, part: str) -> None:
        """Let a part of the chip hang until the next reset (SimulatedChip.hang)."""
        self._ask("hang", part)

    def set_supply(self, mv: int) -> None:
        """Set the voltage of the board, which is 3,300 mV at first."""
        self._ask("supply", mv)

    def _ask(self, what: str, value: bool | int | str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({what: value}) + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """End the board at once, as a power cut does."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        self._led.close()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None and not stream.closed:
                stream.close()
