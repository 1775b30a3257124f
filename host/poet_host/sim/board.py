"""A simulated board: a process that runs the firmware image, with a serial port."""

import json
import mmap
import os
import pickle
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path

from ..device.board import load_board
from ..errors import BadInput, PoetError
from ..temporary import locked, temporary_file
from .chip_library import build_chip_library
from .running import RunningBoard
from .scene import Scene
from .simulated_chip import METER, CardFault, Meter, SimulatedChip, open_file


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


@contextmanager
def _held(storage: Path | None, flash: Path | None) -> Iterator[list[int]]:
    """Yield descriptors of a board's files. The files stay locked while any process has these."""
    with ExitStack() as stack:
        held = []
        for path in filter(None, (storage, flash)):
            file = stack.enter_context(open_file(path, create=path is flash))
            if not locked(file.fileno()):
                raise PoetError(f"another board uses {path}: stop that board, or name another file")
            held.append(file.fileno())
        yield held


class SimulatedBoard(RunningBoard):
    """A simulated board, with a pty as its serial port.

    `storage`: image of the card (None: no card). `faults`: faults of the card, the same in every
    run. `seed` varies the card's times. `card`: fields of sdcard_config (chip/api.h) that replace
    those of the card in chip.toml; a key `name` selects another card of cards.toml. `alone`: the
    board does not wait for a host, and executes the training job on its card if there is one.
    `usb`: the port is connected to the chip's USB, not to its UART. `flash`: file that keeps the
    content of the chip's flash (None: temporary). `scene`: what happens around a board without a
    host. The process ends with its parent process. Until then, it locks `storage` and `flash`.
    Raises PoetError if another board uses one of them, and BadInput for a file or fault that the
    chip cannot have.
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
        build_chip_library()  # built here, so that this process raises the errors of the build
        with (
            _held(storage, flash) as held,
            temporary_file(Path(tempfile.gettempdir()), "poet-meter-") as path,
            path.open("w+b") as file,
        ):
            self._led, self._led_read = tempfile.TemporaryFile(), 0  # noqa: SIM115
            file.truncate(METER.size)
            self._shared = mmap.mmap(file.fileno(), METER.size)
            chip = partial(
                SimulatedChip, board, elf, storage, faults=faults, card=card, seed=seed, usb=usb,
                flash=flash, scene=scene,
            )  # fmt: skip
            files = file.fileno(), self._led.fileno()
            settings = pickle.dumps((chip, usb, alone, scene, *files)).hex()
            super().__init__(
                [sys.executable, "-m", "poet_host.sim.process", settings],
                pass_fds=(*files, *held),
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )
        if not self.port:
            reason = self.ended
            self.close()
            is_bad_input = self.process.returncode == BadInput.exit_code
            raise (BadInput if is_bad_input else PoetError)(
                f"the simulated {board} did not start: {reason}"
            )

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

    def ask(self, method: str, value: bool | int | str) -> None:
        """Call a method of the SimulatedChip: `set_card_present`, `hang` or `set_supply`."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({method: value}) + "\n")
        self.process.stdin.flush()

    def close(self) -> None:
        super().close()
        self._led.close()
