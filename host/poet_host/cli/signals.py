"""Ctrl-C (SIGINT), SIGTERM and SIGHUP end a command in an orderly way.

If the parent process ignores SIGTERM or SIGHUP, as `nohup` does, these signals stay ignored. SIGINT
always ends the command. Shells let the background jobs of a script ignore SIGINT, but a user who
sends SIGINT to such a job wants to end the job.
"""

import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue

from ..handlers import SIGHUP, active_signals, handled
from .console import say

INTERRUPTED = 128 + signal.SIGINT  # exit code


class Ended(SystemExit):
    """A signal has ended the command. `exit_code` is 128 + the signal's number, as in shells."""

    def __init__(self, number: int) -> None:
        self.exit_code = 128 + number
        super().__init__(self.exit_code)
        self.name = signal.Signals(number).name


def end_by_signals() -> None:
    """Make SIGTERM and SIGHUP raise Ended from now on."""
    for number in active_signals():
        if number != signal.SIGINT:
            signal.signal(number, _end)


def _end(number: int, frame: object) -> None:
    _leave_terminal(number)
    raise Ended(number)


@contextmanager
def keyboard_interrupts() -> Iterator[Callable[[], int]]:
    """Make SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt, so that a search can end early.

    Yields a function that returns the number of the received signal, or 0 if there was none.
    """
    received = 0

    def interrupt(number: int, frame: object) -> None:
        nonlocal received
        _leave_terminal(number)
        received = received or number
        raise KeyboardInterrupt

    with handled(interrupt):
        try:
            yield lambda: received
        except KeyboardInterrupt:
            if received in (0, signal.SIGINT):
                raise
            raise Ended(received) from None


@contextmanager
def stop_requests(message: str) -> Iterator[Callable[[], int]]:
    """Let a first SIGINT or SIGTERM request a stop, and let a second one stop the work at once.

    The first signal also prints `message`. SIGHUP only requests a stop, because shells and the
    system may send it twice. Yields a function that returns the number of the signal that requested
    the stop, or 0 if there was none.
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

    # A thread prints the message, because the signal may have interrupted another print.
    # A second print must not begin inside the first print.
    printer = threading.Thread(target=print_messages, daemon=True)
    printer.start()
    try:
        with handled(request):
            yield lambda: requested
    finally:
        messages.put("")
        printer.join()


def _leave_terminal(number: int) -> None:
    """After SIGHUP, redirect stdout and stderr to /dev/null.

    The terminal no longer exists, so a print to it would fail and abort the work.
    """
    if number != SIGHUP:
        return
    null = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):
        with suppress(OSError):  # raised if this output stream is closed
            if stat.S_ISCHR(os.fstat(output).st_mode):
                os.dup2(null, output)
    os.close(null)
