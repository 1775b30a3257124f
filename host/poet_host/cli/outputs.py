"""stdout and stderr of a command. Their disk may be full, or their reader may have ended."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from ..errors import PoetError


class _Output:
    """A text stream that keeps the first error of a write, and discards all text after it.

    `raises`: True if this error ends the command. It is a PoetError, or BrokenPipeError if nobody
    reads the stream any more.
    """

    def __init__(self, name: str, stream: TextIO | None, *, raises: bool) -> None:
        # Python has no stream if the descriptor was closed, as `>&-` does in a shell.
        self._stream = stream or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        self._name, self._raises = name, raises
        self.failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        if text != "" and not self.failed:  # click tests streams with an empty text
            try:
                return self._stream.write(text)
            except OSError as error:
                self._fail(error)
        return len(text)

    def flush(self) -> None:
        if not self.failed:
            try:
                self._stream.flush()
            except OSError as error:
                self._fail(error)

    def _fail(self, error: OSError) -> None:
        self.failed = True
        with suppress(OSError):  # discard what Python would write again at exit
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)
        if not self._raises:
            return
        if isinstance(error, BrokenPipeError):
            raise error
        raise PoetError(
            f"{self._name} cannot be written ({(error.strerror or str(error)).lower()}): free some "
            "space, or redirect it to another disk"
        ) from error


@contextmanager
def checked_outputs() -> Iterator[list[_Output]]:
    """Yield stdout and stderr, each with `failed`: True if text was lost.

    An error of stdout ends the command. Without stderr, the work continues, which is worth more
    than its messages.
    """
    before = sys.stdout, sys.stderr
    outputs = [
        _Output("stdout", sys.stdout, raises=True),
        _Output("stderr", sys.stderr, raises=False),
    ]
    sys.stdout, sys.stderr = (cast(TextIO, output) for output in outputs)
    try:
        yield outputs
    finally:
        sys.stdout, sys.stderr = before
