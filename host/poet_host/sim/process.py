"""The process of a simulated board: it runs the chip, and connects its UART or USB to a pty.

    python -m poet_host.sim.process SETTINGS

When the firmware has started, the process prints the path of the serial port. Simulated time stops
while the firmware sleeps and only input can wake it. The chip then receives the host's bytes at
once, in whole frames (up to the zero byte that ends a COBS frame). So the cycle count depends on
what the host sends, but not on when the host sends it. While the firmware is busy, simulated time
stops only after a reply: for up to REACTION_S, so that the host can send its next request. Input
that has waited for PATIENCE_S is passed to busy firmware, so that a host can stop a run. At its
start, the firmware waits for a host for a limited time. Simulated time stops during this wait too,
unless the board is started alone.
"""

import json
import mmap
import os
import pickle
import select
import sys
from collections.abc import Callable
from dataclasses import astuple, replace

from ..errors import PoetError
from .pty_port import PtyPort, UsbPtyPort
from .running import POWER_CUT_CODE
from .scene import Scene
from .simulated_chip import METER, Meter, SimulatedChip

SLICE_TICKS = 2_000_000
TALKING_TICKS = 100_000  # ticks per run of the chip while host and busy program exchange bytes
LONGEST_REPLY_BYTES = 4096
REQUESTS_BYTES = 1 << 16  # what a pipe holds: always whole lines, since they are short
STARTED_S = 2.5  # simulated time after which the program counts as started
FAULT_CODE = 70
# Fields of a Meter that the chip counts from its latest reset. The card and the sensor count on.
_FROM_RESET = (
    "ticks", "cycles", "instructions", "asleep_ticks", "exceptions", "flash_erases",
    "flash_writes", "flash_busy_ticks",
)  # fmt: skip


class Process:
    """The chip, its pty, and the files of a SimulatedBoard: its METER and the LED's changes."""

    def __init__(
        self,
        chip: Callable[[], SimulatedChip],
        usb: bool,
        alone: bool,
        scene: Scene | None,
        meter: int,
        led: int,
    ) -> None:
        self.chip, self.scene, self.led = chip(), scene, led
        self.earlier = dict.fromkeys(_FROM_RESET, 0)  # counted before the latest reset
        self.shared = mmap.mmap(meter, METER.size)
        self.pty = UsbPtyPort() if usb else PtyPort()
        self.line = self.pty.line if isinstance(self.pty, UsbPtyPort) else None
        self.parent = os.getppid()
        self.announced = False
        self.attended = alone  # False: the board still waits for a host
        self.output = b""  # output of a busy program, kept until its reply is complete
        self.talking = False  # True: host and busy program have just exchanged bytes

    def obey(self) -> None:
        """Execute the requests of the parent process, one JSON object in each line of input."""
        requests = os.read(0, REQUESTS_BYTES)
        if not requests:
            sys.exit(0)
        for line in requests.splitlines():
            ((method, value),) = json.loads(line).items()
            getattr(self.chip, method)(value)

    def listen(self, *, asleep: bool) -> None:
        """Pass input to the chip. Wait for input if the chip sleeps, and briefly after a reply."""
        if self.talking and not asleep:
            self.pty.await_frame()
        while True:
            self.pty.pull()
            frames = self.pty.frames(late=not asleep and not self.talking)
            if frames:
                self.chip.give(frames)
            self.talking = bool(frames) and not asleep
            if self.line_changed() or frames or not asleep:
                break
            if 0 in self.pty.wait(0):
                self.obey()
            if os.getppid() != self.parent:
                sys.exit(0)
            self.pty.push(b"")
        if select.select([0], [], [], 0)[0]:
            self.obey()

    def pass_on(self, more: bytes, *, busy: bool) -> None:
        """Send the firmware's output to the host.

        While the firmware is busy, keep its output until its reply is complete, then send it.
        """
        self.output += more
        if not busy or not more or len(self.output) > LONGEST_REPLY_BYTES:
            self.pty.push(self.output)
            self.talking = bool(self.output) and busy
            self.output = b""

    def line_changed(self) -> bool:
        """Report to the chip that the USB port was opened or closed, or has a new baud rate.

        Returns False if none of these has happened.
        """
        if not isinstance(self.pty, UsbPtyPort) or self.line == (now := self.pty.line):
            return False
        was_open, was_baud = self.line or (False, 0)
        is_open, baud = now
        # A closed port with a new baud rate was opened and closed since the last check.
        self.line = (is_open or (not was_open and baud != was_baud), baud)
        self.chip.usb_open(*self.line)
        return True

    def started(self) -> bool:
        return self.chip.meter.time_us > STARTED_S * 1e6

    def meter(self) -> Meter:
        """Return the times and numbers of events since the board's start."""
        now = self.chip.meter
        return replace(now, **{key: getattr(now, key) + n for key, n in self.earlier.items()})

    def left_ticks(self) -> int:
        """Return the ticks until the end of the run; 0 at the end."""
        if self.scene is None or self.scene.until_s is None:
            return SLICE_TICKS
        meter = self.meter()
        left_s = self.scene.until_s - meter.time_us / 1e6
        return max(0, round(left_s * meter.tick_hz))

    def announce(self) -> None:
        if not self.announced:
            self.chip.check_usb()
            self.announced = True
            print(self.pty.path, flush=True)

    def run(self) -> int:
        if self.scene and self.line is None:  # USB needs time
            self.announce()
        while left := self.left_ticks():
            most = TALKING_TICKS if self.talking or self.output else SLICE_TICKS
            result = self.chip.run(min(most, left))
            self.shared[:] = METER.pack(*astuple(self.meter()))
            for time_s, is_on in self.chip.led_changes() if self.scene else ():
                text = f"{time_s:.6f} s LED {'on' if is_on else 'off'}\n"
                os.write(self.led, text.encode())
            self.pass_on(self.chip.take(), busy=result == "slice" and self.attended)
            if result == "idle" or (result == "slice" and self.started()):
                self.announce()
                self.listen(asleep=result == "idle" or not self.attended)
                self.attended = True
            elif result == "slice":
                self.listen(asleep=False)
            elif result == "reset":
                meter = self.meter()
                self.earlier = {key: getattr(meter, key) for key in _FROM_RESET}
                self.chip.reset()
            elif result == "power cut":
                return POWER_CUT_CODE
            else:
                print(self.chip.message, file=sys.stderr, flush=True)
                return FAULT_CODE
        return 0


def main() -> int:
    try:
        return Process(*pickle.loads(bytes.fromhex(sys.argv[1]))).run()
    except PoetError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
