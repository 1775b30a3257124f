"""The errors that a user may meet, each with its exit code.

A message states what happened, where, and what to try. The command line prints the message and
exits with `exit_code`. An exception that is not a PoetError is a defect of this program.
"""

import json
import re
from collections.abc import Sequence

QUOTED_CHARACTERS = 60  # length limit of a quotation from a file in a message
_REASON_CHARACTERS = 200
_WORD_CHARACTERS = 256  # length limit of a word without quotes, such as a path
_LINE_CHARACTERS = 1500


def quoted(value: object) -> str:
    """Return a value from a file as one line for a message, with quotes if it is text.

    A long value is shortened to about QUOTED_CHARACTERS.
    """
    if isinstance(value, str):
        text = shortened(value)
        return json.dumps(text, ensure_ascii=not text.isprintable())
    try:
        return shortened(repr(value))
    except ValueError:  # Python cannot write a whole number of more than 4,300 digits
        return "a number of thousands of digits"


def named(name: str) -> str:
    """Return a name from a file unchanged, or quoted if it is long, empty or not printable."""
    plain = name.isprintable() and 0 < len(name) <= QUOTED_CHARACTERS
    return name if plain else quoted(name)


def listed(names: Sequence[str], most: int = 6) -> str:
    """Return a text with the first `most` names, and the number of the remaining names."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(named(name) for name in names[:most]) + more


def reason(error: Exception) -> str:
    """Return the message of another package's error as one line."""
    return shortened(" ".join(str(error).split()), _REASON_CHARACTERS)


def shortened(text: str, limit: int = QUOTED_CHARACTERS) -> str:
    """Return the text. If the text is longer than `limit`, leave out its middle."""
    half = (limit - 3) // 2
    return text if len(text) <= limit else f"{text[:half]}...{text[-half:]}"


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def _bounded(message: str) -> str:
    """Shorten the long words and lines of a message, so that long names do not fill the screen."""
    words = re.sub(rf"\S{{{_WORD_CHARACTERS},}}", lambda word: shortened(word[0]), message)
    return "\n".join(shortened(line, _LINE_CHARACTERS) for line in _printable(words).split("\n"))


class PoetError(Exception):
    """Base class of the errors. PoetError itself means that the input is not the cause."""

    exit_code = 1

    def __init__(self, message: str = "") -> None:
        super().__init__(_bounded(message))


class BadInput(PoetError):
    """Wrong usage, or a file, name or number that breaks a rule."""

    exit_code = 2


class PoetWarning(UserWarning):
    """A warning that the user should see at once, although nothing has failed."""


class NoDevice(PoetError):
    """The port does not exist, cannot be opened, or no board answers on it."""

    exit_code = 3


class LinkBroken(PoetError):
    """The board answered before, but no longer answers, or its answer is invalid."""

    exit_code = 4


class Infeasible(PoetError):
    """No plan exists within the limits.

    `smallest_ram_bytes`: the smallest RAM budget known to suffice, or None if none is known.
    """

    exit_code = 5

    def __init__(self, message: str, smallest_ram_bytes: int | None = None) -> None:
        super().__init__(message)
        self.smallest_ram_bytes = smallest_ram_bytes


class OutOfTime(PoetError):
    """No plan was found within the time limit. It is not proved that no plan exists."""

    exit_code = 7


class BoardError(PoetError):
    """The board refused a request. `name` is the error's name in wire.def.

    If the schedule or the storage does not fit the board, the exit code is that of BadInput.
    """

    UNFIT = frozenset(
        {
            "no_storage", "foreign_storage", "storage_small", "storage_version", "arena_small",
            "table_small", "bad_magic", "bad_version", "bad_fingerprint", "bad_crc",
            "no_kernel",
        }
    )  # fmt: skip

    def __init__(self, message: str, name: str, detail: int = 0) -> None:
        super().__init__(message)
        self.name = name
        self.detail = detail
        self.exit_code = BadInput.exit_code if name in self.UNFIT else PoetError.exit_code
