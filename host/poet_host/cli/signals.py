"""Ctrl-C, SIGTERM and SIGHUP: what was started must be ended well.

Where whoever started the command has it ignore the last two, as `nohup` does, they stay ignored.
Shells have what a script runs in the background ignore SIGINT, but whoever sends it there means it.
Windows has no SIGHUP.
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
INTERRUPTED = 128 + signal.SIGINT  # what shells use for a command that Ctrl-C ended


class Ended(SystemExit):
    """By a signal, `name`; `exit_code` is what shells give it."""

    def __init__(self, number: int) -> None:
        self.exit_code = 128 + number
        super().__init__(self.exit_code)
        self.name = signal.Signals(number).name


def end_by_signals() -> None:
    """From now on SIGTERM and SIGHUP raise Ended."""
    for one in _heeded():
        if one != signal.SIGINT:
            signal.signal(one, _end)


def _end(number: int, frame: object) -> None:
    _leave_terminal(number)
    raise Ended(number)


def _heeded() -> list[int]:
    """The signals that end a command here."""
    return [
        number
        for number in (signal.SIGINT, signal.SIGTERM, SIGHUP)
        if number is not None
        and (number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN)
    ]


@contextmanager
def _handled(handler: Callable[[int, object], object]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in _heeded()}
    try:
        yield
    finally:
        for number, one in before.items():
            signal.signal(number, one)


@contextmanager
def best_so_far() -> Iterator[Callable[[], int]]:
    """For work that ends on KeyboardInterrupt with its best result so far: every signal raises it.
    Yields: which signal came? 0: none."""
    came = 0

    def note(number: int, frame: object) -> None:
        nonlocal came
        _leave_terminal(number)
        came = came or number
        raise KeyboardInterrupt

    with _handled(note):
        try:
            yield lambda: came
        except KeyboardInterrupt:
            if came in (0, signal.SIGINT):
                raise
            raise Ended(came) from None


@contextmanager
def interrupts(message: str) -> Iterator[Callable[[], int]]:
    """The first Ctrl-C (SIGINT) or SIGTERM asks to stop, the second stops. SIGHUP, which shells
    and the system send one after the other, asks. Yields: which signal asked? 0: none."""
    asked = 0
    messages: SimpleQueue[str] = SimpleQueue()

    def ask(number: int, frame: object) -> None:
        nonlocal asked
        _leave_terminal(number)
        if asked and number == SIGHUP:
            return
        if asked in (0, SIGHUP):
            asked = number
            messages.put(message)
        elif number == signal.SIGTERM:
            raise Ended(number)
        else:
            raise KeyboardInterrupt

    def tell() -> None:
        for one in iter(messages.get, ""):
            say(one)

    # In a thread: what the signal interrupts may be printing itself.
    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        with _handled(ask):
            yield lambda: asked
    finally:
        messages.put("")
        teller.join()


def _leave_terminal(number: int) -> None:
    """After SIGHUP it is gone: whatever is printed there would fail, and work with it."""
    if number != SIGHUP:
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):
        with suppress(OSError):  # it may be closed
            if stat.S_ISCHR(os.fstat(output).st_mode):
                os.dup2(nowhere, output)
    os.close(nowhere)
