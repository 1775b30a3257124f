"""Handlers of the signals that end a command: SIGINT (Ctrl-C), SIGTERM and SIGHUP."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SIGHUP = getattr(signal, "SIGHUP", None)  # Windows has no SIGHUP


def active_signals() -> list[int]:
    """Return the signals that end a command: SIGINT, and others that the parent does not ignore."""
    return [
        number
        for number in (signal.SIGINT, signal.SIGTERM, SIGHUP)
        if number is not None
        and (number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN)
    ]


@contextmanager
def handled(handler: Callable[[int, object], object]) -> Iterator[None]:
    """Let `handler` handle all active signals until the end of the `with` block."""
    before = {
        number: signal.signal(number, handler)
        for number in active_signals()
        if signal.getsignal(number) is not None  # a handler of C code could not be restored
    }
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextmanager
def delayed_signals() -> Iterator[None]:
    """Delay signal handlers to the end of the `with` block, in which processes are started.

    If a handler raised an exception while a process starts, nothing would end that process.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield  # nothing to delay: Python runs signal handlers only in the main thread
        return
    try:
        with handled(lambda number, frame: received.append(number)):
            yield
    finally:
        for number in received[:1]:
            signal.raise_signal(number)
