"""A base class for objects that own something to close."""

from typing import Self


class Closing:
    """A context manager whose end calls `close`."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, _error: BaseException | None, _trace: object) -> None:
        self.close()
