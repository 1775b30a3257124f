"""The process of a simulated board: runs the chip, and bridges its UART or its USB port to a pty.

    python -m poet_host.sim.process SETTINGS

Prints the path of its serial port once the program has started. Simulated
time stands still while the program sleeps with nothing but input to wake it, and then takes what
the host sends at once, in whole frames (each up to a zero byte, as COBS ends them): so the cycle
count depends on what the host sends, never on when. While the program is busy, time stands still
only for a moment behind a reply, in case the host goes on; and what has waited for long is handed
over, so that a run can be interrupted. At the start a program waits a while for a host before it
goes on by itself: unless it is to be alone, time stands still there too.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import sys
from pathlib import Path

from ..errors import PoetError
from .pty_port import PtyPort, UsbPtyPort
from .simulated_chip import METER, METER_FIELDS, POWER_CUT_CODE, CardFault, SimulatedChip

SLICE_TICKS = 2_000_000
TALKING_TICKS = 100_000  # the same while host and busy program talk
LONGEST_REPLY_BYTES = 4096
STARTED_S = 1.0  # of simulated time, after which a program waits for a host or never will
FAULT_CODE = 70


class Process:
    def __init__(self, settings: dict[str, object]) -> None:
        faults = settings["faults"]
        assert isinstance(faults, list)
        card = settings["card"]
        assert isinstance(card, dict)
        storage = settings["storage"]
        self.chip = SimulatedChip(
            str(settings["board"]),
            Path(str(settings["elf"])),
            Path(str(storage)) if storage else None,
            faults=[CardFault(**fault) for fault in faults],
            card=card,
            seed=int(str(settings["seed"])),
            usb=bool(settings["usb"]),
        )
        self.shared = mmap.mmap(int(str(settings["meter"])), METER.size)
        self.pty = UsbPtyPort() if settings["usb"] else PtyPort()
        self.line = self.pty.line if isinstance(self.pty, UsbPtyPort) else None
        self.control = bytearray()
        self.parent = os.getppid()
        self.announced = False
        self.attended = bool(settings["alone"])
        self.said = b""  # by a busy program, and not passed on as there may be more
        self.talking = False  # a busy program has been heard or spoken to

    def update_meter(self) -> None:
        meter = self.chip.meter
        values = [getattr(meter, name) for name in METER_FIELDS]
        self.shared[:] = METER.pack(*values, meter.tick_hz)

    def obey(self) -> None:
        """Requests of the parent: one JSON object a line."""
        data = os.read(0, 4096)
        if not data:
            sys.exit(0)
        self.control += data
        while b"\n" in self.control:
            line, _, rest = self.control.partition(b"\n")
            self.control = bytearray(rest)
            self.chip.set_card_present(bool(json.loads(line)["card"]))

    def listen(self, *, asleep: bool) -> None:
        """Take input: wait for it if the program does, a moment if it has spoken, else glance."""
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
        """Tell the host what the program says: a whole reply at once."""
        self.said += more
        if not busy or not more or len(self.said) > LONGEST_REPLY_BYTES:
            self.pty.push(self.said)
            self.talking = bool(self.said) and busy
            self.said = b""

    def line_changed(self) -> bool:
        """Has a program opened or closed the USB port, or changed its baud rate?"""
        if not isinstance(self.pty, UsbPtyPort) or self.line == (now := self.pty.line):
            return False
        was_open, was_baud = self.line or (False, 0)
        is_open, baud = now
        # Closed both times, with another baud rate: it was open for a moment in between.
        self.line = (is_open or (not was_open and baud != was_baud), baud)
        self.chip.usb_open(*self.line)
        return True

    def started(self) -> bool:
        meter = self.chip.meter
        return int(meter.ticks) > STARTED_S * meter.tick_hz

    def announce(self) -> None:
        if not self.announced:
            self.chip.check_usb()
            self.announced = True
            print(self.pty.path, flush=True)

    def run(self) -> int:
        while True:
            result = self.chip.run(TALKING_TICKS if self.talking or self.said else SLICE_TICKS)
            self.update_meter()
            self.pass_on(self.chip.take(), busy=result == "slice" and self.attended)
            if result == "idle" or (result == "slice" and self.started()):
                self.announce()
                self.listen(asleep=result == "idle" or not self.attended)
                self.attended = True
            elif result == "slice":
                self.listen(asleep=False)
            elif result == "reset":
                self.chip.reset()
            elif result == "power cut":
                return POWER_CUT_CODE
            else:
                print(self.chip.message, file=sys.stderr, flush=True)
                return FAULT_CODE


def main() -> int:
    try:
        return Process(json.loads(sys.argv[1])).run()
    except PoetError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
