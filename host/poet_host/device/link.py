"""A serial link that sends frames to a board. It repeats a request until the reply arrives."""

import errno
import os
import re
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Any
from urllib.parse import urlsplit

import serial

from ..closing import Closing
from ..errors import LinkBroken, NoDevice, PoetError
from .board import names
from .ports import permission_advice, serial_ports
from .wire import REPLY, WireError, frame, unframe

BAUD_RATE = 1_000_000  # baud rate of the firmware's UART; a pty and USB ignore it
PTY_BAUD_RATE = 115_200  # for a pty of macOS, which refuses rates that termios does not know
STARTED_HERE = ("native", "auto", *(f"sim:{name}" for name in names()))
POLL_S = 0.05  # longest time that one read of the port blocks
LONGEST_PAUSE_S = 10.0  # longest pause between two pings
TOKEN_WAIT_S = 5.0  # longest wait for the answer to a token: another host may delay it
TOKEN_VARIABLE = "POET_TOKEN"
_ADMITTED, _REFUSED = b"poet yes\n", b"poet no\n"  # answers to a token (port/native/serial.c)
MAX_GARBAGE = 1 << 17  # more bytes than this without a zero, which ends a frame, are dropped


class Link(Closing):
    """One open port to a board, for one request at a time.

    A reply belongs to the request with the same sequence number and code.

    `port`: a serial port, or a URL of pyserial. A board at a socket asks for a token, which stands
    in the URL (socket://TOKEN@host:port) or in the variable POET_TOKEN of the environment.
    `timeout_s`: time to wait for a reply before the request is sent again. `patience_s`: longest
    time without a reply. A board is silent while a kernel runs, so slow and simulated boards need
    more time. Errors are NoDevice before the first answer of the board, and LinkBroken after it.
    """

    def __init__(self, port: str, *, timeout_s: float = 1.0, patience_s: float = 60.0) -> None:
        self.port, token = _without_token(port)
        self.timeout_s = timeout_s
        self.patience_s = patience_s
        self.answered = False
        self.resent = 0  # number of repeated requests: a measure of the link's quality
        self._sequence = 0
        self._received = bytearray()
        self._frames: deque[bytes] = deque()
        self._long: tuple[int, int] | None = None  # (sequence, code) that request_long awaits
        self._early: bytes | None = None  # reply to request_long that came during another request
        self._foreign_bytes = 0
        self._serial = _open(self.port, patience_s)
        if token:
            self._present(token)

    def close(self) -> None:
        self._serial.close()

    def _present(self, token: str) -> None:
        """Send the token to a board at a socket. Raises NoDevice if the board refuses the token."""
        answer = b""
        give_up = time.monotonic() + TOKEN_WAIT_S
        try:
            self._serial.write(b"poet " + os.fsencode(token) + b"\n")
            while not answer.endswith(b"\n") and time.monotonic() < give_up:
                answer += self._serial.read(1)
        except (OSError, serial.SerialException):
            pass  # the board has hung up
        if answer == _ADMITTED:
            return
        self.close()
        if answer == _REFUSED:
            raise self._refused("has another token")
        raise NoDevice(
            f"the board at {self.port} did not answer after the token was sent. If another program "
            "uses the board, end that program and try again. Otherwise check the port number"
        )

    def _refused(self, why: str) -> NoDevice:
        return NoDevice(
            f"the board at {self.port} {why}: use the URL that it printed at its start, "
            f"socket://TOKEN@host:port, or set {TOKEN_VARIABLE}"
        )

    def request(
        self,
        code: int,
        payload: bytes,
        patience_s: float | None = None,
        expected_s: float = 0.0,
    ) -> bytes:
        """Send a request, repeat it until its reply arrives, and return the reply's payload.

        `expected_s`: time that the board may need for it, in addition to the other times.
        """
        patience_s = (self.patience_s if patience_s is None else patience_s) + expected_s
        awaited = (self._next_sequence(), code | REPLY)
        give_up = time.monotonic() + patience_s
        pause_s = self.timeout_s + expected_s
        while True:
            self._send(awaited[0], code, payload)
            reply = self._reply(awaited, None, min(time.monotonic() + pause_s, give_up))
            if reply is not None:
                return reply[1]
            if time.monotonic() >= give_up:
                raise self._silence(patience_s)
            self.resent += 1
            pause_s *= 2

    def request_long(
        self,
        code: int,
        payload: bytes,
        ping: int,
        is_running: Callable[[bytes], bool],
        meanwhile: Callable[[], None] | None = None,
    ) -> bytes:
        """Send a request that takes the board a long time; return the payload of the reply.

        `ping`: code of a request without fields, which the board answers during this time.
        `is_running` reads the reply to a ping. If `is_running` returns False, the request or its
        reply was lost, and the request is sent again, for `patience_s` at most. `meanwhile` is
        called once, after the first ping reply that reports the work as running, and may send other
        requests.
        """
        awaited = self._long = (self._next_sequence(), code | REPLY)
        self._early = None
        # Send a ping together with the request: a busy simulated board receives new input late.
        self._send(awaited[0], code, payload, *([ping] if meanwhile else []))
        last_reply = last_running = time.monotonic()
        pause_s = self.timeout_s
        while True:
            if self._early is not None:
                return self._early
            reply = self._reply(awaited, ping | REPLY, time.monotonic() + pause_s)
            now = time.monotonic()
            if reply is None:
                if now - last_reply > self.patience_s:
                    raise self._silence(self.patience_s)
                self._send(0, ping, b"")
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                continue
            last_reply = now
            if reply[0] == awaited[1]:
                return reply[1]
            if not is_running(reply[1]):
                if now - last_running > self.patience_s:
                    raise LinkBroken(
                        f"the board at {self.port} says for {self.patience_s:g} s that no step "
                        "runs, but does not answer the request of a step: flash the firmware of "
                        "this version"
                    )
                self.resent += 1
                self._send(awaited[0], code, payload)
                continue
            if meanwhile:
                meanwhile()
                meanwhile = None
            last_reply = last_running = time.monotonic()

    def _next_sequence(self) -> int:
        """Return the next sequence number: 1 to 255, then 1 again.

        Pings have the number 0, because their code identifies the reply.
        """
        self._sequence = self._sequence % 255 + 1
        return self._sequence

    def _send(self, sequence: int, code: int, payload: bytes, *pings: int) -> None:
        # The leading zero ends any frame of which the board has received only the beginning.
        frames = [frame(sequence, code, payload), *(frame(0, ping, b"") for ping in pings)]
        try:
            self._serial.write(b"\0" + b"".join(frames))
        except (OSError, serial.SerialException) as error:
            raise self._broken(error) from error

    def _reply(
        self, awaited: tuple[int, int], ping: int | None, until: float
    ) -> tuple[int, bytes] | None:
        """Return code and payload of the next reply to a request or to a ping.

        `awaited`: sequence number and code of the reply to the request. `ping`: code of the reply
        to a ping. Returns None if neither reply arrives in time. If the board has answered before,
        also returns None after a damaged frame, because that frame may have been the reply.
        """
        for raw in self._frames_until(until):
            try:
                sequence, code, payload = unframe(raw)
            except WireError:
                self._foreign_bytes += len(raw)
                if self.answered:
                    return None
                continue
            if (sequence, code) == awaited or code == ping:
                self.answered = True
                return code, payload
            if (sequence, code) == self._long:
                self._early = payload
            if not self.answered:  # not a board's frame: perhaps an echo of the request
                self._foreign_bytes += len(raw)
        return None

    def _frames_until(self, until: float) -> Iterator[bytes]:
        """Yield frames (the bytes between two zeros). End with what has arrived at `until`."""
        is_late = False
        while True:
            while self._frames:
                yield self._frames.popleft()
            if is_late:
                return
            try:
                data = self._serial.read(max(1, self._serial.in_waiting))
            except (OSError, serial.SerialException) as error:
                raise self._broken(error) from error
            is_late = time.monotonic() >= until
            first, *others = data.split(b"\0")
            self._received += first
            for part in others:  # a zero ended the bytes before each of these
                if self._received:
                    self._frames.append(bytes(self._received))
                self._received = bytearray(part)
            if len(self._received) > MAX_GARBAGE:
                self._foreign_bytes += len(self._received)
                self._received.clear()

    def _silence(self, patience_s: float) -> PoetError:
        if self.answered:
            return LinkBroken(
                f"the board at {self.port} has not answered for {patience_s:g} s: check power and "
                "cable, then run again. The last committed step is kept"
            )
        foreign = self._foreign_bytes + len(self._received)
        what = f"something else answers there ({foreign} bytes that are not frames)"
        return NoDevice(
            f"{self.port} is open, but {what if foreign else 'nothing answers there'}: name the "
            "port of a board that runs poet's firmware (`poet-host flash` writes it)"
        )

    def _broken(self, error: Exception) -> PoetError:
        if self.answered:
            return LinkBroken(
                f"the board at {self.port} went away ({error}): plug it in and run again. The "
                "last committed step is kept"
            )
        if _REFUSED in self._received:
            return self._refused("asks for a token")
        return NoDevice(f"{self.port} went away before a board answered ({error})")


