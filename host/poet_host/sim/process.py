"""The process of a simulated board: runs the chip, and bridges its UART to a pty.

    python -m poet_host.sim.process SETTINGS

Prints the path of its serial port once the program has started. Simulated
time stands still while the program sleeps with nothing but input to wake it, and then takes one
whole frame (up to a zero byte, as COBS ends them): so the cycle count depends on what the host
sends, never on when. Only what has waited for long while the program was busy is handed over in
between, so that a run can be interrupted. At the start a program waits a while for a host before it
goes on by itself: unless it is to be alone, time stands still there too.
"""

from __future__ import annotations

import json
import mmap
import os
import pty
import select
import struct
import sys
import time
import tty
from pathlib import Path

from ..errors import PoetError
from .machine import METER_FIELDS, CardFault, Machine

SLICE_TICKS = 2_000_000
PATIENCE_S = 0.5  # of a frame's unsent end, and of input while the program is busy
WATCH_S = 0.2
STARTED_S = 1.0  # of simulated time, after which a program waits for a host or never will
OUTPUT_LIMIT_BYTES = 1 << 20  # what nobody reads is dropped
FAULT_CODE = 70
POWER_CUT_CODE = 75
METER = struct.Struct(f"<{len(METER_FIELDS) + 1}Q")


class Bridge:
    """The chip's UART on one side, the master of a pty on the other."""

    def __init__(self) -> None:
        self.master, self._slave = pty.openpty()  # kept open: no end of file between hosts
        tty.setraw(self._slave)
        os.set_blocking(self.master, False)
        self.path = os.ttyname(self._slave)
        self._input = bytearray()
        self._output = bytearray()
        self._since = 0.0

    def pull(self) -> None:
        """Read what the host has sent."""
        try:
            data = os.read(self.master, 1 << 16)
        except BlockingIOError:
            return
        if data:
            self._input += data
            self._since = time.monotonic()

    def frame(self, *, complete: bool) -> bytes:
        """The next whole frame, or, if it may be in pieces or has waited, what there is."""
        end = self._input.find(0) + 1
        waited = time.monotonic() - self._since > PATIENCE_S
        if not end and self._input and waited:
            end = len(self._input)
        if complete and not waited:
            return b""
        frame = bytes(self._input[:end])
        del self._input[:end]
        return frame

    def push(self, data: bytes) -> None:
        """Write to the host what it takes, and keep the rest."""
        self._output += data
        while self._output:
            try:
                del self._output[: os.write(self.master, self._output)]
            except BlockingIOError:
                break
        del self._output[:-OUTPUT_LIMIT_BYTES]

    def wait(self, control: int) -> list[int]:
        """Sleep until the host, or the parent on `control`, has something to say."""
        waiting = [self.master] if not self._input else []
        ready, _, _ = select.select(
            [*waiting, control], [self.master] if self._output else [], [], WATCH_S
        )
        return ready


class Process:
    def __init__(self, settings: dict[str, object]) -> None:
        faults = settings["faults"]
        assert isinstance(faults, list)
        card = settings["card"]
        assert isinstance(card, dict)
        storage = settings["storage"]
        self.machine = Machine(
            str(settings["board"]),
            Path(str(settings["elf"])),
            Path(str(storage)) if storage else None,
            faults=[CardFault(**fault) for fault in faults],
            card=card,
            seed=int(str(settings["seed"])),
        )
        self.shared = mmap.mmap(int(str(settings["meter"])), METER.size)
        self.bridge = Bridge()
        self.control = bytearray()
        self.parent = os.getppid()
        self.announced = False
        self.attended = bool(settings["alone"])

    def update_meter(self) -> None:
        meter = self.machine.meter
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
            self.machine.set_card_present(bool(json.loads(line)["card"]))

    def listen(self, *, asleep: bool) -> None:
        """Take input: wait for it if the program does, else only glance."""
        while True:
            self.bridge.pull()
            frame = self.bridge.frame(complete=not asleep)
            if frame:
                self.machine.give(frame)
            if frame or not asleep:
                break
            if 0 in self.bridge.wait(0):
                self.obey()
            if os.getppid() != self.parent:
                sys.exit(0)
            self.bridge.push(b"")
        if select.select([0], [], [], 0)[0]:
            self.obey()

    def started(self) -> bool:
        meter = self.machine.meter
        return int(meter.ticks) > STARTED_S * meter.tick_hz

    def announce(self) -> None:
        if not self.announced:
            self.announced = True
            print(self.bridge.path, flush=True)

    def run(self) -> int:
        while True:
            result = self.machine.run(SLICE_TICKS)
            self.update_meter()
            self.bridge.push(self.machine.take())
            if result == "idle" or (result == "slice" and self.started()):
                self.announce()
                self.listen(asleep=result == "idle" or not self.attended)
                self.attended = True
            elif result == "slice":
                self.listen(asleep=False)
            elif result == "reset":
                self.machine.reset()
            elif result == "power cut":
                return POWER_CUT_CODE
            else:
                print(self.machine.message, file=sys.stderr, flush=True)
                return FAULT_CODE


def main() -> int:
    try:
        return Process(json.loads(sys.argv[1])).run()
    except PoetError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
