"""The errors a user may meet, each with its exit code.

A message says what happened, where, and what to try. The command line prints
it as one sentence and exits with `exit_code`; anything that is not a PoetError
is a defect of this program.
"""


class PoetError(Exception):
    """Something failed that is not the user's input (exit code 1)."""

    exit_code = 1


class BadInput(PoetError):
    """Wrong usage, or a file, name or number that breaks a rule."""

    exit_code = 2


class NoDevice(PoetError):
    """The port does not exist, cannot be opened, or no board answers on it."""

    exit_code = 3


class LinkBroken(PoetError):
    """The board answered before, and does no more."""

    exit_code = 4


class Infeasible(PoetError):
    """No plan exists within the limits; `smallest_ram_bytes` would do, if known."""

    exit_code = 5

    def __init__(self, message: str, smallest_ram_bytes: int | None = None) -> None:
        super().__init__(message)
        self.smallest_ram_bytes = smallest_ram_bytes


class OutOfTime(PoetError):
    """No plan was found within the time limit, and none was proved impossible."""

    exit_code = 7


class BoardError(PoetError):
    """The board refused a request; `name` is the row of wire.def.

    The exit code is that of bad input where schedule or storage do not fit the board.
    """

    UNFIT = frozenset(
        {
            "no_storage", "foreign_storage", "storage_small", "arena_small", "table_small",
            "bad_magic", "bad_version", "bad_fingerprint", "bad_crc",
        }
    )  # fmt: skip

    def __init__(self, message: str, name: str, detail: int = 0) -> None:
        super().__init__(message)
        self.name = name
        self.detail = detail
        self.exit_code = BadInput.exit_code if name in self.UNFIT else PoetError.exit_code
