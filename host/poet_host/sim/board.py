"""A simulated board: a process with the very firmware image, and a serial port to talk to."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..closing import Closing
from ..device.board import load_board
from ..errors import PoetError
from .chip_library import build_chip_library
from .simulated_chip import METER, METER_FIELDS, POWER_CUT_CODE, CardFault, Meter, fault_to_json

POWER_CUT = "power cut"


@dataclass(frozen=True)
class Energy:
    """Microjoules since the board was started: state times x powers of board.toml."""

    processor_active_uj: float
    processor_asleep_uj: float
    storage_uj: float  # reading, writing and idle
    other_uj: float

    @property
    def total_uj(self) -> float:
        return self.processor_active_uj + self.processor_asleep_uj + self.storage_uj + self.other_uj


class SimulatedBoard(Closing):
    """A context manager. `port` is its serial port (a pty), `process` the board itself.

    `storage` is the card's image (None: no card). `faults` and `seed` make the card misbehave
    and vary, the same way every time; `card` changes its times (fields of sdcard_config in
    chip/api.h). `alone`: no host speaks in the first seconds, so that the board trains by the job
    on its card, if there is one. `usb`: the port is that of its USB, not of its UART. The board
    ends with its parent.
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
        alone: bool = False,
    ) -> None:
        self.board = load_board(board)
        build_chip_library()  # here, where an error is seen
        with tempfile.TemporaryFile() as file:
            file.truncate(METER.size)
            self._shared = mmap.mmap(file.fileno(), METER.size)
            settings = {
                "board": board,
                "elf": str(elf),
                "storage": str(storage) if storage else None,
                "faults": [fault_to_json(fault) for fault in faults],
                "card": dict(card or {}),
                "seed": seed,
                "usb": usb,
                "alone": alone,
                "meter": file.fileno(),
            }
            self.process = subprocess.Popen(
                [sys.executable, "-m", "poet_host.sim.process", json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # an interrupt from the keyboard is for the host alone
                pass_fds=(file.fileno(),),
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
        """The meter as of the latest slice; it stays after the board has ended."""
        values = METER.unpack(self._shared[:])
        return Meter(**dict(zip((*METER_FIELDS, "tick_hz"), values, strict=True)))

    @property
    def cycles(self) -> int:
        """Core cycles since the start, sleep not counted."""
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
            + power.storage_idle_uw * seconds,
            power.other_uw * seconds,
        )

    @property
    def ended(self) -> str | None:
        """None while it runs; then POWER_CUT, or what the program did wrong."""
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
        """`ended`, after as long as that if it still runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)
        return self.ended

    _reason = ""

    def set_card_present(self, present: bool) -> None:
        """Take the card out, or put it back in."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"card": present}) + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """End the board at once, as a power cut would."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None and not stream.closed:
                stream.close()
