"""Ctrl-C (SIGINT), SIGTERM and SIGHUP end a command in an orderly way.

If the parent process ignores SIGTERM or SIGHUP, as `nohup` does, they stay ignored. SIGINT always
ends the command. Shells let the background jobs of a script ignore SIGINT, but a user who sends
SIGINT to a job wants it to end. Windows has no SIGHUP.
"""

import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue

from .console import say

SIGHUP = getattr(signal, "SIGHUP", None)
INTERRUPTED = 128 + signal.SIGINT  # exit code


class Ended(SystemExit):
    """A signal ended the command; `exit_code` follows the shells' rule, 128 + number."""

    def __init__(self, number: int) -> None:
        self.exit_code = 128 + number
        super().__init__(self.exit_code)
        self.name = signal.Signals(number).name


def end_by_signals() -> None:
    """Let SIGTERM and SIGHUP raise Ended from now on."""
    for number in _active_signals():
        if number != signal.SIGINT:
            signal.signal(number, _end)


def _end(number: int, frame: object) -> None:
    _leave_terminal(number)
    raise Ended(number)


def _active_signals() -> list[int]:
    """The signals that end a command, without those that its parent process has ignored."""
    return [
        number
        for number in (signal.SIGINT, signal.SIGTERM, SIGHUP)
        if number is not None
        and (number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN)
    ]


@contextmanager
def _handled(handler: Callable[[int, object], object]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in _active_signals()}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextmanager
def keyboard_interrupts() -> Iterator[Callable[[], int]]:
    """Let every signal raise KeyboardInterrupt, for work that then returns its best result.

    Yields a function that returns the number of the signal that came, or 0.
    """
    received = 0

    def interrupt(number: int, frame: object) -> None:
        nonlocal received
        _leave_terminal(number)
        received = received or number
        raise KeyboardInterrupt

    with _handled(interrupt):
        try:
            yield lambda: received
        except KeyboardInterrupt:
            if received in (0, signal.SIGINT):
                raise
            raise Ended(received) from None


@contextmanager
def stop_requests(message: str) -> Iterator[Callable[[], int]]:
    """Let the first SIGINT or SIGTERM print `message` and request a stop, the second stop at once.

    SIGHUP only requests a stop, because shells and the system may send it twice. Yields a function
    that returns the number of the signal that requested the stop, or 0.
    """
    requested = 0
    messages: SimpleQueue[str] = SimpleQueue()

    def request(number: int, frame: object) -> None:
        nonlocal requested
        _leave_terminal(number)
        if requested and number == SIGHUP:
            return
        if requested in (0, SIGHUP):
            requested = number
            messages.put(message)
        elif number == signal.SIGTERM:
            raise Ended(number)
        else:
            raise KeyboardInterrupt

    def print_messages() -> None:
        for text in iter(messages.get, ""):
            say(text)

    # A thread prints, because the signal may interrupt a print, which cannot be entered twice.
    printer = threading.Thread(target=print_messages, daemon=True)
    printer.start()
    try:
        with _handled(request):
            yield lambda: requested
    finally:
        messages.put("")
        printer.join()


def _leave_terminal(number: int) -> None:
    """After SIGHUP, redirect stdout and stderr to /dev/null: the terminal is gone, and a failing
    print would abort the work."""
    if number != SIGHUP:
        return
    null = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):
        with suppress(OSError):  # raised if the output is closed
            if stat.S_ISCHR(os.fstat(output).st_mode):
                os.dup2(null, output)
    os.close(null)
