"""The pty through which a host reaches the UART or the USB port of a simulated board."""

import os
import pty
import select
import termios
import time
import tty

PATIENCE_S = 0.5  # longest delay of input, if its frame is incomplete or the program is busy
REACTION_S = 0.005  # time for a host to send its next request after a reply
WATCH_S = 0.2  # longest sleep
UNOPENED_WATCH_S = 0.02  # pause between two checks whether a host has opened the pty
OUTPUT_LIMIT_BYTES = 1 << 20  # unread output beyond this is dropped
BAUDS = {
    getattr(termios, name): int(name[1:])
    for name in dir(termios)
    if name[0] == "B" and name[1:].isdecimal()
}


class PtyPort:
    """A pty between the chip's UART and a host; `path` is its device file."""

    def __init__(self) -> None:
        # The slave stays open. Otherwise the master reads an end of file between two hosts.
        self.master, self._slave = pty.openpty()
        tty.setraw(self._slave)
        os.set_blocking(self.master, False)
        self.path = os.ttyname(self._slave)
        self._input = bytearray()
        self._output = bytearray()
        self._since = 0.0  # when input arrived last

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
        """Return the number of input bytes in complete frames, with any zeros before a frame."""
        frames = self._input[: self._input.rfind(0) + 1].rstrip(b"\0")
        return len(frames) + 1 if frames else 0

    def frames(self, *, late: bool) -> bytes:
        """Take the complete frames out of the input, and return them.

        If the input is only an incomplete frame, it is returned once no byte has arrived for
        PATIENCE_S. `late`: complete frames are delayed in this way too.
        """
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
        """Wait for a whole frame, at most REACTION_S."""
        until = time.monotonic() + REACTION_S
        while not self._whole() and (left_s := until - time.monotonic()) > 0:
            select.select([self.master], [], [], left_s)
            self.pull()

    def push(self, data: bytes) -> None:
        """Write as much to the host as it accepts, and keep the rest."""
        self._output += data
        while self._output:
            try:
                del self._output[: os.write(self.master, self._output)]
            except BlockingIOError:
                break
        del self._output[:-OUTPUT_LIMIT_BYTES]

    def wait(self, control: int) -> list[int]:
        """Wait up to WATCH_S for data from the host or, on `control`, from the parent process."""
        waiting = [] if self._whole() else [self.master]
        ready, _, _ = select.select(
            [*waiting, control], [self.master] if self._output else [], [], WATCH_S
        )
        return ready


class UsbPtyPort(PtyPort):
    """A pty for the chip's USB port.

    The USB port is open while a host program has the pty open, and has the baud rate that this
    program has set.
    """

    def __init__(self) -> None:
        super().__init__()
        os.close(self._slave)
        self._poll = select.poll()
        self._poll.register(self.master, 0)  # no event is requested, as poll always reports POLLHUP

    def _hung_up(self) -> bool:
        return any(event & select.POLLHUP for _, event in self._poll.poll(0))

    @property
    def line(self) -> tuple[bool, int]:
        """Return (is the port open, baud rate). It counts as open while it has input."""
        baud = BAUDS.get(termios.tcgetattr(self.master)[5], 9600)
        return bool(self._input) or not self._hung_up(), baud

    def pull(self) -> None:
        try:
            super().pull()
        except OSError:  # the host has closed the pty, and no input is left
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