def _without_token(port: str) -> tuple[str, str]:
    """Return the port without its token, and the token. Only the URL of a socket has a token."""
    scheme, _, rest = port.partition("://")
    if scheme != "socket":
        return port, ""
    token, _, where = rest.rpartition("@")
    return f"socket://{where}", token or os.environ.get(TOKEN_VARIABLE, "").strip()


def _open(port: str, patience_s: float) -> Any:
    if port.startswith("socket://") and not _socket_number(port):
        raise NoDevice(f"{port} has no valid port number: use 1 to 65535, as in socket://host:4000")
    # Lock the port, so that no second program reads the replies. A URL cannot be locked.
    exclusive = None if "://" in port else True
    options = {"timeout": POLL_S, "write_timeout": patience_s, "exclusive": exclusive}
    try:
        try:
            opened = serial.serial_for_url(port, BAUD_RATE, **options)
        except OSError as error:
            if error.errno != errno.ENOTTY:
                raise
            opened = serial.serial_for_url(port, PTY_BAUD_RATE, **options)
        opened.reset_input_buffer()
    except (ValueError, LookupError, re.error) as error:  # handlers of URLs raise the others
        raise NoDevice(f"{port} is not a serial port ({error}): name another port") from error
    except (OSError, serial.SerialException) as error:
        raise _no_port(port, error) from error
    return opened


