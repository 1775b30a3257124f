"""Ctrl-C and SIGTERM, where something is to be ended well."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from .console import say

INTERRUPTED = 128 + signal.SIGINT  # what shells use for a command that Ctrl-C ended


@contextmanager
def interrupts(message: str) -> Iterator[Callable[[], int]]:
    """The first Ctrl-C (SIGINT) or SIGTERM asks to stop, the second stops. Yields: which signal
    asked? 0: none."""
    asked = 0
    messages: SimpleQueue[str] = SimpleQueue()

    def ask(number: int, frame: object) -> None:
        nonlocal asked
        if asked and number == signal.SIGTERM:
            sys.exit(128 + number)
        if asked:
            raise KeyboardInterrupt
        asked = number
        messages.put(message)

    def tell() -> None:
        for one in iter(messages.get, ""):
            say(one)

    # In a thread: what the signal interrupts may be printing itself.
    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        messages.put("")
        teller.join()
