"""The pty of a simulated board: the end of its UART's wire, or its USB port's device file."""

from __future__ import annotations

import os
import pty
import select
import termios
import time
import tty

PATIENCE_S = 0.5  # of a frame's unsent end, and of input while the program is busy
REACTION_S = 0.005  # in which a host goes on after a reply
WATCH_S = 0.2
UNOPENED_WATCH_S = 0.02  # nobody says when a pty is opened
OUTPUT_LIMIT_BYTES = 1 << 20  # what nobody reads is dropped
BAUDS = {
    getattr(termios, name): int(name[1:])
    for name in dir(termios)
    if name[0] == "B" and name[1:].isdecimal()
}


class PtyPort:
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

    def _whole(self) -> int:
        """Bytes of whole frames; a zero in front of one waits for it."""
        frames = self._input[: self._input.rfind(0) + 1].rstrip(b"\0")
        return len(frames) + 1 if frames else 0

    def frames(self, *, late: bool) -> bytes:
        """All whole frames, or what there is if it has waited; nothing else if it is `late`."""
        end = self._whole()
        waited = time.monotonic() - self._since > PATIENCE_S
        if not end and self._input and waited:
            end = len(self._input)
        if late and not waited:
            return b""
        frames = bytes(self._input[:end])
        del self._input[:end]
        return frames

    def await_frame(self) -> None:
        """Wait until a whole frame is there, or the host does not go on."""
        until = time.monotonic() + REACTION_S
        while not self._whole() and (left_s := until - time.monotonic()) > 0:
            select.select([self.master], [], [], left_s)
            self.pull()

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
        waiting = [] if self._whole() else [self.master]
        ready, _, _ = select.select(
            [*waiting, control], [self.master] if self._output else [], [], WATCH_S
        )
        return ready


class UsbPtyPort(PtyPort):
    """A pty that is open when a program has it open, with that program's baud rate."""

    def __init__(self) -> None:
        super().__init__()
        os.close(self._slave)
        self._poll = select.poll()
        self._poll.register(self.master, 0)  # hanging up is reported all the same

    def _hung_up(self) -> bool:
        return any(event & select.POLLHUP for _, event in self._poll.poll(0))

    @property
    def line(self) -> tuple[bool, int]:
        """Is it open, and its baud rate. What was sent before closing comes before closing."""
        baud = BAUDS.get(termios.tcgetattr(self.master)[5], 9600)
        return bool(self._input) or not self._hung_up(), baud

    def pull(self) -> None:
        try:
            super().pull()
        except OSError:  # hung up, and nothing left
            return

    def push(self, data: bytes) -> None:
        if self._hung_up():
            self._output.clear()
        else:
            super().push(data)

    def wait(self, control: int) -> list[int]:
        if not self._hung_up():
            return super().wait(control)
        ready, _, _ = select.select([control], [], [], UNOPENED_WATCH_S)
        return ready
