"""A board's firmware on its simulated chip, plugged in by USB, in this process.

Its events depend on nothing but the requests.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from poet_host.device import wire
from poet_host.firmware_build.bare_metal import build_firmware
from poet_host.sim.simulated_chip import SimulatedChip
from support.usb_layer import Request, requests

BAUD = 115_200
PENDING = -3


class UsbBoard:
    """A board with its USB port open; `usb`: False for the UART, to compare."""

    def __init__(self, name: str, storage: Path | None = None, *, usb: bool = True) -> None:
        self.chip = SimulatedChip(name, build_firmware(name), storage, usb=usb)
        self.lib, self.ffi = self.chip.lib, self.chip.ffi
        self.usb, self.sequence = usb, 0
        if usb:
            self.chip.usb_open(True, BAUD)
            self.until(self.is_open)
        else:
            assert self.chip.run(10**9) == "idle"

    @property
    def machine(self) -> object:
        """The struct machine of chip/api.h."""
        return self.chip.machine

    @property
    def time_us(self) -> float:
        return self.chip.meter.time_us

    def run_us(self, time_us: int) -> str:
        """Run the chip, but not longer than until it sleeps and nothing can wake it."""
        result = self.chip.run(time_us * self.chip.meter.tick_hz // 1_000_000)
        assert result in ("slice", "idle"), self.chip.message
        return result

    def until(self, condition: Callable[[], bool], *, step_us: int = 100) -> None:
        """Run the chip until the condition holds, at most 10 s."""
        give_up_us = self.time_us + 10e6
        while not condition():
            result = self.run_us(step_us)
            assert condition() or result == "slice", (
                "the board sleeps, and the condition does not hold"
            )
            assert self.time_us < give_up_us

    def is_open(self) -> bool:
        return bool(self.lib.machine_usb_is_open(self.machine))

    def is_ready(self) -> bool:
        return bool(self.lib.machine_usb_state(self.machine) == self.lib.USB_READY)

    def plug(self, on: bool) -> None:
        self.lib.machine_usb_plug(self.machine, on)

    def peek(self, address: int, size_bytes: int) -> bytes:
        """Return bytes of the chip's memory."""
        data = self.ffi.new("uint8_t[]", size_bytes)
        assert self.lib.machine_peek(self.machine, address, data, size_bytes)
        return bytes(data)

    def requests(self) -> list[Request]:
        return requests(self.lib, self.machine)

    def control(
        self, setup: str, data: bytes = b"", *, interject: bool = False
    ) -> tuple[int, bytes]:
        """Make a control transfer; return its result and the received bytes."""
        ask = self.lib.machine_usb_interject if interject else self.lib.machine_usb_ask
        ask(self.machine, bytes.fromhex(setup), data, len(data))
        answer = self.ffi.new("uint8_t[512]")
        self.until(lambda: self.lib.machine_usb_answer(self.machine, answer) != PENDING)
        result = int(self.lib.machine_usb_answer(self.machine, answer))
        return result, bytes(answer)[: max(0, result)]

    def frame(self, name: str, **fields: Any) -> bytes:
        """Return the frame of the next request to the firmware."""
        self.sequence = self.sequence % 255 + 1
        message = wire.messages()[name]
        return b"\0" + wire.frame(self.sequence, message.code, wire.pack(message.request, fields))

    def ask(self, name: str, **fields: Any) -> dict[str, Any]:
        """Send a request to the firmware; return its reply's fields. The status must be 0."""
        frame = self.frame(name, **fields)
        assert self.chip.give(frame) == len(frame)
        return self.reply(name)

    def reply(self, name: str) -> dict[str, Any]:
        """Wait for the reply to the latest request; replies to earlier ones may come first."""
        message = wire.messages()[name]
        received, found = bytearray(), list[bytes]()

        def complete() -> bool:
            nonlocal received
            *frames, received = (received + self.chip.take()).split(b"\0")
            for sequence, code, payload in map(wire.unframe, map(bytes, filter(None, frames))):
                if (sequence, code) == (self.sequence, message.code | wire.REPLY):
                    found.append(payload)
            return bool(found)

        self.until(complete, step_us=10)
        status, _, rest = wire.unpack_status(found[0])
        assert status == 0
        return wire.unpack(message.reply, rest)
