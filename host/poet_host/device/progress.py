"""Callbacks that report how much of a transfer or a run is done."""

from collections.abc import Callable

Progress = Callable[[int, int], None]  # arguments: done, total (bytes, steps or samples)


def shifted(progress: Progress | None, before: int, total: int) -> Progress | None:
    """Return a callback that reports one part's progress as progress of the whole transfer.

    `before`: size of the earlier parts. `total`: size of all parts.
    """
    if progress is None:
        return None
    return lambda done, _: progress(before + done, total)
