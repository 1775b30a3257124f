"""The clock of searches: that of the computer, or counted work.

A search that the computer's clock ends finds another plan on a busy computer. Counted work has no
such limit: each part of a search adds what it has done (iterations of HiGHS, statements put in
order, blocks placed). So equal input gives equal plans on every computer.

Work is counted in seconds too: those that it takes on an idle computer, roughly.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

UNITS_PER_S = 1000  # units of `solve --work-limit` in a second of counted work

_counted_s: ContextVar[float | None] = ContextVar("counted_s", default=None)


def now_s() -> float:
    """Return the time on the clock of searches, in seconds. Its zero has no meaning."""
    counted_s = _counted_s.get()
    return time.monotonic() if counted_s is None else counted_s


def counted_s() -> float | None:
    """Return the work counted so far, in seconds; None if the computer's clock limits searches."""
    return _counted_s.get()


def add(work_s: float) -> None:
    """Count work. It has no effect if the computer's clock limits searches."""
    counted = _counted_s.get()
    if counted is not None:
        _counted_s.set(counted + work_s)


def move_to(work_s: float | None) -> None:
    """Set the counted work to what another process has counted; None changes nothing."""
    if work_s is not None:
        _counted_s.set(work_s)


@contextmanager
def counting(wanted: bool = True, from_s: float = 0.0) -> Iterator[None]:
    """Limit searches inside the block by counted work. Inside another such block, go on with it."""
    if not wanted or _counted_s.get() is not None:
        yield
        return
    token = _counted_s.set(from_s)
    try:
        yield
    finally:
        _counted_s.reset(token)
