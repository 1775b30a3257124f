"""Keep other packages' code from printing."""

import ctypes
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress

_STDOUT, _STDERR = 1, 2  # file descriptors
_C_LIBRARY = "ucrtbase" if os.name == "nt" else None  # None: that of this process


@contextmanager
def silence() -> Iterator[None]:
    """Discard all that this process prints, warns of or logs.

    C++ code prints without Python's streams, so the file descriptors are redirected too.
    """
    with ExitStack() as stack:
        for descriptor in (_STDOUT, _STDERR):
            stack.enter_context(_discarded(descriptor))
        stack.enter_context(redirect_stdout(io.StringIO()))
        stack.enter_context(redirect_stderr(io.StringIO()))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(sys.maxsize)
        yield


@contextmanager
def _discarded(descriptor: int) -> Iterator[None]:
    """Redirect a file descriptor to /dev/null, unless it is closed."""
    try:
        kept = os.dup(descriptor)
    except OSError:
        yield
        return
    null = os.open(os.devnull, os.O_WRONLY)
    _flush()  # what was printed before is not discarded
    os.dup2(null, descriptor)
    os.close(null)
    try:
        yield
    finally:
        _flush()
        os.dup2(kept, descriptor)
        os.close(kept)


def _flush() -> None:
    """Write out what the streams of Python and of C have in their buffers."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with suppress(AttributeError, OSError, ValueError):  # no stream, or a closed one
            stream.flush()  # type: ignore[union-attr]
    ctypes.CDLL(_C_LIBRARY).fflush(None)
