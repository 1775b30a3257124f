"""A base class for objects that must be closed after use."""

from typing import Self


class Closing:
    """A context manager that calls `close` at the end of its `with` block."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, _error: BaseException | None, _trace: object) -> None:
        self.close()
