"""The other end of a pty, served by a thread."""

import os
import select
import threading
import tty
from typing import Self


class PtyPeer:
    """A context manager. Subclasses set up their state, then call this constructor."""

    def __init__(self) -> None:
        self._master, self._slave = os.openpty()
        tty.setraw(self._slave)
        os.set_blocking(self._master, False)
        self.port = os.ttyname(self._slave)
        self._open = True
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.unplug()

    def unplug(self) -> None:
        """Close both ends, so that the port goes away."""
        if self._open:
            self._open = False
            self._thread.join()
            os.close(self._slave)
            os.close(self._master)

    def say(self, data: bytes) -> None:
        self._pass_to(self._master, data)

    def _pass_to(self, end: int, data: bytes) -> None:
        """Write `data`, as the other program reads it. Give up when the port is unplugged."""
        while data and self._open:
            try:
                data = data[os.write(end, data) :]
            except BlockingIOError:
                select.select([], [end], [], 0.02)

    def _received(self) -> bytes:
        """Return new input, or nothing if there is none for 20 ms."""
        ready = select.select([self._master], [], [], 0.02)[0]
        return os.read(self._master, 4096) if ready else b""

    def _serve(self) -> None:
        """Answer until `_open` is False."""
        raise NotImplementedError