def _socket_number(port: str) -> int | None:
    try:
        return urlsplit(port).port
    except ValueError:
        return None


def _no_port(port: str, error: Exception) -> NoDevice:
    number = getattr(error, "errno", None)
    if number == errno.EACCES:
        return NoDevice(permission_advice(port))
    # On Windows, pyserial passes no error number, and only one program can open a port.
    in_use = any(text in str(error) for text in ("exclusively lock", "PermissionError(13"))
    if number in (errno.EAGAIN, errno.EBUSY) or in_use:
        return NoDevice(f"{port} is in use by another program: close it and run again")
    if "://" in port:
        return NoDevice(f"{port} cannot be reached {_why(error)}")
    if number == errno.ENOENT or "FileNotFoundError(2" in str(error):
        there = ", ".join(sorted(found.path for found in serial_ports())) or "none"
        meant = get_close_matches(port.lower(), STARTED_HERE, n=1, cutoff=0.7)
        if meant:
            return NoDevice(f"there is no port {port}: did you mean {meant[0]}?")
        return NoDevice(f"there is no port {port} (serial ports here: {there}): plug the board in")
    return NoDevice(f"{port} cannot be opened as a serial port ({error}): name another port")


def _why(error: BaseException) -> str:
    """Return the operating system's message for an error, and advice. Omit pyserial's text."""
    while error.__context__ is not None:
        error = error.__context__
    advice = "check address and network"
    if isinstance(error, socket.gaierror):
        advice = "check the name of the computer"
    elif isinstance(error, ConnectionRefusedError):
        advice = "start the board there, or check the port's number"
    return f"({(getattr(error, 'strerror', None) or str(error)).lower()}): {advice}"


def candidate_ports() -> list[str]:
    """Return the serial ports of this computer. Ports with poet's firmware come first."""
    return [port.path for port in serial_ports()]
